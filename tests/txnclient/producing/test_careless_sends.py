"""Sends that are cancelled, time out, raise, wait for room or are not looked at (scenarios C1 to C4)."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

import txnclient
from tests.segments.virtual_time import virtual_time
from tests.txnclient.producing.small_buffers import SMALL, can_only_abort, go_on, values_of
from tests.txnclient.scripted_server import TOPIC, connected
from tests.waiting import until
from txnclient.producing.bulk import PART_MESSAGES
from txnclient.producing.channels.batches import BulkBatch
from txnclient.transactions.transaction import transaction_impl
from txnwire.errors import StoreFull
from txnwire.protocol import MAX_VALUE_BYTES


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
        go_on(server)
        await can_only_abort(cluster, txn, "bulk send in it was cancelled")


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
        await can_only_abort(cluster, txn)


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
            go_on(server)
            await can_only_abort(cluster, txn, "a send in it was cancelled")


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
        go_on(server)
        await asyncio.wait([sending])
        if sending.cancelled():
            await can_only_abort(cluster, txn)


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
            go_on(cluster.servers["broker:1"])
            await asyncio.gather(*sent)
        assert cluster.states[txn.id] == "COMMITTED"


# ---- C2: a send belongs to its transaction from the call on ---------------------------------------------------------


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
            go_on(server)
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
        assert values_of(cluster) == [b"opens", b"v"]
        assert sent.result().segment


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


class Fenced:
    """The transaction key of a client, which another one has taken: who asks is told."""

    def expired(self) -> None:
        return None

    async def expired_instead(self, error: txnclient.TxnError, deadline: object) -> txnclient.TxnError:
        return txnclient.ExpiredTransaction("a newer holder has fenced it")


@pytest.mark.parametrize(
    "send",
    [
        lambda producer, txn: producer.send(b"late", key="k", txn=txn),
        lambda producer, txn: producer.send(bytes(MAX_VALUE_BYTES + 1), key="k", chunk=True, txn=txn),
        lambda producer, txn: producer.send_many([("k", b"late")], txn=txn),
    ],
    ids=["one", "in pieces", "many"],
)
@virtual_time
async def test_k1_a_refused_send_of_a_fenced_client_says_that_it_was_fenced(send: Callable[..., Any]) -> None:
    """▲ Told of a conflict, its program would try again, for ever."""
    async with connected() as (cluster, client), client.producer(TOPIC) as producer:
        txn = await client.begin()
        transaction_impl(txn)._holder = Fenced()
        cluster.servers["broker:1"].refuse["send"] = [txnclient.TxnConflict("its header is collected")]
        with pytest.raises(txnclient.ExpiredTransaction):
            await send(producer, txn)
        transaction_impl(txn)._holder = None
        await txn.abort()
