"""Transactions with something in several segments, or at several places of one producer: what ends them, or waits for
room with them, is dealt with at each (scenarios A5, C2, C3)."""

from __future__ import annotations

import asyncio

import pytest

import txnclient
from tests.segments.virtual_time import virtual_time
from tests.txnclient.producing.channels.rounds import LOW
from tests.txnclient.producing.channels.test_moving_producer import HIGH
from tests.txnclient.scripted_server import SEGMENTS, TOPIC, connected
from tests.waiting import until
from txnclient.producing.bulk import PART_MESSAGES, BulkPart
from txnclient.producing.large_values import PIECE_BYTES
from txnclient.producing.producer import producer_impl
from txnclient.transactions.transaction import impl_of
from txnwire.ids import HASH_SPACE, hash_key
from txnwire.protocol import MAX_VALUE_BYTES

BOTH = (LOW[0], HIGH[0])
"""A key of each segment."""


@virtual_time
async def test_c2_a_commit_sends_at_once_what_gathers_for_each_segment() -> None:
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        producer = await client.producer(TOPIC, linger_ms=3_600_000)
        server.stall_sends = True
        txn = await client.begin(timeout=7200)
        for key in BOTH:
            producer.send_nowait(b"under way", key=key, txn=txn)
        await until(lambda: server.seen["send"] == 2)
        for key in BOTH:
            producer.send_nowait(b"gathers", key=key, txn=txn)
        committing = asyncio.ensure_future(txn.commit())
        await until(lambda: server.seen["send"] == 4, within_s=5.0)
        server.stall_sends = False
        server.finish_sends()
        await committing
        assert cluster.values_by_key() == {key.encode(): [b"under way", b"gathers"] for key in BOTH}


@virtual_time
async def test_a5_a_commit_that_does_not_count_its_writer_gives_up_what_that_has_for_each_segment() -> None:
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        server.hold["open_producer"] = asyncio.Event()
        shared = await client.begin(name="job/1")
        producer = await client.producer(TOPIC)
        sent = [producer.send_nowait(b"x", key=key, txn=shared) for key in BOTH]
        await until(lambda: server.seen["open_producer"] == 2)
        await shared.commit(writers=[])
        for one in sent:
            with pytest.raises(txnclient.InvalidTxnState):
                await asyncio.wait_for(one, 1.0)


@virtual_time
async def test_c2_an_abort_that_nobody_answers_has_given_up_what_is_not_sent_to_each_segment() -> None:
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        server.hold["open_producer"] = asyncio.Event()
        producer = await client.producer(TOPIC)
        txns = [await client.begin() for _ in range(2)]
        sent = [producer.send_nowait(b"x", key=key, txn=txn) for txn in txns for key in BOTH]
        await until(lambda: server.seen["open_producer"] == 2)
        server.ignore["end_txn"] = 2
        for error in await asyncio.gather(*(txn.abort(timeout=1.0) for txn in txns), return_exceptions=True):
            assert isinstance(error, txnclient.Timeout)
        assert all(isinstance(one.exception(), txnclient.InvalidTxnState) for one in sent)
        await asyncio.gather(*(txn.abort() for txn in txns))


@virtual_time
async def test_c2_a_bulk_send_sends_nothing_more_once_its_transaction_is_aborting() -> None:
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        producer = await client.producer(TOPIC)
        parts = producer_impl(producer).parts([("k", b"%d" % n) for n in range(2 * PART_MESSAGES)])
        given = asyncio.Event()
        given.set()

        async def pull() -> BulkPart | None:
            await given.wait()
            given.clear()
            return next(parts, None)

        txn = await client.begin()
        sending = asyncio.ensure_future(producer_impl(producer).send_pulled(pull, txn=impl_of(txn)))
        await until(lambda: server.seen["send"])
        await asyncio.sleep(0.1)
        sent = server.seen["send"]
        server.hold["end_txn"] = asyncio.Event()
        aborting = asyncio.ensure_future(txn.abort())
        await until(lambda: server.seen["end_txn"])
        given.set()
        with pytest.raises(txnclient.InvalidTxnState, match="was aborted"):
            await sending
        assert server.seen["send"] == sent
        server.hold["end_txn"].set()
        await aborting


@virtual_time
async def test_c3_who_waits_for_room_behind_a_piece_that_cannot_be_placed_gets_its_turn() -> None:
    """The segment of a value in pieces is sealed while one of them waits: it takes no room."""
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        producer = await client.producer(TOPIC, compression=None, buffer_bytes=2 * (PIECE_BYTES + 100))
        txn = await client.begin()
        server.stall_sends = True
        value = bytes(MAX_VALUE_BYTES + 1)
        sending = asyncio.ensure_future(producer.send(value, key=LOW[0], chunk=True, txn=txn))
        await until(lambda: server.stalled)
        await asyncio.sleep(0.1)
        behind = [asyncio.ensure_future(producer.send(b"behind", key=key)) for key in BOTH]
        await asyncio.sleep(0.1)
        cluster.sealed[SEGMENTS[0]] = None
        server.drop_stalled()
        server.tell_sealed(SEGMENTS[0])
        server.stall_sends = False
        cluster.split(0)
        async with asyncio.timeout(5.0):
            await asyncio.gather(sending, *behind)
        await txn.commit()
        assert producer_impl(producer)._buffer.taken == 0


@virtual_time
async def test_s5_a_bulk_send_that_waits_for_room_goes_where_its_keys_belong_by_then() -> None:
    """Its segment was split meanwhile, and this producer had never written to it."""
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        producer = await client.producer(TOPIC, buffer_bytes=1000, batch_bytes=1000, compression=None)
        server.stall_sends = True
        first = producer.send_nowait(bytes(900), key=HIGH[0])
        await until(lambda: server.stalled)
        sending = asyncio.ensure_future(producer.send_many([(key, bytes(200)) for key in LOW[:2]]))
        await asyncio.sleep(0.1)
        cluster.sealed[SEGMENTS[0]] = None
        cluster.split(0)
        await asyncio.sleep(0.1)
        server.stall_sends = False
        server.finish_sends()
        async with asyncio.timeout(5.0):
            await asyncio.gather(first, sending)
        assert not cluster.stored[SEGMENTS[0]]


@virtual_time
async def test_c4_a_flush_waits_for_each_part_of_what_was_divided_before() -> None:
    async with connected("broker:1", "broker:2") as (cluster, client):
        second = cluster.servers["broker:2"]
        producer = await client.producer(TOPIC)
        cluster.seal(0)
        sent = [producer.send_nowait(b"x", key=key) for key in LOW]
        await asyncio.sleep(0.1)
        second.stall_sends = True
        cluster.split(0)
        cluster.move(cluster.path(3), "broker:2")
        await until(lambda: second.stalled and any(one.done() for one in sent))
        flushing = asyncio.ensure_future(producer.flush())
        await asyncio.sleep(0.5)
        assert not flushing.done()
        second.stall_sends = False
        second.finish_sends()
        await flushing
        assert all(one.done() for one in sent)


@virtual_time
async def test_c4_a_bulk_send_is_done_once_all_segments_have_answered() -> None:
    """What has failed by then is its own to raise: nobody else would."""
    async with connected("broker:1", "broker:2") as (cluster, client):
        cluster.move(SEGMENTS[1], "broker:2")
        second = cluster.servers["broker:2"]
        producer = await client.producer(TOPIC)
        second.hold["send"] = asyncio.Event()
        second.refuse["send"] = [txnclient.StoreFull("full")]
        sending = asyncio.ensure_future(producer.send_many([(key, b"x") for key in BOTH]))
        await until(lambda: second.seen["send"] and cluster.stored[SEGMENTS[0]])
        await asyncio.sleep(0.5)
        assert not sending.done()
        second.hold["send"].set()
        with pytest.raises(txnclient.StoreFull):
            await sending


@virtual_time
async def test_a_producer_that_closes_is_closed_at_each_segment() -> None:
    """▲ A broker keeps one that it believes open for as long as the connection lives."""
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        async with client.producer(TOPIC) as producer:
            await producer.send_many([(key, b"x") for key in BOTH])
            assert server.seen["open_producer"] == len(SEGMENTS)
        await until(lambda: server.seen["close_producer"] == len(SEGMENTS))


@virtual_time
async def test_what_was_sent_without_a_key_leaves_nothing_of_its_transaction_behind() -> None:
    async with connected() as (_, client):
        producer = await client.producer(TOPIC)
        for end in ("commit", "abort"):
            for _number in range(10):
                txn = await client.begin()
                await producer.send(b"x", txn=txn)
                await getattr(txn, end)()
        assert [txn for txn in producer_impl(producer)._channels._keyless if txn is not None] == []


@virtual_time
async def test_a_flush_sends_what_is_gathered_in_every_segment_and_transaction_at_once() -> None:
    async with connected() as (cluster, client), client.producer(TOPIC, linger_ms=3_600_000) as producer:
        server = cluster.servers["broker:1"]
        txns = [None, *[await client.begin(timeout=7200) for _ in range(2)]]
        server.stall_sends = True
        for what in (b"under way", b"gathers"):
            for key in BOTH:
                for txn in txns:
                    producer.send_nowait(what, key=key, txn=txn)
            await until(lambda: server.seen["send"] == 6)
        flushing = asyncio.ensure_future(producer.flush())
        await until(lambda: server.seen["send"] == 12, within_s=5.0)
        server.stall_sends = False
        server.finish_sends()
        await flushing
        for txn in txns[1:]:
            assert txn is not None
            await txn.commit()


@virtual_time
async def test_who_leaves_a_transaction_sends_nothing_more_in_any_segment() -> None:
    """▲ Its other writers may commit it, and this one has been told that its messages are not sent."""
    async with connected() as (cluster, client), client.producer(TOPIC, linger_ms=3_600_000) as producer:
        server = cluster.servers["broker:1"]
        txn = await client.begin(name="job/1", timeout=7200)
        server.stall_sends = True
        under_way = [producer.send_nowait(b"under way", key=key, txn=txn) for key in BOTH]
        await until(lambda: server.seen["send"] == 2)
        gathered = [producer.send_nowait(b"gathers", key=key, txn=txn) for key in BOTH]
        leaving = asyncio.ensure_future(txn.leave())
        await asyncio.sleep(1.0)
        assert [type(one.exception()) for one in gathered if one.done()] == [txnclient.InvalidTxnState] * 2
        server.stall_sends = False
        server.finish_sends()
        await leaving
        await asyncio.gather(*under_way)
        assert server.seen["send"] == 2


@pytest.mark.parametrize("sealed", [False, True])
@virtual_time
async def test_all_entries_that_were_stored_as_their_connection_was_lost_are_told_so(sealed: bool) -> None:
    """By the next opening, also of a segment that was sealed meanwhile."""
    async with connected() as (cluster, client), client.producer(TOPIC, batch_bytes=1) as producer:
        server = cluster.servers["broker:1"]
        server.stall_sends = True
        sends = [producer.send_nowait(b"x", key=LOW[0]) for _ in range(3)]
        await until(lambda: server.stalled == 3)
        await server.cut()
        server.stall_sends = False
        if sealed:
            cluster.seal(0, told=False)
            cluster.split(0)
        else:
            server.finish_sends()
        async with asyncio.timeout(30.0):
            ids = await asyncio.gather(*sends)
        assert {one.segment for one in ids} == {SEGMENTS[0]}
        assert len(cluster.stored[SEGMENTS[0]]) == 3


@virtual_time
async def test_of_a_segment_that_has_gone_every_entry_in_doubt_is_of_unknown_outcome() -> None:
    async with connected() as (cluster, client), client.producer(TOPIC, batch_bytes=1) as producer:
        server = cluster.servers["broker:1"]
        server.stall_sends = True
        sends = [producer.send_nowait(b"x", key=LOW[0]) for _ in range(3)]
        await until(lambda: server.stalled == 3)
        cluster.owners[SEGMENTS[0]] = ""
        await server.cut()
        cluster.split(0)
        cluster.prune(0)
        async with asyncio.timeout(30.0):
            told = await asyncio.gather(*sends, return_exceptions=True)
        assert [type(error) for error in told] == [txnclient.OutcomeUnknown] * 3


@virtual_time
async def test_all_sends_of_a_transaction_that_aborts_end_while_nobody_owns_their_segment() -> None:
    async with connected() as (cluster, client), client.producer(TOPIC, batch_bytes=1) as producer:
        server = cluster.servers["broker:1"]
        txn = await client.begin()
        server.stall_sends = True
        sends = [producer.send_nowait(b"x", key="k", txn=txn) for _ in range(3)]
        await until(lambda: server.stalled == 3)
        server.hold["end_txn"] = asyncio.Event()
        aborting = asyncio.create_task(txn.abort())
        await asyncio.sleep(0.1)
        cluster.owners = dict.fromkeys(SEGMENTS, "")
        server.drop_stalled()
        await server.cut()
        async with asyncio.timeout(20.0):
            told = await asyncio.gather(*sends, return_exceptions=True)
        assert [type(error) for error in told] == [txnclient.InvalidTxnState] * 3
        server.hold["end_txn"].set()
        await aborting


@virtual_time
async def test_c4_a_flush_waits_for_what_is_sent_to_every_segment() -> None:
    async with connected() as (cluster, client), client.producer(TOPIC) as producer:
        server = cluster.servers["broker:1"]
        server.stall_sends = True
        for key in BOTH:
            producer.send_nowait(b"x", key=key)
        await until(lambda: server.stalled == 2)
        flushing = asyncio.ensure_future(producer.flush(timeout=5.0))
        await asyncio.sleep(1.0)
        server.finish_sends(1)
        await asyncio.sleep(1.0)
        assert not flushing.done()
        with pytest.raises(txnclient.Timeout, match="flushing"):
            await flushing
        server.finish_sends()
        await producer.flush()


@virtual_time
async def test_c4_a_flush_waits_for_every_part_of_what_was_divided_meanwhile() -> None:
    async with connected() as (cluster, client), client.producer(TOPIC, linger_ms=3_600_000) as producer:
        server, middle = cluster.servers["broker:1"], HASH_SPACE // 4
        of_children = [next(k for k in LOW if (hash_key(k.encode()) < middle) == low) for low in (True, False)]
        server.stall_sends = True
        producer.send_nowait(b"under way", key=LOW[0])
        await until(lambda: server.stalled == 1)
        parts = [producer.send_nowait(b"gathers", key=key) for key in of_children]
        flushing = asyncio.ensure_future(producer.flush(timeout=5.0))
        cluster.owners[cluster.topology.split(0).paths[3]] = ""
        cluster.seal(0)
        server.stall_sends = False
        cluster.split(0)
        await asyncio.sleep(2.0)
        assert [one.done() for one in parts] == [True, False]
        assert not flushing.done()
        with pytest.raises(txnclient.Timeout, match="flushing"):
            await flushing
        cluster.move(cluster.path(3), "broker:1")
        await producer.flush()


@virtual_time
async def test_c4_a_flush_raises_what_another_call_s_send_to_any_segment_has_failed_with() -> None:
    async with connected("broker:1", "broker:2") as (cluster, client), client.producer(TOPIC) as producer:
        cluster.move(SEGMENTS[1], "broker:2")
        for server in cluster.servers.values():
            server.hold["send"] = asyncio.Event()
        sends = [asyncio.ensure_future(producer.send(b"x", key=key)) for key in BOTH]
        await until(lambda: all(server.seen["send"] for server in cluster.servers.values()))
        flushing = asyncio.ensure_future(producer.flush())
        await asyncio.sleep(0.1)
        cluster.servers["broker:2"].refuse["send"] = [txnclient.StoreFull("full")]
        for server in cluster.servers.values():
            server.hold.pop("send").set()
        with pytest.raises(txnclient.StoreFull):
            await flushing
        assert [type(told) for told in await asyncio.gather(*sends, return_exceptions=True)][1] is txnclient.StoreFull


@virtual_time
async def test_a_sealed_segment_that_does_not_answer_keeps_no_other_one_s_messages_back() -> None:
    async with connected("broker:1", "broker:2") as (cluster, client), client.producer(TOPIC) as producer:
        silent = cluster.servers["broker:2"]
        cluster.move(SEGMENTS[0], silent.address)
        await producer.send(b"first", key=HIGH[0])
        silent.stall_sends = True
        stuck = producer.send_nowait(b"in doubt", key=LOW[0])
        await until(lambda: silent.stalled)
        silent.ignore["open_producer"] = 1_000
        await silent.cut()
        cluster.seal(1, told=False)
        cluster.split(0)
        cluster.split(1)
        async with asyncio.timeout(10.0):
            sent = await producer.send(b"second", key=HIGH[0])
        assert sent.segment in cluster.topology.active_paths
        assert not stuck.done()
        silent.ignore.clear()
        silent.drop_stalled()
        await stuck
