"""Consumers of one queue against a whole cluster: what each gets of a batch, and what it gives back."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest

import txnclient
from tests.txnclient.queueing import TOPIC, prepared, received
from tests.waiting import until
from txnclient.transactions.coordinators import Coordinators


async def _sent(client: txnclient.Client, count: int) -> None:
    await client.create_topic(TOPIC, segments=1)
    async with client.producer(TOPIC) as producer:
        await producer.send_many([(None, str(number).encode()) for number in range(count)])


async def _shared(*consumers: txnclient.Consumer[bytes]) -> None:
    """Until each knows of the others."""
    feeds = [feed for consumer in consumers for feed in consumer._impl._feeds.values()]
    await until(lambda: all(feed._sharing % 2 for feed in feeds) and feeds)


async def test_of_one_batch_each_of_two_consumers_gets_a_part(client: txnclient.Client) -> None:
    await client.create_topic(TOPIC, segments=1)
    async with (
        client.consumer(TOPIC, "workers", type="queue") as one,
        client.consumer(TOPIC, "workers", type="queue") as two,
    ):
        await until(lambda: one.segments and two.segments)
        await _shared(one, two)
        async with client.producer(TOPIC) as producer:
            await producer.send_many([(None, str(number).encode()) for number in range(20)])
        first, second = await asyncio.gather(one.receive(timeout=10), two.receive(timeout=10))
        assert first.position == second.position, "they are of one entry"
        found = [first, second]
        while len(found) < 20:
            for consumer in (one, two):
                found += await consumer.receive_many(1, timeout=0.1)
        assert sorted(int(message.value) for message in found) == list(range(20))
        assert {message.redelivery_count for message in found} == {0}


async def test_a_consumer_that_was_alone_gives_back_what_it_has_not_begun_when_another_comes(
    client: txnclient.Client,
) -> None:
    await _sent(client, 100)
    async with client.consumer(TOPIC, "workers", type="queue", max_redeliveries=0) as first:
        kept = await received(first, 1)
        await until(lambda: first._impl.has_buffered)
        async with client.consumer(TOPIC, "workers", type="queue", max_redeliveries=0) as second:
            others = await received(second, 98)
            kept += await received(first, 1)
            assert {message.redelivery_count for message in others} == {0}
            assert len({message.value for message in [*kept, *others]}) == 100


async def test_a_consumer_whose_application_hangs_gives_back_what_it_has_not_begun(client: txnclient.Client) -> None:
    await prepared(client, 6, segments=2)
    async with (
        client.consumer(TOPIC, "workers", type="queue", max_redeliveries=0) as hangs,
        client.consumer(TOPIC, "workers", type="queue", max_redeliveries=0) as works,
    ):
        kept = await received(hangs, 1)
        others = await received(works, 5)
        assert {message.redelivery_count for message in others} == {0}
        assert len({message.value for message in [*kept, *others]}) == 6
        await works.ack(others)
        await hangs.ack(kept)


async def test_messages_whose_time_comes_while_others_hang_reach_the_one_that_works(client: txnclient.Client) -> None:
    await prepared(client, 2, segments=2)
    async with (
        client.consumer(TOPIC, "workers", type="queue", max_redeliveries=0) as first,
        client.consumer(TOPIC, "workers", type="queue", max_redeliveries=0) as second,
        client.consumer(TOPIC, "workers", type="queue", max_redeliveries=0) as works,
    ):
        await received(first, 1)
        await received(second, 1)
        async with client.producer(TOPIC) as producer:
            for number in range(20):
                await producer.send(f"later {number}".encode(), deliver_after=number / 10)
        later = await received(works, 20)
        assert {message.redelivery_count for message in later} == {0}
        assert len({message.value for message in later}) == 20


async def test_a_large_value_is_not_stranded_with_a_consumer_that_hangs(client: txnclient.Client) -> None:
    """▲ Complete or not: what nobody has begun goes to the others."""
    await client.create_topic(TOPIC, segments=1)
    values = [os.urandom(6_000_000) for _ in range(2)]
    async with (
        client.consumer(TOPIC, "workers", type="queue", max_redeliveries=0) as hangs,
        client.consumer(TOPIC, "workers", type="queue", max_redeliveries=0) as works,
        client.producer(TOPIC) as producer,
    ):
        await until(lambda: hangs.segments and works.segments)
        await _shared(hangs, works)
        for value in values:
            async with client.transaction() as txn:
                await producer.send(value, chunk=True, txn=txn)
        found = await received(works, 2)
        assert sorted(message.value for message in found) == sorted(values)
        assert {message.redelivery_count for message in found} == {0}


async def test_a_consumer_that_asks_again_gets_messages_again(client: txnclient.Client) -> None:
    """▲ It has asked for nothing and got nothing: its next call is what grants permits."""
    await prepared(client, 3, segments=1)
    async with (
        client.consumer(TOPIC, "workers", type="queue") as consumer,
        client.consumer(TOPIC, "workers", type="queue", prefetch=1) as idle,
    ):
        await until(lambda: idle.segments)
        await _shared(consumer, idle)
        first = await received(consumer, 1)
        rest = await received(idle, 2)  # what the other one had ahead, too
        await idle.nack(rest, delay=0.0)
        await until(lambda: not idle._impl.has_buffered, within_s=20)
        again = await received(consumer, 2)
        assert sorted(message.value for message in [*first, *again]) == [b"0", b"1", b"2"]


async def test_slow_commits_do_not_keep_batches_small(
    client: txnclient.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """▲ Each transaction costs its 30 ms: with one message in each, all would wait for commits."""
    count = 2000
    await _sent(client, count)
    end = Coordinators.end

    async def slow(self: Coordinators, *args: Any, **more: Any) -> Any:
        await asyncio.sleep(0.03)
        return await end(self, *args, **more)

    monkeypatch.setattr(Coordinators, "end", slow)

    async def run(consumer: txnclient.Consumer[bytes]) -> txnclient.ProcessStatistics:
        return await txnclient.process(consumer, lambda _: None, idle_timeout=3.0)

    async with (
        client.consumer(TOPIC, "workers", type="queue") as one,
        client.consumer(TOPIC, "workers", type="queue") as two,
    ):
        await until(lambda: one.segments and two.segments)
        await _shared(one, two)
        done = await asyncio.gather(run(one), run(two))
    assert sum(each.messages for each in done) == count
    assert sum(each.transactions for each in done) < count / 20
