"""Sealing a segment by its owner: between any two steps of anything else, over every end of owner and controller."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from segments.layout.topology import Topology, create_record
from segments.log.settings import BrokerSettings
from tests.segments.brokering import Cluster
from tests.segments.changing import controlling, ledgers_of, topology_of
from tests.segments.gates import GatedLedgers, GatedStore, gate_stores, is_clean_up, is_write_op
from tests.segments.owner.seals import (
    KEY,
    begin,
    eventually_split,
    seals,
    serving,
    touch,
)
from tests.waiting import until
from txnstore import keys, records
from txnstore.records import TopicRecord
from txnstore.store import Commit, Put
from txnwire.errors import (
    DataCorrupt,
    InvalidArgument,
    NotAllowed,
    NotOwner,
    SegmentSealed,
    Timeout,
    TopicNotFound,
)
from txnwire.ids import EARLIEST
from txnwire.proto import txn_pb2 as pb


def files(data_dir: Path) -> dict[str, str]:
    return {
        str(one.relative_to(data_dir)): hashlib.sha256(one.read_bytes()).hexdigest()
        for one in sorted(data_dir.rglob("*"))
        if one.is_file()
    }


# ---- what a split does ----------------------------------------------------------------------------------------------


async def test_producers_of_a_sealed_segment_are_forgotten_like_any_that_have_left(memory_cluster: Cluster) -> None:
    """▲ Their sessions have ended, whether or not their connections have: they would be remembered as connected."""
    [parent] = await memory_cluster.create_topic()
    settings = BrokerSettings(lease_ttl_s=2.0, claim_retry_s=0.05, housekeeping_s=0.02, producer_idle_s=0.01)
    node = await memory_cluster.start(settings=settings)
    client = await memory_cluster.connect(node)
    producers = [await client.producer(parent, name) for name in ("one", "two")]
    for producer in producers:
        await producer.send("a")
    change, served = await begin(memory_cluster, parent), await serving(node, parent)
    assert served.statistics().producers == 2
    await served.sealing.seal(change)
    await until(lambda: all(isinstance(producer.closed, SegmentSealed) for producer in producers))
    await until(lambda: served.statistics().producers == 0)


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


async def test_a_later_owner_tells_the_end_of_every_sealed_segment(memory_cluster: Cluster) -> None:
    """▲ No change of the layout comes any more that would tell it: its readers and consumers would wait for ever."""
    cluster = memory_cluster
    parents = await cluster.create_topic(segments=2)
    node = await cluster.start()
    client = await cluster.connect(node)
    for path in parents:
        await (await client.producer(path)).send("m")
    async with controlling(cluster) as control:
        await control.merge(*parents)
    await node.close()
    client = await cluster.connect(await cluster.start())
    readers = [await client.reader(path) for path in parents]
    await until(lambda: [reader.ended for reader in readers] == ["sealed", "sealed"], within_s=20)
    assert [reader.values for reader in readers] == [["m"], ["m"]]


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


async def test_a_layout_without_the_segment_and_one_of_a_topic_that_goes_change_no_seal(
    memory_cluster: Cluster,
) -> None:
    """▲ A directory that lags may show one from before the segment was made; it must go on following."""
    cluster = memory_cluster
    [parent] = await cluster.create_topic()
    served = await serving(await cluster.start(), parent)
    before = await topology_of(cluster)
    await served.sealing.seal(await begin(cluster, parent))
    without = Topology(before.topic, create_record(1, policies={}, created_ms=1, first_segment_id=7))
    going = Topology(before.topic, replace(before.record, deleting_ms=1))
    for layout in (without, going):
        served.sealing.follow(layout)
        assert served.sealing.idle
    assert served.ledgers.sealed
    assert not served.ledgers.ended


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
