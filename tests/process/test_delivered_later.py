"""Messages with a time over real processes: brokers and the controller are killed and segments split while they wait.
Each comes not before its time, and its effect counts once."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from pathlib import Path

import pytest

import txnclient
from tests.processes import kill, process_cluster
from txnclient.connection.topic_layout import ACTIVE

REMINDERS = "topic://public/default/reminders"
REMINDED = "topic://public/default/reminded"
COUNT = 300
LONGEST_S = 12.0

pytestmark = [pytest.mark.process, pytest.mark.timeout(240)]


async def remind(client: txnclient.Client) -> None:
    """Some in a transaction, some not; those of every fifth transaction are aborted."""
    async with client.producer(REMINDERS, serializer="json") as producer:
        for number in range(COUNT):
            after_s = 1.0 + LONGEST_S * (number * 7 % COUNT) / COUNT
            value = {"number": number, "due": time.time() + after_s}
            key = f"k{number}" if number % 3 else None
            if number % 2:
                await producer.send(value, key=key, deliver_after=after_s)
                continue
            txn = await client.begin()
            await producer.send(value, key=key, deliver_after=after_s, txn=txn)
            await (txn.abort() if number % 10 == 0 else txn.commit())


async def split_first(client: txnclient.Client) -> None:
    layout = await client.describe_topic(REMINDERS)
    await client.split(next(one for one in layout.segments.values() if one.state == ACTIVE).name)


async def test_each_comes_once_and_never_early_over_kills_and_a_split(tmp_path: Path) -> None:
    early: list[int] = []

    def handle(message: txnclient.Message[dict[str, float]]) -> int:
        if time.time() < message.value["due"]:
            early.append(int(message.value["number"]))
        return int(message.value["number"])

    async with process_cluster(tmp_path) as cluster, txnclient.connect(cluster.url, timeout=60.0) as client:
        await client.create_topic(REMINDERS, segments=2)
        await client.create_topic(REMINDED)
        expected = {number for number in range(COUNT) if number % 10}
        consumer = await client.consumer(REMINDERS, "workers", type="queue", serializer="json")
        reminded = await client.producer(REMINDED, serializer="json")
        working = asyncio.ensure_future(
            txnclient.process(consumer, handle, reminded, max_messages=len(expected), idle_timeout=60.0)
        )
        await remind(client)
        await split_first(client)
        await kill(cluster, "broker-1")
        await kill(cluster, "server")
        await working
        async with client.reader(REMINDED, end="latest", serializer="json") as reader:
            assert Counter([message.value async for message in reader]) == Counter(expected)
        assert early == []
        assert (await consumer.lag()).messages == 0
