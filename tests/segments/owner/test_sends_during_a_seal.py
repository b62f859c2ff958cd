"""Sends that a seal holds back."""

from __future__ import annotations

import asyncio

import pytest

from tests.segments.brokering import Cluster
from tests.segments.changing import controlling
from tests.segments.gates import GatedStore, gate_stores
from tests.segments.owner.seals import (
    begin,
    give_up,
    seals,
    serving,
)
from tests.waiting import until
from txnwire.errors import (
    NotAllowed,
    NotOwner,
    SegmentSealed,
    SequenceGap,
)
from txnwire.proto import txn_pb2 as pb


async def test_sends_are_held_back_until_the_seal_stands_and_then_told(memory_cluster: Cluster) -> None:
    """▲ Told before, a producer would go on in the children while the segment may yet go on here."""
    cluster = memory_cluster
    gate_stores(cluster)
    [parent] = await cluster.create_topic()
    node = await cluster.start()
    store: GatedStore = node.store  # type: ignore[assignment]
    client = await cluster.connect(node)
    producer = await client.producer(parent)
    await producer.send("a")
    store.hold(seals)
    async with controlling(cluster) as controller:
        splitting = asyncio.ensure_future(controller.split(parent))
        await until(lambda: store.waiting)
        held = [producer.send_nowait(value) for value in "bcd"]
        await client.call(segment_positions=pb.SegmentPositions(segment=parent))  # the sends have arrived
        assert not any(one.done() for one in held)
        assert producer.closed is None
        assert node.broker.segments[parent].pipeline.inflight_bytes > 0
        store.open()
        await splitting
        for one in held:
            with pytest.raises(SegmentSealed):
                await one
    assert producer.closed_last == 0
    assert node.broker.segments[parent].pipeline.inflight_bytes == 0
    assert node.broker.statistics().inflight_bytes == 0


async def test_s10_of_what_was_held_back_nothing_waits_for_what_is_refused(memory_cluster: Cluster) -> None:
    cluster = memory_cluster
    gate_stores(cluster)
    [parent] = await cluster.create_topic()
    node = await cluster.start()
    store: GatedStore = node.store  # type: ignore[assignment]
    client = await cluster.connect(node)
    one, two = await client.producer(parent, "one"), await client.producer(parent, "two")
    change = await begin(cluster, parent)
    store.hold(seals)
    sealing = asyncio.ensure_future((await serving(node, parent)).sealing.seal(change))
    await until(lambda: store.waiting)
    refused, held = one.send_nowait("a", sequence_id=7, previous=6), two.send_nowait("b")
    await client.call(segment_positions=pb.SegmentPositions(segment=parent))  # the sends have arrived
    await give_up(cluster)
    store.open()
    with pytest.raises(NotAllowed, match="given up"):
        await sealing
    with pytest.raises(SequenceGap):
        await refused
    await held
    assert node.broker.statistics().inflight_bytes == 0, "each weighs once, as it is admitted"


async def test_s10_what_is_held_back_as_its_segment_is_lost_is_told_and_weighs_nothing_any_more(
    memory_cluster: Cluster,
) -> None:
    cluster = memory_cluster
    gate_stores(cluster)
    [parent] = await cluster.create_topic()
    node = await cluster.start()
    store: GatedStore = node.store  # type: ignore[assignment]
    client = await cluster.connect(node)
    producer = await client.producer(parent)
    served = await serving(node, parent)
    change = await begin(cluster, parent)
    store.hold(seals)
    sealing = asyncio.ensure_future(served.sealing.seal(change))
    await until(lambda: store.waiting)
    held = producer.send_nowait("a")
    await client.call(segment_positions=pb.SegmentPositions(segment=parent))  # the send has arrived
    served.lost(NotOwner("its lease has ended"))
    with pytest.raises(NotOwner):
        await held
    await asyncio.gather(sealing, return_exceptions=True)
    assert node.broker.statistics().inflight_bytes == 0
    store.open()
