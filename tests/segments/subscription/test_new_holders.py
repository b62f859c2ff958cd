"""A segment's new holder waits for the pending acks of its predecessor (P12)."""

from __future__ import annotations

import asyncio

import pytest

from segments.layout.assignment import consumer_id
from segments.owner.take_over import ACKS_AT_ONCE
from segments.subscription.dispatch import DispatchConsumer
from segments.subscription.stream_subscription import StreamSubscription
from tests.segments.brokering import Cluster
from tests.segments.gates import GatedStore, gate_stores, is_ack_op
from tests.waiting import until
from txnstore.records import AssignmentRecord
from txnwire.errors import NotAllowed, TxnConflict
from txnwire.ids import Position
from txnwire.turns import turns_divided_by


async def test_p12_a_new_holder_waits_for_its_predecessors_pending_acks(cluster: Cluster) -> None:
    """▲ Otherwise an abort would redeliver a message behind later ones of its key."""
    [segment] = await cluster.create_topic()
    client = await cluster.connect(await cluster.start())
    producer, consumer = await cluster.holding_abc(client, segment)
    txn = await cluster.begin()
    await consumer.ack(consumer.messages[0], txn=txn)
    successor = await cluster.subscribe(client, segment, consumer="c2", epoch=2)
    await until(lambda: consumer.closed)
    assert isinstance(consumer.closed, NotAllowed)
    await producer.send("d")
    await successor.wait()
    await cluster.abort(txn)
    await successor.wait(*"abcd")


async def test_p12_a_new_holder_waits_for_all_transactions_of_its_predecessor(cluster: Cluster) -> None:
    """▲ The end of one lets nothing out that lies behind what the other one holds."""
    [segment] = await cluster.create_topic()
    client = await cluster.connect(await cluster.start())
    producer, consumer = await cluster.holding_abc(client, segment)
    first, last = await cluster.begin(), await cluster.begin()
    await consumer.ack(consumer.messages[0], txn=last)
    await consumer.ack(consumer.messages[1], txn=first)
    successor = await cluster.subscribe(client, segment, consumer="c2", epoch=2)
    await cluster.abort(first)
    await cluster.wait_no_ops(first)
    await producer.send("d")
    await successor.wait()
    await cluster.abort(last)
    await successor.wait(*"abcd")


async def test_p12_a_new_holder_begins_once_the_ack_that_it_waits_for_is_refused(cluster: Cluster) -> None:
    gate_stores(cluster)
    [segment] = await cluster.create_topic()
    node = await cluster.start()
    store: GatedStore = node.store  # type: ignore[assignment]
    client = await cluster.connect(node)
    _, consumer = await cluster.holding_abc(client, segment)
    txn = await cluster.begin()
    store.hold(is_ack_op)
    acking = asyncio.ensure_future(consumer.ack(consumer.messages[0], txn=txn))
    await until(lambda: store.waiting)
    successor = await cluster.subscribe(client, segment, consumer="c2", epoch=2)
    await (await client.reader(segment)).wait(*"abc")
    await successor.wait()
    await cluster.abort(txn)
    store.open()
    with pytest.raises(TxnConflict):
        await acking
    await successor.wait(*"abc")


async def test_p12_a_new_holder_waits_for_each_of_its_predecessor_s_transactions(memory_cluster: Cluster) -> None:
    """▲ The end of one of them brings back nothing of the others."""
    cluster = memory_cluster
    [segment] = await cluster.create_topic()
    client = await cluster.connect(await cluster.start())
    producer, consumer = await cluster.holding_abc(client, segment)
    first, second = await cluster.begin(), await cluster.begin()
    await consumer.ack(consumer.messages[0], txn=first)
    await consumer.ack(consumer.messages[1], txn=second)
    successor = await cluster.subscribe(client, segment, consumer="c2", epoch=2)
    await cluster.commit(first)
    await cluster.wait_no_ops(first)
    await producer.send("d")
    await (await client.reader(segment)).wait(*"abcd")
    await successor.wait()
    await cluster.abort(second)
    await successor.wait(*"bcd")


@pytest.mark.parametrize("together", [False, True], ids=["of two transactions", "of one transaction"])
async def test_p12_a_holder_that_comes_back_waits_for_the_acks_of_another_behind_its_own(
    memory_cluster: Cluster, together: bool
) -> None:
    """▲ Its own ack, which holds nothing back, is the first of those that are pending."""
    cluster = memory_cluster
    [segment] = await cluster.create_topic()
    client = await cluster.connect(await cluster.start())
    producer, mine = await cluster.holding_abc(client, segment)
    other = await cluster.subscribe(client, segment, consumer="c2", epoch=2)
    await other.wait(*"abc")
    mine = await cluster.subscribe(client, segment, epoch=3)
    await mine.wait(*"abc")
    own = await cluster.begin()
    foreign = own if together else await cluster.begin()
    await mine.ack(mine.messages[0], txn=own)
    await (await cluster.subscribe(client, segment, consumer="c2", epoch=4)).ack(other.messages[1], txn=foreign)
    mine = await cluster.subscribe(client, segment, epoch=5)
    await producer.send("d")
    await (await client.reader(segment)).wait(*"abcd")
    await mine.wait()
    await cluster.abort(foreign)
    await mine.wait(*("abcd" if together else "bcd"))


async def test_p12_holds_across_a_restart_for_another_consumer_and_not_for_the_same(cluster: Cluster) -> None:
    """The ack ops name their consumer, so the successor of the segment's owner knows whose acks are pending."""
    [segment] = await cluster.create_topic()
    node = await cluster.start()
    client = await cluster.connect(node)
    _, consumer = await cluster.holding_abc(client, segment)
    txn = await cluster.begin()
    await consumer.ack(consumer.messages[0], txn=txn)
    await node.crash()
    client = await cluster.connect(await cluster.start())
    same = await cluster.subscribe(client, segment, consumer="c1", epoch=2)
    await same.wait(*"bc")
    other = await cluster.subscribe(client, segment, consumer="c2", epoch=3)
    await (await client.producer(segment, "p2")).send("d")
    await other.wait()
    await cluster.abort(txn)
    await other.wait(*"abcd")


@pytest.mark.parametrize("in_turns", [False, True])
async def test_p12_holds_across_a_restart_for_each_transaction_of_each_subscription(
    memory_cluster: Cluster, in_turns: bool
) -> None:
    """However many turns the next owner takes to load them."""
    cluster, names = memory_cluster, ("one", "two")
    [segment] = await cluster.create_topic()
    client = await cluster.connect(node := await cluster.start())
    producer = await client.producer(segment)
    for value in "abc":
        await producer.send(value)
    first, second = await cluster.begin(), await cluster.begin()
    for name in names:
        consumer = await cluster.subscribe(client, segment, name=name)
        await consumer.wait(*"abc")
        await consumer.ack(consumer.messages[0], txn=first)
        await consumer.ack(consumer.messages[1], txn=second)
    await node.crash()
    with turns_divided_by(ACKS_AT_ONCE if in_turns else 1):
        client = await cluster.connect(await cluster.start())
    others = [await cluster.subscribe(client, segment, name=name, consumer="c2", epoch=2) for name in names]
    await cluster.commit(first)
    await cluster.wait_no_ops(first)
    await (await client.producer(segment, "p2")).send("d")
    await (await client.reader(segment)).wait(*"abcd")
    for other in others:
        await other.wait()
    await cluster.abort(second)
    for other in others:
        await other.wait(*"bcd")


async def test_a_holder_whose_assignment_moved_on_is_closed_and_a_stale_one_is_refused(cluster: Cluster) -> None:
    [segment] = await cluster.create_topic()
    client = await cluster.connect(await cluster.start())
    consumer = await cluster.subscribe(client, segment, consumer="c1", epoch=1)
    await cluster.assign({"c2@0000000000000007": [segment]}, epoch=2)
    await until(lambda: consumer.closed)
    with pytest.raises(NotAllowed):
        await client.subscribe(segment, consumer="c1", epoch=1)
    with pytest.raises(NotAllowed):
        await client.subscribe(segment, consumer="c2", epoch=3)
    with pytest.raises(NotAllowed):
        await consumer.ack(Position(1, 0))
    await client.subscribe(segment, consumer="c2", epoch=2)


async def test_an_older_assignment_that_is_heard_of_late_closes_nobody(memory_cluster: Cluster) -> None:
    """▲ The directory may lag behind the record that the holder has attached under."""
    cluster = memory_cluster
    [segment] = await cluster.create_topic()
    node = await cluster.start()
    client = await cluster.connect(node)
    producer, consumer = await client.producer(segment), await cluster.subscribe(client, segment, epoch=3)
    table, others = node.broker.segments[segment].subscriptions, {consumer_id("c2", 7): [segment]}
    table.assignment_changed("sub", AssignmentRecord(epoch=2, consumers=others))
    await producer.send("a")
    await consumer.wait("a")
    assert consumer.closed is None
    table.assignment_changed("sub", AssignmentRecord(epoch=4, consumers=others))
    await until(lambda: consumer.closed is not None)


async def test_of_two_attaches_under_way_the_one_of_the_older_assignment_replaces_nobody(
    memory_cluster: Cluster,
) -> None:
    """▲ Both have found themselves assigned; the older one's answer of the store comes last."""
    cluster = memory_cluster
    [segment] = await cluster.create_topic()
    node = await cluster.start()
    client = await cluster.connect(node)
    producer, consumer = await client.producer(segment), await cluster.subscribe(client, segment, epoch=2)
    subscription = node.broker.segments[segment].subscriptions.loaded("sub")
    assert isinstance(subscription, StreamSubscription)
    assert subscription.consumer is not None
    late = DispatchConsumer(subscription.consumer.sink, next_read=Position(0, 0), acks=subscription, holder="c0@7")
    with pytest.raises(NotAllowed, match="assignment epoch 1"):
        subscription.attach(late, 1)
    await producer.send("a")
    await consumer.wait("a")
    assert consumer.closed is None
