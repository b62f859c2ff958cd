"""Who holds a subscription's segment, who counts as its user, and what stays of a subscription that was dropped."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.segments.brokering import TOPIC, Cluster
from tests.waiting import until
from txnstore import keys, records
from txnstore.records import AssignmentRecord, SubscriptionRecord
from txnstore.store import Commit, Put
from txnwire.errors import NotAllowed, TxnError


async def test_each_user_of_a_segment_counts_once(memory_cluster: Cluster) -> None:
    """Whoever is refused the deletion of a topic looks for so many."""
    [path] = await memory_cluster.create_topic()
    node = await memory_cluster.start()
    client = await memory_cluster.connect(node)
    await client.producer(path)
    await client.reader(path)
    await memory_cluster.subscribe(client, path, name="stream")
    for consumer in ("c1", "c2"):
        await memory_cluster.queue(client, path, name="jobs", consumer=consumer)
    served = node.broker.segments[path]
    assert served.users(None) == (1, 4)
    assert [served.users(name) for name in ("stream", "jobs", "none")] == [(0, 1), (0, 2), (0, 0)]
    assert served.statistics().readers == 1


async def test_an_assignment_that_is_heard_of_late_closes_no_holder_of_a_later_one(memory_cluster: Cluster) -> None:
    """▲ It would attach, and be closed, as long as the directory is behind."""
    [path] = await memory_cluster.create_topic()
    node = await memory_cluster.start()
    consumer = await memory_cluster.subscribe(await memory_cluster.connect(node), path, epoch=5)
    subscriptions = node.broker.segments[path].subscriptions
    holder = next(iter(subscriptions)).statistics().consumer
    assert holder is not None
    for late in (AssignmentRecord(epoch=4, consumers={"another@01": [path]}), AssignmentRecord(epoch=4, consumers={})):
        subscriptions.assignment_changed("sub", late)
    subscriptions.assignment_changed("sub", AssignmentRecord(epoch=6, consumers={holder: [path]}))
    assert next(iter(subscriptions)).statistics().consumer == holder
    subscriptions.assignment_changed("sub", AssignmentRecord(epoch=7, consumers={"another@01": [path]}))
    await until(lambda: isinstance(consumer.closed, NotAllowed))


@pytest.mark.parametrize("type", ["stream", "queue"])
async def test_nothing_is_awaited_for_the_acks_of_a_subscription_that_was_dropped(
    memory_cluster: Cluster, type: str
) -> None:
    """Each would be held in memory, and looked for in the store after each lost watch, as long as the broker runs."""
    cluster = memory_cluster
    [path] = await cluster.create_topic()
    node = await cluster.start()
    client = await cluster.connect(node)
    producer = await client.producer(path)
    attach = cluster.queue if type == "queue" else cluster.subscribe
    _, gone, stays = [await attach(client, path, name=name) for name in ("first", "gone", "stays")]
    for value in "abc":
        await producer.send(value)
    for consumer in (gone, stays):
        await consumer.wait(*"abc")
    both, one = await cluster.begin(), await cluster.begin()
    await gone.ack(gone.messages[0], txn=both)
    await stays.ack(stays.messages[0], txn=both)
    await gone.ack(gone.messages[1], txn=one)
    assert node.broker.statistics().decisions.held == 2
    key = keys.subscription(TOPIC.path, "gone")
    found = await cluster.store.get(key)
    assert found is not None
    marked = replace(records.decode(SubscriptionRecord, found.value, key=key), deleting_ms=1)
    await cluster.store.commit(Commit(puts=(Put(key, records.encode(marked)),)))
    subscriptions = node.broker.segments[path].subscriptions
    await subscriptions.drop("gone")
    assert node.broker.statistics().decisions.held == 1, "that of the other subscription"
    remembered = (subscriptions._subscriptions, subscriptions._targets, subscriptions._drained, subscriptions._created)
    assert [list(one) for one in remembered] == [["first", "stays"]] * 4
    await until(lambda: isinstance(gone.closed, TxnError))
    await cluster.commit(both)
    await until(lambda: node.broker.statistics().decisions.held == 0)
