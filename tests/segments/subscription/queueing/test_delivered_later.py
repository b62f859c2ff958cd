"""Messages that a queue delivers at their time: not before, not never, once, and past everything that moves them
(DESIGN §7 "Dispatch")."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from segments.broker.broker_service import CLOCKS_APART_MS
from segments.subscription.queue_subscription import QueueSubscription
from segments.subscription.queueing.queue import QueueBounds
from tests.segments.brokering import Cluster, Node
from tests.segments.brokering_clients import Consumer, Producer
from tests.segments.queueing import Rig
from tests.segments.subscription.queueing.queues import counts
from tests.waiting import until
from txnwire.clock import SystemClock
from txnwire.errors import InvalidArgument
from txnwire.ids import Position, TxnId
from txnwire.proto import txn_pb2 as pb
from txnwire.protocol import MAX_DELAY_MS
from txnwire.turns import turns_divided_by
from watchers.acks import WHOLE, ack_position

TXN = TxnId(1, 1)
SHORT_MS = 150
AFTER_ALL_MS = 3000
"""Longer than a test takes to the point where it waits."""
LONG_MS = 60_000


# ---- the queue alone ------------------------------------------------------------------------------------------------


def test_a_message_waits_for_its_time_and_those_behind_it_do_not() -> None:
    rig = Rig()
    later, now = rig.append(later_s=10), rig.append()
    taker = rig.taker()
    rig.run()
    assert taker.entries == [now]
    rig.pass_time(9.9)
    rig.run()
    assert taker.entries == [now]
    newest = rig.append()
    rig.pass_time(0.1)
    rig.run()
    assert taker.entries == [now, later, newest]
    assert [count for _, _, count in taker.got] == [0, 0, 0]
    assert rig.queue.statistics().delayed == 0


def test_its_time_is_told_and_a_time_that_has_passed_is_none() -> None:
    rig = Rig()
    rig.append(later_s=10)
    rig.append(later_s=4)
    rig.pass_time(4)
    taker = rig.taker()
    rig.run()
    assert (len(taker.got), rig.queue.next_expiry_s(), rig.queue.statistics().delayed) == (1, 10, 1)


@pytest.mark.parametrize("first", ["the decision", "the time"])
@pytest.mark.parametrize("committed", [True, False])
def test_of_a_transaction_both_its_end_and_the_time_are_waited_for(first: str, committed: bool) -> None:
    rig = Rig()
    rig.append(2, TXN, later_s=10)
    taker = rig.taker()
    rig.run()
    steps = [lambda: rig.decide(TXN, committed=committed), lambda: rig.pass_time(10)]
    for step in steps if first == "the decision" else reversed(steps):
        assert taker.got == []
        step()
        rig.run()
    assert len(taker.got) == (2 if committed else 0)
    if not committed:
        rig.queue.pass_over(10)
        assert rig.cursor.mark_delete == rig.end


def test_many_messages_of_one_time_become_due_in_turns() -> None:
    rig = Rig()
    for _ in range(12):
        rig.append(later_s=10)
    taker = rig.taker()
    rig.run()
    with turns_divided_by(1000):
        rig.pass_time(10)
        assert (len(rig.queue._delays), rig.queue.next_expiry_s()) == (7, 10)
        rig.pass_time(0)
        rig.pass_time(0)
    rig.run()
    assert taker.entries == list(rig.log)


def test_what_is_acked_while_it_waits_is_not_delivered() -> None:
    rig = Rig()
    later = rig.append(3, later_s=10)
    taker = rig.taker()
    rig.run()
    rig.ack(ack_position(later, 3, WHOLE))
    rig.pass_time(10)
    rig.run()
    assert taker.got == []
    assert rig.queue._promised == {}


def test_past_its_places_a_queue_reads_no_further_until_some_are_due() -> None:
    rig = Rig(bounds=QueueBounds(places=3, unacked=100, blocks=8))
    for _ in range(3):
        rig.append(later_s=10)
    behind = rig.append()
    taker = rig.taker()
    rig.run()
    assert taker.got == []
    rig.pass_time(10)
    rig.run()
    assert len(taker.entries) == 3
    rig.ack(*(ack_position(position, 1, WHOLE) for position in taker.entries))
    rig.run()
    assert taker.entries[3:] == [behind]


def test_batches_that_wait_keep_the_room_for_their_acks() -> None:
    """▲ They are given out at their time even if entries ahead have filled the cursor meanwhile."""
    rig = Rig(max_partial=2)
    waiting = [rig.append(2, later_s=10) for _ in range(2)]
    rig.append(2)
    taker = rig.taker()
    rig.run()
    assert taker.got == []  # no room is left for another batch
    rig.pass_time(10)
    rig.run()
    assert set(taker.entries) == set(waiting)
    for position in waiting:
        rig.ack(ack_position(position, 2, 0b10))
    for position in waiting:
        rig.ack(ack_position(position, 2, 0b01))
    rig.run()
    assert len(taker.got) == 6


def test_nobody_has_it_so_nobody_who_leaves_brings_it_forward() -> None:
    rig = Rig()
    later = rig.append(later_s=10)
    leaving, staying = rig.taker("a"), rig.taker("b")
    rig.run()
    rig.queue.leave(leaving)
    rig.run()
    assert staying.got == []
    rig.pass_time(10)
    rig.run()
    assert staying.got == [(later, 0, 0)]


# ---- in a broker ----------------------------------------------------------------------------------------------------


class WallClock(SystemClock):
    """A wall clock that somebody sets."""

    ahead_ms = 0

    def wall_ms(self) -> int:
        return super().wall_ms() + self.ahead_ms


async def sent(producer: Producer, value: str, clock: SystemClock, delay_ms: int) -> Position:
    now_ms = clock.wall_ms()
    return await producer.send(value, publish_time_ms=now_ms, deliver_at_ms=now_ms + delay_ms)


async def came(consumer: Consumer, *values: str) -> None:
    """In any order: what is due is given out by position."""
    await until(lambda: sorted(message.value for message in consumer.messages) == sorted(values))


async def queue_of(node: Node, segment: str) -> QueueSubscription:
    subscription = await node.broker.segments[segment].subscriptions.load("jobs")
    assert isinstance(subscription, QueueSubscription)
    return subscription


@pytest.mark.parametrize("cached", [True, False], ids=["from memory", "from the disk"])
async def test_it_comes_at_its_time_without_anything_else_that_happens(memory_cluster: Cluster, cached: bool) -> None:
    cluster = memory_cluster
    if not cached:
        cluster.settings = replace(cluster.settings, tail_cache_bytes=0)
    [segment] = await cluster.create_topic()
    client = await cluster.connect(await cluster.start())
    producer, consumer = await client.producer(segment), await cluster.queue(client, segment)
    loop = asyncio.get_running_loop()
    began = loop.time()
    await sent(producer, "later", cluster.clock, SHORT_MS)
    await producer.send("now")
    await came(consumer, "later", "now")
    assert loop.time() - began >= (SHORT_MS - 2) / 1000
    assert counts(consumer) == {"now": 0, "later": 0}


async def test_a_stream_gets_it_at_once(memory_cluster: Cluster) -> None:
    cluster = memory_cluster
    [segment] = await cluster.create_topic()
    client = await cluster.connect(await cluster.start())
    producer, stream = await client.producer(segment), await cluster.subscribe(client, segment, epoch=1)
    await sent(producer, "later", cluster.clock, LONG_MS)
    await producer.send("now")
    await stream.wait("later", "now")
    assert [message.value for message in stream.messages] == ["later", "now"]


async def test_a_successor_waits_as_well_and_delivers_it(memory_cluster: Cluster) -> None:
    cluster = memory_cluster
    [segment] = await cluster.create_topic()
    first = await cluster.start()
    client = await cluster.connect(first)
    producer, consumer = await client.producer(segment), await cluster.queue(client, segment)
    began = asyncio.get_running_loop().time()
    await sent(producer, "later", cluster.clock, AFTER_ALL_MS)
    await producer.send("now")
    await consumer.wait("now")
    await first.crash()
    second = await cluster.connect(await cluster.start())
    again = await cluster.queue(second, segment)
    await came(again, "later", "now")
    assert asyncio.get_running_loop().time() - began >= (AFTER_ALL_MS - 2) / 1000


async def test_a_consumer_that_comes_while_it_waits_gets_it(memory_cluster: Cluster) -> None:
    """▲ The timer goes with the last consumer, and comes with the next."""
    cluster = memory_cluster
    [segment] = await cluster.create_topic()
    node = await cluster.start()
    client = await cluster.connect(node)
    producer, consumer = await client.producer(segment), await cluster.queue(client, segment)
    await sent(producer, "later", cluster.clock, AFTER_ALL_MS)
    queue = await queue_of(node, segment)
    await until(lambda: queue.statistics().queue.delayed == 1)
    await consumer.close()
    assert queue._timer is None
    again = await cluster.queue(client, segment)
    await again.wait("later")


async def test_a_wall_clock_set_back_brings_nothing_forward(memory_cluster: Cluster) -> None:
    cluster, clock = memory_cluster, WallClock()
    cluster.clock = clock
    [segment] = await cluster.create_topic()
    node = await cluster.start()
    client = await cluster.connect(node)
    producer, consumer = await client.producer(segment), await cluster.queue(client, segment)
    await sent(producer, "later", clock, AFTER_ALL_MS)
    queue = await queue_of(node, segment)
    await until(lambda: queue.statistics().queue.delayed == 1)
    clock.ahead_ms = -LONG_MS
    first_s = queue._queue.next_expiry_s()
    assert first_s is not None
    await until(lambda: (queue._queue.next_expiry_s() or first_s) > first_s)  # its time has come, and it waits anew
    assert consumer.messages == []
    assert queue.statistics().queue.delayed == 1


async def test_a_seek_makes_it_wait_anew_and_leaves_no_room_taken(memory_cluster: Cluster) -> None:
    cluster = memory_cluster
    [segment] = await cluster.create_topic()
    node = await cluster.start()
    client = await cluster.connect(node)
    producer, consumer = await client.producer(segment), await cluster.queue(client, segment)
    now_ms = cluster.clock.wall_ms()
    await producer.send("a", "b", publish_time_ms=now_ms, deliver_at_ms=now_ms + LONG_MS)
    queue = await queue_of(node, segment)
    await until(lambda: queue.statistics().queue.delayed == 1)
    assert queue.cursor._room.bytes > 0
    await client.call(seek=pb.Seek(segment=segment, subscription="jobs", start=pb.Start(earliest=True)))
    assert (queue.cursor._room.bytes, queue.statistics().queue.delayed) == (0, 0)
    await until(lambda: consumer.closed is not None)
    again = await cluster.queue(client, segment)
    await until(lambda: queue.statistics().queue.delayed == 1)
    assert again.messages == []


async def test_a_time_that_nobody_could_wait_for_is_refused(memory_cluster: Cluster) -> None:
    """▲ Or one entry of a careless client would hold the queue for ever."""
    cluster = memory_cluster
    [segment] = await cluster.create_topic()
    client = await cluster.connect(await cluster.start())
    producer = await client.producer(segment)
    await sent(producer, "later", cluster.clock, MAX_DELAY_MS)
    await sent(producer, "by a clock that is ahead", cluster.clock, MAX_DELAY_MS + CLOCKS_APART_MS)
    far_ms = cluster.clock.wall_ms() + MAX_DELAY_MS + 2 * CLOCKS_APART_MS
    with pytest.raises(InvalidArgument, match="to be delivered at"):
        await producer.send("never", publish_time_ms=far_ms - 1000, deliver_at_ms=far_ms)
