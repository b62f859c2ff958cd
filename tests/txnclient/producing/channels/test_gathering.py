"""What gathers into one entry, and when it leaves."""

from __future__ import annotations

import asyncio

import pytest

import txnclient
from tests.segments.virtual_time import virtual_time
from tests.txnclient.producing.segment_of import segment_of
from tests.txnclient.scripted_server import TOPIC, connected
from tests.waiting import until
from txnwire.entry import decode_block
from txnwire.errors import to_wire
from txnwire.proto import txn_pb2 as pb


@virtual_time
async def test_what_is_sent_in_one_turn_is_one_entry() -> None:
    async with connected() as (cluster, client):
        producer = await client.producer(TOPIC)
        ids = await asyncio.gather(*(producer.send(b"%d" % n) for n in range(10)))
        assert [one.index for one in ids] == list(range(10))
        assert len({one.position for one in ids}) == 1
        assert producer.last_sequence_id == 9
        sends = [c.send for c in cluster.servers["broker:1"].commands if c.HasField("send")]
        assert [send.count for send in sends] == [10]
        assert decode_block(sends[0].entry).values() == [b"%d" % n for n in range(10)]


@virtual_time
async def test_messages_gather_while_an_earlier_entry_is_under_way() -> None:
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        producer = await client.producer(TOPIC, linger_ms=3_600_000)
        server.stall_sends = True
        first = producer.send_nowait(b"0", key="k")
        await until(lambda: server.seen["send"])
        later = []
        for number in range(5):
            later.append(producer.send_nowait(b"%d" % number, key="k"))
            await asyncio.sleep(0.1)
        assert server.seen["send"] == 1
        server.stall_sends = False
        server.finish_sends()
        await asyncio.gather(first, *later)
        assert server.seen["send"] == 2


@virtual_time
async def test_lingering_ends() -> None:
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        producer = await client.producer(TOPIC, linger_ms=20)
        server.stall_sends = True
        producer.send_nowait(b"0", key="k")
        await until(lambda: server.seen["send"])
        for _ in range(3):
            before = server.seen["send"]
            producer.send_nowait(b"1", key="k")
            await asyncio.sleep(0.015)
            assert server.seen["send"] == before
            await asyncio.sleep(0.01)
            assert server.seen["send"] == before + 1
        server.stall_sends = False
        server.finish_sends()
        await producer.flush()


@virtual_time
async def test_lingering_ends_for_each_of_several_segments_in_its_time() -> None:
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        producer = await client.producer(TOPIC, linger_ms=20, batch_bytes=1000, compression=None)
        key, other = "a", next(key for key in "bcdefghij" if segment_of(key) != segment_of("a"))
        server.stall_sends = True
        for one in (key, other):
            producer.send_nowait(b"0", key=one)
        await until(lambda: server.seen["send"] == 2)
        producer.send_nowait(b"1", key=key)
        await asyncio.sleep(0.005)
        producer.send_nowait(bytes(600), key=other)
        await asyncio.sleep(0.005)
        producer.send_nowait(bytes(600), key=other)  # the one before leaves full, and this one begins another
        await asyncio.sleep(0.005)
        assert server.seen["send"] == 3
        await asyncio.sleep(0.010)
        assert server.seen["send"] == 4
        await asyncio.sleep(0.010)
        assert server.seen["send"] == 5
        server.stall_sends = False
        server.finish_sends()
        await producer.flush()


@virtual_time
async def test_a_full_batch_leaves_at_once_and_a_larger_message_gets_its_own() -> None:
    async with connected() as (cluster, client):
        producer = await client.producer(TOPIC, batch_bytes=1000, compression=None)
        sizes = (400, 400, 400, 5000, 100)
        await asyncio.gather(*(producer.send(bytes(size), key="k") for size in sizes))
        counts = [c.send.count for c in cluster.servers["broker:1"].commands if c.HasField("send")]
        assert counts == [2, 1, 1, 1]


@virtual_time
async def test_a_send_that_lingered_times_out_in_its_own_time_and_not_with_those_that_overtook_it() -> None:
    async with connected(timeout=3.0) as (cluster, client):
        server = cluster.servers["broker:1"]
        producer = await client.producer(TOPIC, linger_ms=1000)
        server.stall_sends = True
        txn = await client.begin()
        sent = [producer.send_nowait(b"0", key="k", txn=txn)]
        await until(lambda: server.stalled == 1)
        sent.append(producer.send_nowait(b"1", key="k", txn=txn))
        before = cluster.clock.monotonic()
        await asyncio.sleep(0.5)
        sent.append(producer.send_nowait(b"2", key="k"))
        await asyncio.sleep(1.0)
        assert server.stalled == 3
        cluster.move(segment_of("k"), "")
        server.drop_stalled()
        await server.cut()
        with pytest.raises(txnclient.Timeout):
            await sent[1]
        assert 3.0 <= cluster.clock.monotonic() - before < 3.1
        assert not sent[2].done()
        with pytest.raises(txnclient.Timeout):
            await sent[2]
        assert 3.5 <= cluster.clock.monotonic() - before < 3.6
        await txn.abort()
        assert isinstance(sent[0].exception(), txnclient.Timeout)


@virtual_time
async def test_what_gathers_leaves_with_the_answer_to_what_is_under_way_however_long_it_might_linger() -> None:
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        producer = await client.producer(TOPIC, linger_ms=20_000)
        server.stall_sends = True
        sent = [producer.send_nowait(b"0", key="k")]
        await until(lambda: server.stalled == 1)
        sent += [producer.send_nowait(b"%d" % number, key="k") for number in (1, 2)]
        server.stall_sends = False
        server.finish_sends()
        async with asyncio.timeout(1.0):
            await asyncio.gather(*sent)
        assert server.seen["send"] == 2


@virtual_time
async def test_l10_what_gathers_as_a_producer_is_fenced_is_told_as_well() -> None:
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        producer = await client.producer(TOPIC, linger_ms=20_000)
        server.stall_sends = True
        sent = [producer.send_nowait(b"0", key="k")]
        await until(lambda: server.stalled == 1)
        sent.append(producer.send_nowait(b"1", key="k"))
        (peer, producer_id), *_ = server.producers
        closed = pb.ProducerClosed(producer_id=producer_id, error=to_wire(txnclient.ProducerFenced("a newer one")))
        peer.push(pb.Command(producer_closed=closed))
        async with asyncio.timeout(1.0):
            answers = await asyncio.gather(*sent, return_exceptions=True)
        assert [type(answer) for answer in answers] == [txnclient.ProducerFenced] * 2
