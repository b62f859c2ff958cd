"""Sends that come again, and producers that are fenced (L7, L9, L10)."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from tests.segments.brokering import Cluster
from tests.segments.gates import is_write_op
from tests.segments.owner.gated_owner import Gated
from tests.waiting import until
from txnstore import keys, records
from txnstore.records import Watermark
from txnwire.errors import (
    NotOwner,
    ProducerFenced,
    TxnConflict,
)
from txnwire.ids import Position
from txnwire.proto import txn_pb2 as pb


async def test_l9_a_repeat_shares_the_outcome_of_the_entry_on_its_way(gated: Gated) -> None:
    producer = await gated.client.producer(gated.segment)
    gated.ledgers.hold()
    first = producer.send_nowait("once")
    again = producer.send_nowait("once", sequence_id=0, previous=-1)
    await until(lambda: gated.ledgers.waiting)
    assert not again.done()
    gated.ledgers.open()
    assert (await first).send_ok.entry_id == (await again).send_ok.entry_id
    reader = await gated.client.reader(gated.segment)
    await producer.send("next")
    await reader.wait("once", "next")


@pytest.mark.parametrize("how", ["refused", "lost"])
async def test_l9_a_repeat_shares_the_failure_of_the_entry_on_its_way(gated: Gated, how: str) -> None:
    """Who has sent it first may be gone: over its connection nobody hears that any more."""
    producer, txn = await gated.client.producer(gated.segment), await gated.cluster.begin()
    gated.store.hold(is_write_op)
    sends = [producer.send_nowait("once", txn=txn)]
    sends += [producer.send_nowait("once", txn=txn, sequence_id=0, previous=-1) for _ in range(2)]
    await gated.client.call(segment_positions=pb.SegmentPositions(segment=gated.segment))  # all have come by then
    await until(lambda: gated.store.waiting)
    if how == "lost":
        gated.broker.segments[gated.segment].lost(NotOwner("taken away"))
    else:
        await gated.cluster.abort(txn)
        gated.store.open()
    for sending in sends:
        with pytest.raises(NotOwner if how == "lost" else TxnConflict):
            await asyncio.wait_for(sending, 5)
    gated.store.open()


async def test_l7_a_stored_repeat_is_acked_again_also_across_a_restart(cluster: Cluster) -> None:
    [segment] = await cluster.create_topic()
    node = await cluster.start()
    client = await cluster.connect(node)
    producer = await client.producer(segment)
    first = await producer.send("a", "b")
    repeat = await producer.send_nowait("a", "b", sequence_id=0, previous=-1)
    assert repeat.send_ok.duplicate
    assert Position(repeat.send_ok.ledger_id, repeat.send_ok.entry_id) == first

    for crash in (True, False):
        await (node.crash() if crash else node.close())
        node = await cluster.start()
        client = await cluster.connect(node)
        producer = await client.producer(segment)
        assert producer.last == 1
        assert (await producer.send_nowait("a", "b", sequence_id=0, previous=-1)).send_ok.duplicate
    await producer.send("c")
    await (await client.reader(segment)).wait("a", "b", "c")


async def test_l7_a_repeat_is_known_below_the_watermark_too(cluster: Cluster) -> None:
    """▲ Dedup is rebuilt from the last footer, not from the watermark: what is decided may still be resent."""
    [segment] = await cluster.create_topic()
    settings = replace(cluster.settings, cursor_flush_s=0.01)
    node = await cluster.start(settings=settings)
    producer = await (await cluster.connect(node)).producer(segment)
    last = [await producer.send(value) for value in "abc"][-1]

    async def stored() -> bool:
        found = await cluster.store.get(keys.watermark(segment))
        return found is not None and records.decode(Watermark, found.value, key=found.key).position >= last

    await until(stored, f"a watermark at {last}", within_s=10)
    await node.crash()
    client = await cluster.connect(await cluster.start())
    producer = await client.producer(segment)
    assert producer.last == 2
    assert (await producer.send_nowait("c", sequence_id=2, previous=1)).send_ok.duplicate
    await (await client.reader(segment)).wait(*"abc")


async def test_l10_a_second_producer_of_the_name_fences_the_first_and_nothing_acked_is_lost(gated: Gated) -> None:
    """C8."""
    first = await gated.client.producer(gated.segment, "p", incarnation=1)
    gated.ledgers.hold()
    on_its_way = first.send_nowait("of the first")
    await until(lambda: gated.ledgers.waiting)
    second = await gated.client.producer(gated.segment, "p", incarnation=2)
    await until(lambda: first.closed)
    assert isinstance(first.closed, ProducerFenced)
    with pytest.raises(ProducerFenced):
        await first.send("fenced")
    gated.ledgers.open()
    await on_its_way
    assert second.last == -1
    await second.send("of the second")
    await (await gated.client.reader(gated.segment)).wait("of the first", "of the second")


async def test_l10_a_producer_does_not_fence_itself(gated: Gated) -> None:
    """An opening that was given up may arrive behind the one that took its place: then it is opened once more."""
    first = await gated.client.producer(gated.segment, "p", incarnation=1)
    await first.send("a")
    late = await (await gated.cluster.connect(gated.cluster.nodes[0])).producer(gated.segment, "p", incarnation=1)
    assert late.last == 0
    await until(lambda: first.closed)
    assert isinstance(first.closed, NotOwner)
    with pytest.raises(NotOwner):
        await first.send("b")
    again = await gated.client.producer(gated.segment, "p", incarnation=1)
    await again.send("b", sequence_id=1, previous=0)
    await (await gated.client.reader(gated.segment)).wait("a", "b")
