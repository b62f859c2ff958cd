"""Sealing a segment by its owner: between any two steps of anything else, over every end of owner and controller."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path
from typing import Any

import pytest

from segments.layout.layout_transitions import (
    SPLIT,
    Wanted,
    normalize,
    plan_give_up,
    plan_intent,
    plan_layout,
    read_sealed,
    read_topology,
)
from segments.log.settings import BrokerSettings
from segments.owner.segment import Segment
from tests.segments.brokering import TOPIC, Cluster, Node
from tests.segments.changing import controlling, ledgers_of, topology_of
from tests.segments.gates import GatedLedgers, GatedStore, gate_stores, is_clean_up, is_write_op
from tests.waiting import until
from txnstore import keys, records
from txnstore.records import LedgerRecord, TopicRecord
from txnstore.store import Commit, Compare, MetadataStore, Put, Relation, Target
from txnwire.errors import (
    DataCorrupt,
    InvalidArgument,
    NotAllowed,
    NotOwner,
    SegmentSealed,
    SequenceGap,
    Timeout,
    TopicNotFound,
)
from txnwire.ids import EARLIEST, Position
from txnwire.proto import txn_pb2 as pb

KEY = keys.topic(TOPIC.path)
ALWAYS = Compare(KEY, Target.VERSION, Relation.GREATER, 0)


def seals(commit: Commit) -> bool:
    return any(
        put.key.startswith(keys.LEDGER) and records.decode(LedgerRecord, put.value, key=put.key).sealed is not None
        for put in commit.puts
    )


def takes_back(commit: Commit) -> bool:
    return (
        any(put.key.startswith(keys.LEDGER) for put in commit.puts)
        and any(compare.key.startswith(keys.TOPIC) for compare in commit.compares)
        and not seals(commit)
    )


def makes_layout(commit: Commit) -> bool:
    return any(put.key.startswith(keys.TOPIC) for put in commit.puts) and len(commit.compares) > 2


async def begin(cluster: Cluster, path: str, change_id: str = "c1") -> str:
    """The intent of a split, as a controller puts it."""
    record = await cluster.store.get(KEY)
    assert record is not None
    topology = read_topology(record)
    [segment_id] = [one for one, found in topology.paths.items() if found == path]
    wanted = normalize(topology, Wanted(SPLIT, (segment_id,)))
    change, commit = plan_intent(record, wanted, change_id=change_id, still_held=ALWAYS, now_ms=1)
    assert (await cluster.store.commit(commit)).succeeded
    return change.id


async def give_up(cluster: Cluster, change_id: str = "c1") -> None:
    record = await cluster.store.get(KEY)
    assert record is not None
    assert (await cluster.store.commit(plan_give_up(record, change_id, still_held=ALWAYS))).succeeded


async def touch(cluster: Cluster) -> None:
    """Some other change of the topic's record."""
    record = await cluster.store.get(KEY)
    assert record is not None
    await cluster.store.commit(Commit(puts=(Put(KEY, record.value),)))


async def serving(node: Node, path: str) -> Segment:
    await until(lambda: path in node.broker.segments)
    return node.broker.segments[path]


def files(data_dir: Path) -> dict[str, str]:
    return {
        str(one.relative_to(data_dir)): hashlib.sha256(one.read_bytes()).hexdigest()
        for one in sorted(data_dir.rglob("*"))
        if one.is_file()
    }


# ---- what a split does ----------------------------------------------------------------------------------------------


async def test_a_split_seals_the_parent_and_tells_its_producers_what_is_stored(memory_cluster: Cluster) -> None:
    cluster = memory_cluster
    [parent] = await cluster.create_topic()
    node = await cluster.start()
    client = await cluster.connect(node)
    busy, idle = await client.producer(parent, "busy"), await client.producer(parent, "idle")
    reader = await client.reader(parent)
    last = await busy.send("a", "b")
    async with controlling(cluster) as controller:
        children = await controller.split(parent)
        assert controller.changes.statistics().splits == 1
    topology = await topology_of(cluster)
    assert list(topology.active_paths) == children
    assert topology.epoch == 2
    record = await ledgers_of(cluster, parent)
    assert record.sealed == tuple(last)
    assert record.ledgers[-1].closed_length == 1
    await until(lambda: isinstance(busy.closed, SegmentSealed) and isinstance(idle.closed, SegmentSealed))
    assert (busy.closed_last, idle.closed_last) == (1, -1)
    await until(lambda: reader.ended == "sealed")
    with pytest.raises(SegmentSealed):
        await busy.send("c")
    with pytest.raises(SegmentSealed):
        await client.producer(parent, "busy")
    await until(lambda: all(child in node.broker.segments for child in children))
    below = await client.producer(children[0], "busy")
    await below.send("d")


async def test_every_later_owner_knows_what_is_stored_in_a_sealed_segment(memory_cluster: Cluster) -> None:
    """▲ Dedup survives in the footer: who never heard of the seal asks whoever owns the segment by then."""
    cluster = memory_cluster
    [parent] = await cluster.create_topic()
    node = await cluster.start()
    producer = await (await cluster.connect(node)).producer(parent, "p", 9)
    await producer.send("a", "b", "c")
    async with controlling(cluster) as controller:
        await controller.split(parent)
    for graceful in (True, False):
        await (node.close() if graceful else node.crash())
        node = await cluster.start()
        await until(lambda: parent in node.broker.segments)  # noqa: B023
        client = await cluster.connect(node)
        for incarnation, stored in ((9, 2), (8, -1)):
            request = pb.OpenProducer(producer_id=incarnation, segment=parent, name="p", incarnation=incarnation)
            answer = (await client.call(open_producer=request)).open_producer_ok
            assert (answer.sealed, answer.last_sequence_id) == (True, stored)


async def test_a_merge_seals_both_and_an_empty_segment_too(memory_cluster: Cluster) -> None:
    cluster = memory_cluster
    paths = await cluster.create_topic(segments=2)
    await cluster.start()
    async with controlling(cluster) as controller:
        [child] = await controller.merge(*reversed(paths))
        assert child.endswith("0000-ffff-2")
        assert await controller.merge(*paths) == [child]  # again: it stands
    for path in paths:
        assert (await ledgers_of(cluster, path)).sealed == tuple(EARLIEST)


# ---- S3: between any two steps --------------------------------------------------------------------------------------


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
@pytest.mark.parametrize("held", ["op", "append", "decision", "clean-up"])
async def test_s3_a_split_falls_between_any_two_steps_of_a_transaction(
    memory_cluster: Cluster, held: str, commit: bool
) -> None:
    """The op record, the append, the decision, its materialization: none is asked, none waited for but what is in
    flight, none lost."""
    cluster = memory_cluster
    gate_stores(cluster)
    ledger_gates: list[GatedLedgers] = []

    def make_ledgers(data_dir: Path) -> Any:
        ledger_gates.append(GatedLedgers(data_dir))
        return ledger_gates[-1]

    cluster.make_ledgers = make_ledgers
    [parent] = await cluster.create_topic()
    node = await cluster.start()
    store: GatedStore = node.store  # type: ignore[assignment]
    client = await cluster.connect(node)
    producer, reader = await client.producer(parent), await client.reader(parent)
    await producer.send("before")
    txn = await cluster.begin()
    sent = None
    if held == "op":
        store.hold(is_write_op)
        sent = producer.send_nowait("t", txn=txn)
        await until(lambda: store.waiting)
    elif held == "append":
        ledger_gates[0].hold()
        sent = producer.send_nowait("t", txn=txn)
        await until(lambda: ledger_gates[0].waiting)
    else:
        await producer.send("t", txn=txn)
        if held == "clean-up":
            store.hold(is_clean_up)
            await (cluster.commit(txn) if commit else cluster.abort(txn))
    async with controlling(cluster) as controller:
        splitting = asyncio.ensure_future(controller.split(parent))
        if sent is not None:
            await until(lambda: controller.owners.asked)
            await asyncio.sleep(0)
            assert not sent.done()
            assert not splitting.done()
            store.open()
            ledger_gates[0].open()
            await sent  # what was in flight is stored, not refused
        await splitting
    if held != "clean-up":
        await (cluster.commit(txn) if commit else cluster.abort(txn))
    store.open()
    await cluster.wait_no_ops(txn)
    await reader.wait("before", *(["t"] if commit else []))
    await until(lambda: reader.ended == "sealed")


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


async def test_s4_a_sealed_parent_resolves_its_transactions_without_a_write_to_its_ledger(
    memory_cluster: Cluster,
) -> None:
    cluster = memory_cluster
    [parent] = await cluster.create_topic()
    node = await cluster.start()
    client = await cluster.connect(node)
    producer, reader = await client.producer(parent), await client.reader(parent)
    committed, aborted, collected = [await cluster.begin() for _ in range(3)]
    for txn in (committed, aborted, collected):
        await producer.send(f"of {txn}", txn=txn)
    await producer.send("plain")
    async with controlling(cluster) as controller:
        await controller.split(parent)
    folder = next(one for one in cluster.data_dir.rglob("*") if one.is_dir() and one.name == parent.rpartition("/")[2])
    before = files(folder)
    assert before
    assert reader.values == []
    await cluster.commit(committed)
    await cluster.abort(aborted)
    await node.crash()  # a later owner does the rest
    node = await cluster.start()
    await until(lambda: parent in node.broker.segments)
    await cluster.commit(collected)
    for txn in (committed, aborted, collected):
        await cluster.wait_no_ops(txn)
    client = await cluster.connect(node)
    reader = await client.reader(parent)
    await reader.wait(f"of {committed}", f"of {collected}", "plain")
    await until(lambda: reader.ended == "sealed")
    # Not the parent's fence, which whoever takes over an open ledger writes: this one was closed.
    assert files(folder) == before


# ---- sends meanwhile ------------------------------------------------------------------------------------------------


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


async def test_a_seal_follows_other_changes_of_the_topics_record(memory_cluster: Cluster) -> None:
    """A policy changed meanwhile is no reason to give up."""
    cluster = memory_cluster
    gate_stores(cluster)
    [parent] = await cluster.create_topic()
    node = await cluster.start()
    store: GatedStore = node.store  # type: ignore[assignment]
    change = await begin(cluster, parent)
    store.hold(seals)
    sealing = asyncio.ensure_future((await serving(node, parent)).sealing.seal(change))
    await until(lambda: store.waiting)
    await touch(cluster)
    store.open()
    seal = await sealing
    assert seal.end == EARLIEST
    assert (await ledgers_of(cluster, parent)).sealed_by == change


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


async def test_what_does_not_end_in_time_keeps_the_segment_open(memory_cluster: Cluster) -> None:
    cluster = memory_cluster
    gate_stores(cluster)
    cluster.settings = BrokerSettings(lease_ttl_s=2.0, claim_retry_s=0.05, seal_wait_s=0.05)
    [parent] = await cluster.create_topic()
    node = await cluster.start()
    store: GatedStore = node.store  # type: ignore[assignment]
    producer = await (await cluster.connect(node)).producer(parent)
    store.hold(is_write_op)
    sent = producer.send_nowait("t", txn=await cluster.begin())
    await until(lambda: store.waiting)
    change = await begin(cluster, parent)
    sealing = asyncio.ensure_future((await serving(node, parent)).sealing.seal(change))
    await asyncio.sleep(0)
    behind = producer.send_nowait("plain")
    with pytest.raises(Timeout, match="did not end"):
        await sealing
    store.open()
    await sent
    await behind
    assert (await ledgers_of(cluster, parent)).sealed is None


# ---- S10: owner and controller die at every step --------------------------------------------------------------------


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


async def test_a_directory_that_lags_takes_no_seal_back(memory_cluster: Cluster) -> None:
    """▲ It shows the layout from before the change: the store is asked."""
    cluster = memory_cluster
    [parent] = await cluster.create_topic()
    node = await cluster.start()
    served = await serving(node, parent)
    before = await topology_of(cluster)
    change = await begin(cluster, parent)
    seal = await served.sealing.seal(change)
    for _ in range(3):
        served.sealing.follow(before)
        await until(lambda: served.sealing.idle)
    assert (await served.sealing.seal(change)) == seal
    assert (await ledgers_of(cluster, parent)).sealed_by == change
    async with controlling(cluster) as controller:
        await eventually_split(cluster, parent)
        assert controller.owners.asked == []
    await until(lambda: served.ledgers.ended)
    served.sealing.follow(before)
    assert served.sealing.idle


async def eventually_split(cluster: Cluster, parent: str) -> None:
    async with asyncio.timeout(10):
        while (await topology_of(cluster)).epoch == 1:
            await asyncio.sleep(0.005)
    topology = await topology_of(cluster)
    assert not topology.record.changes
    assert len(topology.active) == 2
    assert (await ledgers_of(cluster, parent)).sealed is not None


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
            first.owners.before = _raise_not_owner
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


def _raise_not_owner(segment: str) -> None:
    raise NotOwner(f"nobody serves {segment}")


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


async def test_s6_racing_requests_of_two_clients_make_one_layout(memory_cluster: Cluster) -> None:
    cluster = memory_cluster
    paths = await cluster.create_topic(segments=2)
    await cluster.start()
    async with controlling(cluster) as controller:
        found = await asyncio.gather(
            controller.split(paths[0]),
            controller.split(paths[0], 0x4000),
            controller.merge(*paths),
            controller.split(paths[1]),
            controller.split(paths[0], 5),
            return_exceptions=True,
        )
    assert found[0] == found[1]
    assert isinstance(found[3], list)
    for lost in (found[2], found[4]):
        assert isinstance(lost, NotAllowed | InvalidArgument)
    topology = await topology_of(cluster)
    assert len(topology.active) == 4
    assert not topology.record.changes


async def test_one_that_cannot_be_sealed_is_given_up(memory_cluster: Cluster) -> None:
    """A merge of which one parent has no owner: the other one, sealed already, goes on."""
    cluster = memory_cluster
    paths = await cluster.create_topic(segments=2)
    node = await cluster.start()
    client = await cluster.connect(node)
    async with controlling(cluster, patience_s=0.2) as controller:
        controller.owners.before = lambda path: _raise_not_owner(path) if path == paths[1] else None
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
        controller.owners.before = _raise_not_owner
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


# ---- roll, failure, deletion ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", ["roll", "seal"])
async def test_a_roll_and_a_seal_go_one_after_the_other(memory_cluster: Cluster, first: str) -> None:
    cluster = memory_cluster
    gate_stores(cluster)
    [parent] = await cluster.create_topic()
    node = await cluster.start()
    store: GatedStore = node.store  # type: ignore[assignment]
    client = await cluster.connect(node)
    producer, reader = await client.producer(parent), await client.reader(parent)
    last = await producer.send("a")
    change = await begin(cluster, parent)
    served = await serving(node, parent)
    store.hold(lambda commit: any(put.key.startswith(keys.LEDGER) for put in commit.puts))
    works = {
        "roll": lambda: asyncio.ensure_future(served.roll()),
        "seal": lambda: asyncio.ensure_future(served.sealing.seal(change)),
    }
    running = [works[first]()]
    await until(lambda: store.waiting)
    running += [work() for name, work in works.items() if name != first]
    running.append(asyncio.ensure_future(served.checkpoint()))
    for _ in range(20):
        await asyncio.sleep(0)
    store.open()
    await asyncio.gather(*running)
    assert served.ledgers.sealed
    assert parent in node.broker.segments
    assert (await ledgers_of(cluster, parent)).sealed == tuple(last)
    await reader.wait("a")


async def test_a_ledger_that_fails_while_it_is_sealed_loses_nothing(memory_cluster: Cluster) -> None:
    cluster = memory_cluster
    gates: list[GatedLedgers] = []

    def make_ledgers(data_dir: Path) -> Any:
        gates.append(GatedLedgers(data_dir))
        return gates[-1]

    cluster.make_ledgers = make_ledgers
    [parent] = await cluster.create_topic()
    node = await cluster.start()
    producer = await (await cluster.connect(node)).producer(parent)
    await producer.send("a")
    gates[0].hold()
    sent = producer.send_nowait("b")
    await until(lambda: gates[0].waiting)
    async with controlling(cluster) as controller:
        splitting = asyncio.ensure_future(controller.split(parent))
        await until(lambda: controller.owners.asked)
        gates[0].fail_syncs = True
        gates[0].open()
        with pytest.raises(NotOwner):
            await sent
        gates[0].fail_syncs = False
        await splitting
    client = await cluster.connect(node)
    await until(lambda: parent in node.broker.segments)
    reader = await client.reader(parent)
    await until(lambda: reader.ended == "sealed")
    assert reader.values[:1] == ["a"]


async def test_s8_a_topic_that_is_marked_takes_no_seal_and_makes_no_layout(memory_cluster: Cluster) -> None:
    cluster = memory_cluster
    [parent] = await cluster.create_topic()
    node = await cluster.start()
    change = await begin(cluster, parent)
    served = await serving(node, parent)
    record = await cluster.store.get(KEY)
    assert record is not None
    marked = records.decode(TopicRecord, record.value, key=KEY)
    fields = {name: getattr(marked, name) for name in marked.__struct_fields__}
    await cluster.store.commit(Commit(puts=(Put(KEY, records.encode(TopicRecord(**fields | {"deleting_ms": 5}))),)))
    with pytest.raises((InvalidArgument, TopicNotFound)):
        await served.sealing.seal(change)
    async with controlling(cluster) as controller:
        with pytest.raises(TopicNotFound):
            await controller.split(parent)
        await until(lambda: controller.changes.statistics().under_way == 0)
    found = await topology_of(cluster)
    assert found.epoch == 1
    assert found.deleting


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


async def test_a_segment_that_is_corrupt_is_not_split(memory_cluster: Cluster) -> None:
    cluster = memory_cluster
    [parent] = await cluster.create_topic()
    await cluster.start()
    async with controlling(cluster, patience_s=0.05) as controller:
        controller.owners.before = _raise_corrupt
        with pytest.raises(Timeout, match="cannot be sealed: bytes are not what was written"):
            await controller.split(parent)
        assert not (await topology_of(cluster)).record.changes


def _raise_corrupt(segment: str) -> None:
    raise DataCorrupt("bytes are not what was written")
