"""Queue subscriptions over the wire (DESIGN §7 "Dispatch", SCENARIOS V8, P1, P3, P4, P8, P9)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from segments.ledger.file_ledger import FileLedgerStore
from segments.ledger.ledger import LedgerUnreadable
from segments.subscription.dispatch import Delivery
from segments.subscription.queue_subscription import PASSED_OVER_AT_ONCE
from segments.subscription.queueing.queue import PASSED_AT_ONCE, QueueStatistics
from tests.segments.brokering import Cluster, Consumer
from tests.segments.changing import controlling
from tests.segments.subscription.queueing.queues import counts
from tests.waiting import until
from txnwire.errors import (
    InvalidArgument,
    NotAllowed,
    StoreUnavailable,
    Timeout,
    TxnError,
)
from txnwire.ids import Position
from txnwire.proto import txn_pb2 as pb
from txnwire.turns import turns_divided_by
from watchers.pending_acks import APPLIED_AT_ONCE


async def test_a_queue_delivers_acks_and_delivers_again_what_is_nacked(cluster: Cluster) -> None:
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
    assert statistics.queue == QueueStatistics()


@pytest.mark.parametrize("kind", ["queue", "stream"])
async def test_a_decision_on_many_acks_is_applied_in_turns(memory_cluster: Cluster, kind: str) -> None:
    """What was aborted comes again once, and all of what was committed is cleaned up."""
    cluster = memory_cluster
    [segment] = await cluster.create_topic()
    with turns_divided_by(APPLIED_AT_ONCE):  # each ack has a turn of its own
        node = await cluster.start()
        client = await cluster.connect(node)
        producer = await client.producer(segment)
        consumer = await (cluster.queue if kind == "queue" else cluster.subscribe)(client, segment)
        for value in "abcde":
            await producer.send(value)
        await consumer.wait(*"abcde")
        txn = await cluster.begin()
        for message in consumer.take():
            await consumer.ack(message, txn=txn)
        await cluster.abort(txn)
        await consumer.wait(*"abcde")
        assert counts(consumer) == dict.fromkeys("abcde", 1)
        txn = await cluster.begin()
        for message in consumer.take():
            await consumer.ack(message, txn=txn)
        await cluster.commit(txn)
        await cluster.wait_no_ops(txn)
        [statistics] = node.broker.statistics().segments[0].subscriptions
        assert (statistics.backlog, statistics.pending.transactions) == (0, 0)


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
    await until(lambda: len(one.messages) + len(two.messages) == 20)
    assert len(one.messages) == len(two.messages) == 10
    assert sorted(one.values + two.values, key=int) == [str(number) for number in range(20)]
    await one.close()
    none.flow(100)
    await until(lambda: len(none.messages) + len(two.messages) == 20)
    assert not any(message.redelivery_count for message in none.messages + two.messages)  # it has closed in order
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
    queue = found["jobs"].queue
    assert queue is not None
    assert (queue.set_aside, queue.unacked) == (0, 0)


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
    await until(lambda: stream.rewinds)
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


async def test_p9_what_a_lost_connection_had_goes_to_the_others_but_not_what_is_pending(
    memory_cluster: Cluster,
) -> None:
    cluster = memory_cluster
    [segment] = await cluster.create_topic()
    node = await cluster.start()
    dying, living = await cluster.connect(node), await cluster.connect(node)
    producer, consumer = await living.producer(segment), await cluster.queue(dying, segment, consumer="dying")
    for value in "abc":
        await producer.send(value)
    await consumer.wait(*"abc")
    txn = await cluster.begin()
    await consumer.ack(consumer.messages[0], txn=txn)
    await consumer.ack(consumer.messages[1])
    other = await cluster.queue(living, segment, consumer="living")
    await dying.close()
    await other.wait("c")
    assert counts(other) == {"c": 1}
    await cluster.abort(txn)
    await other.wait("c", "a")


async def test_a_queue_passes_over_aborted_entries_in_turns_to_the_last(memory_cluster: Cluster) -> None:
    """Dies if nothing wakes it behind the first portion: a segment would keep its entries, and a sealed one its drained
    mark, until something else comes."""
    cluster = memory_cluster
    [segment] = await cluster.create_topic()
    with turns_divided_by(PASSED_OVER_AT_ONCE):  # one at once
        node = await cluster.start()
        client = await cluster.connect(node)
        producer = await client.producer(segment)
        await cluster.queue(client, segment)
        txn = await cluster.begin()
        for value in "abcde":
            await producer.send(value, txn=txn)
        await cluster.abort(txn)
        await until(lambda: node.broker.statistics().segments[0].subscriptions[0].backlog == 0)


async def test_what_comes_behind_many_pending_entries_is_delivered_without_being_asked_for_again(
    memory_cluster: Cluster,
) -> None:
    cluster = memory_cluster
    [segment] = await cluster.create_topic()
    with turns_divided_by(PASSED_AT_ONCE // 2):  # two entries at once
        node = await cluster.start()
        client = await cluster.connect(node)
        producer, consumer = await client.producer(segment), await cluster.queue(client, segment)
        for value in "abcdefghij":
            await producer.send(value)
        await consumer.wait(*"abcdefghij")
        txn = await cluster.begin()
        for message in consumer.messages[:-1]:
            await consumer.ack(message, txn=txn)
        await node.crash()
        client = await cluster.connect(await cluster.start())
        consumer = await cluster.queue(client, segment)
        await consumer.wait("j")
        await cluster.abort(txn)
        await consumer.wait("j", *"abcdefghi")


async def test_v7_a_queue_that_reads_uncommitted(memory_cluster: Cluster) -> None:
    """Its consumers agree on the isolation, as they share the messages."""
    cluster = memory_cluster
    [segment] = await cluster.create_topic()
    client = await cluster.connect(await cluster.start())
    producer = await client.producer(segment)
    txn = await cluster.begin()
    await producer.send("open", txn=txn)
    uncommitted = pb.ISOLATION_READ_UNCOMMITTED
    consumer = await cluster.queue(client, segment, isolation=uncommitted)
    await consumer.wait("open")
    with pytest.raises(InvalidArgument, match="one isolation"):
        await cluster.queue(client, segment, consumer="other")
    await consumer.ack(consumer.messages[0])
    await producer.send("more", txn=txn)
    await consumer.wait("open", "more")
    await consumer.close()
    committed = await cluster.queue(client, segment)
    await producer.send("plain")
    await committed.wait("plain")
    await cluster.commit(txn)
    await committed.wait("plain", "more")


async def test_a_queue_reads_from_disk_what_is_behind_the_cache(memory_cluster: Cluster) -> None:
    """What is due again and what is ahead, both older than the cache holds."""
    cluster = memory_cluster
    cluster.settings = replace(cluster.settings, tail_cache_bytes=0, read_bytes=300)
    [segment] = await cluster.create_topic()
    client = await cluster.connect(await cluster.start())
    producer = await client.producer(segment)
    txn = await cluster.begin()
    for number in range(30):
        await producer.send(str(number), txn=txn if number % 3 == 0 else None)
    consumer = await cluster.queue(client, segment)
    plain = [str(number) for number in range(30) if number % 3]
    await consumer.wait(*plain)
    await cluster.commit(txn)
    await consumer.wait(*plain, *(str(number) for number in range(0, 30, 3)))
    odd = [message for message in consumer.take() if int(message.value) % 2]
    await consumer.nack(*odd)
    await until(lambda: len(consumer.messages) == 15)
    assert sorted(consumer.values, key=int) == [str(number) for number in range(1, 30, 2)]


async def test_a_queue_consumer_gets_nothing_before_its_revision_is_followed(memory_cluster: Cluster) -> None:
    """It is closed where that takes too long; the others are not held up."""
    cluster = memory_cluster
    cluster.settings = replace(cluster.settings, follow_wait_s=0.3)
    [segment] = await cluster.create_topic()
    client = await cluster.connect(await cluster.start())
    producer = await client.producer(segment)
    ahead = await cluster.queue(client, segment, consumer="ahead", permits=0)
    ahead.flow(10, 10**9)
    other = await cluster.queue(client, segment, consumer="other", permits=10)
    for value in "abc":
        await producer.send(value)
    await other.wait(*"abc")
    await until(lambda: isinstance(ahead.closed, Timeout))
    assert ahead.all == []
    behind = await cluster.queue(client, segment, consumer="behind", permits=0)
    behind.flow(10, await cluster.commit(await cluster.begin()))
    await other.close()
    await behind.wait(*"abc")


async def test_messages_of_a_consumer_that_the_broker_gives_up_do_not_count_as_delivered_in_vain(
    memory_cluster: Cluster,
) -> None:
    """The broker waits in vain for a revision, so nothing tells against the messages: they are no poison."""
    cluster = memory_cluster
    cluster.settings = replace(cluster.settings, follow_wait_s=0.3)
    [segment] = await cluster.create_topic()
    client = await cluster.connect(await cluster.start())
    producer = await client.producer(segment)
    ahead = await cluster.queue(client, segment, consumer="ahead", permits=10)
    await producer.send("a")
    await ahead.wait("a")
    ahead.flow(10, 10**9)
    await producer.send("b")
    await until(lambda: isinstance(ahead.closed, Timeout))
    other = await cluster.queue(client, segment, consumer="other", permits=10)
    await other.wait("a", "b")
    assert counts(other) == {"a": 0, "b": 0}


class SlowSink:
    """Implements `dispatch.Sink`: a connection that takes in nothing until it is told to."""

    closed = False

    def __init__(self) -> None:
        self.pending_bytes = 0
        self.entries = 0
        self.drained = asyncio.Event()

    async def drain(self, below_bytes: int) -> None:
        await self.drained.wait()
        self.pending_bytes = 0

    def deliver(self, deliveries: Sequence[Delivery]) -> None:
        self.entries += len(deliveries)
        self.pending_bytes += sum(len(one.data) for one in deliveries)

    def passed(self, through: Position) -> None:
        raise AssertionError("queues have no order")

    def sharing(self, told: int) -> None:
        raise AssertionError("it does not share")

    def rewind(self) -> None:
        raise AssertionError("queues are not rewound")

    def end_of_segment(self, *, sealed: bool) -> None:
        raise AssertionError("the segment goes on")

    def consumer_closed(self, error: TxnError) -> None:
        """The broker stops."""


async def test_a_slow_connection_gets_no_more_than_its_bound_and_the_others_go_on(memory_cluster: Cluster) -> None:
    cluster = memory_cluster
    cluster.settings = replace(cluster.settings, connection_pending_bytes=2000, deliver_bytes=500)
    [segment] = await cluster.create_topic()
    node = await cluster.start()
    client = await cluster.connect(node)
    producer, other = await client.producer(segment), await cluster.queue(client, segment, permits=0)
    for number in range(100):
        await producer.send(str(number))
    table, sink = node.broker.segments[segment].subscriptions, SlowSink()
    subscription, consumer = await table.attach_to_queue(sink, subscription="jobs", holder="slow@1", min_revision=0)
    subscription.add_permits(consumer, 1000)
    await until(lambda: sink.entries)
    other.flow(1000)
    await until(lambda: sink.entries + len(other.all) == 100)
    assert sink.pending_bytes < 2000 + 500 + 300
    sink.drained.set()
    before = sink.entries
    await producer.send("more")
    await producer.send("and more")
    await until(lambda: sink.entries > before)


async def test_a_queue_goes_on_behind_a_take_over_around_the_same_open_transaction(memory_cluster: Cluster) -> None:
    """V8 across R1: what was acked stays so, what is open is set aside anew, what was unacked comes again."""
    cluster = memory_cluster
    [segment] = await cluster.create_topic()
    node = await cluster.start()
    client = await cluster.connect(node)
    producer, consumer = await client.producer(segment), await cluster.queue(client, segment)
    kept, dropped = await cluster.begin(), await cluster.begin()
    await producer.send("k", txn=kept)
    await producer.send("a")
    await producer.send("d", txn=dropped)
    await producer.send("b")
    await consumer.wait("a", "b")
    await consumer.ack(consumer.messages[0])
    await node.close()
    node = await cluster.start()
    client = await cluster.connect(node)
    consumer = await cluster.queue(client, segment)
    await consumer.wait("b")
    await (await client.producer(segment, "p2")).send("c")
    await consumer.wait("b", "c")
    await cluster.abort(dropped)
    await cluster.commit(kept)
    await consumer.wait("b", "c", "k")
    await consumer.ack(*consumer.messages)
    assert node.broker.statistics().segments[0].subscriptions[0].backlog == 0


async def test_a_sealed_segment_ends_for_a_queue_once_all_of_it_is_given_out(memory_cluster: Cluster) -> None:
    """Not while something is set aside; and again behind whatever comes again."""
    cluster = memory_cluster
    [segment] = await cluster.create_topic()
    client = await cluster.connect(await cluster.start())
    producer, consumer = await client.producer(segment), await cluster.queue(client, segment)
    idle = await cluster.queue(client, segment, consumer="idle", permits=0)
    txn = await cluster.begin()
    await producer.send("m")
    await producer.send("t", txn=txn)
    await consumer.wait("m")
    async with controlling(cluster) as controller:
        await controller.split(segment)
    assert consumer.ended is None
    await cluster.commit(txn)
    await consumer.wait("m", "t")
    await until(lambda: consumer.ended == "sealed")
    consumer.ended = None
    await consumer.nack(*consumer.take())
    await consumer.wait("m", "t")
    await until(lambda: consumer.ended == "sealed")
    await until(lambda: idle.ended == "sealed")


class Unreadable(FileLedgerStore):
    """Fails to read ledgers while `failing`."""

    failing = True

    async def read(
        self, segment: str, ledger_id: int, first: int, last: int, *, max_bytes: int
    ) -> Sequence[tuple[int, bytes]]:
        if self.failing:
            raise LedgerUnreadable(f"reading {segment}/{ledger_id}.ledger: input/output error")
        return await super().read(segment, ledger_id, first, last, max_bytes=max_bytes)


async def test_a_disk_that_fails_to_read_is_logged_once_and_not_for_every_consumer_it_closes(
    memory_cluster: Cluster,
) -> None:
    """Seed 30089: 907 lines, and as many errors, of one disk that failed for some seconds."""
    cluster = memory_cluster
    [segment] = await cluster.create_topic()
    node = await cluster.start()
    await (await (await cluster.connect(node)).producer(segment)).send("a")
    await node.close()
    cluster.make_ledgers = Unreadable
    node = await cluster.start()
    ledgers = node.ledgers
    assert isinstance(ledgers, Unreadable)
    client = await cluster.connect(node)

    async def until_closed(consumer: Consumer) -> None:
        await until(lambda: isinstance(consumer.closed, StoreUnavailable))

    async def closed_again(times: int) -> list[str]:
        with capture_logs() as logs:
            for _ in range(times):
                await until_closed(await cluster.queue(client, segment))
        return [str(line["log_level"]) for line in logs if line["event"] == "queue_read_failed"]

    assert await closed_again(5) == ["warning"]
    ledgers.failing = False
    consumer = await cluster.queue(client, segment)
    await consumer.wait("a")
    assert counts(consumer) == {"a": 0}
    await consumer.close()
    ledgers.failing = True
    # The next time it is told again.
    assert await closed_again(3) == ["warning"]
