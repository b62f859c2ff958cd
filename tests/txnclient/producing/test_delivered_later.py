"""Sends of messages that queues deliver later: which times are taken, and that no other message gets theirs."""

from __future__ import annotations

import asyncio
import math
import time
from datetime import timedelta
from typing import Any

import pytest

import txnclient
from tests.cluster import InProcessCluster
from txnclient.connection.deadlines import Deadline
from txnclient.producing.channels.batches import GatheringBatch
from txnclient.producing.later import delivery_time_ms
from txnwire.clock import SystemClock
from txnwire.entry import OutgoingMessage
from txnwire.errors import InvalidArgument
from txnwire.ids import hash_key
from txnwire.protocol import MAX_DELAY_MS, MAX_VALUE_BYTES

NOW_MS = 1_800_000_000_000
TOPIC = "topic://public/default/jobs"
LATER_S = 0.5


@pytest.mark.parametrize(
    ("after", "at_ms", "expected"),
    [
        (None, None, 0),
        (0, None, 0),
        (1.5, None, NOW_MS + 1501),
        (0.0001, None, NOW_MS + 2),
        (timedelta(minutes=1), None, NOW_MS + 60_001),
        (timedelta(days=30), None, NOW_MS + MAX_DELAY_MS + 1),
        (None, NOW_MS + 7, NOW_MS + 7),
        (None, NOW_MS + MAX_DELAY_MS, NOW_MS + MAX_DELAY_MS),
        (None, NOW_MS, 0),
        (None, NOW_MS - 1, 0),
        (None, -5, 0),
    ],
)
def test_times_that_are_taken(after: float | timedelta | None, at_ms: int | None, expected: int) -> None:
    assert delivery_time_ms(after, at_ms, NOW_MS) == expected


@pytest.mark.parametrize(
    ("after", "at_ms", "said"),
    [
        (1.0, NOW_MS, "give one of them"),
        (-0.1, None, "must not be negative"),
        (timedelta(seconds=-1), None, "must not be negative"),
        (math.nan, None, "a number of seconds"),
        (math.inf, None, "a number of seconds"),
        ("5m", None, "a number of seconds"),
        (True, None, "a number of seconds"),
        (timedelta(days=30, seconds=1), None, "at most 30 days"),
        pytest.param(10**400, None, "at most 30 days", id="more than a float holds"),
        (None, NOW_MS + MAX_DELAY_MS + 1, "at most 30 days"),
        (None, 1.5, "a whole number"),
    ],
)
def test_times_that_are_refused(after: Any, at_ms: Any, said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        delivery_time_ms(after, at_ms, NOW_MS)


async def arrivals(consumer: txnclient.Consumer[bytes], count: int) -> dict[bytes, float]:
    """Value → when it came."""
    came = {}
    for _ in range(count):
        message = await consumer.receive(timeout=20)
        came[message.value] = time.time()
        await consumer.ack(message)
    return came


async def test_what_is_sent_in_one_go_comes_each_at_its_own_time(cluster: InProcessCluster) -> None:
    async with txnclient.connect(cluster.url) as client:
        await client.create_topic(TOPIC)
        async with (
            client.producer(TOPIC, linger_ms=20) as producer,
            client.consumer(TOPIC, "jobs", type="queue", start="earliest") as consumer,
        ):
            began = time.time()
            sending = [
                producer.send_nowait(b"a", key="k"),
                producer.send_nowait(b"b", key="k", deliver_after=timedelta(hours=1)),
                producer.send_nowait(b"c", key="k", deliver_at_ms=math.ceil((began + LATER_S) * 1000)),
                producer.send_nowait(b"d", key="k"),
            ]
            sent = await asyncio.gather(*sending)
            assert [one.position.entry_id for one in sent] == [0, 1, 2, 3], "an entry for each time"
            came = await arrivals(consumer, 3)
        assert came.keys() == {b"a", b"c", b"d"}
        assert came[b"c"] >= began + LATER_S
        async with client.reader(TOPIC, end="latest") as reader:
            read = [message async for message in reader]
        assert [message.value for message in read] == [b"a", b"b", b"c", b"d"]
        assert [message.deliver_at_ms > 0 for message in read] == [False, True, True, False]


async def test_a_message_without_key_joins_no_batch_of_another_time(cluster: InProcessCluster) -> None:
    """▲ The turn goes to the next segment, where a batch of messages with keys is open: it would be delivered with
    them, or they an hour later with it."""
    async with txnclient.connect(cluster.url) as client:
        await client.create_topic(TOPIC, segments=2)
        async with client.producer(TOPIC, linger_ms=1000) as producer:
            await producer.send(b"first")  # with an entry under way, batches linger
            keys = [next(f"k{n}" for n in range(99) if hash_key(f"k{n}".encode()) >> 15 == half) for half in (0, 1)]
            keyed = [producer.send_nowait(b"now", key=key) for key in keys]
            later = [producer.send_nowait(b"later", deliver_after=3600) for _ in range(3)]
            await producer.flush()
            ids = [await one for one in (*keyed, *later)]
        assert not {(one.segment, one.position) for one in ids[:2]} & {(one.segment, one.position) for one in ids[2:]}


async def test_messages_of_one_time_share_an_entry(cluster: InProcessCluster) -> None:
    async with txnclient.connect(cluster.url) as client:
        await client.create_topic(TOPIC)
        async with client.producer(TOPIC, linger_ms=20) as producer:
            at_ms = int(time.time() * 1000) + 60_000
            sending = [producer.send_nowait(b"%d" % number, deliver_at_ms=at_ms) for number in range(5)]
            assert {one.position for one in await asyncio.gather(*sending)} == {(await sending[0]).position}


async def test_a_committed_large_value_comes_whole_at_its_time(cluster: InProcessCluster) -> None:
    value = bytes(MAX_VALUE_BYTES + 1)
    async with txnclient.connect(cluster.url) as client:
        await client.create_topic(TOPIC)
        async with (
            client.producer(TOPIC) as producer,
            client.consumer(TOPIC, "jobs", type="queue", start="earliest") as consumer,
        ):
            due = time.time() + LATER_S
            async with client.transaction() as txn:
                await producer.send(value, chunk=True, txn=txn, deliver_after=LATER_S)
            came = await arrivals(consumer, 1)
        assert came[value] >= due


async def test_a_numbered_producer_sends_none_later(cluster: InProcessCluster) -> None:
    async with txnclient.connect(cluster.url) as client:
        await client.create_topic(TOPIC)
        async with client.producer(TOPIC, name="source", sequence_id=-1) as producer:
            with pytest.raises(InvalidArgument, match="none to be delivered later"):
                await producer.send(b"a", sequence_id=1, deliver_after=1)
            with pytest.raises(InvalidArgument, match="none to be delivered later"):
                producer.send_nowait(b"a", sequence_id=1, deliver_after=1)
            await producer.send(b"a", sequence_id=1)


async def test_the_time_stays_with_the_parts_of_a_batch_that_is_divided() -> None:
    """▲ Its segment was split: the parts are encoded anew."""
    batch = GatheringBatch(None, Deadline(SystemClock(), 1.0))
    batch.deliver_at_ms = NOW_MS
    for number in range(2):
        batch.add(OutgoingMessage(b"%d" % number), 1, asyncio.get_running_loop().create_future())
    parts = batch.divide(batch.take_columns(), [[0], [1]])
    assert [part.deliver_at_ms for part in parts] == [NOW_MS, NOW_MS]


@pytest.mark.parametrize("inside", [False, True])
async def test_a_bulk_send_has_one_time_for_all(cluster: InProcessCluster, inside: bool) -> None:
    async with txnclient.connect(cluster.url) as client:
        await client.create_topic(TOPIC, segments=2)
        async with client.producer(TOPIC) as producer:
            at_ms = math.ceil((time.time() + 3600) * 1000)
            async with client.transaction() as txn:
                within = txn if inside else None
                await producer.send_many([(b"%d" % n, b"later") for n in range(20)], txn=within, deliver_at_ms=at_ms)
            await producer.send_many([b"now"])
        async with client.reader(TOPIC, end="latest") as reader:
            told = {(message.value, message.deliver_at_ms) async for message in reader}
        assert told == {(b"later", at_ms), (b"now", 0)}


async def test_a_bulk_send_refuses_a_wrong_time_before_it_takes_a_message(cluster: InProcessCluster) -> None:
    async with txnclient.connect(cluster.url) as client:
        await client.create_topic(TOPIC)
        async with client.producer(TOPIC) as producer:
            messages = iter([b"one"])
            with pytest.raises(InvalidArgument, match="must not be negative"):
                await producer.send_many(messages, deliver_after=-1)
            assert list(messages) == [b"one"]
