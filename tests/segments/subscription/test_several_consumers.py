"""Several consumers and subscriptions of one segment: what is done for the first of them is done for all."""

from __future__ import annotations

import asyncio

import pytest

from segments.layout.assignment import consumer_id
from segments.subscription.queue_subscription import QueueSubscription
from tests.segments.brokering import Cluster
from tests.segments.gates import GatedStore, gate_stores, is_ack_op
from tests.waiting import until
from txnwire.errors import NotOwner, TxnConflict
from txnwire.ids import Position
from txnwire.proto import txn_pb2 as pb


async def test_all_consumers_of_a_segment_are_served_and_hear_that_it_is_lost(memory_cluster: Cluster) -> None:
    cluster = memory_cluster
    [segment] = await cluster.create_topic()
    node = await cluster.start()
    client = await cluster.connect(node)
    producer = await client.producer(segment)
    alone = [await client.reader(segment) for _ in range(2)]
    alone += [await cluster.subscribe(client, segment, name=name) for name in ("one", "two")]
    alone += [await cluster.queue(client, segment, name=name) for name in ("jobs", "more")]
    shared = [await cluster.queue(client, segment, name="shared", consumer=name) for name in ("c1", "c2", "c3")]
    for value in "ab":
        await producer.send(value)
    for consumer in alone:
        await consumer.wait("a", "b")
    await until(lambda: sum(len(consumer.values) for consumer in shared) == 2)
    txn = await cluster.begin()
    await producer.send("c", "d", txn=txn)
    queues = [one for one in node.broker.segments[segment].subscriptions if isinstance(one, QueueSubscription)]
    await until(lambda: [one.statistics().queue.set_aside for one in queues] == [1, 1, 1])  # type: ignore[union-attr]
    await cluster.commit(txn)
    for consumer in alone:
        await consumer.wait(*"abcd")
    await until(lambda: sum(len(consumer.values) for consumer in shared) == 4)
    told = {one.name: one for one in node.broker.segments[segment].statistics().subscriptions}
    assert set(told) == {"one", "two", "jobs", "more", "shared"}
    assert told["shared"].consumers == tuple(consumer_id(name, 7) for name in ("c1", "c2", "c3"))
    assert (told["shared"].permits, told["shared"].delivered) == (2996, 4)
    assert (told["two"].permits, told["two"].delivered) == (996, 4)
    node.broker.segments[segment].lost(NotOwner("taken away"))
    await until(lambda: all(consumer.closed for consumer in (*alone, *shared)), within_s=10)
    assert {type(consumer.closed) for consumer in (*alone, *shared)} == {NotOwner}


async def test_each_part_of_an_entry_comes_again_however_often_the_parts_were_given_back(
    memory_cluster: Cluster,
) -> None:
    """▲ One that counts as given out and is not would wait for its consumer to go."""
    [segment] = await memory_cluster.create_topic()
    client = await memory_cluster.connect(await memory_cluster.start())
    consumer = await memory_cluster.queue(client, segment)
    await (await client.producer(segment)).send("a", "b", "c")
    await consumer.wait("a", "b", "c")
    first = consumer.take()
    await consumer.nack(first[1])
    await consumer.wait("b")
    consumer.take()
    await consumer.nack(*first)
    await until(lambda: len(consumer.messages) == 3, within_s=10)
    assert {one.value: one.redelivery_count for one in consumer.messages} == {"a": 1, "b": 2, "c": 1}


async def test_p9_what_several_refused_acks_held_comes_again(memory_cluster: Cluster) -> None:
    """▲ All those that waited for the first one in their transaction are refused with it."""
    cluster = memory_cluster
    gate_stores(cluster)
    [segment] = await cluster.create_topic()
    node = await cluster.start()
    client = await cluster.connect(node)
    consumer, producer = await cluster.queue(client, segment), await client.producer(segment)
    for value in "abc":
        await producer.send(value)
    await consumer.wait(*"abc")
    store: GatedStore = node.store  # type: ignore[assignment]
    txn = await cluster.begin()
    store.hold(is_ack_op)
    acks = [asyncio.ensure_future(consumer.ack(message, txn=txn)) for message in consumer.take()]
    await client.call(segment_positions=pb.SegmentPositions(segment=segment))  # the acks have arrived
    await cluster.abort(txn)
    store.open()
    answers = await asyncio.gather(*acks, return_exceptions=True)
    assert [type(answer) for answer in answers] == [TxnConflict] * 3
    await until(lambda: sorted(consumer.values) == ["a", "b", "c"], within_s=10)


async def test_one_read_takes_all_entries_that_it_may_however_few_are_parsed_at_once(
    memory_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("segments.subscription.dispatch.PARSED_AT_ONCE", 2)
    [segment] = await memory_cluster.create_topic()
    node = await memory_cluster.start()
    producer = await (await memory_cluster.connect(node)).producer(segment)
    for number in range(5):
        await producer.send(str(number))
    found = await node.broker.segments[segment].dispatcher.read_run(Position(1, 0), Position(1, 4))
    assert [entry.position for entry in found] == [Position(1, number) for number in range(5)]
