"""Commits and aborts of transactions whose sends wait for room (C2)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import txnclient
from tests.segments.virtual_time import virtual_time
from tests.txnclient.producing.small_buffers import SMALL, go_on, values_of
from tests.txnclient.scripted_server import TOPIC, connected
from tests.waiting import until
from txnclient.producing.bulk import PART_MESSAGES, BulkPart
from txnclient.producing.channels.outbox import EntryOutbox
from txnclient.producing.large_values import PIECE_BYTES
from txnclient.producing.producer import producer_impl
from txnclient.transactions.transaction import impl_of
from txnclient.transactions.whole import Whole
from txnwire.protocol import MAX_VALUE_BYTES


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
        go_on(server)
        await committing
        await asyncio.gather(*sending)
        assert [value[:3] for value in values_of(cluster)] == [b"%03d" % n for n in range(50)]


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
        go_on(server)
        await asyncio.gather(others, committing, *waiting)
        assert [value[:1] for value in values_of(cluster)[2:]] == [b"%d" % n for n in range(5)]


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
        assert values_of(cluster) == values


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
        go_on(server)
        await txn.commit()
        assert len(await sending) == len(values_of(cluster)) == 9


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
        go_on(server)
        await asyncio.gather(first, other)
        assert values_of(cluster)[2:] == [b"other"]
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
        go_on(server)
        await first
        assert values_of(cluster)[2:] == []


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
        go_on(server)
        await asyncio.gather(sending, behind, committing)
        assert sum(map(len, values_of(cluster))) == 6 * PIECE_BYTES + 6


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
        assert values_of(cluster) == [b"kept"]
