"""Readers of several topics, each with a layout of its own."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import txnclient
from txnwire.clock import SystemClock

ORDERS, BILLS = "topic://public/default/orders", "topic://public/default/bills"


async def sent(client: txnclient.Client, topic: str, values: range) -> None:
    async with client.producer(topic, serializer="str") as producer:
        await producer.send_many([(f"k{value % 7}", f"{topic} {value}") for value in values])


async def split(client: txnclient.Client, topic: str) -> None:
    await client.split((await client.describe_topic(topic)).active[0].name)


def expected(*values: tuple[str, range]) -> list[str]:
    return sorted(f"{topic} {value}" for topic, some in values for value in some)


async def read(client: txnclient.Client, topics: list[str], **options: Any) -> list[str]:
    async with client.reader(topics, serializer="str", **options) as reader:
        return sorted([message.value async for message in reader])


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
@pytest.mark.parametrize("topics", [[ORDERS, BILLS], [BILLS, ORDERS]])
async def test_what_came_of_a_split_is_read_to_its_end_in_each_of_them(
    client: txnclient.Client, topics: list[str], isolation: str
) -> None:
    """▲ Looked for in another topic's layout, segments that wait for their parents would seem gone, and left out."""
    for topic in topics:
        await client.create_topic(topic)
        await sent(client, topic, range(10))
        await split(client, topic)
        await sent(client, topic, range(10, 40))
    async with client.reader(topics) as reader:
        start = reader.positions()
    everything = expected((ORDERS, range(40)), (BILLS, range(40)))
    for options in ({}, {"start": start}, {"start": 1}):
        assert await read(client, topics, end="latest", isolation=isolation, **options) == everything


async def test_between_two_snapshots_what_came_meanwhile_is_read_in_each_of_them(client: txnclient.Client) -> None:
    topics = [ORDERS, BILLS]
    for topic in topics:
        await client.create_topic(topic)
        await sent(client, topic, range(10))
    first = await client.snapshot(topics)
    for topic in topics:
        await sent(client, topic, range(10, 20))
        await split(client, topic)
        await sent(client, topic, range(20, 40))
    second = await client.snapshot(topics)
    for topic in topics:
        await sent(client, topic, range(40, 50))
    assert await read(client, topics, end=first) == expected((ORDERS, range(10)), (BILLS, range(10)))
    between = await read(client, topics, start=first, end=second)
    assert between == expected((ORDERS, range(10, 40)), (BILLS, range(10, 40)))


class HourBehind(SystemClock):
    def wall_ms(self) -> int:
        return super().wall_ms() - 3_600_000


async def test_a_start_by_time_holds_in_each_of_them(client: txnclient.Client) -> None:
    topics = [ORDERS, BILLS]
    clock, client._session.clock = client._session.clock, HourBehind()
    for topic in topics:
        await client.create_topic(topic)
        await sent(client, topic, range(10))
    client._session.clock = clock
    for topic in topics:
        await sent(client, topic, range(10, 20))
    start = datetime.now(UTC) - timedelta(minutes=30)
    assert await read(client, topics, start=start, end="latest") == expected(
        (ORDERS, range(10, 20)), (BILLS, range(10, 20))
    )


@pytest.mark.parametrize("made_again", [False, True])
@pytest.mark.parametrize("gone", [ORDERS, BILLS])
async def test_the_deletion_of_any_of_them_ends_the_reader_with_an_error(
    client: txnclient.Client, gone: str, made_again: bool
) -> None:
    for topic in (ORDERS, BILLS):
        await client.create_topic(topic)
    async with client.reader([ORDERS, BILLS]) as reader:
        await client.delete_topic(gone, force=True)
        if made_again:
            await client.create_topic(gone)
            await sent(client, gone, range(10))
        with pytest.raises(txnclient.TopicNotFound, match=gone):
            await reader.receive(timeout=20)
