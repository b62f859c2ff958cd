"""Dead letters that are moved as their topic, or the one they go to, is deleted: the consumer goes on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

import txnclient
from tests.waiting import until
from txnclient.consuming import topic_pattern
from txnclient.consuming.consumer import consumer_impl
from txnclient.consuming.feeds.dead_letters import DeadLetters

NAMES = "topic://public/default/jobs-"
A, B = NAMES + "a", NAMES + "b"


@asynccontextmanager
async def consuming(client: txnclient.Client) -> AsyncIterator[txnclient.Consumer[bytes]]:
    for topic in (A, B):
        await client.create_topic(topic)
    async with client.consumer(
        topics_pattern=NAMES + ".*", subscription="s", type="queue", max_redeliveries=0, redelivery_delay=0.0
    ) as consumer:
        yield consumer


async def kill(client: txnclient.Client, consumer: txnclient.Consumer[bytes], topic: str, value: bytes) -> None:
    async with client.producer(topic) as producer:
        await producer.send(value)
    message = await consumer.receive(timeout=20)
    assert message.value == value
    await consumer.nack(message)


async def receiving_until(consumer: txnclient.Consumer[bytes], topic: str, client: txnclient.Client) -> None:
    """Ask for messages, which brings dead letters on their way, until there is one more topic."""

    async def listed() -> bool:
        assert await consumer.receive_many(1, timeout=0.05) == []
        return topic in await client.list_topics()

    await until(listed)


async def test_dead_letters_go_on_behind_the_deletion_of_their_topic(client: txnclient.Client) -> None:
    """▲ An operator who takes it away with all it holds means the dead letters, and not the workers."""
    async with consuming(client) as consumer:
        await kill(client, consumer, A, b"1")
        await receiving_until(consumer, f"{A}-s-DLQ", client)
        async with client.reader(f"{A}-s-DLQ") as reader:
            assert (await reader.receive(timeout=20)).value == b"1"
        await client.delete_topic(f"{A}-s-DLQ", force=True)
        await kill(client, consumer, A, b"2")
        await receiving_until(consumer, f"{A}-s-DLQ", client)
        async with client.reader(f"{A}-s-DLQ") as reader:
            assert (await reader.receive(timeout=20)).value == b"2"


async def test_a_topic_that_is_deleted_while_a_dead_letter_of_it_is_moved_is_left_quietly(
    client: txnclient.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """▲ As without dead letters: the others of the pattern go on."""
    monkeypatch.setattr(topic_pattern, "LOOK_S", 0.05)
    at, goes_on, send = asyncio.Event(), asyncio.Event(), DeadLetters._send

    async def send_later(letters: DeadLetters, *args: object) -> None:
        at.set()
        await goes_on.wait()
        await send(letters, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(DeadLetters, "_send", send_later)
    async with consuming(client) as consumer:
        await kill(client, consumer, A, b"1")
        while not at.is_set():
            await consumer.receive_many(1, timeout=0.05)
        await client.delete_topic(A, force=True)
        await until(lambda: consumer.topics == [B])
        goes_on.set()
        letters = consumer_impl(consumer)._dead_letters
        assert letters is not None
        await until(lambda: not letters._waiting)
        assert await consumer.receive_many(1, timeout=0.2) == []
        async with client.producer(B) as producer:
            await producer.send(b"2")
        assert (await consumer.receive(timeout=20)).value == b"2"
