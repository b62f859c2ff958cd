"""Owners and controllers that die or are deposed during a change (S3, S10)."""

from __future__ import annotations

import asyncio

import pytest

from segments.layout.layout_transitions import (
    plan_layout,
    read_sealed,
    read_topology,
)
from tests.segments.brokering import Cluster
from tests.segments.changing import controlling, ledgers_of, topology_of
from tests.segments.gates import GatedStore, gate_stores
from tests.segments.owner.seals import (
    KEY,
    begin,
    eventually_split,
    give_up,
    raise_not_owner,
    seals,
    serving,
)
from tests.waiting import until
from txnstore import keys
from txnstore.store import Commit, MetadataStore
from txnwire.errors import (
    NotOwner,
)
from txnwire.ids import Position
from txnwire.proto import txn_pb2 as pb


def makes_layout(commit: Commit) -> bool:
    return any(put.key.startswith(keys.TOPIC) for put in commit.puts) and len(commit.compares) > 2


async def test_s3_a_split_falls_into_a_recovery(memory_cluster: Cluster) -> None:
    """The owner has died; its successor is asked to seal while it takes over, with an open transaction and one that was
    decided meanwhile."""
    cluster = memory_cluster
    gate_stores(cluster)
    [parent] = await cluster.create_topic()
    node = await cluster.start()
    producer = await (await cluster.connect(node)).producer(parent, "p", 6)
    still_open, decided = await cluster.begin(), await cluster.begin()
    await producer.send("still open", txn=still_open)
    last = await producer.send("aborted", txn=decided)
    await node.crash()
    await cluster.abort(decided)
    make_store = cluster.make_store

    async def make_held() -> MetadataStore:
        store = await make_store()
        assert isinstance(store, GatedStore)
        store.hold(lambda commit: any(one.key.startswith(keys.LEDGER) for one in commit.puts))
        return store  # type: ignore[return-value]

    cluster.make_store = make_held
    node = await cluster.start()
    cluster.make_store = make_store
    store: GatedStore = node.store  # type: ignore[assignment]
    await until(lambda: store.waiting)
    change = await begin(cluster, parent)
    client = await cluster.connect(node)
    asked = asyncio.ensure_future(client.call(seal_segment=pb.SealSegment(segment=parent, change_id=change)))
    await asyncio.sleep(0)
    store.open()
    answer = (await asked).seal_segment_ok
    assert Position(answer.end.ledger_id, answer.end.entry_id) == last
    async with controlling(cluster):
        await eventually_split(cluster, parent)
    await cluster.commit(still_open)
    for txn in (still_open, decided):
        await cluster.wait_no_ops(txn)
    reader = await client.reader(parent)
    await reader.wait("still open")
    await until(lambda: reader.ended == "sealed")


@pytest.mark.parametrize("ending", ["layout", "give up"])
async def test_s10_the_owner_dies_behind_its_seal(memory_cluster: Cluster, ending: str) -> None:
    """▲ A later owner that finds a seal opens nothing; one that was given up it takes back."""
    cluster = memory_cluster
    [parent] = await cluster.create_topic()
    node = await cluster.start()
    producer = await (await cluster.connect(node)).producer(parent, "p", 5)
    await producer.send("a")
    change = await begin(cluster, parent)
    await node.broker.segments[parent].sealing.seal(change)
    await node.crash()
    if ending == "give up":
        await give_up(cluster)
    if ending == "layout":
        async with controlling(cluster):  # takes up what it finds, though nobody owns the parent
            await eventually_split(cluster, parent)
    node = await cluster.start()
    if ending == "layout":
        await until(lambda: parent in node.broker.segments)
        assert node.broker.segments[parent].ledgers.writer is None
    else:
        await until(lambda: parent in node.broker.segments and not node.broker.segments[parent].ledgers.sealed)
        again = await (await cluster.connect(node)).producer(parent, "p", 5)
        assert again.last == 0
        await again.send("b")
        assert (await ledgers_of(cluster, parent)).sealed is None


@pytest.mark.parametrize("step", ["intent", "seal asked", "layout asked"])
async def test_s10_the_controller_dies_at_any_step_and_the_next_one_goes_on(memory_cluster: Cluster, step: str) -> None:
    cluster = memory_cluster
    gate_stores(cluster)
    [parent] = await cluster.create_topic()
    node = await cluster.start()
    broker_store: GatedStore = node.store  # type: ignore[assignment]
    producer = await (await cluster.connect(node)).producer(parent)
    await producer.send("a")
    store = await cluster.make_store()
    assert isinstance(store, GatedStore)
    async with controlling(cluster, store=store) as first:
        if step == "intent":
            first.owners.before = raise_not_owner
        elif step == "seal asked":
            broker_store.hold(seals)
        else:
            store.hold(makes_layout)
        asking = asyncio.ensure_future(first.split(parent))
        await until(lambda: first.owners.asked and (step == "intent" or broker_store.waiting or store.waiting))
    with pytest.raises(NotOwner):
        await asking
    broker_store.open()
    async with controlling(cluster, "c2") as second:
        await eventually_split(cluster, parent)
        await until(lambda: second.changes.statistics().under_way == 0)


async def test_s10_a_deposed_controllers_layout_changes_nothing(memory_cluster: Cluster) -> None:
    """▲ The one that was followed wakes up behind its successor: its write compares its term."""
    cluster = memory_cluster
    [parent] = await cluster.create_topic()
    await cluster.start()
    change_id = await begin(cluster, parent)
    record = await cluster.store.get(KEY)
    assert record is not None
    [change] = read_topology(record).record.changes
    async with controlling(cluster) as first:
        await eventually_split(cluster, parent)
        stale = first.changes._leadership.still_held()
    sealed = read_sealed(await cluster.store.get(keys.ledger(parent)), change_id)
    assert sealed is not None
    before = await topology_of(cluster)
    result = await cluster.store.commit(plan_layout(record, change, {change.parents[0]: sealed}, still_held=stale))
    assert not result.succeeded
    assert (await topology_of(cluster)).record == before.record


@pytest.mark.parametrize("first", ["hand over", "seal"])
async def test_a_segment_that_is_handed_over_is_sealed_by_its_next_owner(memory_cluster: Cluster, first: str) -> None:
    """Whichever comes first: what is handed over half sealed, and what is sealed half handed over, stands whole."""
    cluster = memory_cluster
    gate_stores(cluster)
    [parent] = await cluster.create_topic()
    node = await cluster.start()
    store: GatedStore = node.store  # type: ignore[assignment]
    producer = await (await cluster.connect(node)).producer(parent)
    last = await producer.send("a")
    change = await begin(cluster, parent)
    served = await serving(node, parent)
    store.hold(lambda commit: any(one.key.startswith(keys.LEDGER) for one in commit.puts))
    if first == "hand over":
        closing = asyncio.ensure_future(node.close())
        await until(lambda: store.waiting)
        sealing = asyncio.ensure_future(served.sealing.seal(change))
    else:
        sealing = asyncio.ensure_future(served.sealing.seal(change))
        await until(lambda: store.waiting)
        closing = asyncio.ensure_future(node.close())
    for _ in range(20):
        await asyncio.sleep(0)
    store.open()
    await asyncio.gather(closing, sealing, return_exceptions=True)
    assert closing.exception() is None
    node = await cluster.start()
    async with controlling(cluster):
        await eventually_split(cluster, parent)
    reader = await (await cluster.connect(node)).reader(parent)
    await reader.wait("a")
    assert (await ledgers_of(cluster, parent)).sealed == tuple(last)
