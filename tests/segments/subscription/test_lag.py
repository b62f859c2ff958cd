"""How far a subscription is behind in a segment, in messages and by age: exact, or not told."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from segments.log.ledgers.message_counts import STEP
from segments.log.settings import BrokerSettings
from segments.log.tail_cache import LogEntry
from segments.owner.lag_samples import RELIST_S, LagSampler
from segments.owner.segment import Segment
from segments.subscription.lag import TRIES, LagBudget, SubscriptionLag
from segments.subscription.starts import StartPoint
from tests.segments.brokering import TOPIC, Client, Cluster, Node
from tests.waiting import until, until_answer
from txnstore import keys, records
from txnstore.records import LedgerRecord, SubscriptionRecord
from txnstore.store import Commit, Delete, Put
from txnwire.clock import SystemClock
from txnwire.errors import InvalidArgument, NotOwner, StoreUnavailable, SubscriptionNotFound
from txnwire.ids import Position
from txnwire.names import SegmentName, TopicName

NONE = (0, None)


async def lag(node: Node, segment: str, name: str = "sub") -> SubscriptionLag:
    return (await lags(node, segment, name))[name]


async def lags(node: Node, segment: str, name: str | None = None) -> Mapping[str, SubscriptionLag]:
    return await node.broker.serving(segment).subscriptions.lags.told(name, node.broker.lag_budget())


async def one_segment(cluster: Cluster, settings: BrokerSettings | None = None) -> tuple[str, Node, Client]:
    [segment] = await cluster.create_topic()
    node = await cluster.start(settings=settings)
    await node.broker.segment(segment)
    return segment, node, await cluster.connect(node)


def many(messages: int) -> list[str]:
    return ["v"] * messages


async def test_two_batches_of_thousands_are_thousands_of_messages(memory_cluster: Cluster) -> None:
    """Before a consumer has attached, too."""
    segment, node, client = await one_segment(memory_cluster)
    await memory_cluster.create_subscription()
    producer = await client.producer(segment)
    assert await lag(node, segment) == NONE
    await producer.send(*many(5000), publish_time_ms=700)
    await producer.send(*many(5001), publish_time_ms=300)
    assert await lag(node, segment) == (10_001, 700), "the oldest is the first that is not acked"
    consumer = await memory_cluster.subscribe(client, segment, permits=0)
    assert await lag(node, segment) == (10_001, 700)
    consumer.flow(6000)
    await until(lambda: len(consumer.messages) == 10_001)
    await consumer.ack(consumer.messages[10], indexes=range(4000))
    assert await lag(node, segment) == (6001, 700)
    await consumer.ack(consumer.messages[4999], cumulative=True)
    assert await lag(node, segment) == (5001, 300)
    await consumer.ack(consumer.messages[-1], cumulative=True)
    assert await lag(node, segment) == NONE


async def test_a_subscription_is_behind_from_its_start_on(memory_cluster: Cluster) -> None:
    segment, node, client = await one_segment(memory_cluster)
    producer = await client.producer(segment)
    for _ in range(3):
        await producer.send(*many(10), publish_time_ms=100)
    latest = SubscriptionRecord(type="stream", start={"kind": "latest"}, positions={segment: (1, 1)})
    await memory_cluster.create_subscription("latest", record=latest)
    start = {"kind": "message_id", "segment": segment, "ledger_id": 1, "entry_id": 1, "index": 4}
    await memory_cluster.create_subscription("amid", record=SubscriptionRecord(type="queue", start=start))
    passed = start | {"segment": segment.replace("-0", "-7"), "ancestors": [0]}
    await memory_cluster.create_subscription("child", record=SubscriptionRecord(type="stream", start=passed))
    gone = SubscriptionRecord(type="stream", start={"kind": "earliest"}, deleting_ms=1)
    await memory_cluster.create_subscription("gone", record=gone)
    assert await lags(node, segment) == {"latest": (10, 100), "amid": (16, 100), "child": NONE}
    for name in ("gone", "never"):
        with pytest.raises(SubscriptionNotFound):
            await lag(node, segment, name)
    await memory_cluster.queue(client, segment, name="amid", permits=0)
    assert await lag(node, segment, "amid") == (16, 100), "the same once a consumer has attached"


async def test_acks_of_a_queue_beyond_the_first_unacked_message_are_not_behind(memory_cluster: Cluster) -> None:
    """Whole entries, single messages, in several ledgers."""
    segment, node, client = await one_segment(memory_cluster)
    producer = await client.producer(segment)
    for _ in range(STEP + 10):
        await producer.send(*many(2), publish_time_ms=5)
    await node.broker.serving(segment).roll()
    for _ in range(20):
        await producer.send(*many(3), publish_time_ms=6)
    consumer = await memory_cluster.queue(client, segment)
    everything = 2 * (STEP + 10) + 60
    await until(lambda: len(consumer.messages) == everything)
    got = consumer.messages
    await consumer.ack(*(one for one in got[2 : 2 * STEP + 6]))  # entries 1 to STEP + 2, whole
    await consumer.ack(got[-1], got[-2], got[-31])  # two of three messages of one entry, one of another
    left = everything - (2 * STEP + 4) - 3
    assert await lag(node, segment, "jobs") == (left, 5)
    await consumer.ack(got[0])
    assert await lag(node, segment, "jobs") == (left - 1, 5)
    await node.close()
    node = await memory_cluster.start()
    await node.broker.segment(segment)
    assert await lag(node, segment, "jobs") == (left - 1, 5), "the next owner reads the blocks in question"


async def test_a_transaction_counts_until_it_is_decided(memory_cluster: Cluster) -> None:
    segment, node, client = await one_segment(memory_cluster)
    producer = await client.producer(segment)
    await producer.send("a", "b", publish_time_ms=5)
    consumer = await memory_cluster.subscribe(client, segment)
    await consumer.wait("a", "b")
    writing, acking = await memory_cluster.begin(), await memory_cluster.begin()
    await consumer.ack(consumer.messages[1], cumulative=True, txn=acking)
    await producer.send(*many(4), txn=writing, publish_time_ms=9)
    assert await lag(node, segment) == (6, 5), "what is acked in a transaction comes again if it aborts"
    await memory_cluster.commit(acking)
    await until_lag(node, segment, (4, 9))
    await memory_cluster.abort(writing)
    await until_lag(node, segment, NONE)


async def until_lag(node: Node, segment: str, expected: tuple[int, int | None]) -> None:
    await until_answer(lambda: lag(node, segment), lambda found: found == expected, f"{expected} behind", within_s=10)


async def test_after_a_crash_everything_is_counted_again(memory_cluster: Cluster) -> None:
    """The ledger that was left open does not tell how many messages it has."""
    segment, node, client = await one_segment(memory_cluster)
    await memory_cluster.create_subscription()
    producer = await client.producer(segment)
    for number in range(2 * STEP + 3):
        await producer.send(*many(1 + number % 3), publish_time_ms=number + 1)
    everything = sum(1 + number % 3 for number in range(2 * STEP + 3))
    await node.crash()
    node = await memory_cluster.start()
    await node.broker.segment(segment)
    client = await memory_cluster.connect(node)
    await (await client.producer(segment, name="p2")).send(*many(9), publish_time_ms=4)
    assert await lag(node, segment) == (everything + 9, 1)


async def test_what_may_not_be_read_is_not_known_until_it_may(memory_cluster: Cluster) -> None:
    segment, node, client = await one_segment(memory_cluster)
    await memory_cluster.create_subscription()
    producer = await client.producer(segment)
    for _ in range(3 * STEP):
        await producer.send(*many(2), publish_time_ms=1)
    await node.crash()
    node = await memory_cluster.start()
    served = await node.broker.segment(segment)
    asked = served.subscriptions.lags
    nothing = LagBudget(SystemClock(), read_bytes=0)
    assert await asked.told("sub", nothing) == {"sub": (None, 1)}, "never 0"
    less_than_a_block = served.ledgers.record.ledgers[0].bytes // 4
    little = [await asked.told("sub", LagBudget(SystemClock(), read_bytes=size)) for size in (1, less_than_a_block, 1)]
    assert [one["sub"].messages for one in little] == [None, None, 6 * STEP], "what was read is remembered"


async def test_what_retention_has_taken_is_not_behind(memory_cluster: Cluster) -> None:
    segment, node, client = await one_segment(memory_cluster)
    await memory_cluster.create_subscription()
    producer = await client.producer(segment)
    await producer.send(*many(5), publish_time_ms=1)
    served = node.broker.serving(segment)
    await served.roll()
    await producer.send(*many(7), publish_time_ms=2)
    await served.ledgers.trim(2)
    served.follow_trim()
    assert await lag(node, segment) == (7, 2)


async def test_the_messages_of_a_ledger_are_kept_in_its_list(memory_cluster: Cluster) -> None:
    """So that nothing of it is read for a lag; one that an older version has closed is read once."""
    segment, node, client = await one_segment(memory_cluster)
    await memory_cluster.create_subscription()
    producer = await client.producer(segment)
    await producer.send(*many(5), publish_time_ms=1)
    await node.broker.serving(segment).roll()
    await producer.send(*many(7), publish_time_ms=1)
    await node.close()
    key = keys.ledger(segment)
    found = await memory_cluster.store.get(key)
    assert found is not None
    told = records.decode(LedgerRecord, found.value, key=key)
    assert [info.messages for info in told.ledgers if info.closed_length] == [5, 7]
    node = await memory_cluster.start()
    lags_of = (await node.broker.segment(segment)).subscriptions.lags
    assert await lags_of.told("sub", LagBudget(SystemClock(), read_bytes=0)) == {"sub": (12, 1)}
    await node.close()
    found = await memory_cluster.store.get(key)
    assert found is not None
    told = records.decode(LedgerRecord, found.value, key=key)
    older = msgspec.structs.replace(told, ledgers=[msgspec.structs.replace(i, messages=None) for i in told.ledgers])
    await memory_cluster.store.commit(Commit(puts=(Put(key, records.encode(older)),)))
    node = await memory_cluster.start()
    await node.broker.segment(segment)
    assert await lag(node, segment) == (12, 1)


async def test_an_owner_tells_it_to_whoever_asks(memory_cluster: Cluster) -> None:
    segment, node, client = await one_segment(memory_cluster)
    await memory_cluster.create_subscription()
    await (await client.producer(segment)).send("a", "b", publish_time_ms=5)
    asked: dict[str, Any] = {"segment": segment, "subscription": "sub"}
    two = {"messages": 2, "oldest_ms": 5}
    assert await node.service.admin["subscription.lag"](asked) == {"segment": segment, "lags": {"sub": two}}
    await memory_cluster.create_subscription("other")
    everything = await node.service.admin["subscription.lag"]({"segment": segment})
    assert everything == {"segment": segment, "lags": {"sub": two, "other": two}}


async def test_an_owner_that_has_lost_the_segment_tells_nothing(memory_cluster: Cluster) -> None:
    """▲ Its successor may have taken in more: the lag would be too small, and look exact."""
    segment, node, client = await one_segment(memory_cluster)
    await memory_cluster.create_subscription()
    await (await client.producer(segment)).send(*many(3))
    served, budget = node.broker.serving(segment), node.broker.lag_budget()
    served.lost(NotOwner("taken away"))
    with pytest.raises(NotOwner):
        await served.subscriptions.lags.told("sub", budget)


async def test_what_the_metrics_show_was_counted_before(
    memory_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of a subscription that nobody consumes; and nothing is known once it cannot be counted."""
    segment, node, client = await one_segment(memory_cluster)
    await memory_cluster.create_subscription()
    served = node.broker.serving(segment)
    sampler = LagSampler(SystemClock(), lambda: [served], every_s=0.0)
    await (await client.producer(segment)).send("a", "b", publish_time_ms=5)
    assert served.statistics().lags == {}
    await sampler.sample()
    now_ms = SystemClock().wall_ms()
    ((name, told),) = served.statistics().lags.items()
    assert (name, told.messages) == ("sub", 2)
    assert told.age_s is not None
    assert abs(told.age_s - now_ms / 1000) < 60
    for name in ("jobs", "more"):
        await memory_cluster.queue(client, segment, name=name, permits=0)
    await sampler.sample()
    assert set(served.statistics().lags) == {"sub", "jobs", "more"}, "those that were made since the last listing"

    async def away() -> dict[str, SubscriptionRecord | None]:
        raise StoreUnavailable("planned by the test")

    monkeypatch.setattr(served.subscriptions.lags, "definitions", away)
    await LagSampler(SystemClock(), lambda: [served], every_s=0.0).sample()
    assert set(served.statistics().lags.values()) == {(None, None)}


async def test_a_subscription_that_was_made_meanwhile_is_in_the_metrics_a_minute_later(
    memory_cluster: Cluster,
) -> None:
    """Though nobody consumes it; and one that was deleted is in them no more."""
    segment, node, client = await one_segment(memory_cluster)
    await memory_cluster.create_subscription("early")
    served = node.broker.serving(segment)
    clock: Any = SimpleNamespace(wall_ms=lambda: 10)
    sampler, told = LagSampler(clock, lambda: [served], every_s=0.0), []
    await (await client.producer(segment)).send("a", "b", publish_time_ms=5)
    for now_s in (0.0, RELIST_S - 0.1, RELIST_S):
        clock.monotonic = partial(float, now_s)
        await sampler.sample()
        told.append({name: lag.messages for name, lag in served.statistics().lags.items()})
        await memory_cluster.create_subscription("late")
        await memory_cluster.store.commit(Commit(deletes=(Delete(keys.subscription(TOPIC.path, "early")),)))
    assert told == [{"early": 2}, {"early": 2}, {"late": 2}]


async def test_a_subscription_that_is_attached_to_meanwhile_is_counted_from_its_cursor(
    memory_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its start says no more where it stands: but that is known, and told at once."""
    segment, node, client = await one_segment(memory_cluster)
    await memory_cluster.create_subscription()
    await (await client.producer(segment)).send("a", "b", publish_time_ms=5)
    lags_of = node.broker.serving(segment).subscriptions.lags
    start_of = lags_of._start_of

    async def as_one_attaches(definition: SubscriptionRecord) -> StartPoint:
        await memory_cluster.subscribe(client, segment, permits=0)
        return await start_of(definition)

    monkeypatch.setattr(lags_of, "_start_of", as_one_attaches)
    assert await lag(node, segment) == (2, 5)


async def test_all_segments_of_a_broker_are_counted_and_each_topic_is_listed_once_a_minute(
    memory_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = [TopicName("public", "nyc", name) for name in ("one", "two")]
    node = await memory_cluster.start()
    client = await memory_cluster.connect(node)
    served, listed = [], list[str]()
    for topic in topics:
        for path in await memory_cluster.create_topic(topic, segments=2):
            served.append(await node.broker.segment(path))
            await (await client.producer(path)).send("a", "b")
        await memory_cluster.create_subscription("sub", topic)

    def note(segment: Segment) -> None:
        read = segment.subscriptions.lags.definitions

        async def noted() -> Mapping[str, SubscriptionRecord | None]:
            listed.append(SegmentName.from_path(segment.path).topic.name)
            return await read()

        monkeypatch.setattr(segment.subscriptions.lags, "definitions", noted)

    for segment in served:
        note(segment)
    clock: Any = SimpleNamespace(monotonic=lambda: 5.0, wall_ms=lambda: 10)
    sampler = LagSampler(clock, lambda: served, every_s=0.0)
    for _ in range(2):
        await sampler.sample()
    lags = [{name: lag.messages for name, lag in one.statistics().lags.items()} for one in served]
    assert lags == [{"sub": 2}] * 4
    assert listed == ["one", "two"]


async def test_a_count_begins_again_where_what_it_read_was_trimmed_meanwhile(
    memory_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few times: it is not told as long as that goes on."""
    segment, node, client = await one_segment(memory_cluster)
    await memory_cluster.create_subscription()
    await (await client.producer(segment)).send("a", "b", publish_time_ms=5)
    dispatcher, trims = node.broker.serving(segment).dispatcher, 0
    read_entry = dispatcher.read_entry

    async def trimmed(position: Position) -> LogEntry:
        nonlocal trims
        trims -= 1
        if trims >= 0:
            raise InvalidArgument(f"{position} may have been trimmed")
        return await read_entry(position)

    monkeypatch.setattr(dispatcher, "read_entry", trimmed)
    trims = TRIES
    assert await lag(node, segment) == (None, None)
    trims = TRIES - 1
    assert await lag(node, segment) == (2, 5)
