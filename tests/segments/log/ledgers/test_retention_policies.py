"""What the policies of a topic and its subscriptions keep."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from segments.log.housekeeping import Housekeeping
from segments.log.ledgers.retention import Retention
from segments.log.settings import BrokerSettings
from tests.segments.brokering import TOPIC, Cluster
from tests.segments.changing import controlling
from tests.segments.log.small_logs import (
    ONE_ENTRY_EACH,
    aborted_in_store,
    expected,
    files,
    ledger_list,
    read_to_sentinel,
    set_policies,
    settle,
    write,
)
from tests.waiting import until
from txnstore import keys, records
from txnstore.memory.memory_store import MemoryStore
from txnstore.records import LedgerInfo, LedgerRecord, SubscriptionRecord
from txnstore.store import Commit, Put
from txnwire.clock import SystemClock
from txnwire.errors import DataCorrupt
from txnwire.ids import EARLIEST, Position


async def test_time_trims_what_is_closed_and_readers_go_on_behind(memory_cluster: Cluster) -> None:
    cluster = memory_cluster
    [segment] = await cluster.create_topic()
    node = await cluster.start(settings=ONE_ENTRY_EACH)
    client = await cluster.connect(node)
    await write(cluster, client, segment, 3)
    slow = await client.reader(segment, permits=1)
    await until(lambda: len(slow.all) == 1)
    await set_policies(cluster, retention_ms=1)
    await until(
        lambda: (
            len(files(cluster, segment)) == 1
            and files(cluster, segment, "footer") == files(cluster, segment)
            and files(cluster, segment, "sidecar") == []
        ),
        what="the open ledger alone is left, with its checkpoint",
    )
    assert await aborted_in_store(cluster, segment) == 0
    served = node.broker.segments[segment]
    await until(lambda: served.statistics().keeping.trimmed_ledgers == 9)
    await set_policies(cluster)
    producer = await client.producer(segment, "after")
    kept = await producer.send("after")
    slow.flow(100)
    await until(lambda: slow.values[-1] == "after", what="the reader jumps to the first that is kept")
    assert slow.values == [slow.values[0], "after"]
    statistics = served.statistics()
    assert statistics.keeping.skipped_entries > 0
    assert statistics.trimmed_below is not None
    assert statistics.trimmed_below <= kept
    # A consumer of a subscription made before, at a position that is gone, and after a restart.
    await node.crash()
    client = await cluster.connect(await cluster.start(settings=ONE_ENTRY_EACH))
    consumer = await cluster.subscribe(client, segment)
    await consumer.wait("after")
    assert (await client.reader(segment)).closed is None


async def test_size_keeps_as_much_as_it_says(memory_cluster: Cluster) -> None:
    cluster = memory_cluster
    [segment] = await cluster.create_topic()
    node = await cluster.start(settings=ONE_ENTRY_EACH)
    client = await cluster.connect(node)
    producer = await client.producer(segment)
    for number in range(10):
        await producer.send(f"{number}" * 500)
    size = next(info.bytes for info in (await ledger_list(cluster, segment)).ledgers if info.bytes)
    await set_policies(cluster, retention_bytes=4 * size)
    await until(lambda: len(files(cluster, segment)) == 5, what="four full ledgers and the open one")
    assert await read_to_sentinel(client, segment, "s") == [f"{number}" * 500 for number in range(6, 10)]


async def test_generations_of_a_range_share_what_is_kept_of_it(memory_cluster: Cluster) -> None:
    """▲ A split does not give a topic its retention once more: the newest keep theirs, the sealed what is left."""
    cluster = memory_cluster
    [parent] = await cluster.create_topic()
    node = await cluster.start(settings=replace(ONE_ENTRY_EACH, producer_idle_s=0.0))
    client = await cluster.connect(node)
    producer = await client.producer(parent)
    for number in range(6):
        await producer.send(f"old {number}")
    size = (await ledger_list(cluster, parent)).ledgers[0].bytes
    await set_policies(cluster, retention_bytes=6 * size)
    await settle()
    assert len(files(cluster, parent)) >= 6
    async with controlling(cluster) as controller:
        children = await controller.split(parent)
    await until(lambda: all(child in node.broker.segments for child in children))
    for child in children:
        below = await client.producer(child)
        for number in range(2):
            await below.send(f"new {number}")
    sealed = node.broker.segments[parent]
    await until(lambda: sealed.ledgers.entries == 2)
    await settle()
    assert sealed.ledgers.entries == 2
    for child in children:
        below = await client.producer(child, "more")
        for number in range(2):
            await below.send(f"new {number}")
    await until(lambda: sealed.ledgers.entries == 0)


AFTER = ("0000-3fff-7", "4000-5fff-8", "6000-7fff-6")
"""Segments that came after one of 0000-7fff, of 100 bytes each."""


@pytest.mark.parametrize("at_once", [1, 2, 1000])
async def test_what_is_left_of_a_share_is_asked_of_those_that_came_after_in_the_range(
    memory_store: MemoryStore, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    """Each of thousands of sealed segments would read and parse the lists of all the others, every half minute. Names
    and lists are read page by page."""
    for bound in ("NAMES_AT_ONCE", "LISTS_AT_ONCE"):
        monkeypatch.setattr(f"segments.log.housekeeping.{bound}", at_once)
    topic = "public/default/t"
    kept = LedgerInfo(ledger_id=1, store="file", opened_ms=1, closed_length=5, bytes=100, closed_ms=2)
    lists = {f"{topic}/{name}": records.encode(LedgerRecord(ledgers=[kept])) for name in AFTER}
    lists |= {f"{topic}/{name}": b"not to be read" for name in ("0000-ffff-0", "8000-ffff-9", "0000-7fff-4")}
    await memory_store.commit(Commit(puts=tuple(Put(keys.ledger(path), value) for path, value in lists.items())))
    segment: Any = SimpleNamespace(path=f"{topic}/0000-7fff-5", ledgers=SimpleNamespace(ended=True), buffer=None)
    keeping = Housekeeping(memory_store, SystemClock(), BrokerSettings(), segment)
    assert (await keeping._with_share_left(Retention(bytes_kept=1000))).bytes_kept == 700


@pytest.mark.parametrize("damaged", ["0000-3fff-8", "no segment", "\udcff"])
async def test_a_ledger_list_that_cannot_be_read_ends_no_segment_that_it_came_from(
    memory_store: MemoryStore, damaged: str
) -> None:
    """▲ `DataCorrupt` in a round gives the segment up: all ancestors would change hands every half minute."""
    topic = "public/default/t"
    kept = LedgerInfo(ledger_id=1, store="file", opened_ms=1, closed_length=5, bytes=300, closed_ms=2)
    whole = Put(keys.ledger(f"{topic}/0000-3fff-7"), records.encode(LedgerRecord(ledgers=[kept])))
    other = keys.ledger(topic) + b"/" + damaged.encode(errors="surrogateescape")
    await memory_store.commit(Commit(puts=(whole, Put(other, b"not to be read"))))
    segment: Any = SimpleNamespace(path=f"{topic}/0000-7fff-5", ledgers=SimpleNamespace(ended=True), buffer=None)
    keeping = Housekeeping(memory_store, SystemClock(), BrokerSettings(), segment)
    assert (await keeping._with_share_left(Retention(bytes_kept=1000))).bytes_kept == 700


async def test_what_a_subscription_has_not_drained_stays_unless_the_policy_says_so(memory_cluster: Cluster) -> None:
    cluster = memory_cluster
    [segment] = await cluster.create_topic()
    node = await cluster.start(settings=ONE_ENTRY_EACH)
    client = await cluster.connect(node)
    await write(cluster, client, segment, 2)
    consumer = await cluster.subscribe(client, segment)
    await consumer.wait(*expected(2))
    await cluster.create_subscription("never-attached")
    await cluster.create_subscription(
        "behind", record=SubscriptionRecord(type="stream", start={"kind": "latest"}, positions={segment: (99, 0)})
    )
    await set_policies(cluster, retention_ms=1)
    await consumer.ack(*consumer.messages)
    await settle(20)
    await until(lambda: len(files(cluster, segment)) == 7, what="all stay, for whom nobody attached to yet")
    await cluster.store.commit(Commit(puts=(Put(keys.subscription(TOPIC.path, "never-attached"), MARKED),)))
    await until(lambda: len(files(cluster, segment)) <= 1, what="drained by all")
    await write(cluster, client, segment, 1)
    await settle(20)
    await until(lambda: len(files(cluster, segment)) >= 3, what="it has not consumed these")
    await set_policies(cluster, retention_ms=1, trim_undrained=True)
    await until(lambda: len(files(cluster, segment)) <= 1, what="gone over the subscription's head")
    found = node.broker.segments[segment].statistics().subscriptions
    assert [one.backlog for one in found if one.name == "sub"] == [0], "cursors follow"


async def test_nothing_is_trimmed_and_no_segment_ends_where_nobody_can_say_what_a_subscription_needs(
    memory_store: MemoryStore,
) -> None:
    """▲ All segments of the topic would change hands in each round."""

    async def drained() -> Position:
        raise DataCorrupt("its start, a time, lies in a damaged ledger")

    segment: Any = SimpleNamespace(
        path="public/default/t/0000-ffff-0",
        ledgers=None,
        buffer=SimpleNamespace(watermark=Position(3, 5)),
        drained=drained,
    )
    keeping = Housekeeping(memory_store, SystemClock(), BrokerSettings(), segment)
    assert await keeping._bound(Retention(ms=1)) == EARLIEST
    assert await keeping._bound(Retention(ms=1, undrained=True)) == Position(3, 5)


MARKED = records.encode(SubscriptionRecord(type="stream", start={"kind": "earliest"}, deleting_ms=1))


async def test_an_open_transaction_holds_what_it_wrote(memory_cluster: Cluster) -> None:
    cluster = memory_cluster
    [segment] = await cluster.create_topic()
    client = await cluster.connect(await cluster.start(settings=ONE_ENTRY_EACH))
    producer = await client.producer(segment)
    await producer.send("before")
    txn = await cluster.begin()
    held = await producer.send("held", txn=txn)
    for number in range(3):
        await producer.send(f"behind-{number}")
    await set_policies(cluster, retention_ms=1)
    await until(lambda: files(cluster, segment)[0] == held.ledger_id, what="what is before it has gone")
    await cluster.commit(txn)
    await until(lambda: files(cluster, segment)[0] > held.ledger_id, what="and then what it held")


async def test_a_quiet_topic_s_open_ledger_is_closed_by_age(memory_cluster: Cluster) -> None:
    cluster = memory_cluster
    [segment] = await cluster.create_topic()
    settings = replace(ONE_ENTRY_EACH, ledger_roll_bytes=1 << 30)
    client = await cluster.connect(await cluster.start(settings=settings))
    await set_policies(cluster, retention_ms=4)
    sent = await (await client.producer(segment)).send("last for long")
    await until(lambda: files(cluster, segment) and files(cluster, segment)[0] > sent.ledger_id)


async def test_a_policy_is_followed_as_soon_as_it_is_changed(memory_cluster: Cluster) -> None:
    """Not in the next regular round: an operator whose disk is full shortens a retention and waits for room."""
    cluster = memory_cluster
    [segment] = await cluster.create_topic()
    settings = replace(ONE_ENTRY_EACH, ledger_roll_bytes=1 << 30, roll_least_age_ms=1 << 30, housekeeping_s=3600.0)
    node = await cluster.start(settings=settings)
    producer = await (await cluster.connect(node)).producer(segment)
    await producer.send("old")
    await node.broker.segments[segment].roll()
    await producer.send("new")
    await settle(20)
    assert len(files(cluster, segment)) == 2
    await set_policies(cluster, retention_bytes=1)
    await until(lambda: len(files(cluster, segment)) == 1, within_s=20)
