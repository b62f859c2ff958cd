"""What a consumer of a queue gives back that its application has not begun, and when it asks again."""

from __future__ import annotations

import asyncio

import pytest

import txnclient
from tests.txnclient.queueing import TOPIC, prepared, received
from txnclient.consuming.pace import GIVE_BACK_S


async def test_of_one_batch_each_of_two_consumers_gets_a_part(client: txnclient.Client) -> None:
    await client.create_topic(TOPIC, segments=1)
    async with (
        client.consumer(TOPIC, "workers", type="queue") as one,
        client.consumer(TOPIC, "workers", type="queue") as two,
    ):
        async with client.producer(TOPIC) as producer:
            await producer.send_many([(None, str(number).encode()) for number in range(20)])
        first, second = await asyncio.gather(one.receive(timeout=10), two.receive(timeout=10))
        assert first.position == second.position, "they are of one entry"
        found = [first, second]
        while len(found) < 20:
            for consumer in (one, two):
                found += await consumer.receive_many(1, timeout=0.1)
        assert sorted(int(message.value) for message in found) == list(range(20))


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


async def test_a_consumer_that_asks_again_gets_messages_again(client: txnclient.Client) -> None:
    """▲ It has asked for nothing and got nothing: its next call is what grants permits."""
    await prepared(client, 3, segments=1)
    async with client.consumer(TOPIC, "workers", type="queue") as consumer:
        found = await received(consumer, 1)
        for _ in range(2):
            await asyncio.sleep(GIVE_BACK_S + 0.3)
            assert not consumer._impl.has_buffered
            found += await received(consumer, 1)
        assert sorted(message.value for message in found) == [b"0", b"1", b"2"]
        assert {message.redelivery_count for message in found} == {0}
        await consumer.ack(found)


async def test_a_consumer_that_waits_gives_nothing_back(client: txnclient.Client) -> None:
    await client.create_topic(TOPIC, segments=1)
    async with client.consumer(TOPIC, "workers", type="queue") as consumer, client.producer(TOPIC) as producer:
        receiving = asyncio.ensure_future(consumer.receive(timeout=20))
        await asyncio.sleep(GIVE_BACK_S + 0.3)
        await producer.send(b"late")
        assert (await receiving).value == b"late"


@pytest.mark.parametrize("at_once", [1, 50])
async def test_what_is_ahead_follows_what_the_application_asks_for(client: txnclient.Client, at_once: int) -> None:
    await client.create_topic(TOPIC, segments=1)
    async with client.producer(TOPIC) as producer:
        await producer.send_many([(None, str(number).encode()) for number in range(200)])
    async with client.consumer(TOPIC, "workers", type="queue") as consumer:
        for _ in range(4):
            await consumer.receive_many(at_once, timeout=10)
            await asyncio.sleep(0.1)
        (feed,) = consumer._impl._feeds.values()
        assert at_once / 2 <= feed.buffered <= at_once  # permits are granted in steps of half a window
