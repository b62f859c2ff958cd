"""What a segment tells of its bytes, and of what was trimmed: operators size disks and retentions by it."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from segments.log.ledgers.retention import Retention
from tests.segments.brokering import Cluster
from tests.segments.gates import GatedStore, gate_stores, is_clean_up
from tests.segments.log.small_logs import ONE_ENTRY_EACH
from tests.waiting import until
from txnwire.errors import NotOwner

QUIET = replace(ONE_ENTRY_EACH, ledger_roll_bytes=1 << 30, housekeeping_s=3600.0, roll_least_age_ms=1 << 30)
ALL_CLOSED = Retention(ms=-1)


async def test_every_trimmed_ledger_counts_by_its_bytes(memory_cluster: Cluster) -> None:
    [path] = await memory_cluster.create_topic()
    node = await memory_cluster.start(settings=QUIET)
    producer = await (await memory_cluster.connect(node)).producer(path)
    served = node.broker.segments[path]
    for value in ("a" * 1000, "b" * 100, "c"):
        await producer.send(value)
        await served.roll()
    await producer.send("in the open ledger")
    before = served.statistics()
    assert before.kept_bytes == served.taken_in.bytes, "that of the open ledger, too"
    await served.keep(ALL_CLOSED)
    after = served.statistics()
    assert after.keeping.trimmed_ledgers == 3
    assert after.keeping.trimmed_bytes == before.kept_bytes - after.kept_bytes
    assert after.kept_bytes == served.open_bytes > 0


async def test_what_a_segment_kept_counts_once_however_often_it_is_told_to_end(memory_cluster: Cluster) -> None:
    """Its ledger fails as its broker hands it over, say."""
    [path] = await memory_cluster.create_topic()
    node = await memory_cluster.start(settings=QUIET)
    producer = await (await memory_cluster.connect(node)).producer(path)
    served = node.broker.segments[path]
    for value in "ab":
        await producer.send(value)
        await served.roll()
    await served.keep(ALL_CLOSED)
    kept = served.statistics().keeping
    assert kept.trimmed_ledgers == 2
    assert kept.trimmed_bytes > 0
    for _ in range(2):
        served.stop(NotOwner("taken away"))
    assert node.broker._shared.measures.kept == kept


async def test_entries_that_nobody_read_in_time_add_up_over_the_trims(memory_cluster: Cluster) -> None:
    """For each reader that was behind; a trim that took nothing from anybody resets nothing."""
    [path] = await memory_cluster.create_topic()
    node = await memory_cluster.start(settings=QUIET)
    client = await memory_cluster.connect(node)
    producer = await client.producer(path)
    served = node.broker.segments[path]
    slow = [await client.reader(path, permits=1) for _ in range(2)]
    skipped = []
    for number in range(3):
        await producer.send(f"first {number}")
        await producer.send(f"second {number}")
        await served.roll()
        await until(lambda: all(reader.all for reader in slow))
        if number == 2:
            for reader in slow:
                reader.flow(100)
            await until(lambda: all(reader.values[-1:] == ["second 2"] for reader in slow))
        await served.keep(ALL_CLOSED)
        skipped.append(served.statistics().keeping.skipped_entries)
    assert skipped == [2, 6, 6]


async def test_what_one_segment_takes_in_is_no_load_of_another(memory_cluster: Cluster) -> None:
    """▲ Autoscale would split a quiet segment for what its neighbours take in."""
    busy, quiet = await memory_cluster.create_topic(segments=2)
    node = await memory_cluster.start(settings=QUIET)
    client = await memory_cluster.connect(node)
    producers = {path: await client.producer(path) for path in (busy, quiet)}
    for _ in range(3):
        await producers[busy].send("a" * 1000, "b")
        await producers[quiet].send("c")
    served = {path: node.broker.segments[path] for path in producers}
    assert [served[path].taken_in.messages for path in (busy, quiet)] == [6, 3]
    assert [served[path].statistics().stored_entries for path in (busy, quiet)] == [3, 3]
    for segment in served.values():
        assert segment.taken_in.bytes == segment.statistics().kept_bytes
    told = node.broker.statistics().measures
    assert (told.entries_stored, told.messages_stored) == (6, 9)
    assert told.bytes_stored == sum(segment.taken_in.bytes for segment in served.values())
    assert (told.publish.count, told.ops_written) == (6, 0)


async def test_ops_of_writes_and_acks_are_counted(memory_cluster: Cluster) -> None:
    [path] = await memory_cluster.create_topic()
    node = await memory_cluster.start(settings=QUIET)
    client = await memory_cluster.connect(node)
    producer, consumer = await memory_cluster.holding_abc(client, path)
    txn = await memory_cluster.begin()
    counts = []
    for message in consumer.take():
        await consumer.ack(message, txn=txn)
        counts.append(node.broker.statistics().measures.ops_written)
    await producer.send("d", txn=txn)
    counts.append(node.broker.statistics().measures.ops_written)
    assert counts == [1, 2, 3, 4]


async def test_rates_are_measured_of_all_segments_of_a_broker_at_once(memory_cluster: Cluster) -> None:
    busy, quiet, idle = await memory_cluster.create_topic(segments=3)
    node = await memory_cluster.start(settings=QUIET)
    client = await memory_cluster.connect(node)
    producers = {path: await client.producer(path) for path in (busy, quiet)}
    await until(lambda: len(node.broker.segments) == 3)
    asked = asyncio.ensure_future(node.service.admin["segment.stats"]({"rates": True}))
    while not asked.done():
        await producers[busy].send("a", "b", "c")
        await producers[quiet].send("d")
    told = {path: one["recent"]["messages_per_s"] for path, one in (await asked)["segments"].items()}
    assert told.keys() == {busy, quiet, idle}
    assert told[busy] > 2 * told[quiet] > told[idle] == 0


async def test_each_transaction_that_holds_readers_back_is_told_with_what_is_behind_it(memory_cluster: Cluster) -> None:
    [path] = await memory_cluster.create_topic()
    node = await memory_cluster.start(settings=QUIET)
    producer = await (await memory_cluster.connect(node)).producer(path)
    first, second = await memory_cluster.begin(), await memory_cluster.begin()
    at = [await producer.send(value, txn=txn) for value, txn in (("a", first), ("b", None), ("c", second), ("d", None))]
    told = node.broker.segments[path].statistics()
    assert told.pinning == ((first, at[0]), (second, at[2]))
    assert told.entries_behind == (3, 1)


async def test_what_is_left_to_clean_up_is_told_of_every_subscription(memory_cluster: Cluster) -> None:
    gate_stores(memory_cluster)
    [path] = await memory_cluster.create_topic()
    node = await memory_cluster.start(settings=QUIET)
    client = await memory_cluster.connect(node)
    await (await client.producer(path)).send("a")
    txn = await memory_cluster.begin()
    for name in ("one", "two"):
        consumer = await memory_cluster.queue(client, path, name=name)
        await consumer.wait("a")
        await consumer.ack(consumer.messages[0], txn=txn)
    store: GatedStore = node.store  # type: ignore[assignment]
    store.hold(is_clean_up)
    await memory_cluster.commit(txn)
    served = node.broker.segments[path]
    await until(lambda: served.statistics().clean_up_backlog == 2, within_s=20)
    store.open()
    await until(lambda: served.statistics().clean_up_backlog == 0)


async def test_of_a_broker_every_segment_is_told_in_however_many_parts_they_are_gathered(
    memory_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("segments.broker.broker.GATHERED_AT_ONCE", 2)
    paths = await memory_cluster.create_topic(segments=5)
    node = await memory_cluster.start(settings=QUIET)
    await until(lambda: len(node.broker.segments) == 5)
    for told in (await node.broker.gather_statistics(), node.broker.statistics()):
        assert [segment.path for segment in told.segments] == sorted(paths)
