"""Dead letters of a consumer of several topics."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import txnclient
from tests.waiting import until
from txnclient.consuming.consumer import consumer_impl
from txnclient.consuming.feeds import dead_letters
from txnclient.consuming.feeds.dead_letters import DeadLetters
from txnclient.producing.producer_impl import ProducerImpl

STUCK, HEALTHY = "topic://public/default/stuck", "topic://public/default/healthy"


async def test_a_topic_that_takes_no_dead_letters_holds_up_none_of_the_others(
    client: txnclient.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """▲ Each try there takes as long as a send may, and many may wait for theirs."""
    stuck, send = asyncio.Event(), DeadLetters._send

    async def send_or_hang(letters: DeadLetters, producer: Any, message: txnclient.Message, *args: Any) -> None:
        if message.topic == STUCK:
            stuck.set()
            await asyncio.Event().wait()
        await send(letters, producer, message, *args)

    monkeypatch.setattr(DeadLetters, "_send", send_or_hang)
    for topic in (STUCK, HEALTHY):
        await client.create_topic(topic)
    async with client.consumer(
        [STUCK, HEALTHY], "workers", type="queue", max_redeliveries=0, redelivery_delay=0.0
    ) as consumer:
        letters = consumer_impl(consumer)._dead_letters
        assert letters is not None
        for topic, moving in ((STUCK, stuck.is_set), (HEALTHY, lambda: letters.moved == 1)):
            async with client.producer(topic) as producer:
                await producer.send(b"poison")
            await consumer.nack(await consumer.receive(timeout=20))
            waiting = asyncio.ensure_future(consumer.receive_many(1, timeout=60))
            await until(moving)
            waiting.cancel()
            await asyncio.wait([waiting])
        assert letters.moved == 1


async def test_c5_a_consumer_closes_however_many_topics_take_no_dead_letters(
    client: txnclient.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging: list[str] = []

    async def hang(letters: DeadLetters, producer: Any, message: txnclient.Message, *args: Any) -> None:
        hanging.append(message.topic)
        await asyncio.Event().wait()

    monkeypatch.setattr(DeadLetters, "_send", hang)
    monkeypatch.setattr(dead_letters, "CLOSE_TIMEOUT_S", 0.1)
    topics = [STUCK, HEALTHY]
    for topic in topics:
        await client.create_topic(topic)
    async with client.consumer(topics, "workers", type="queue", max_redeliveries=0, redelivery_delay=0.0) as consumer:
        for topic in topics:
            async with client.producer(topic) as producer:
                await producer.send(b"poison")
            await consumer.nack(await consumer.receive(timeout=20))
        waiting = asyncio.ensure_future(consumer.receive_many(1, timeout=60))
        await until(lambda: len(hanging) == 2)
        async with asyncio.timeout(10):
            await consumer.close()
        with pytest.raises(txnclient.InvalidArgument, match="closed"):
            await waiting
        assert not any(isinstance(one, ProducerImpl) for one in client._opened), "none is left open"
