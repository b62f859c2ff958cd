"""Layout changes that are given up: their segments go on."""

from __future__ import annotations

import asyncio

import pytest

from tests.segments.brokering import Cluster
from tests.segments.changing import controlling, ledgers_of, topology_of
from tests.segments.gates import GatedStore, gate_stores
from tests.segments.owner.seals import (
    KEY,
    begin,
    give_up,
    raise_not_owner,
    seals,
    serving,
    touch,
)
from tests.waiting import until
from txnstore import keys
from txnstore.store import Commit
from txnwire.errors import (
    InvalidArgument,
    NotAllowed,
    Timeout,
)
from txnwire.proto import txn_pb2 as pb


def takes_back(commit: Commit) -> bool:
    return (
        any(put.key.startswith(keys.LEDGER) for put in commit.puts)
        and any(compare.key.startswith(keys.TOPIC) for compare in commit.compares)
        and not seals(commit)
    )


@pytest.mark.parametrize("when", ["before the seal", "after the seal"])
async def test_a_change_that_is_given_up_lets_the_segment_go_on(memory_cluster: Cluster, when: str) -> None:
    """▲ S10: given up before the seal is written, it is not written; given up behind it, it is taken back. Nothing that
    was stored is lost, nothing is stored twice, readers go on."""
    cluster = memory_cluster
    gate_stores(cluster)
    [parent] = await cluster.create_topic()
    node = await cluster.start()
    store: GatedStore = node.store  # type: ignore[assignment]
    client = await cluster.connect(node)
    producer, reader = await client.producer(parent), await client.reader(parent)
    queue = await cluster.queue(client, parent)
    await producer.send("a")
    change = await begin(cluster, parent)
    served = await serving(node, parent)
    if when == "before the seal":
        store.hold(seals)
        sealing = asyncio.ensure_future(served.sealing.seal(change))
        await until(lambda: store.waiting)
        held = producer.send_nowait("b")
        await client.call(segment_positions=pb.SegmentPositions(segment=parent))
        await give_up(cluster)
        store.open()
        with pytest.raises(NotAllowed, match="given up"):
            await sealing
        await held
        assert producer.closed is None
    else:
        await served.sealing.seal(change)
        await until(lambda: producer.closed is not None)
        await reader.wait("a")
        served.seal_is_final()  # wakes whoever might be told of an end
        await client.call(segment_positions=pb.SegmentPositions(segment=parent))
        assert reader.ended is None  # ▲ the seal stands, and may yet be taken back
        await give_up(cluster)
        await until(lambda: not served.ledgers.sealed and served.ledgers.writer is not None)
        producer = await client.producer(parent)
        assert producer.last == 0
        await producer.send("b")
    record = await ledgers_of(cluster, parent)
    assert record.sealed is None
    assert record.sealed_by is None
    assert [info.closed_length for info in record.ledgers] == [1, None]
    for one in (reader, queue):
        await one.wait("a", "b")
        assert one.ended is None
    async with controlling(cluster) as controller:  # and may be split another time
        await controller.split(parent)
    await until(lambda: reader.ended == "sealed")


async def test_s10_a_late_request_of_a_change_that_was_given_up_seals_nothing(memory_cluster: Cluster) -> None:
    cluster = memory_cluster
    [parent] = await cluster.create_topic()
    node = await cluster.start()
    client = await cluster.connect(node)
    producer = await client.producer(parent)
    change = await begin(cluster, parent)
    await give_up(cluster)
    for late in (change, "never heard of"):
        with pytest.raises(InvalidArgument, match="tells of no change"):
            await client.call(seal_segment=pb.SealSegment(segment=parent, change_id=late))
    await begin(cluster, parent, "c2")
    with pytest.raises(InvalidArgument, match="tells of no change c1"):
        await client.call(seal_segment=pb.SealSegment(segment=parent, change_id=change))
    await producer.send("a")


async def test_a_segment_is_not_sealed_for_a_change_of_another_one(memory_cluster: Cluster) -> None:
    """Dies if it is: its producers would go to children that it never gets."""
    cluster = memory_cluster
    one, other = await cluster.create_topic(segments=2)
    client = await cluster.connect(await cluster.start())
    producer = await client.producer(other)
    change = await begin(cluster, one)
    with pytest.raises(InvalidArgument, match="tells of no change"):
        await client.call(seal_segment=pb.SealSegment(segment=other, change_id=change))
    await producer.send("a")
    assert (await ledgers_of(cluster, other)).sealed is None


async def test_a_segment_sealed_for_a_change_given_up_is_sealed_for_the_next(memory_cluster: Cluster) -> None:
    """Before the owner has noticed: the seal is another one, with the same end."""
    cluster = memory_cluster
    gate_stores(cluster)
    [parent] = await cluster.create_topic()
    node = await cluster.start()
    store: GatedStore = node.store  # type: ignore[assignment]
    producer = await (await cluster.connect(node)).producer(parent)
    last = await producer.send("a")
    served = await serving(node, parent)
    await served.sealing.seal(await begin(cluster, parent))
    store.hold(takes_back)
    await give_up(cluster)
    await until(lambda: store.waiting)  # the owner is about to take it back
    second = await begin(cluster, parent, "c2")
    with pytest.raises(NotAllowed):
        await served.sealing.seal(second)
    store.open()
    await until(lambda: served.sealing.idle)
    seal = await served.sealing.seal(second)
    assert seal.end == last
    assert (await ledgers_of(cluster, parent)).sealed_by == second


async def test_one_that_cannot_be_sealed_is_given_up(memory_cluster: Cluster) -> None:
    """A merge of which one parent has no owner: the other one, sealed already, goes on."""
    cluster = memory_cluster
    paths = await cluster.create_topic(segments=2)
    node = await cluster.start()
    client = await cluster.connect(node)
    async with controlling(cluster, patience_s=0.2) as controller:
        controller.owners.before = lambda path: raise_not_owner(path) if path == paths[1] else None
        with pytest.raises(Timeout, match="given up after"):
            await controller.merge(*paths)
        assert controller.changes.statistics().given_up == 1
    served = await serving(node, paths[0])
    await until(lambda: not served.ledgers.sealed and served.ledgers.writer is not None)
    await (await client.producer(paths[0])).send("a")
    topology = await topology_of(cluster)
    assert topology.epoch == 1
    assert not topology.record.changes


async def test_s10_a_change_is_given_up_though_the_record_was_changed_just_then(memory_cluster: Cluster) -> None:
    """▲ Who asked is told once the intent is gone: left behind, it would keep the segment from any other change."""
    cluster = memory_cluster
    [parent] = await cluster.create_topic()
    await cluster.start()
    store = GatedStore(await cluster.make_store())
    async with controlling(cluster, patience_s=0.1, store=store) as controller:  # type: ignore[arg-type]
        controller.owners.before = raise_not_owner
        asking = asyncio.ensure_future(controller.split(parent))
        await until(lambda: controller.owners.asked)
        store.hold(lambda commit: any(put.key == KEY for put in commit.puts))
        await until(lambda: store.waiting)
        await touch(cluster)
        store.open()
        with pytest.raises(Timeout, match="given up after"):
            await asking
        assert not (await topology_of(cluster)).record.changes
        assert controller.changes.statistics().given_up == 1
