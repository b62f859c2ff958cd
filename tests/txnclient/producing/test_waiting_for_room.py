"""Sends that wait for room in the buffer: their order, their ends, flushes over them (C3)."""

from __future__ import annotations

import asyncio

import pytest

import txnclient
from tests.segments.virtual_time import virtual_time
from tests.txnclient.producing.small_buffers import SMALL, can_only_abort, go_on, values_of
from tests.txnclient.scripted_server import TOPIC, connected
from tests.waiting import until
from txnclient.producing.buffer import Buffer
from txnclient.producing.producer import producer_impl
from txnclient.producing.room import BufferRoom
from txnclient.transactions.transaction import impl_of


@virtual_time
async def test_c3_sends_of_one_key_keep_their_order_whatever_their_sizes() -> None:
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        producer = await client.producer(TOPIC, **SMALL)
        server.stall_sends = True
        sizes = [800, 100, 700, 10, 900, 20, 2000, 1, 500, 30] * 3
        values = [b"%02d" % n + bytes(size) for n, size in enumerate(sizes)]
        sending = []
        for number, value in enumerate(values):
            bulk = number % 4 == 3
            sending.append(
                asyncio.ensure_future(producer.send_many([("k", value)]) if bulk else producer.send(value, key="k"))
            )
        for _ in range(len(sizes)):
            await asyncio.sleep(0.1)
            server.finish_sends()
            with pytest.raises(txnclient.WouldBlock) as refused:
                producer.send_nowait(b"passes", key="k")
            assert "wait for room" in str(refused.value)
            if len(values_of(cluster)) == len(sizes) - 3:
                break
        go_on(server)
        await asyncio.gather(*sending)
        assert values_of(cluster) == values


@virtual_time
async def test_c3_a_send_that_gives_up_waiting_lets_the_next_one_in() -> None:
    """At once: nothing else may ever be answered that would wake it."""
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        producer = await client.producer(TOPIC, **SMALL)
        server.stall_sends = True
        first = producer.send_nowait(bytes(600), key="k")
        txn = await client.begin()
        large = asyncio.ensure_future(producer.send(bytes(900), key="k", txn=txn))
        await asyncio.sleep(0)
        small = asyncio.ensure_future(producer.send(b"small", key="k"))
        await asyncio.sleep(1.0)
        assert server.seen["send"] == 1
        large.cancel()
        await until(lambda: server.seen["send"] == 2)
        assert not first.done()
        go_on(server)
        await asyncio.gather(first, small)
        assert values_of(cluster)[1:] == [b"small"]
        await can_only_abort(cluster, txn, "a send in it was cancelled")


@virtual_time
async def test_c3_a_send_whose_transaction_aborts_while_it_waits_lets_the_next_one_in() -> None:
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        producer = await client.producer(TOPIC, **SMALL)
        server.stall_sends = True
        first = producer.send_nowait(bytes(600), key="k")
        txn = await client.begin()
        large = asyncio.ensure_future(producer.send(bytes(900), key="k", txn=txn))
        await asyncio.sleep(0)
        small = asyncio.ensure_future(producer.send(b"small", key="k"))
        await asyncio.sleep(1.0)
        assert server.seen["send"] == 1
        await txn.abort()
        await until(lambda: server.seen["send"] == 2)
        assert not first.done()
        go_on(server)
        await asyncio.gather(first, small)
        with pytest.raises(txnclient.InvalidTxnState):
            await large


@virtual_time
async def test_c3_a_send_that_has_waited_too_long_lets_the_next_one_in() -> None:
    async with connected(timeout=5.0) as (_, client):
        buffer = Buffer(client._session, "one", 1000)
        buffer.take(600)
        txn = await client.begin()
        placed: list[str] = []
        large = asyncio.ensure_future(buffer.wait(900, impl_of(txn), lambda: placed.append("large")))
        await asyncio.sleep(3.0)
        small = asyncio.ensure_future(buffer.wait(100, impl_of(txn), lambda: placed.append("small")))
        with pytest.raises(txnclient.Timeout, match="room"):
            await large
        await small
        assert placed == ["small"]
        await txn.commit()  # neither waits any more


@virtual_time
async def test_c1_a_send_that_has_waited_too_long_leaves_its_transaction_only_able_to_abort() -> None:
    async with connected(timeout=5.0) as (cluster, client):
        cluster.servers["broker:1"].stall_sends = True
        producer = await client.producer(TOPIC, **SMALL)
        txn = await client.begin()
        lost = producer.send_nowait(bytes(900), key="k")
        with pytest.raises(txnclient.Timeout, match="room"):
            await producer.send(bytes(900), key="k", txn=txn)
        with pytest.raises(txnclient.Timeout, match="room"):
            await txn.commit()
        assert cluster.states[txn.id] == "ABORTED"
        await asyncio.wait([lost])
        assert isinstance(lost.exception(), txnclient.Timeout)


@virtual_time
async def test_c3_whoever_is_cancelled_as_it_gets_room_takes_none_for_ever() -> None:
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        producer = await client.producer(TOPIC, **SMALL)
        server.stall_sends = True
        first = producer.send_nowait(bytes(900), key="k")
        waiting = [asyncio.ensure_future(producer.send(bytes(900), key="k")) for _ in range(3)]
        await until(lambda: server.seen["send"])
        first.add_done_callback(lambda _: waiting[0].cancel())
        go_on(server)
        await asyncio.gather(*waiting[1:])
        assert waiting[0].cancelled()
        await producer.flush()
        assert producer_impl(producer)._buffer.taken == 0


@virtual_time
async def test_c3_a_fenced_producer_tells_all_that_wait_for_room() -> None:
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        producer = await client.producer(TOPIC, name="one", buffer_bytes=1000)
        await producer.send(b"opens", key="k")
        server.stall_sends = True
        sent = producer.send_nowait(bytes(900), key="k")
        waiting = [asyncio.ensure_future(producer.send(bytes(900), key="k")) for _ in range(3)]
        await until(lambda: server.seen["send"] == 2)
        server.refuse["send"] = [txnclient.ProducerFenced("a newer one has connected")]
        await server.cut()
        for one in (sent, *waiting):
            with pytest.raises(txnclient.ProducerFenced):
                await one


@virtual_time
async def test_a_flush_waits_for_what_waits_for_room() -> None:
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        producer = await client.producer(TOPIC, **SMALL)
        server.stall_sends = True
        waiting = [asyncio.ensure_future(producer.send(bytes(900), key="k")) for _ in range(5)]
        await asyncio.sleep(0)
        with pytest.raises(txnclient.Timeout, match="flushing"):
            await producer.flush(timeout=1.0)
        flushing = asyncio.ensure_future(producer.flush())
        await asyncio.sleep(0)
        go_on(server)
        await flushing
        assert len(values_of(cluster)) == 5
        await asyncio.gather(*waiting)


@virtual_time
async def test_a_flush_raises_what_has_waited_for_room_in_vain() -> None:
    async with connected(timeout=3.0) as (cluster, client):
        server = cluster.servers["broker:1"]
        producer = await client.producer(TOPIC, **SMALL)
        server.stall_sends = True
        first = asyncio.ensure_future(producer.send(bytes(900), key="k"))
        await asyncio.sleep(0)
        waiting = asyncio.ensure_future(producer.send(bytes(900), key="k"))
        await asyncio.sleep(0)
        with pytest.raises(txnclient.Timeout, match="room"):
            await producer.flush(timeout=10.0)
        await asyncio.wait([first, waiting])
        for one in (first, waiting):
            assert isinstance(one.exception(), txnclient.Timeout)


@virtual_time
async def test_a_flush_raises_what_has_waited_for_room_in_vain_where_all_else_is_stored() -> None:
    async with connected(timeout=3.0) as (cluster, client):
        server = cluster.servers["broker:1"]
        producer = await client.producer(TOPIC, **SMALL)
        server.stall_sends = True
        sends = [asyncio.ensure_future(producer.send(bytes(900), key="k")) for _ in range(3)]
        await asyncio.sleep(0)
        flushing = asyncio.ensure_future(producer.flush(timeout=10.0))
        await asyncio.sleep(2.9)
        server.finish_sends()  # the second has its room, and the third no time
        await until(sends[2].done)
        go_on(server)
        with pytest.raises(txnclient.Timeout, match="room"):
            await flushing
        await asyncio.wait(sends)
        assert [one.exception() is None for one in sends] == [True, True, False]


@virtual_time
async def test_a_flush_waits_for_sends_whose_futures_were_cancelled() -> None:
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        producer = await client.producer(TOPIC)
        server.stall_sends = True
        producer.send_nowait(b"x", key="k").cancel()
        with pytest.raises(txnclient.Timeout):
            await producer.flush(timeout=1.0)
        go_on(server)
        await producer.flush()
        assert values_of(cluster) == [b"x"]


# ---- C4: a loss that nobody has been told of ------------------------------------------------------------------------


@virtual_time
async def test_an_abort_looks_at_none_but_its_own_sends_that_wait_for_room(monkeypatch: pytest.MonkeyPatch) -> None:
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        producer = await client.producer(TOPIC, **SMALL)
        server.stall_sends = True
        first = asyncio.gather(*[producer.send_nowait(bytes(400), key="k") for _ in range(2)])
        txns = [await client.begin() for _ in range(3)]
        doomed = [asyncio.ensure_future(producer.send(bytes(400), key="k", txn=txn)) for txn in txns]
        other = asyncio.ensure_future(producer.send(b"other", key="k"))
        await asyncio.sleep(0.1)
        with monkeypatch.context() as patched:
            patched.delattr(BufferRoom, "waiting")
            await txns[1].abort()
        assert [one.done() for one in doomed] == [False, True, False]
        await asyncio.gather(txns[0].abort(), txns[2].abort())
        assert all(isinstance(one.exception(), txnclient.InvalidTxnState) for one in doomed)
        go_on(server)
        await asyncio.gather(first, other)
        assert producer_impl(producer)._buffer._asks == {}


@virtual_time
async def test_very_many_sends_get_their_room_some_at_a_time_and_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("txnclient.producing.buffer.GIVEN_AT_ONCE", 3)
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        producer = await client.producer(TOPIC, **SMALL)
        server.stall_sends = True
        first = producer.send_nowait(bytes(900), key="k")
        values = [str(number).encode() for number in range(20)]
        waiting = [asyncio.ensure_future(producer.send(value, key="k")) for value in values]
        await asyncio.sleep(0.1)
        room, given = producer_impl(producer)._buffer._room, list[int]()
        give = producer_impl(producer)._buffer._give

        def counted() -> None:
            before = len(room)
            give()
            given.append(before - len(room))
            if len(room):
                with pytest.raises(txnclient.WouldBlock):
                    producer.send_nowait(b"past them", key="k")

        with monkeypatch.context() as patched:
            patched.setattr(producer_impl(producer)._buffer, "_give", counted)
            go_on(server)
            await asyncio.gather(first, *waiting)
        assert max(given) == 3
        assert values_of(cluster)[1:] == values
