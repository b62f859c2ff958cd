"""What was lost is raised once, by whoever asks next (C4)."""

from __future__ import annotations

import asyncio
import gc
import traceback

import pytest

import txnclient
from tests.segments.virtual_time import virtual_time
from tests.txnclient.producing.small_buffers import SMALL, go_on
from tests.txnclient.scripted_server import TOPIC, Cluster, ScriptedServer, connected
from tests.waiting import idle, until
from txnclient.connection.links import Link
from txnclient.producing import untold
from txnclient.producing.producer import producer_impl
from txnclient.producing.untold import MOST_KEPT
from txnwire.errors import StoreFull, to_wire
from txnwire.proto import txn_pb2 as pb


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
        go_on(server)
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


async def test_c4_however_many_failures_the_sender_was_told_of_a_flush_raises_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(untold, "MOST_KEPT", 3)
    failures = untold.Untold()
    for number in range(5):
        lost: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        lost.set_exception(StoreFull(f"full {number}"))
        failures.failed(lost, StoreFull(f"full {number}"), None)
        with pytest.raises(StoreFull):
            await lost
    assert failures.tell(of_transactions=True) is None


@pytest.mark.parametrize("how", [txnclient.Overloaded("too much"), txnclient.MessageTooLarge("a frame too long")])
@virtual_time
async def test_c4_an_entry_that_its_connection_does_not_take_is_sent_again_or_lost_for_good(
    how: txnclient.TxnError, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connected() as (_, client):
        producer = await client.producer(TOPIC)
        await producer.send(b"first", key="k")
        real, refused = Link.call_nowait, [how]

        def refuse(link: Link, command: pb.Command, *, timeout_s: float) -> asyncio.Future[pb.Command]:
            if refused and command.HasField("send"):
                raise refused.pop()
            return real(link, command, timeout_s=timeout_s)

        monkeypatch.setattr(Link, "call_nowait", refuse)
        second, third = (producer.send_nowait(value, key="k") for value in (b"second", b"third"))
        async with asyncio.timeout(10.0):
            told = await asyncio.gather(second, third, return_exceptions=True)
        lost = isinstance(how, txnclient.MessageTooLarge)
        assert isinstance(told[0], txnclient.MessageTooLarge) == lost
        await producer.send(b"fourth", key="k")
        await producer.close()


@virtual_time
async def test_c4_an_entry_that_cannot_be_encoded_is_lost_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    async with connected() as (cluster, client), client.producer(TOPIC) as producer:

        def refuse(*_: object, **__: object) -> bytes:
            raise txnclient.MessageTooLarge("an entry too long")

        with monkeypatch.context() as patched:
            patched.setattr("txnclient.producing.channels.channel.encode_entry", refuse)
            lost = producer.send_nowait(b"lost", key="k")
            with pytest.raises(txnclient.MessageTooLarge):
                await asyncio.wait_for(lost, 5.0)
        await producer.send(b"next", key="k")
        assert cluster.values_by_key() == {b"k": [b"next"]}


@virtual_time
async def test_what_gathers_in_each_of_several_transactions_ends_when_the_producer_is_fenced() -> None:
    """▲ Its sender, and the end of its transaction, would wait for it."""
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        producer = await client.producer(TOPIC, linger_ms=3_600_000)
        txns = [await client.begin() for _ in range(3)]
        server.stall_sends = True
        sent = [producer.send_nowait(b"under way", key="k", txn=txn) for txn in txns]
        await until(lambda: server.stalled == len(txns))
        sent += [producer.send_nowait(b"gathers", key="k", txn=txn) for txn in txns]
        await idle()
        error = to_wire(txnclient.ProducerFenced("another of its name"))
        for peer, producer_id in server.producers:
            peer.push(pb.Command(producer_closed=pb.ProducerClosed(producer_id=producer_id, error=error)))
        await asyncio.wait(sent, timeout=1.0)
        assert [type(one.exception()) if one.done() else None for one in sent] == [txnclient.ProducerFenced] * 6
