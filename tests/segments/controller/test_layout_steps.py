"""S10 step by step: owner and controller stop behind every write of a seal, a seal taken back, a layout, a pruning."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from pathlib import Path

import pytest

from segments.layout.layout_transitions import plan_prune
from tests.segments.brokering import TOPIC, Cluster
from tests.segments.changing import controlling, ledgers_of, topology_of
from tests.segments.controller.test_pruning import AT_ONCE, left_of, pruning, serving_all
from tests.segments.owner.seals import begin, eventually_split, give_up, serving
from tests.segments.stopping import Steps, StoppingLedgers, StoppingStore
from tests.waiting import until
from txnstore import keys
from txnstore.memory.memory_etcd import MemoryEtcd
from txnstore.memory.memory_store import MemoryStore
from txnstore.store import Commit, MetadataStore
from txnwire.clock import SystemClock
from txnwire.errors import NotOwner, SegmentSealed, StoreUnavailable, Timeout, TxnError

KEY = keys.topic(TOPIC.path)


class Armed:
    """The steps of the process that is going to stop; those of its successor are another's."""

    def __init__(self) -> None:
        self.steps = Steps()

    @staticmethod
    def counts(commit: Commit) -> bool:
        """What a lease keeps alive is no step."""
        return not any(put.key.startswith((keys.BROKER, keys.LEADER)) for put in commit.puts)

    def stop_behind(self, writes: int, *, silent: bool) -> None:
        self.steps.left, self.steps.silent = self.steps.taken + writes, silent


def stopping_cluster(etcd: MemoryEtcd, store: MemoryStore, data_dir: Path, armed: Armed) -> Cluster:
    """Its brokers stop; controllers do not."""

    async def make_store() -> MetadataStore:
        return StoppingStore(etcd, armed.steps, counts=armed.counts)

    cluster = Cluster(make_store, store, data_dir)
    cluster.make_ledgers = lambda path: StoppingLedgers(path, armed.steps)
    return cluster


def plain_store(etcd: MemoryEtcd, name: str) -> MemoryStore:
    return MemoryStore(etcd, SystemClock(), random.Random(name), name=name)


@pytest.mark.parametrize("silent", [False, True], ids=["", "silent"])
@pytest.mark.parametrize("given_up", [False, True], ids=["done", "given up"])
@pytest.mark.parametrize("stop_behind", range(4))
async def test_s10_the_owner_stops_behind_any_step(
    memory_etcd: MemoryEtcd,
    memory_store: MemoryStore,
    tmp_path: Path,
    stop_behind: int,
    given_up: bool,
    silent: bool,
) -> None:
    """Steps: the footer, the seal; taken back: the list, the next ledger. Whatever was acked is there once, whole
    transactions count, and the segment is either sealed or can be written to."""
    armed = Armed()
    cluster = stopping_cluster(memory_etcd, memory_store, tmp_path, armed)
    [parent] = await cluster.create_topic()
    node = await cluster.start()
    client = await cluster.connect(node)
    producer = await client.producer(parent, "p", 3)
    committed, aborted = await cluster.begin(), await cluster.begin()
    await producer.send("plain")
    await producer.send("committed", txn=committed)
    await producer.send("aborted", txn=aborted)
    change = await begin(cluster, parent)
    served = await serving(node, parent)
    if given_up:
        await served.sealing.seal(change)
    armed.stop_behind(stop_behind, silent=silent)
    if given_up:
        await give_up(cluster)
        await until(lambda: armed.steps.stopped() or (served.ledgers.writer is not None and served.sealing.idle))
    else:
        with suppress(TxnError):
            await served.sealing.seal(change)
    await node.crash()
    armed.steps = Steps()
    node = await cluster.start()
    if given_up:
        served = await serving(node, parent)
        await until(lambda: served.ledgers.writer is not None)
        again = await (await cluster.connect(node)).producer(parent, "p", 3)
        assert again.last == 2
        await again.send("behind")
    else:
        async with controlling(cluster, store=plain_store(memory_etcd, "c")):
            await eventually_split(cluster, parent)
        served = await serving(node, parent)
        assert served.last_sequence_id("p", 3) == 2
    await cluster.commit(committed)
    await cluster.abort(aborted)
    reader = await (await cluster.connect(node)).reader(parent)
    await reader.wait("plain", "committed", *(["behind"] if given_up else []))
    assert ((await ledgers_of(cluster, parent)).sealed is None) == given_up
    await cluster.close()


@pytest.mark.parametrize("silent", [False, True], ids=["", "silent"])
@pytest.mark.parametrize("kind", ["split", "merge"])
@pytest.mark.parametrize("stop_behind", range(3))
async def test_s10_the_controller_stops_behind_any_step(
    memory_etcd: MemoryEtcd, memory_cluster: Cluster, stop_behind: int, kind: str, silent: bool
) -> None:
    """Steps: the intent, the layout. The request, repeated to the next one, finds the change done, or makes it."""
    cluster = memory_cluster
    paths = await cluster.create_topic(segments=2)
    node = await cluster.start()
    for path in paths:
        await serving(node, path)
    armed = Armed()
    store = StoppingStore(memory_etcd, armed.steps, counts=armed.counts)
    async with controlling(cluster, store=store) as first:
        armed.stop_behind(stop_behind, silent=silent)
        asking = asyncio.ensure_future(first.split(paths[0]) if kind == "split" else first.merge(*paths))
        await until(lambda: armed.steps.stopped() or asking.done())
    with suppress(NotOwner, StoreUnavailable, Timeout):
        await asking
    async with controlling(cluster, "c2") as second:
        made = await (second.split(paths[0]) if kind == "split" else second.merge(*paths))
        await until(lambda: second.changes.statistics().under_way == 0)
    topology = await topology_of(cluster)
    assert (topology.epoch, topology.record.changes) == (2, [])
    assert [path for path in topology.active_paths if path in made] == made
    client = await cluster.connect(node)
    for path in paths[: 1 if kind == "split" else 2]:
        await until(lambda path=path: node.broker.segments[path].ledgers.ended)  # type: ignore[misc]
        with pytest.raises(SegmentSealed):
            await client.producer(path)


@pytest.mark.parametrize("silent", [False, True], ids=["", "silent"])
@pytest.mark.parametrize("stop_behind", range(5))
async def test_s8_the_owner_of_a_pruned_segment_stops_behind_any_step(
    memory_etcd: MemoryEtcd, memory_store: MemoryStore, tmp_path: Path, stop_behind: int, silent: bool
) -> None:
    """Steps: the release, the claim, the files, the last records. Its successor erases what is left."""
    armed = Armed()
    cluster = stopping_cluster(memory_etcd, memory_store, tmp_path, armed)
    cluster.settings = AT_ONCE
    [parent] = await cluster.create_topic()
    node = await cluster.start()
    async with controlling(cluster, store=plain_store(memory_etcd, "c")) as controller:
        await controller.split(parent)
        await serving_all(node, cluster)
        armed.stop_behind(stop_behind, silent=silent)
        record = await cluster.store.get(KEY)
        assert record is not None
        held = controller.changes._leadership.still_held()
        assert (await controller.store.commit(plan_prune(record, [0], still_held=held))).succeeded
        await until(lambda: armed.steps.stopped() or parent in node.broker._owned.holdings.erased)
        await node.crash()
        armed.steps = Steps()
        node = await cluster.start()
        async with pruning(controller) as pruner:
            await pruner.round()
            assert pruner.pruned == 1
        assert await left_of(cluster, parent) == []
        await until(lambda: len(node.broker.segments) == 2)
    await cluster.close()


async def test_s10_a_split_whose_parent_is_sealed_waits_for_no_owner(memory_cluster: Cluster) -> None:
    """Its owner has died behind the seal: sends of its range would wait for the next one, or the split be given up."""
    cluster = memory_cluster
    [parent] = await cluster.create_topic()
    node = await cluster.start()
    served = await serving(node, parent)
    await served.sealing.seal(await begin(cluster, parent))
    await node.crash()
    async with controlling(cluster, patience_s=1.0):
        await eventually_split(cluster, parent)


async def test_an_intent_whose_writer_never_learned_of_it_is_taken_up(
    memory_etcd: MemoryEtcd, memory_cluster: Cluster
) -> None:
    """Its request was given up while the answer was under way: nobody might ask again, and no other change of the
    segment could begin."""
    cluster = memory_cluster
    [parent] = await cluster.create_topic()
    node = await cluster.start()
    await serving(node, parent)
    armed = Armed()
    store = StoppingStore(memory_etcd, armed.steps, counts=armed.counts)
    async with controlling(cluster, store=store) as controller:
        armed.stop_behind(0, silent=True)
        with pytest.raises(StoreUnavailable):
            await controller.split(parent)
        armed.steps = store._steps = Steps()
        assert controller.changes.statistics().under_way == 0
        topology = await topology_of(cluster)
        assert len(topology.record.changes) == 1
        controller.changes.follow(topology)
        await eventually_split(cluster, parent)
        controller.changes.follow(topology)  # an old one: found done
        await until(lambda: controller.changes.statistics().under_way == 0)
        assert (await topology_of(cluster)).epoch == 2
