"""A subscription's record that cannot be read, has a strange key, or is gone: everything else goes on."""

from __future__ import annotations

import pytest

from segments.log.ledgers.retention import Retention
from segments.owner.lag_samples import LagSampler
from segments.subscription.definitions import read_definitions
from segments.subscription.lag import UNKNOWN, SubscriptionLag
from tests.segments.brokering import TOPIC, Cluster
from tests.segments.log.test_housekeeping import QUIET
from tests.waiting import until
from txnstore import keys, records
from txnstore.records import SubscriptionRecord
from txnstore.store import Commit, Delete, Put
from txnwire.clock import SystemClock
from txnwire.ids import Position

STRANGE = {
    "key": (b"\xff\xfe", records.encode(SubscriptionRecord(type="stream", start={"kind": "earliest"}))),
    "value": (b"other", b"{"),
    "start": (b"other", records.encode(SubscriptionRecord(type="stream", start={"kind": "message_id"}))),
}


async def put_strange(cluster: Cluster, kind: str) -> str:
    """The name that it is shown under."""
    name, value = STRANGE[kind]
    await cluster.store.commit(Commit(puts=(Put(keys.subscriptions(TOPIC.path) + name, value),)))
    return name.decode(errors="backslashreplace")


@pytest.mark.parametrize("kind", STRANGE)
async def test_a_strange_subscription_keeps_its_messages_and_its_segment(
    memory_cluster: Cluster, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """▲ A segment that was given up over it would be taken over and given up for ever."""
    cluster = memory_cluster
    [segment] = await cluster.create_topic()
    node = await cluster.start(settings=QUIET)
    producer = await (await cluster.connect(node)).producer(segment)
    served = node.broker.segments[segment]
    for value in "ab":
        await producer.send(value)
        await served.roll()
    await until(lambda: served.buffer.watermark == served.last_confirmed)
    await put_strange(cluster, kind)
    monkeypatch.setattr(node.broker._housekeeper, "_retention", lambda _: Retention(ms=-1))
    await node.broker._housekeeper._keep(served)
    served.check()
    assert served.ledgers.contains(Position(1, 0))


@pytest.mark.parametrize("at_once", [1, 2, 1000])
async def test_the_definitions_of_all_subscriptions_are_read_a_page_at_a_time(
    memory_cluster: Cluster, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    """▲ What one that is not read needs would be trimmed."""
    monkeypatch.setattr("segments.subscription.definitions.SUBSCRIPTIONS_AT_ONCE", at_once)
    for name in "abcde":
        await memory_cluster.create_subscription(name)
    await put_strange(memory_cluster, "value")
    found = await read_definitions(memory_cluster.store, TOPIC.path)
    assert {name: one is not None for name, one in found.items()} == dict.fromkeys("abcde", True) | {"other": False}


@pytest.mark.parametrize("kind", STRANGE)
async def test_the_lags_of_others_are_told_beside_a_strange_subscription(memory_cluster: Cluster, kind: str) -> None:
    cluster = memory_cluster
    [segment] = await cluster.create_topic()
    node = await cluster.start(settings=QUIET)
    client = await cluster.connect(node)
    await cluster.subscribe(client, segment)
    await (await client.producer(segment)).send("a")
    name = await put_strange(cluster, kind)
    served = node.broker.segments[segment]
    told = await served.subscriptions.lags.told(None, node.broker.lag_budget())
    assert told["sub"].messages == 1
    assert told[name] == (SubscriptionLag(1, 1) if kind == "key" else UNKNOWN)
    await LagSampler(SystemClock(), lambda: [served], every_s=0.0).sample()
    assert served.statistics().lags["sub"].messages == 1


@pytest.mark.parametrize(("acked", "left"), [("a", "bc"), ("ac", "b")], ids=["alone", "and acks behind it"])
async def test_a_start_that_cannot_be_read_does_not_matter_once_a_position_is_stored(
    memory_cluster: Cluster, acked: str, left: str
) -> None:
    """▲ No broker could take the segment over. An older broker meets starts that it does not know."""
    cluster = memory_cluster
    [segment] = await cluster.create_topic()
    node = await cluster.start()
    client = await cluster.connect(node)
    consumer, producer = await cluster.subscribe(client, segment), await client.producer(segment)
    for value in "abc":
        await producer.send(value)
    await consumer.wait(*"abc")
    await consumer.ack(*(message for message in consumer.messages if message.value in acked))
    record = SubscriptionRecord(type="stream", start={"kind": "of a later version"})
    await cluster.create_subscription(record=record)
    await node.close()
    client = await cluster.connect(await cluster.start())
    consumer = await cluster.subscribe(client, segment, epoch=2)
    await consumer.wait(*left)


@pytest.mark.parametrize("committed", [True, False])
async def test_acks_that_a_deleted_subscription_has_left_are_decided_and_cleaned_up_by_the_next_owner(
    memory_cluster: Cluster, committed: bool
) -> None:
    """▲ It must serve the segment all the same, and leave no op: its transaction would never be collected."""
    cluster = memory_cluster
    [segment] = await cluster.create_topic()
    node = await cluster.start()
    client = await cluster.connect(node)
    _, consumer = await cluster.holding_abc(client, segment)
    txn = await cluster.begin()
    await consumer.ack(consumer.messages[0], txn=txn)
    await node.crash()
    await cluster.store.commit(Commit(deletes=(Delete(keys.subscription(TOPIC.path, "sub")),)))
    client = await cluster.connect(await cluster.start())
    await (await client.reader(segment)).wait(*"abc")
    assert len(await cluster.ops(txn)) == 1
    await cluster.end(txn, "COMMITTED" if committed else "ABORTED")
    await cluster.wait_no_ops(txn)
