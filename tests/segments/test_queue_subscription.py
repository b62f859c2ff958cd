"""Queue subscriptions over the wire (DESIGN §7 "Dispatch", SCENARIOS V8, P1, P3, P4, P8, P9)."""

from __future__ import annotations

import pytest

from tests.segments.brokering import Client, Cluster, Consumer, Received, eventually
from txnwire.errors import InvalidArgument, NotAllowed, NotOwner, TxnConflict
from txnwire.ids import Position
from txnwire.proto import txn_pb2 as pb


def counts(consumer: Consumer) -> dict[str, int]:
    """Redelivery count by value, of what was delivered since the last `take`."""
    return {message.value: message.redelivery_count for message in consumer.messages}


def by_value(consumer: Consumer) -> dict[str, Received]:
    return {message.value: message for message in consumer.messages}


async def test_a_queue_delivers_acks_and_delivers_again_what_is_nacked(memory_cluster: Cluster) -> None:
    cluster = memory_cluster
    [segment] = await cluster.create_topic()
    node = await cluster.start()
    client = await cluster.connect(node)
    producer, consumer = await client.producer(segment), await cluster.queue(client, segment)
    for value in "abc":
        await producer.send(value)
    await consumer.wait(*"abc")
    a, b, c = consumer.take()
    await consumer.ack(a)
    await consumer.nack(b)
    await consumer.wait("b")
    assert counts(consumer) == {"b": 1}
    txn = await cluster.begin()
    await consumer.ack(*consumer.take(), txn=txn)
    await consumer.ack(c, txn=txn)
    await cluster.abort(txn)
    await consumer.wait("b", "c")
    assert counts(consumer) == {"b": 2, "c": 1}
    txn = await cluster.begin()
    await consumer.ack(*consumer.take(), txn=txn)
    await cluster.commit(txn)
    await cluster.wait_no_ops(txn)
    [statistics] = node.broker.statistics().segments[0].subscriptions
    assert (statistics.type, statistics.backlog) == ("queue", 0)


async def test_entries_go_round_the_consumers_that_have_permits(memory_cluster: Cluster) -> None:
    cluster = memory_cluster
    [segment] = await cluster.create_topic()
    client = await cluster.connect(await cluster.start())
    producer = await client.producer(segment)
    one = await cluster.queue(client, segment, consumer="one", permits=100)
    two = await cluster.queue(client, segment, consumer="two", permits=100)
    none = await cluster.queue(client, segment, consumer="none", permits=0)
    for number in range(20):
        await producer.send(str(number))
    await eventually(lambda: len(one.messages) + len(two.messages) == 20)
    assert len(one.messages) == len(two.messages) == 10
    assert sorted(one.values + two.values, key=int) == [str(number) for number in range(20)]
    await one.close()
    none.flow(100)
    await eventually(lambda: len(none.messages) + len(two.messages) == 20)
    again = [message for message in none.messages + two.messages if message.redelivery_count]
    assert sorted(message.value for message in again) == sorted(one.values)
    assert sorted(none.values + two.values, key=int) == [str(number) for number in range(20)]


async def test_v8_what_is_open_is_set_aside_and_all_else_flows(memory_cluster: Cluster) -> None:
    """Committed: delivered then, in position order; aborted: acked away, so that the backlog ends."""
    cluster = memory_cluster
    [segment] = await cluster.create_topic()
    node = await cluster.start()
    client = await cluster.connect(node)
    producer, consumer = await client.producer(segment), await cluster.queue(client, segment)
    kept, dropped = await cluster.begin(), await cluster.begin()
    await producer.send("k1", txn=kept)
    await producer.send("a")
    await producer.send("d1", txn=dropped)
    await producer.send("k2", txn=kept)
    await producer.send("b")
    await consumer.wait("a", "b")
    stream = await cluster.subscribe(client, segment)
    await consumer.ack(*consumer.take())
    await cluster.abort(dropped)
    await producer.send("c")
    await consumer.wait("c")
    assert stream.values == []
    await cluster.commit(kept)
    await consumer.wait("c", "k1", "k2")
    assert set(counts(consumer).values()) == {0}
    await stream.wait("k1", "a", "k2", "b", "c")
    await consumer.ack(*consumer.messages)
    found = {one.name: one for one in node.broker.statistics().segments[0].subscriptions}
    assert found["jobs"].backlog == 0
    assert found["jobs"].queue is not None and found["jobs"].queue.set_aside == 0


async def test_p4_queue_and_stream_subscriptions_stand_side_by_side_and_keep_their_types(
    memory_cluster: Cluster,
) -> None:
    cluster = memory_cluster
    [segment] = await cluster.create_topic()
    client = await cluster.connect(await cluster.start())
    producer = await client.producer(segment)
    queue, stream = await cluster.queue(client, segment), await cluster.subscribe(client, segment)
    other = await cluster.queue(client, segment, name="other")
    await producer.send("m")
    for consumer in (queue, stream, other):
        await consumer.wait("m")
    txn = await cluster.begin()
    await queue.ack(queue.messages[0], txn=txn)
    await stream.ack(stream.messages[0], txn=txn)
    await other.ack(other.messages[0])
    await cluster.abort(txn)
    await queue.wait("m", "m")
    await eventually(lambda: stream.rewinds)
    await stream.wait("m")
    assert other.values == ["m"]
    with pytest.raises(InvalidArgument, match="has type queue"):
        await cluster.subscribe(client, segment, name="jobs")
    with pytest.raises(InvalidArgument, match="has type stream"):
        await cluster.queue(client, segment, name="sub")


async def test_cumulative_acks_are_refused_and_so_are_nacks_on_streams(memory_cluster: Cluster) -> None:
    cluster = memory_cluster
    [segment] = await cluster.create_topic()
    client = await cluster.connect(await cluster.start())
    producer = await client.producer(segment)
    queue, stream = await cluster.queue(client, segment), await cluster.subscribe(client, segment)
    await producer.send("m")
    await queue.wait("m")
    await stream.wait("m")
    for txn in (None, await cluster.begin()):
        with pytest.raises(InvalidArgument, match="one by one"):
            await queue.ack(queue.messages[0], cumulative=True, txn=txn)
    with pytest.raises(NotAllowed, match="queue"):
        await stream.nack(stream.messages[0])


__all__ = ["Client", "NotOwner", "Position", "TxnConflict", "pb"]
