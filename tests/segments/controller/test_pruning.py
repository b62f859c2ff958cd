"""Sealed segments of which nothing is left leave the graph (S9), and nothing else does; nothing of them stays (S8)."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from segments.controller.pruning import DRAINED_READ_AT_ONCE, PATIENCE_S, Pruning
from segments.layout.directory import Directory
from segments.layout.layout_transitions import (
    DRAINED_AT_ONCE,
    MAX_SEGMENTS,
    MERGE,
    SPLIT,
    Wanted,
    find_candidates,
    normalize,
    plan_forget_drained,
    plan_intent,
    plan_layout,
    plan_prune,
    plan_pruned,
    read_topology,
)
from segments.layout.topology import create_record
from segments.log.settings import BrokerSettings
from tests.segments.brokering import TOPIC, Cluster, Node
from tests.segments.changing import Controlling, controlling, topology_of
from tests.segments.virtual_time import LoopClock, virtual_time
from tests.waiting import until
from txnstore import keys, records
from txnstore.memory.memory_etcd import MemoryEtcd
from txnstore.memory.memory_store import MemoryStore
from txnstore.records import AbortedRecord, Drained
from txnstore.store import Commit, Delete, KeyValue, Put, absent, created_at
from txnwire.errors import InvalidArgument, NotAllowed, StoreUnavailable, TopicNotFound

KEY = keys.topic(TOPIC.path)
HELD = created_at(keys.leader("controller"), 7)
AT_ONCE = BrokerSettings(lease_ttl_s=2.0, claim_retry_s=0.05, prune_least_age_ms=0, producer_idle_s=0.0)


# ---- the pure core --------------------------------------------------------------------------------------------------


def change(record: KeyValue, kind: str, *parents: int) -> KeyValue:
    wanted = normalize(read_topology(record), Wanted(kind, parents))
    intent, commit = plan_intent(record, wanted, change_id="c", still_held=HELD, now_ms=1)
    begun = KeyValue(KEY, commit.puts[0].value, 1, 1, record.mod_revision + 1)
    done = plan_layout(begun, intent, dict.fromkeys(intent.parents, 1), still_held=HELD)
    return KeyValue(KEY, done.puts[0].value, 1, 1, record.mod_revision + 2)


def put(record: KeyValue, commit: Commit) -> KeyValue:
    return KeyValue(KEY, commit.puts[0].value, 1, 1, record.mod_revision + 1)


def created() -> KeyValue:
    return KeyValue(KEY, records.encode(create_record(1, policies={}, created_ms=1)), 1, 1, 1)


def prune_all(record: KeyValue) -> KeyValue:
    while going := find_candidates(read_topology(record)):
        record = put(record, plan_prune(record, going, still_held=HELD))
        for one in going:
            record = put(record, plan_pruned(record, one, still_held=HELD))
        record = put(record, plan_forget_drained(record, going, [], still_held=HELD))
    return record


def test_s9_a_thousand_changes_leave_a_record_of_a_few_segments() -> None:
    """Look-ups, records and the graph stay as small as what is kept, for ever; ids go on rising."""
    record, largest = created(), 0
    chance = random.Random(9)
    for number in range(1000):
        active = read_topology(record).active
        index = chance.randrange(len(active))
        if len(active) > 8 and index:
            record = change(record, MERGE, active[index - 1].id, active[index].id)
        else:
            widest = max(active, key=lambda one: one.hi - one.lo)
            record = change(record, SPLIT, widest.id)
        largest = max(largest, len(record.value))
        if number % 10 == 9:
            record = prune_all(record)
            assert len(read_topology(record).segments) == len(read_topology(record).active)
    topology = read_topology(record)
    assert topology.epoch == 1001
    assert topology.record.next_segment_id > 1000
    assert len(record.value) < 2000
    assert largest < 6000


def test_only_what_is_sealed_and_behind_nothing_that_stays_is_pruned() -> None:
    record = change(change(created(), SPLIT, 0), SPLIT, 1)  # 0 → 1, 2; 1 → 3, 4
    topology = read_topology(record)
    assert find_candidates(topology) == [0]
    assert find_candidates(topology, [0]) == [1]
    for wrong in ([1], [2], [0, 2], [9], [0, 0]):
        with pytest.raises(InvalidArgument, match="not sealed, or has a parent that stays"):
            plan_prune(record, wrong, still_held=HELD)
    for wrong_id in (1, 2):
        with pytest.raises(InvalidArgument, match="cannot prune"):
            topology.prune(wrong_id)
    pruned = topology.prune(0)
    assert (pruned.segments[1].parents, pruned.segments[2].parents, pruned.epoch) == ([], [], topology.epoch)
    assert find_candidates(pruned) == [1]


def test_what_held_something_is_remembered_as_lost_what_never_did_is_not() -> None:
    """By the highest id: a read from an old snapshot has to hear of what retention took, and of nothing else."""
    record = change(change(created(), SPLIT, 0), SPLIT, 1)  # 0 → 1, 2; 1 → 3, 4
    empty = put(record, plan_prune(record, [0, 1], still_held=HELD, never_used=[0, 1]))
    assert read_topology(empty).record.lost_id == -1
    assert read_topology(put(record, plan_prune(record, [0, 1], still_held=HELD, never_used=[1]))).record.lost_id == 0
    used = put(record, plan_prune(record, [0], still_held=HELD))
    assert read_topology(put(used, plan_prune(used, [1], still_held=HELD, never_used=[1]))).record.lost_id == 0
    assert create_record(1, policies={}, created_ms=1, first_segment_id=7).lost_id == 6, "a deleted topic's are lost"


def test_a_merged_segment_stays_until_both_its_parents_have_gone() -> None:
    record = change(change(created(), SPLIT, 0), MERGE, 1, 2)  # 0 → 1, 2 → 3
    record = change(record, SPLIT, 3)
    topology = read_topology(record).prune(0).prune(1)
    assert find_candidates(topology) == [2]
    assert find_candidates(topology.prune(2)) == [3]


def test_a_topic_has_so_many_segments_at_most() -> None:
    """What its record grows to is bounded, whatever is kept."""
    segments = read_topology(change(created(), SPLIT, 0)).record.segments
    chain = [one for one in segments if one.id]
    first = segments[0]
    filler = [
        type(first)(id=number, lo=0, hi=0xFFFF, state="SEALED", parents=[number - 1], children=[number + 1])
        for number in range(1, MAX_SEGMENTS - 2)
    ]
    last = MAX_SEGMENTS - 2
    record = create_record(1, policies={}, created_ms=1)
    leaves = [
        type(first)(id=last, lo=0, hi=0x7FFF, state="ACTIVE", parents=[last - 1], children=[]),
        type(first)(id=last + 1, lo=0x8000, hi=0xFFFF, state="ACTIVE", parents=[last - 1], children=[]),
    ]
    filler[-1] = type(first)(
        id=last - 1, lo=0, hi=0xFFFF, state="SEALED", parents=[last - 2], children=[last, last + 1]
    )
    root = type(first)(id=0, lo=0, hi=0xFFFF, state="SEALED", parents=[], children=[1])
    fields = {name: getattr(record, name) for name in record.__struct_fields__}
    full = type(record)(**fields | {"segments": [root, *filler, *leaves], "next_segment_id": last + 2})
    assert len(chain) == 2
    stored = KeyValue(KEY, records.encode(full), 1, 1, 1)
    assert len(stored.value) < 600_000
    with pytest.raises(NotAllowed, match=f"of {MAX_SEGMENTS} at most"):
        plan_intent(stored, Wanted(SPLIT, (last,), 5), change_id="c", still_held=HELD, now_ms=1)


def test_s8_a_segment_leaves_the_graph_only_when_nothing_of_it_is_left() -> None:
    """▲ In the same write: no owner who could write more, no ledger list, no state, no op, no cursor."""
    record = change(created(), SPLIT, 0)
    path = read_topology(record).paths[0]
    commit = plan_pruned(put(record, plan_prune(record, [0], still_held=HELD)), 0, still_held=HELD)
    compared = [one.key for one in commit.compares]
    for key in (
        KEY,
        keys.owner(path),
        keys.ledger(path),
        keys.segment_state(path),
        keys.writes_by_segment(path),
        keys.acks_by_segment(path),
        keys.cursors(path),
    ):
        assert key in compared


# ---- with owners ----------------------------------------------------------------------------------------------------


@asynccontextmanager
async def pruning(controller: Controlling) -> AsyncIterator[Pruning]:
    """Looks only when it is asked to (`round`)."""
    directory = Directory(controller.store, controller.cluster.clock)
    await directory.start()
    try:
        yield Pruning(
            controller.store,
            directory,
            controller.owners,
            leadership=controller.changes._leadership,
            pause_s=1000.0,
            on_deposed=lambda: None,
        )
    finally:
        await directory.close()


async def left_of(cluster: Cluster, path: str) -> list[bytes]:
    found = (await cluster.store.range(b"/", b"0")).records
    return [one.key for one in found if path.encode() in one.key]


def files_of(data_dir: Path, path: str) -> list[Path]:
    """Ledgers, footers, sidecars: not the fences, which outlive them."""
    name = path.rpartition("/")[2]
    return [one for one in data_dir.rglob("*") if name in str(one.relative_to(data_dir)) and one.suffix == ".ledger"]


async def serving_all(node: Node, cluster: Cluster) -> None:
    topology = await topology_of(cluster)
    await until(lambda: all(path in node.broker.segments for path in topology.paths.values()))
    await until(
        lambda: all(
            node.broker.segments[path].ledgers.ended == (path not in topology.active_paths)
            for path in topology.paths.values()
        )
    )


async def test_s8_s9_an_empty_sealed_segment_goes_with_everything_of_it(memory_cluster: Cluster) -> None:
    cluster = memory_cluster
    cluster.settings = AT_ONCE
    [parent] = await cluster.create_topic()
    node = await cluster.start()
    async with controlling(cluster) as controller, pruning(controller) as pruner:
        first, second = await controller.split(parent)
        [merged] = await controller.merge(first, second)
        drained = keys.drained(TOPIC.path, "sub", 0)
        await cluster.store.commit(Commit(puts=(Put(drained, records.encode(Drained(end=(0, -1)))),)))
        await serving_all(node, cluster)
        await pruner.round()
        assert pruner.pruned == 3
        topology = await topology_of(cluster)
        assert list(topology.paths.values()) == [merged]
        assert topology.epoch == 3
        assert not topology.record.pruning
        assert topology.record.lost_id == -1, "none of them ever held anything"
        for path in (parent, first, second):
            assert await left_of(cluster, path) == []
            assert files_of(cluster.data_dir, path) == []
        assert await cluster.store.get(drained) is None
        await until(lambda: list(node.broker.segments) == [merged])
        client = await cluster.connect(node)
        await (await client.producer(merged)).send("a")
        with pytest.raises(TopicNotFound, match="has no segment"):
            await client.producer(parent)


async def test_a_controller_that_hears_of_a_change_whose_parents_are_pruned_gives_it_up(
    memory_cluster: Cluster,
) -> None:
    """▲ Another one has finished it: it can be told neither done nor to be made, and nobody would end its driving."""
    cluster = memory_cluster
    cluster.settings = AT_ONCE
    [parent] = await cluster.create_topic()
    record = await cluster.store.get(KEY)
    assert record is not None
    wanted = normalize(read_topology(record), Wanted(SPLIT, (0,)))
    _, intent = plan_intent(record, wanted, change_id="c", still_held=HELD, now_ms=1)
    node = await cluster.start()
    async with controlling(cluster, patience_s=0.2) as controller, pruning(controller) as pruner:
        await controller.split(parent)
        await serving_all(node, cluster)
        await pruner.round()
        assert pruner.pruned == 1
        controller.changes.follow(read_topology(put(record, intent)))
        assert controller.changes.statistics().under_way == 1
        await until(lambda: controller.changes.statistics().under_way == 0)


@pytest.mark.parametrize(
    "kept", ["entries", "an open transaction", "acks of one", "an aborted record", "its producers"]
)
async def test_what_anybody_could_still_want_stays(memory_cluster: Cluster, kept: str) -> None:
    cluster = memory_cluster
    cluster.settings = AT_ONCE
    if kept == "its producers":
        cluster.settings = BrokerSettings(lease_ttl_s=2.0, claim_retry_s=0.05, prune_least_age_ms=0)
    [parent] = await cluster.create_topic()
    node = await cluster.start()
    client = await cluster.connect(node)
    producer = await client.producer(parent)
    if kept == "entries":
        await producer.send("a")
    elif kept == "an open transaction":
        key = keys.write_index(parent, await cluster.begin())
        await cluster.store.commit(Commit(puts=(Put(key, b""),)))
    elif kept == "acks of one":
        key = keys.ack_index(parent, "sub", await cluster.begin())
        await cluster.store.commit(Commit(puts=(Put(key, b""),)))
    elif kept == "an aborted record":
        key = keys.aborted(parent, await cluster.begin())
        await cluster.store.commit(Commit(puts=(Put(key, records.encode(AbortedRecord(max_position=None))),)))
    async with controlling(cluster) as controller, pruning(controller) as pruner:
        await controller.split(parent)
        await serving_all(node, cluster)
        await pruner.round()
        assert pruner.pruned == 0
        assert parent in (await topology_of(cluster)).paths.values()
        assert not (await topology_of(cluster)).record.pruning
        if kept in ("an open transaction", "acks of one", "an aborted record"):
            await cluster.store.commit(Commit(deletes=(Delete(key),)))
            await pruner.round()
            assert pruner.pruned == 1


@pytest.mark.parametrize("step", ["marked", "erased", "out of the graph"])
async def test_a_pruning_that_was_cut_short_is_finished_by_the_next_controller(
    memory_cluster: Cluster, step: str
) -> None:
    cluster = memory_cluster
    cluster.settings = AT_ONCE
    [parent] = await cluster.create_topic()
    node = await cluster.start()
    async with controlling(cluster) as controller:
        await controller.split(parent)
        await serving_all(node, cluster)
        if step == "marked":
            await node.crash()
        record = await cluster.store.get(KEY)
        assert record is not None
        held = controller.changes._leadership.still_held()
        assert (await controller.store.commit(plan_prune(record, [0], still_held=held))).succeeded
        if step != "marked":
            await until(lambda: parent not in node.broker.segments)
            while await cluster.store.get(keys.ledger(parent)) or await cluster.store.get(keys.owner(parent)):
                await until(lambda: True)
        if step == "out of the graph":
            record = await cluster.store.get(KEY)
            assert record is not None
            assert (await controller.store.commit(plan_pruned(record, 0, still_held=held))).succeeded
    drained = keys.drained(TOPIC.path, "sub", 0)
    await cluster.store.commit(Commit(puts=(Put(drained, records.encode(Drained(end=(0, -1)))),)))
    if step == "marked":
        node = await cluster.start()
    async with controlling(cluster, "c2") as controller, pruning(controller) as pruner:
        await pruner.round()
        topology = await topology_of(cluster)
        assert 0 not in topology.segments
        assert not topology.record.pruning
        assert await cluster.store.get(drained) is None
        assert await left_of(cluster, parent) == []


async def test_drained_records_go_behind_what_is_followed_of_the_graph(memory_cluster: Cluster) -> None:
    """▲ The controller would take the children from their consumers, had it followed the deletion first."""
    cluster = memory_cluster
    cluster.settings = AT_ONCE
    [parent] = await cluster.create_topic()
    node = await cluster.start()
    drained = keys.drained(TOPIC.path, "sub", 0)
    await cluster.store.commit(Commit(puts=(Put(drained, records.encode(Drained(end=(0, -1)))),)))
    async with controlling(cluster) as controller:
        await controller.split(parent)
        await serving_all(node, cluster)
        held = controller.changes._leadership.still_held()
        async with pruning(controller) as lagging:
            await lagging._directory.close()  # follows no more
            for plan in (
                lambda record: plan_prune(record, [0], still_held=held),
                lambda record: plan_pruned(record, 0, still_held=held),
            ):
                while True:
                    record = await cluster.store.get(KEY)
                    assert record is not None
                    if (await controller.store.commit(plan(record))).succeeded:
                        break
                    await until(lambda: True)
            record = await cluster.store.get(KEY)
            assert record is not None
            step = await lagging._step_of(TOPIC.path, record, read_topology(record))
            assert step.name == "WAIT"
            assert await cluster.store.get(drained) is not None
        async with pruning(controller) as pruner:
            await pruner.round()
            assert await cluster.store.get(drained) is None


async def test_what_many_subscriptions_have_drained_goes_in_steps_of_a_few_reads_each(
    memory_etcd: MemoryEtcd, memory_store: MemoryStore
) -> None:
    """Of a thousand subscriptions each step of a hundred keys would read all keys of the topic."""
    memory_etcd.pages_divided_by = DRAINED_READ_AT_ONCE // 50
    value = records.encode(Drained(end=(0, -1)))
    for at in range(0, 300, 50):
        names = [f"s{number:04d}" for number in range(at, at + 50)]
        puts = [Put(keys.drained(TOPIC.path, name, segment), value) for name in names for segment in (1, 2)]
        await memory_store.commit(Commit(puts=tuple(puts)))
    layout = create_record(3, policies={}, created_ms=1)
    marked = msgspec.structs.replace(layout, pruning=[1])
    await memory_store.commit(Commit(puts=(Put(KEY, records.encode(marked)),)))
    followed = SimpleNamespace(segments={0: None, 2: None})
    directory: Any = SimpleNamespace(topics=lambda: {TOPIC.path: followed})
    leadership: Any = SimpleNamespace(still_held=lambda: absent(keys.leader("controller")))
    owners: Any = None
    of_term = Pruning(memory_store, directory, owners, leadership=leadership, pause_s=1.0, on_deposed=lambda: None)
    steps = 0
    while (record := await memory_store.get(KEY)) is not None and read_topology(record).record.pruning:
        assert await left(memory_store, 1) > 0
        await of_term._forget_drained(TOPIC.path, record, [1])
        steps += 1
    assert (await left(memory_store, 1), await left(memory_store, 2), steps) == (0, 300, -(-300 // DRAINED_AT_ONCE))


async def left(store: MemoryStore, segment: int) -> int:
    prefix = keys.DRAINED + f"{TOPIC.path}/".encode()
    found = await store.range(prefix, keys.prefix_end(prefix), keys_only=True)
    return sum(record.key.endswith(f"/{segment}".encode()) for record in found.records)


async def test_s9_changes_without_end_leave_nothing_behind(memory_cluster: Cluster) -> None:
    """Splits and merges of a live topic, pruned as it goes: recovery and records stay as small as what is kept."""
    cluster = memory_cluster
    cluster.settings = AT_ONCE
    [path] = await cluster.create_topic()
    node = await cluster.start()
    async with controlling(cluster) as controller, pruning(controller) as pruner:
        for _ in range(12):
            [path] = await controller.merge(*await controller.split(path))
            if len((await topology_of(cluster)).segments) > 12:
                await serving_all(node, cluster)
                await pruner.round()
        await serving_all(node, cluster)
        await pruner.round()
        topology = await topology_of(cluster)
        assert list(topology.paths.values()) == [path]
        assert topology.epoch == 25
        found = (await cluster.store.range(b"/", b"0")).records
        assert len([one for one in found if TOPIC.path.encode() in one.key]) == 3  # topic, owner, ledger list
        await until(lambda: list(node.broker.segments) == [path])


async def test_a_topic_whose_pruning_fails_holds_no_other_up() -> None:
    """▲ Topics are taken in one order in every round: all behind it would never be pruned."""
    asked: list[bytes] = []

    async def get(key: bytes) -> None:
        asked.append(key)
        if len(asked) == 1:
            raise StoreUnavailable("no etcd endpoint answers")

    going = read_topology(
        put(change(created(), SPLIT, 0), plan_prune(change(created(), SPLIT, 0), [0], still_held=HELD))
    )
    directory: Any = SimpleNamespace(topics=lambda: {"a/b/one": going, "a/b/two": going})
    store: Any = SimpleNamespace(get=get)
    unused: Any = None
    await Pruning(store, directory, unused, leadership=unused, pause_s=1.0, on_deposed=lambda: None).round()
    assert asked == [keys.topic("a/b/one"), keys.topic("a/b/two")]


@virtual_time
async def test_a_topic_whose_owners_erase_nothing_holds_no_other_up() -> None:
    """A hung broker, say: after some seconds it is the others' turn, and its own again in the next round."""
    asked: list[bytes] = []
    marked = put(change(created(), SPLIT, 0), plan_prune(change(created(), SPLIT, 0), [0], still_held=HELD))

    async def get(key: bytes) -> KeyValue | None:
        asked.append(key)
        return marked if key == keys.topic("a/b/one") else None

    topics = dict.fromkeys(("a/b/one", "a/b/two"), read_topology(marked))
    directory: Any = SimpleNamespace(topics=lambda: topics, owner=lambda _: "a broker")
    store: Any = SimpleNamespace(get=get)
    unused: Any = None
    begun_s = LoopClock().monotonic()
    await Pruning(store, directory, unused, leadership=unused, pause_s=1.0, on_deposed=lambda: None).round()
    assert asked[-1] == keys.topic("a/b/two")
    assert PATIENCE_S <= LoopClock().monotonic() - begun_s < 2 * PATIENCE_S


async def test_an_owner_that_cannot_say_whether_it_is_done_keeps_no_other_segment(memory_cluster: Cluster) -> None:
    cluster = memory_cluster
    cluster.settings = AT_ONCE
    one, two = await cluster.create_topic(segments=2)
    node = await cluster.start()
    async with controlling(cluster) as controller, pruning(controller) as pruner:
        for path in (one, two):
            await controller.split(path)
        await serving_all(node, cluster)
        forgotten = controller.owners.forgotten

        async def asked(segment: str) -> bool:
            if segment == one:
                raise StoreUnavailable("planned by the test")
            return await forgotten(segment)

        controller.owners.forgotten = asked  # type: ignore[method-assign]
        await pruner.round()
        assert pruner.pruned == 1
        topology = await topology_of(cluster)
        assert one in topology.paths.values()
        assert two not in topology.paths.values()
