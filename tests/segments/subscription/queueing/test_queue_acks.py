"""Acks and nacks on queue subscriptions, in transactions and outside."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from segments.subscription.cursors.cursor import BLOCK_ENTRIES
from tests.segments.brokering import Cluster, Consumer, Received
from tests.segments.subscription.queueing.queues import counts
from tests.waiting import until, until_turn
from txnwire.errors import (
    DataCorrupt,
    InvalidArgument,
    Overloaded,
    TxnConflict,
)
from txnwire.ids import Position
from txnwire.proto import txn_pb2 as pb
from txnwire.protocol import MAX_COMMAND_BYTES, MAX_ENTRY_MESSAGES
from txnwire.turns import turns_divided_by
from watchers.acks import AckPosition
from watchers.pending_acks import APPLIED_AT_ONCE


def by_value(consumer: Consumer) -> dict[str, Received]:
    return {message.value: message for message in consumer.messages}


async def test_p1_p8_acks_of_part_of_an_entry_in_a_transaction_across_a_restart(cluster: Cluster) -> None:
    """What is pending stays hidden; commit sticks, abort delivers again; redelivery counts start anew."""
    [segment] = await cluster.create_topic()
    node = await cluster.start()
    client = await cluster.connect(node)
    producer, consumer = await client.producer(segment), await cluster.queue(client, segment)
    await producer.send("a", "b", "c", "d")
    await consumer.wait(*"abcd")
    await consumer.nack(consumer.messages[3])
    await consumer.wait(*"abcdd")
    kept, dropped = await cluster.begin(), await cluster.begin()
    found = by_value(consumer)
    await consumer.ack(found["a"], txn=kept)
    await consumer.ack(found["b"], txn=dropped)
    await node.crash()
    node = await cluster.start()
    client = await cluster.connect(node)
    consumer = await cluster.queue(client, segment)
    await consumer.wait("c", "d")
    assert counts(consumer) == {"c": 0, "d": 0}
    await cluster.commit(kept)
    await cluster.abort(dropped)
    await consumer.wait("c", "d", "b")
    await cluster.wait_no_ops(kept)
    await consumer.ack(*consumer.take())
    await node.close()
    node = await cluster.start()
    client = await cluster.connect(node)
    consumer = await cluster.queue(client, segment)
    await (await client.producer(segment, "p2")).send("sentinel")
    await consumer.wait("sentinel")


async def test_p3_a_second_transaction_conflicts_until_the_first_has_aborted(memory_cluster: Cluster) -> None:
    """An ack counts whoever makes it, also of a message that another consumer has by now; its own copy then conflicts,
    and what a refused ack names comes again."""
    cluster = memory_cluster
    [segment] = await cluster.create_topic()
    node = await cluster.start()
    first, second = await cluster.connect(node), await cluster.connect(node)
    producer, one = await first.producer(segment), await cluster.queue(first, segment, consumer="one")
    await producer.send("m")
    await one.wait("m")
    [m] = one.messages
    await one.nack(m)
    await one.close()
    two = await cluster.queue(second, segment, consumer="two")
    late = await cluster.queue(first, segment, consumer="late", permits=0)
    await two.wait("m")
    t1, t2, t3 = await cluster.begin(), await cluster.begin(), await cluster.begin()
    await late.ack(m, txn=t1)
    with pytest.raises(TxnConflict):
        await two.ack(two.messages[0], txn=t2)
    await two.ack(two.messages[0])  # dropped: it is pending
    await cluster.abort(t1)
    await two.wait("m", "m")
    await two.ack(two.messages[1], txn=t2)
    await cluster.commit(t2)
    await cluster.wait_no_ops(t2)
    with pytest.raises(TxnConflict):
        await late.ack(m, txn=t3)


async def test_a_refused_ack_gives_back_all_it_names(memory_cluster: Cluster) -> None:
    cluster = memory_cluster
    [segment] = await cluster.create_topic()
    client = await cluster.connect(await cluster.start())
    producer, consumer = await client.producer(segment), await cluster.queue(client, segment)
    await producer.send("a")
    await producer.send("b")
    await consumer.wait("a", "b")
    a, b = consumer.take()
    await consumer.ack(a)
    txn = await cluster.begin()
    with pytest.raises(TxnConflict, match="acked already"):
        await consumer.ack(a, b, txn=txn)
    await consumer.wait("b")
    assert counts(consumer) == {"b": 1}
    await cluster.abort(txn)
    with pytest.raises(TxnConflict):  # refused by the store, behind the reservation
        await consumer.ack(consumer.take()[0], txn=txn)
    await consumer.wait("b")
    assert counts(consumer) == {"b": 2}


async def test_what_was_never_delivered_cannot_be_acked(memory_cluster: Cluster) -> None:
    cluster = memory_cluster
    [segment] = await cluster.create_topic()
    client = await cluster.connect(await cluster.start())
    producer, consumer = await client.producer(segment), await cluster.queue(client, segment)
    txn = await cluster.begin()
    hidden = await producer.send("hidden", txn=txn)
    await producer.send("m")
    await consumer.wait("m")
    for position in (hidden, Position(1, 99), Position(7, 0)):
        with pytest.raises(InvalidArgument):
            await consumer.ack(position)
    await cluster.commit(txn)
    await consumer.wait("m", "hidden")


async def test_a_nack_may_wait(memory_cluster: Cluster) -> None:
    cluster = memory_cluster
    [segment] = await cluster.create_topic()
    node = await cluster.start()
    client = await cluster.connect(node)
    producer, consumer = await client.producer(segment), await cluster.queue(client, segment)
    await producer.send("late")
    await producer.send("soon")
    await consumer.wait("late", "soon")
    late, soon = consumer.take()
    await consumer.nack(late, delay_ms=3_600_000)
    await consumer.nack(soon, delay_ms=30)
    await consumer.wait("soon")
    assert counts(consumer) == {"soon": 1}
    queue = node.broker.statistics().segments[0].subscriptions[0].queue
    assert queue is not None
    assert (queue.delayed, queue.unacked) == (1, 1)
    with pytest.raises(InvalidArgument, match="delay"):
        await consumer.nack(soon, delay_ms=10**12)


async def test_nacks_that_wait_for_different_times_all_come_again(memory_cluster: Cluster) -> None:
    """One timer serves them all: set anew behind each."""
    cluster = memory_cluster
    [segment] = await cluster.create_topic()
    client = await cluster.connect(await cluster.start())
    producer, consumer = await client.producer(segment), await cluster.queue(client, segment)
    names = ("first", "second", "third")
    for name in names:
        await producer.send(name)
    await consumer.wait(*names)
    for number, message in enumerate(consumer.take()):
        await consumer.nack(message, delay_ms=20 * (number + 1))
    await consumer.wait(*names)
    assert counts(consumer) == dict.fromkeys(names, 1)


async def test_a_delay_goes_on_where_all_consumers_were_lost_over_a_read_that_failed(
    memory_cluster: Cluster,
) -> None:
    cluster = memory_cluster
    cluster.settings = replace(cluster.settings, tail_cache_bytes=0)
    [segment] = await cluster.create_topic()
    node = await cluster.start()
    client = await cluster.connect(node)
    producer, consumer = await client.producer(segment), await cluster.queue(client, segment)
    await producer.send("m")
    await consumer.wait("m")
    await consumer.nack(consumer.messages[0], delay_ms=200)
    subscription = await node.broker.segments[segment].subscriptions.load("jobs")
    subscription.close(DataCorrupt("planted"))
    await until(lambda: isinstance(consumer.closed, DataCorrupt))
    again = await cluster.queue(client, segment)
    await again.wait("m")
    assert counts(again) == {"m": 1}


async def test_a_queue_has_room_for_acks_as_far_as_it_reads(memory_cluster: Cluster) -> None:
    cluster = memory_cluster
    [segment] = await cluster.create_topic()
    node = await cluster.start()
    await cluster.queue(await cluster.connect(node), segment)
    subscription = await node.broker.segments[segment].subscriptions.load("jobs")
    for block in range(cluster.settings.queue_cursor_blocks):
        subscription.cursor.ack(AckPosition(Position(1, block * BLOCK_ENTRIES + 1), 1))
    subscription.cursor.ack(AckPosition(Position(2, 5), 1))
    with pytest.raises(Overloaded):
        subscription.cursor.ack(AckPosition(Position(3, 5), 1))


async def test_acks_alone_let_a_consumer_at_its_bound_go_on(memory_cluster: Cluster) -> None:
    """It has permits enough: nothing else need happen."""
    cluster = memory_cluster
    cluster.settings = replace(cluster.settings, queue_unacked_entries=2)
    [segment] = await cluster.create_topic()
    client = await cluster.connect(await cluster.start())
    producer, consumer = await client.producer(segment), await cluster.queue(client, segment)
    for value in "abcdef":
        await producer.send(value)
    await consumer.wait(*"ab")
    await consumer.ack(*consumer.take())
    await consumer.wait(*"cd")
    txn = await cluster.begin()
    await consumer.ack(*consumer.take(), txn=txn)
    await consumer.wait(*"ef")


async def test_the_first_messages_of_a_large_abort_come_again_before_its_last_acks_are_released(
    memory_cluster: Cluster,
) -> None:
    cluster = memory_cluster
    [segment] = await cluster.create_topic()
    with turns_divided_by(APPLIED_AT_ONCE):  # each ack has a turn of its own
        node = await cluster.start()
        client = await cluster.connect(node)
        producer, consumer = await client.producer(segment), await cluster.queue(client, segment)
        for value in "abcde":
            await producer.send(value)
        await consumer.wait(*"abcde")
        txn = await cluster.begin()
        for message in consumer.take():
            await consumer.ack(message, txn=txn)
        subscription = await node.broker.segments[segment].subscriptions.load("jobs")
        aborting = asyncio.ensure_future(cluster.abort(txn))
        await until_turn(lambda: subscription.statistics().delivered > 5, "a message that comes again")
        assert subscription.statistics().pending.transactions == 1
        await aborting
        await consumer.wait(*"abcde")


async def test_acks_of_parts_of_many_large_entries_are_stored_and_known_to_the_next_owner(
    memory_cluster: Cluster,
) -> None:
    """C9: all but one message of each of many large batches: more than a record of the store, or a commit, takes."""
    cluster = memory_cluster
    [segment] = await cluster.create_topic()
    node = await cluster.start()
    client = await cluster.connect(node)
    producer, consumer = await client.producer(segment), await cluster.queue(client, segment)
    entries = [await producer.send(str(number)) for number in range(60)]
    await consumer.wait(*(str(number) for number in range(60)))
    txn = await cluster.begin()
    for number, position in enumerate(entries):
        part = pb.AckPosition(ledger_id=position.ledger_id, entry_id=position.entry_id, count=MAX_ENTRY_MESSAGES)
        part.indexes = ((1 << MAX_ENTRY_MESSAGES - 1) - 1).to_bytes(MAX_ENTRY_MESSAGES // 8, "little")
        ack = pb.Ack(consumer_id=consumer.id, positions=[part])
        if number % 2:
            ack.txnid_most_bits, ack.txnid_least_bits = txn.most_bits, txn.least_bits
        await client.call(ack=ack)
    await cluster.commit(txn)
    await cluster.wait_no_ops(txn)
    await node.close()
    node = await cluster.start()
    await cluster.queue(await cluster.connect(node), segment)
    subscription = await node.broker.segments[segment].subscriptions.load("jobs")
    assert [subscription.cursor.acked(position).bit_count() for position in entries] == [MAX_ENTRY_MESSAGES - 1] * 60


async def test_a_large_entry_whose_messages_came_back_unequally_often_fits_its_frames(
    memory_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """▲ To a client that does not share: each count is a part of its own, and has all bytes of the entry."""
    cluster = memory_cluster
    [segment] = await cluster.create_topic()
    client = await cluster.connect(await cluster.start())
    producer, consumer = await client.producer(segment), await cluster.queue(client, segment)
    sizes, on_push = list[int](), consumer.on_push

    def measured(kind: str, body: pb.Deliver) -> None:
        sizes.append(body.ByteSize())
        on_push(kind, body)

    monkeypatch.setattr(consumer, "on_push", measured)
    values = [letter * 1_500_000 for letter in "abc"]
    await producer.send(*values)
    await consumer.wait(*values)
    a, b, c = consumer.take()
    await consumer.nack(a)
    await consumer.wait(values[0])
    await consumer.nack(*consumer.take(), b, c)
    await until(lambda: len(consumer.messages) == 3, within_s=5.0)
    assert {one.value[0]: one.redelivery_count for one in consumer.messages} == {"a": 2, "b": 1, "c": 1}
    assert max(sizes) < MAX_COMMAND_BYTES
