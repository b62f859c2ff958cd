"""Autoscale over real brokers and a real change driver: what comes in is published, and moves the layout (PIP-483)."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace as replaced

from segments.controller.autoscaling import SAMPLES_AT_ONCE, Autoscaling
from segments.layout.topology import Topology, create_record
from segments.owner.load_samples import LoadReporter, Stored
from tests.segments.brokering import TOPIC, Cluster, Node
from tests.segments.changing import Controlling, controlling, topology_of
from tests.segments.stopping import Steps, StoppingStore
from tests.waiting import until
from txnstore import keys, records
from txnstore.memory.memory_etcd import MemoryEtcd
from txnstore.memory.memory_store import MemoryStore
from txnstore.records import LoadSample
from txnstore.store import Commit, Delete, Put, RangeResult
from txnwire.clock import SystemClock
from txnwire.errors import StoreUnavailable, Timeout
from txnwire.names import SegmentName, TopicName
from txnwire.tasks import Tasks


class SetClock:
    """Time goes as a test says; by the wall it is always noon."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def monotonic(self) -> float:
        return self.now_s

    def wall_ms(self) -> int:
        return 43_200_000


async def sample(cluster: Cluster, path: str) -> LoadSample | None:
    found = await cluster.store.get(keys.load(path))
    return None if found is None else records.decode(LoadSample, found.value, key=found.key)


async def put_load(cluster: Cluster, path: str, messages_per_s: float) -> None:
    value = LoadSample(messages_in_per_s=messages_per_s, bytes_in_per_s=0, window_s=60, taken_ms=1)
    await cluster.store.commit(Commit(puts=(Put(keys.load(path), records.encode(value)),)))


async def started(cluster: Cluster, segments: int) -> tuple[Node, list[str]]:
    cluster.settings = replace(cluster.settings, load_sample_s=0)
    paths = await cluster.create_topic(segments=segments)
    node = await cluster.start()
    await until(lambda: len(node.broker.segments) == segments)
    return node, paths


async def test_the_owner_of_a_segment_tells_what_comes_in(memory_cluster: Cluster) -> None:
    node, paths = await started(memory_cluster, 2)
    clock = SetClock()
    reporter = LoadReporter(node.store, clock, lambda: node.broker.segments.values(), every_s=0)
    await reporter.report()
    client = await memory_cluster.connect(node)
    for path in paths:
        producer = await client.producer(path)
        for _ in range(10):
            await producer.send("a", "b")
    clock.now_s += 10
    await reporter.report()
    for path in paths:
        told = await sample(memory_cluster, path)
        assert told is not None
        assert (told.messages_in_per_s, told.window_s) == (2.0, 10.0)
        assert told.bytes_in_per_s > 0
    clock.now_s += 10
    await reporter.report()
    assert reporter.written == 2, "steady enough"


async def test_a_former_owner_tells_nothing(memory_cluster: Cluster) -> None:
    """▲ It would leave a record behind that nobody ever deletes."""
    node, (path,) = await started(memory_cluster, 1)
    clock = SetClock()
    segment = node.broker.segments[path]
    reporter = LoadReporter(node.store, clock, lambda: [segment], every_s=0)
    await reporter.report()
    await memory_cluster.store.commit(Commit(deletes=(Delete(keys.owner(path)),)))
    clock.now_s += 10
    await reporter.report()
    assert await sample(memory_cluster, path) is None
    assert reporter.written == 0


async def look(node: Node, clock: SetClock, autoscaling: Autoscaling, after_s: float) -> None:
    clock.now_s += after_s
    await autoscaling.look()
    await until(lambda: not autoscaling.acting)
    await node.directory.wait_revision((await newest(node)), prefix=keys.TOPIC)


async def newest(node: Node) -> int:
    record = await node.store.get(keys.topic(TOPIC.path))
    assert record is not None
    return record.mod_revision


def autoscaling_of(node: Node, clock: SetClock, control: Controlling) -> Autoscaling:
    return Autoscaling(node.store, node.directory, clock, control.changes, every_s=0)


async def test_a_hot_segment_is_split_and_cold_ones_are_merged_again(memory_cluster: Cluster) -> None:
    node, (path,) = await started(memory_cluster, 1)
    clock = SetClock()
    async with controlling(memory_cluster) as control:
        autoscaling = autoscaling_of(node, clock, control)
        await put_load(memory_cluster, path, 20_000)
        await look(node, clock, autoscaling, 0)
        assert len((await topology_of(memory_cluster)).active) == 1, "a new controller waits for a while"
        await look(node, clock, autoscaling, 60)
        topology = await topology_of(memory_cluster)
        assert [entry.lo for entry in topology.active] == [0, 0x8000]
        for child in topology.active_paths:
            await put_load(memory_cluster, child, 10)
        await look(node, clock, autoscaling, 1)
        await look(node, clock, autoscaling, 299)
        assert len((await topology_of(memory_cluster)).active) == 2, "cold, but not for long enough"
        await look(node, clock, autoscaling, 1)
        merged = await topology_of(memory_cluster)
        assert [(entry.lo, entry.hi) for entry in merged.active] == [(0, 0xFFFF)]
        statistics = autoscaling.statistics()
        assert (statistics.splits, statistics.merges, statistics.failed) == (1, 1, 0)
        await autoscaling.close()


@pytest.mark.parametrize("policy", ["off", {"max_segments": 1}])
async def test_the_policy_of_a_topic_keeps_it_as_it_is(memory_cluster: Cluster, policy: object) -> None:
    node, (path,) = await started(memory_cluster, 1)
    record = replaced((await topology_of(memory_cluster)).record, policies={"autoscale": policy})
    await memory_cluster.store.commit(Commit(puts=(Put(keys.topic(TOPIC.path), records.encode(record)),)))
    await node.directory.wait_revision(await newest(node), prefix=keys.TOPIC)
    clock = SetClock()
    async with controlling(memory_cluster) as control:
        autoscaling = autoscaling_of(node, clock, control)
        await put_load(memory_cluster, path, 20_000)
        for _ in range(3):
            await look(node, clock, autoscaling, 100)
        assert len((await topology_of(memory_cluster)).active) == 1
        await autoscaling.close()


async def test_a_change_that_fails_is_decided_anew_later(memory_cluster: Cluster) -> None:
    node, (path,) = await started(memory_cluster, 1)
    clock = SetClock()
    async with controlling(memory_cluster, patience_s=0.0) as control:

        def refuse(_: str) -> None:
            raise Timeout("what is in flight does not end")

        control.owners.before = refuse
        autoscaling = autoscaling_of(node, clock, control)
        await put_load(memory_cluster, path, 20_000)
        await look(node, clock, autoscaling, 0)
        await look(node, clock, autoscaling, 60)
        assert autoscaling.statistics().failed == 1
        assert len((await topology_of(memory_cluster)).active) == 1
        control.owners.before = lambda _: None
        await look(node, clock, autoscaling, 1)
        await look(node, clock, autoscaling, 60)
        assert len((await topology_of(memory_cluster)).active) == 2
        await autoscaling.close()


async def test_it_looks_by_itself_for_as_long_as_its_term(memory_cluster: Cluster) -> None:
    node, (path,) = await started(memory_cluster, 1)
    async with controlling(memory_cluster) as control:
        autoscaling = Autoscaling(node.store, node.directory, SystemClock(), control.changes, every_s=0.01)
        record = replaced((await topology_of(memory_cluster)).record, policies={"autoscale": {"split_cooldown_s": 0}})
        await memory_cluster.store.commit(Commit(puts=(Put(keys.topic(TOPIC.path), records.encode(record)),)))
        await put_load(memory_cluster, path, 20_000)
        autoscaling.start()
        await until(lambda: autoscaling.statistics().splits == 1)
        await autoscaling.close()


async def test_a_store_that_is_away_for_a_while_ends_no_look_out(
    memory_store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be told as a defect, and each one pauses it for longer."""
    tasks, looks = Tasks(), 0
    samples = memory_store.range

    async def away(*what: bytes, **options: Any) -> RangeResult:
        nonlocal looks
        looks += 1
        if looks <= 2:
            raise StoreUnavailable("etcd is away")
        return await samples(*what, **options)

    monkeypatch.setattr(memory_store, "range", away)
    directory: Any = SimpleNamespace(topics=dict)
    changes: Any = None
    with tasks.in_charge():
        autoscaling = Autoscaling(memory_store, directory, SystemClock(), changes, every_s=0.001)
        autoscaling.start()
        await until(lambda: looks >= 4)
        await autoscaling.close()
    assert tasks.failures == {}


@pytest.mark.parametrize("policy", [{"threshold": 1}, "off"])
async def test_what_cannot_be_read_of_one_topic_keeps_no_other_as_it_is(
    memory_cluster: Cluster, policy: object
) -> None:
    """Its policy, put there by another version, say; nor a load that is none; nor a topic without autoscale."""
    other = Topology(
        TopicName("public", "nyc", "airlines"), create_record(1, policies={"autoscale": policy}, created_ms=1)
    )
    puts = (
        Put(keys.topic(other.topic.path), records.encode(other.record)),
        Put(keys.load(other.active_paths[0]), b"{}"),
    )
    await memory_cluster.store.commit(Commit(puts=puts))
    memory_cluster.settings = replace(memory_cluster.settings, load_sample_s=0)
    (path,) = await memory_cluster.create_topic()
    node = await memory_cluster.start()
    await until(lambda: len(node.broker.segments) == 2)
    await put_load(memory_cluster, path, 20_000)
    clock = SetClock()
    async with controlling(memory_cluster) as control:
        autoscaling = autoscaling_of(node, clock, control)
        await look(node, clock, autoscaling, 0)
        await look(node, clock, autoscaling, 60)
        assert len((await topology_of(memory_cluster)).active) == 2
        await autoscaling.close()


async def test_a_sample_that_was_not_written_is_due_again(memory_cluster: Cluster, memory_etcd: MemoryEtcd) -> None:
    """▲ A steady load would never be told: autoscale would never split for it."""
    node, (path,) = await started(memory_cluster, 1)
    clock, steps = SetClock(), Steps(left=0)
    store = StoppingStore(memory_etcd, steps)
    reporter = LoadReporter(store, clock, lambda: node.broker.segments.values(), every_s=0)
    await reporter.report()
    producer = await (await memory_cluster.connect(node)).producer(path)
    written = []
    for _ in range(2):
        await producer.send(*"ab" * 100)
        clock.now_s += 10
        await reporter.report()
        written.append(reporter.written)
        steps.left = 1 << 30
    assert written == [0, 1]
    told = await sample(memory_cluster, path)
    assert told is not None
    assert told.messages_in_per_s == 20.0
    await store.close()


async def test_a_segment_that_comes_back_begins_to_count_anew(memory_store: MemoryStore) -> None:
    """▲ Its counters begin at nothing under each ownership: the load would be below nothing, and a merge due."""
    path, clock = f"{TOPIC.path}/0000-ffff-0", SetClock()
    served: list[Any] = []
    reporter = LoadReporter(memory_store, clock, lambda: served, every_s=0)

    async def own() -> Any:
        key = keys.owner(path)
        await memory_store.commit(Commit(deletes=(Delete(key),)))
        epoch = (await memory_store.commit(Commit(puts=(Put(key, b"{}"),)))).revision
        served[:] = [SimpleNamespace(path=path, epoch=epoch, takes_writes=True, taken_in=Stored(0, 0))]
        return served[0]

    rates = []
    for messages in (1000, 3000):
        segment = await own()
        for taken_in in (0, messages):
            segment.taken_in = Stored(taken_in, 0)
            await reporter.report()
            clock.now_s += 10
            found = await memory_store.get(keys.load(path))
            value = None if found is None else records.decode(LoadSample, found.value, key=found.key)
            rates.append(None if value is None else value.messages_in_per_s)
    assert rates == [None, 100.0, 100.0, 300.0]
    assert reporter.written == 2


@pytest.mark.parametrize("divisor", [1, SAMPLES_AT_ONCE])  # all samples in one page, one in each
async def test_every_topic_that_is_hot_is_split_at_one_look(
    memory_etcd: MemoryEtcd, memory_store: MemoryStore, divisor: int
) -> None:
    memory_etcd.pages_divided_by = divisor
    names = [TopicName("public", "nyc", name) for name in ("a", "b", "c")]
    topics = {name.path: Topology(name, create_record(1, policies={}, created_ms=1)) for name in names}
    hot = records.encode(LoadSample(messages_in_per_s=20_000, bytes_in_per_s=0, window_s=60, taken_ms=1))
    paths = [path for topology in topics.values() for path in topology.active_paths]
    await memory_store.commit(Commit(puts=tuple(Put(keys.load(path), hot) for path in paths)))
    split: list[str] = []

    async def splits(segment: SegmentName, _: int | None) -> None:
        split.append(segment.path)

    directory: Any = SimpleNamespace(topics=lambda: topics)
    changes: Any = SimpleNamespace(split=splits)
    clock = SetClock()
    autoscaling = Autoscaling(memory_store, directory, clock, changes, every_s=0)
    for _ in range(2):
        await autoscaling.look()
        clock.now_s += 60
    await until(lambda: not autoscaling.acting)
    assert split == paths
    await autoscaling.close()
