"""Sends that are cancelled, time out, raise, wait for room or are not looked at (scenarios C1 to C4)."""

from __future__ import annotations

import asyncio
import gc
import traceback
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

import txnclient
from tests.segments.virtual_time import virtual_time
from tests.txnclient.scripted_server import TOPIC, Cluster, ScriptedServer, connected
from tests.waiting import until
from txnclient.options import ProducerOptions
from txnclient.producing.batches import BulkBatch
from txnclient.producing.buffer import Buffer
from txnclient.producing.bulk import PART_MESSAGES, BulkPart
from txnclient.producing.large_values import PIECE_BYTES
from txnclient.producing.outbox import EntryOutbox
from txnclient.producing.producer import producer_impl
from txnclient.producing.room import BufferRoom
from txnclient.producing.untold import MOST_KEPT
from txnclient.transactions.transaction import impl_of
from txnclient.transactions.whole import Whole
from txnwire.errors import StoreFull
from txnwire.protocol import MAX_VALUE_BYTES

SMALL: ProducerOptions = {"buffer_bytes": 1000, "batch_bytes": 1000, "compression": None}
"""Of a producer whose buffer holds two values of 400 bytes."""


def _go_on(server: ScriptedServer) -> None:
    server.stall_sends = False
    server.finish_sends()


def _values(cluster: Cluster, key: bytes = b"k") -> list[bytes]:
    return cluster.values_by_key().get(key, [])


async def _can_only_abort(cluster: Cluster, txn: txnclient.Transaction, match: str = "can only abort") -> None:
    with pytest.raises(txnclient.InvalidTxnState, match=match):
        await txn.commit()
    assert cluster.states[txn.id] == "ABORTED"


# ---- C1: what does not succeed leaves its transaction only able to abort --------------------------------------------


async def _wait_for(sending: Awaitable[object]) -> None:
    await asyncio.wait_for(sending, 1.0)


async def _timeout(sending: Awaitable[object]) -> None:
    async with asyncio.timeout(1.0):
        await sending


@pytest.mark.parametrize("limited", [_wait_for, _timeout])
@virtual_time
async def test_c1_a_bulk_send_that_runs_out_of_time_leaves_its_transaction_only_able_to_abort(
    limited: Callable[[Awaitable[object]], Awaitable[None]],
) -> None:
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        producer = await client.producer(TOPIC, **SMALL)
        server.stall_sends = True
        txn = await client.begin()
        with pytest.raises(TimeoutError):
            await limited(producer.send_many([("k", bytes(400))] * 20, txn=txn))
        _go_on(server)
        await _can_only_abort(cluster, txn, "bulk send in it was cancelled")


@pytest.mark.parametrize("turns", range(6))
@virtual_time
async def test_c1_a_bulk_send_may_be_cancelled_at_any_turn(turns: int) -> None:
    async with connected() as (cluster, client):
        producer = await client.producer(TOPIC)
        await producer.send(b"opens", key="k")
        txn = await client.begin()
        sending = asyncio.ensure_future(producer.send_many([("k", b"x")] * 3 * PART_MESSAGES, txn=txn))
        for _ in range(turns + 1):
            await asyncio.sleep(0)
        assert not sending.done()
        sending.cancel()
        await asyncio.wait([sending])
        await _can_only_abort(cluster, txn)


@pytest.mark.parametrize("error", [ValueError, txnclient.Timeout, GeneratorExit, KeyboardInterrupt])
@pytest.mark.parametrize("before", [0, 2000])
@virtual_time
async def test_c1_an_iterator_that_raises_leaves_its_transaction_only_able_to_abort(
    error: type[BaseException], before: int
) -> None:
    async with connected() as (cluster, client):
        producer = await client.producer(TOPIC)

        def messages() -> Iterator[tuple[str, bytes]]:
            for _ in range(before):
                yield ("k", b"x")
            raise error("broken")

        txn = await client.begin()
        with pytest.raises(error, match="broken"):
            await producer.send_many(messages(), txn=txn)
        with pytest.raises(txnclient.TxnError, match="broken"):
            await txn.commit()
        assert cluster.states[txn.id] == "ABORTED"


@virtual_time
async def test_nothing_is_pulled_any_more_once_a_part_has_failed() -> None:
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        producer = await client.producer(TOPIC, **SMALL)
        await producer.send(b"opens", key="k")
        server.refuse["send"] = [StoreFull("full")]
        pulled = 0

        def messages() -> Iterator[tuple[str, bytes]]:
            nonlocal pulled
            for _ in range(100_000):
                pulled += 1
                yield ("k", bytes(400))

        with pytest.raises(StoreFull):
            await producer.send_many(messages())
        assert pulled < 50_000


@virtual_time
async def test_c1_a_send_that_is_cancelled_leaves_its_transaction_only_able_to_abort() -> None:
    """Whoever cancels it may send the same again: then it would count twice."""
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        producer = await client.producer(TOPIC)
        for cancelled_future in (False, True):
            server.stall_sends = True
            seen = server.seen["send"]
            txn = await client.begin()
            if cancelled_future:
                sending: asyncio.Future[object] = producer.send_nowait(b"x", key="k", txn=txn)  # type: ignore[assignment]
            else:
                sending = asyncio.ensure_future(producer.send(b"x", key="k", txn=txn))
            await until(lambda seen=seen: server.seen["send"] > seen)  # type: ignore[misc]
            sending.cancel()
            await asyncio.wait([sending])
            _go_on(server)
            await _can_only_abort(cluster, txn, "a send in it was cancelled")


@virtual_time
async def test_c1_a_send_that_is_cancelled_as_it_is_answered_leaves_its_transaction_only_able_to_abort() -> None:
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        producer = await client.producer(TOPIC)
        txn = await client.begin()
        server.stall_sends = True
        sending = asyncio.ensure_future(producer.send(b"x", key="k", txn=txn))
        await until(lambda: server.seen["send"])
        behind = producer.send_nowait(b"y", key="k", txn=txn)
        behind.add_done_callback(lambda _: sending.cancel())
        _go_on(server)
        await asyncio.wait([sending])
        if sending.cancelled():
            await _can_only_abort(cluster, txn)


@virtual_time
async def test_a_refused_call_does_nothing_to_its_transaction() -> None:
    """It says at once that nothing was taken in."""
    async with connected() as (cluster, client):
        producer = await client.producer(TOPIC, **SMALL)
        cluster.servers["broker:1"].stall_sends = True
        async with client.transaction() as txn:
            sent = [producer.send_nowait(bytes(400), key="k", txn=txn) for _ in range(2)]
            with pytest.raises(txnclient.WouldBlock):
                producer.send_nowait(bytes(400), key="k", txn=txn)
            with pytest.raises(txnclient.InvalidArgument):
                await producer.send("text", key="k", txn=txn)  # type: ignore[arg-type]
            _go_on(cluster.servers["broker:1"])
            await asyncio.gather(*sent)
        assert cluster.states[txn.id] == "COMMITTED"


# ---- C2: a send belongs to its transaction from the call on ---------------------------------------------------------


@virtual_time
async def test_c2_a_commit_waits_for_sends_that_wait_for_room() -> None:
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        producer = await client.producer(TOPIC, buffer_bytes=1000, batch_bytes=1000, linger_ms=3_600_000)
        server.stall_sends = True
        txn = await client.begin()
        sending = [asyncio.ensure_future(producer.send(b"%03d" % n + bytes(300), key="k", txn=txn)) for n in range(50)]
        await asyncio.sleep(0)
        committing = asyncio.ensure_future(txn.commit())
        await until(lambda: server.seen["send"])
        assert not server.seen["end_txn"]
        _go_on(server)
        await committing
        await asyncio.gather(*sending)
        assert [value[:3] for value in _values(cluster)] == [b"%03d" % n for n in range(50)]


@virtual_time
async def test_c2_a_commit_waits_for_sends_that_wait_for_the_room_of_others() -> None:
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        producer = await client.producer(TOPIC, **SMALL)
        server.stall_sends = True
        others = asyncio.gather(*[producer.send_nowait(bytes(400), key="k") for _ in range(2)])
        txn = await client.begin()
        waiting = [asyncio.ensure_future(producer.send(b"%d" % n + bytes(400), key="k", txn=txn)) for n in range(5)]
        await asyncio.sleep(0)
        committing = asyncio.ensure_future(txn.commit())
        await asyncio.sleep(1.0)
        assert not server.seen["end_txn"]
        _go_on(server)
        await asyncio.gather(others, committing, *waiting)
        assert [value[:1] for value in _values(cluster)[2:]] == [b"%d" % n for n in range(5)]


@virtual_time
async def test_c2_a_commit_waits_for_a_bulk_send_between_two_parts() -> None:
    """The caller may take long to give the next one, in its own thread."""
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        producer = await client.producer(TOPIC)
        txn = await client.begin()
        values = [b"%d" % n for n in range(3 * PART_MESSAGES)]
        parts = producer_impl(producer).parts([("k", value) for value in values])

        async def pull() -> BulkPart | None:
            await asyncio.sleep(1.0)
            return next(parts, None)

        sending = asyncio.ensure_future(producer_impl(producer).send_pulled(pull, txn=impl_of(txn)))
        await until(lambda: server.seen["send"])
        await txn.commit()
        assert len(await sending) == len(values)
        assert _values(cluster) == values


@virtual_time
async def test_c2_a_commit_gives_up_at_its_deadline_and_asks_again() -> None:
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        producer = await client.producer(TOPIC, **SMALL)
        server.stall_sends = True
        txn = await client.begin()
        sending = asyncio.ensure_future(producer.send_many([("k", bytes(400))] * 9, txn=txn))
        await asyncio.sleep(0)
        with pytest.raises(txnclient.Timeout, match="unanswered"):
            await txn.commit(timeout=2.0)
        assert not server.seen["end_txn"]
        with pytest.raises(txnclient.InvalidTxnState, match="COMMITTING"):
            await producer.send(b"late", key="k", txn=txn)
        _go_on(server)
        await txn.commit()
        assert len(await sending) == len(_values(cluster)) == 9


@virtual_time
async def test_c2_an_abort_ends_all_that_waits_for_room() -> None:
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        producer = await client.producer(TOPIC, **SMALL)
        server.stall_sends = True
        first = asyncio.gather(*[producer.send_nowait(bytes(400), key="k") for _ in range(2)])
        txn = await client.begin()
        doomed = [
            asyncio.ensure_future(producer.send(bytes(400), key="k", txn=txn)),
            asyncio.ensure_future(producer.send_many([("k", bytes(400))] * 5, txn=txn)),
            asyncio.ensure_future(producer.send(bytes(MAX_VALUE_BYTES + 1), key="k", chunk=True, txn=txn)),
        ]
        other = asyncio.ensure_future(producer.send(b"other", key="k"))
        await asyncio.sleep(0.1)
        await txn.abort(timeout=1.0)
        await asyncio.sleep(0)
        for one in doomed:
            assert isinstance(one.exception(), txnclient.InvalidTxnState)
        assert not other.done()
        _go_on(server)
        await asyncio.gather(first, other)
        assert _values(cluster)[2:] == [b"other"]
        assert producer_impl(producer)._buffer.taken == 0


@virtual_time
async def test_an_abort_does_not_wait_for_messages_that_their_sender_has_yet_to_give() -> None:
    async with connected() as (cluster, client):
        txn = await client.begin()
        with Whole(impl_of(txn), "a bulk send"):
            await asyncio.wait_for(txn.abort(), 5.0)
        assert cluster.states[txn.id] == "ABORTED"
        txn = await client.begin()
        with Whole(impl_of(txn), "a bulk send"):
            committing = asyncio.ensure_future(txn.commit())
            await asyncio.sleep(5.0)
            assert not committing.done()
        await committing


@virtual_time
async def test_c2_of_a_writer_that_does_not_count_what_waits_for_room_is_given_up() -> None:
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        producer = await client.producer(TOPIC, **SMALL)
        server.stall_sends = True
        first = asyncio.gather(*[producer.send_nowait(bytes(400), key="k") for _ in range(2)])
        shared = await client.begin(name="job/1")
        waiting = asyncio.ensure_future(producer.send(bytes(400), key="k", txn=shared))
        bulk = asyncio.ensure_future(producer.send_many([("k", bytes(400))], txn=shared))
        await asyncio.sleep(0.1)
        assert (await shared.commit(writers=[])).writers == ()
        for one in (waiting, bulk):
            with pytest.raises(txnclient.InvalidTxnState):
                await one
        _go_on(server)
        await first
        assert _values(cluster)[2:] == []


@virtual_time
async def test_c1_a_failed_writer_of_a_named_transaction_leaves_it_to_the_others() -> None:
    async with connected() as (cluster, client):
        producer = await client.producer(TOPIC)
        shared, other = await client.begin(name="job/1"), await client.begin(name="job/1")
        sending = asyncio.ensure_future(producer.send_many([b"x"] * 3 * PART_MESSAGES, txn=shared))
        await asyncio.sleep(0)
        sending.cancel()
        await asyncio.wait([sending])
        for _ in range(2):
            with pytest.raises(txnclient.InvalidTxnState, match="cancelled"):
                await shared.flush()
            with pytest.raises(txnclient.InvalidTxnState, match="cancelled"):
                await shared.commit()
        await other.commit(writers=[other.writer_id])
        assert cluster.states[shared.id] == "COMMITTED"


# ---- C3: sends of one key keep the order of their calls -------------------------------------------------------------


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
            if len(_values(cluster)) == len(sizes) - 3:
                break
        _go_on(server)
        await asyncio.gather(*sending)
        assert _values(cluster) == values


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
        _go_on(server)
        await asyncio.gather(first, small)
        assert _values(cluster)[1:] == [b"small"]
        await _can_only_abort(cluster, txn, "a send in it was cancelled")


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
        _go_on(server)
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
        _go_on(server)
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


@pytest.mark.parametrize("answers", [True, False])
@virtual_time
async def test_closing_sends_what_waits_for_room_or_tells_who_waits(answers: bool) -> None:
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        producer = await client.producer(TOPIC, **SMALL)
        server.stall_sends = True
        waiting = [asyncio.ensure_future(producer.send(bytes(900), key="k")) for _ in range(5)]
        await until(lambda: server.seen["send"])
        closing = asyncio.ensure_future(producer.close())
        await asyncio.sleep(0.1)
        if answers:
            _go_on(server)
        await closing  # each of them has been told: nothing is raised here
        if answers:
            assert len(await asyncio.gather(*waiting)) == 5
        else:
            for one in waiting:
                with pytest.raises(txnclient.ConnectionLost, match="closed"):
                    await one


@pytest.mark.parametrize("first", ["producer", "client"])
@pytest.mark.parametrize("second", ["producer", "client"])
@virtual_time
async def test_who_closes_what_is_being_closed_waits_for_what_is_sent(first: str, second: str) -> None:
    """Dies where the second one ends the connection, or lets its caller end the loop, under the first one's sends."""
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        producer = await client.producer(TOPIC)
        await producer.send(b"opens", key="k")
        things = {"producer": producer, "client": client}
        server.stall_sends = True
        sent = producer.send_nowait(b"v", key="k")
        await until(lambda: server.stalled)
        asyncio.get_running_loop().call_later(1.0, server.finish_sends)
        closing = asyncio.create_task(things[first].close())
        await asyncio.sleep(0.1)
        await things[second].close()
        assert sent.done()
        await closing
        assert _values(cluster) == [b"opens", b"v"]
        assert sent.result().segment


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
        _go_on(server)
        await flushing
        assert len(_values(cluster)) == 5
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
        _go_on(server)
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
        _go_on(server)
        await producer.flush()
        assert _values(cluster) == [b"x"]


# ---- C4: a loss that nobody has been told of ------------------------------------------------------------------------


async def _lose(server: ScriptedServer, producer: txnclient.Producer, count: int = 1) -> list[asyncio.Future[object]]:
    """Sends that have failed for good, and that nobody has looked at."""
    server.refuse["send"] = [StoreFull(f"full {n}") for n in range(count)]
    lost: list[asyncio.Future[object]] = []
    for _ in range(count):
        lost.append(producer.send_nowait(b"lost", key="k"))  # type: ignore[arg-type]
        await until(lambda: lost[-1].done())
    return lost


@pytest.mark.parametrize("call", ["flush", "close"])
@virtual_time
async def test_c4_what_was_lost_before_is_raised_by_the_next_flush_or_close(call: str) -> None:
    async with connected() as (cluster, client):
        producer = await client.producer(TOPIC)
        await _lose(cluster.servers["broker:1"], producer, 3)
        with pytest.raises(StoreFull, match="full 0") as raised:
            await getattr(producer, call)()
        assert "2 more" in raised.value.__notes__[0]
        await getattr(producer, call)()
        await producer.close()


@pytest.mark.parametrize("opened", [True, False])
@virtual_time
async def test_c4_a_block_that_lost_something_raises_it_at_its_end(opened: bool) -> None:
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]

        async def block() -> None:
            opening = client.producer(TOPIC)
            async with opening if opened else await opening as producer:
                server.refuse["send"] = [StoreFull("full")]
                producer.send_nowait(b"lost", key="k")

        with pytest.raises(StoreFull):
            await block()

        async def raising() -> None:
            opening = client.producer(TOPIC)
            async with opening if opened else await opening as producer:
                await _lose(server, producer)
                raise ValueError("the body's")

        with pytest.raises(ValueError, match="the body's") as raised:
            await raising()
        assert "StoreFull" in raised.value.__notes__[0]


@virtual_time
async def test_c4_closing_a_client_raises_what_its_producers_have_lost_and_closes_all_the_same() -> None:
    cluster = Cluster()
    await cluster.start()

    async def block() -> None:
        async with txnclient.connect("txn://broker:1", transport=cluster.transport, clock=cluster.clock) as client:
            clients.append(client)
            await _lose(cluster.servers["broker:1"], await client.producer(TOPIC))
            await client.begin()

    clients: list[txnclient.Client] = []
    with pytest.raises(StoreFull):
        await block()
    assert list(cluster.states.values()) == ["ABORTED"]
    await clients[0].close()
    await cluster.stop()


@virtual_time
async def test_c4_who_has_looked_at_a_failure_is_not_told_again() -> None:
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        producer = await client.producer(TOPIC)
        (awaited,) = await _lose(server, producer)
        with pytest.raises(StoreFull):
            await awaited
        await producer.flush()
        (looked_at,) = await _lose(server, producer)
        assert isinstance(looked_at.exception(), StoreFull)
        await producer.flush()
        server.refuse["send"] = [StoreFull("full")]
        with pytest.raises(StoreFull):
            await producer.send(b"lost", key="k")
        server.refuse["send"] = [StoreFull("full")]
        with pytest.raises(StoreFull):
            await producer.send_many([("k", b"lost")])
        await producer.flush()
        (first,) = await _lose(server, producer)
        await _lose(server, producer)
        assert first.exception()
        with pytest.raises(StoreFull):
            await producer.close()


@virtual_time
async def test_c4_a_failure_in_a_transaction_is_its_commit_s_to_tell() -> None:
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        producer = await client.producer(TOPIC)
        for end in ("commit", "abort", "none"):
            txn = await client.begin()
            server.refuse["send"] = [txnclient.TxnConflict("decided")]
            lost = producer.send_nowait(b"lost", key="k", txn=txn)
            await until(lambda lost=lost: lost.done())  # type: ignore[misc]
            with pytest.raises(txnclient.TxnConflict):
                await producer.flush()
            server.refuse["send"] = [txnclient.TxnConflict("decided")]
            lost = producer.send_nowait(b"lost", key="k", txn=txn)
            await until(lambda lost=lost: lost.done())  # type: ignore[misc]
            if end == "commit":
                with pytest.raises(txnclient.TxnConflict):
                    await txn.commit()
            elif end == "abort":
                await txn.abort()
            if end != "none":
                await producer.flush()
        await producer.close()


@virtual_time
async def test_c4_more_failures_than_are_kept_are_told_all_the_same() -> None:
    async with connected() as (cluster, client):
        producer = await client.producer(TOPIC, batch_bytes=1_000_000)
        cluster.servers["broker:1"].refuse["send"] = [StoreFull("first"), StoreFull("second")]
        sent = [producer.send_nowait(b"", key="k") for _ in range(MOST_KEPT)]
        await until(lambda: sent[-1].done())
        rest = [producer.send_nowait(b"", key="k") for _ in range(5)]
        await until(lambda: rest[-1].done())
        assert len(producer_impl(producer)._untold._failed) == MOST_KEPT
        for one in sent:
            assert isinstance(one.exception(), StoreFull)
        with pytest.raises(StoreFull, match="second"):
            await producer.close()


@virtual_time
async def test_c4_a_close_that_is_cancelled_leaves_the_failure_to_the_next_one() -> None:
    async with connected() as (cluster, client):
        producer = await client.producer(TOPIC)
        cluster.servers["broker:1"].stall_sends = True
        producer.send_nowait(b"x", key="k")
        closing = asyncio.ensure_future(producer.close())
        await asyncio.sleep(0.1)
        closing.cancel()
        await asyncio.wait([closing])
        with pytest.raises(txnclient.ConnectionLost):
            await producer.close()
        await producer.close()


# ---- failures as they are raised ------------------------------------------------------------------------------------


def _depth(error: BaseException) -> int:
    return len(traceback.extract_tb(error.__traceback__))


@virtual_time
async def test_an_error_that_is_raised_again_and_again_does_not_grow() -> None:
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        producer = await client.producer(TOPIC)
        shared = await client.begin(name="job/1")
        server.refuse["send"] = [txnclient.TxnConflict("decided")]
        with pytest.raises(txnclient.TxnConflict):
            await producer.send(b"x", txn=shared)
        server.refuse["send"] = [txnclient.ProducerFenced("a newer one has connected")]
        with pytest.raises(txnclient.ProducerFenced):
            await producer.send(b"x")

        async def send_nowait() -> None:
            producer.send_nowait(b"x")

        for call in (shared.flush, shared.commit, lambda: producer.send(b"x"), send_nowait):
            depths = []
            for _ in range(5):
                with pytest.raises(txnclient.TxnError) as raised:
                    await call()
                depths.append(_depth(raised.value))
            assert len(set(depths)) == 1, call


@virtual_time
async def test_messages_that_fail_together_have_errors_of_their_own() -> None:
    async with connected() as (cluster, client):
        producer = await client.producer(TOPIC)
        cluster.servers["broker:1"].refuse["send"] = [StoreFull("full")]
        sent = [producer.send_nowait(b"x", key="k") for _ in range(3)]
        depths = []
        for one in sent:
            with pytest.raises(StoreFull) as raised:
                await one
            depths.append(_depth(raised.value))
        assert len(set(depths)) == 1


@virtual_time
async def test_futures_that_nobody_looks_at_fail_without_a_word_to_the_loop() -> None:
    """`run` counts what reaches the loop's handler."""
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        producer = await client.producer(TOPIC, **SMALL)
        await _lose(server, producer, 3)
        gc.collect()
        txn = await client.begin()
        server.refuse["send"] = [txnclient.TxnConflict("decided")]
        producer.send_nowait(b"x", key="k", txn=txn)
        with pytest.raises(txnclient.TxnConflict):
            await txn.commit()
        txn = await client.begin()
        server.stall_sends = True
        for _ in range(2):
            producer.send_nowait(bytes(400), key="k", txn=txn)
        waiting = asyncio.ensure_future(producer.send(bytes(400), key="k", txn=txn))
        await until(lambda: server.seen["send"])
        waiting.cancel()
        await txn.abort(timeout=1.0)
        with pytest.raises(StoreFull):
            await producer.close()
        del producer
        gc.collect()


@virtual_time
async def test_a_task_group_whose_transaction_is_aborted_ends_with_an_error() -> None:
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        producer = await client.producer(TOPIC, linger_ms=3_600_000)
        server.stall_sends = True
        txn = await client.begin()
        sent = producer.send_nowait(b"under way", key="k", txn=txn)
        await until(lambda: server.seen["send"])

        async def wait(future: asyncio.Future[object]) -> None:
            await future

        async def group() -> None:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(wait(producer.send_nowait(b"gathers", key="k", txn=txn)))  # type: ignore[arg-type]
                await asyncio.sleep(0)
                await txn.abort(timeout=1.0)

        with pytest.raises(ExceptionGroup) as raised:
            await group()
        assert raised.group_contains(txnclient.InvalidTxnState)
        _go_on(server)
        await asyncio.wait([sent])


@virtual_time
async def test_what_is_withdrawn_is_not_taken_for_stored() -> None:
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        producer = await client.producer(TOPIC, linger_ms=0)
        await producer.send(b"stored", key="k")
        server.hold["open_producer"] = asyncio.Event()
        await server.cut()
        txn = await client.begin()
        producer.send_nowait(b"withdrawn", key="k", txn=txn)
        await until(lambda: producer_impl(producer)._next_sequence_id == 2)
        await txn.abort()
        assert producer.last_sequence_id == 0


# ---- memory ---------------------------------------------------------------------------------------------------------


@virtual_time
async def test_the_ids_of_a_bulk_send_do_not_keep_what_was_sent() -> None:
    async with connected() as (cluster, client):
        producer = await client.producer(TOPIC, batch_bytes=10_000, buffer_bytes=30_000, compression=None)
        kept = []

        def messages() -> Iterator[bytes]:
            for number in range(2000):
                if number % 100 == 0:
                    kept.append(sum(_bytes_of(batch) for batch in gc.get_objects() if isinstance(batch, BulkBatch)))
                yield bytes(5000)

        ids = await producer.send_many(messages())
        assert len(ids) == 2000
        assert sum(_bytes_of(batch) for batch in ids.batches) == 0
        assert max(kept) <= 60_000
        assert len(cluster.values_by_key()[None]) == 2000


def _bytes_of(batch: BulkBatch) -> int:
    return len(batch.entry) + sum(map(len, batch._columns.values if batch._columns else ()))


@virtual_time
async def test_a_large_value_in_pieces_waits_for_room_and_its_commit_for_it() -> None:
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        producer = await client.producer(TOPIC, buffer_bytes=PIECE_BYTES, compression=None)
        server.stall_sends = True
        txn = await client.begin()
        sending = asyncio.ensure_future(producer.send(bytes(6 * PIECE_BYTES), key="k", chunk=True, txn=txn))
        await until(lambda: server.seen["send"] == 1)
        behind = asyncio.ensure_future(producer.send(b"behind", key="k", txn=txn))
        committing = asyncio.ensure_future(txn.commit())
        await asyncio.sleep(1.0)
        assert server.seen["send"] == 1
        assert not server.seen["end_txn"]
        _go_on(server)
        await asyncio.gather(sending, behind, committing)
        assert sum(map(len, _values(cluster))) == 6 * PIECE_BYTES + 6


# ---- very many transactions that end at once -------------------------------------------------------------------------


@virtual_time
async def test_transactions_that_abort_at_once_look_once_at_what_waits_to_be_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with connected() as (cluster, client):
        producer = await client.producer(TOPIC)
        cluster.owners = dict.fromkeys(cluster.owners, "")
        cluster.announce()
        txns = [await client.begin() for _ in range(50)]
        sent = [producer.send_nowait(b"doomed", key="k", txn=txn) for txn in txns]
        kept = producer.send_nowait(b"kept", key="k")
        await asyncio.sleep(0.1)
        looked: list[int] = []
        remove = EntryOutbox.remove

        def counted(self: EntryOutbox[Any], doomed: Callable[[Any], bool]) -> list[Any]:
            looked.append(len(self))
            return remove(self, doomed)

        with monkeypatch.context() as patched:
            patched.setattr(EntryOutbox, "remove", counted)
            await asyncio.gather(*(txn.abort() for txn in txns))
        assert len([entries for entries in looked if entries > 1]) < 5
        assert all(isinstance(one.exception(), txnclient.InvalidTxnState) for one in sent)
        cluster.owners = dict.fromkeys(cluster.owners, "broker:1")
        cluster.announce()
        await kept
        assert _values(cluster) == [b"kept"]


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
        _go_on(server)
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
            _go_on(server)
            await asyncio.gather(first, *waiting)
        assert max(given) == 3
        assert _values(cluster)[1:] == values
