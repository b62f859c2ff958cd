"""Readers and watches of several topics, each with a layout of its own."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import txnclient
from tests.segments.virtual_time import virtual_time
from tests.txnclient.reading.changing_layouts import (
    LEFT,
    OTHER,
    OTHER_ROOT,
    ROOT,
    SPLIT,
    TwoTopics,
    attached,
    connected,
    end_of,
    settle,
)
from tests.txnclient.scripted_server import TOPIC
from tests.waiting import until
from txnclient import NextMessage, Snapshot
from txnwire.clock import SystemClock
from txnwire.ids import Position
from txnwire.snapshot import SegmentBounds, TopicBounds

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


# ---- on a scripted broker: one of two topics changes ----------------------------------------------------------------

BOTH = pytest.mark.parametrize("topics", [[OTHER, TOPIC], [TOPIC, OTHER]], ids=["the last", "the first"])


def cut(topics: list[str], epoch: int) -> Snapshot:
    bounds = SegmentBounds(Position(1, 0), Position(1, 0))
    of = {OTHER: TopicBounds(1, {OTHER_ROOT: bounds}), TOPIC: TopicBounds(epoch, {ROOT: bounds})}
    return Snapshot(epoch * 10, {topic: of[topic] for topic in topics})


@BOTH
@virtual_time
async def test_each_of_them_is_looked_up_before_a_reader_is_opened(topics: list[str]) -> None:
    async with connected(TwoTopics()) as (cluster, _, client):
        cluster.exists = False
        with pytest.raises(txnclient.TopicNotFound, match=TOPIC):
            await client.reader(topics)


@BOTH
@virtual_time
async def test_positions_name_where_the_reader_stands_in_each_of_them(topics: list[str]) -> None:
    """▲ A topic that they do not name would be read from the earliest on."""
    async with connected(TwoTopics()) as (cluster, server, client):
        cluster.become(cluster.segments)
        async with client.reader(topics) as reader:
            await until(lambda: len(server.consumers) == 2)
            for segment in (ROOT, OTHER_ROOT):
                server.deliver(segment, 7, b"x")
                await reader.receive()
            found = reader.positions().topics
            behind = NextMessage(Position(1, 8))
            assert {topic: one.segments for topic, one in found.items()} == {
                TOPIC: {ROOT: behind},
                OTHER: {OTHER_ROOT: behind},
            }


@BOTH
@virtual_time
async def test_x2_what_retention_took_of_any_of_them_is_not_left_out_silently(topics: list[str]) -> None:
    async with connected(TwoTopics()) as (cluster, _, client):
        cluster.lost_id = 0
        cluster.become({path: facts for path, facts in SPLIT.items() if path != ROOT})
        with pytest.raises(txnclient.InvalidArgument, match=f"{ROOT} no longer exists"):
            await client.reader(topics, end=cut(topics, 1))


@BOTH
@virtual_time
async def test_the_deletion_of_any_of_them_does_not_let_a_reader_end_before_its_end(topics: list[str]) -> None:
    """▲ What of the topic was still to begin would look read."""
    async with connected(TwoTopics()) as (cluster, server, client):
        cluster.become(SPLIT)
        server.positions = {ROOT: Position(1, 0), LEFT: Position(1, 0)}
        async with client.reader(topics, end="latest", isolation="read_uncommitted") as reader:
            await until(lambda: ROOT in attached(server))
            server.deliver(ROOT, 0, b"parent")
            end_of(server, ROOT, sealed=False)
            await settle()
            cluster.exists = False
            cluster.become({})
            await settle()
            assert (await reader.receive()).value == b"parent"
            with pytest.raises(txnclient.TopicNotFound, match=TOPIC):
                await reader.receive(timeout=5)
            assert not reader.ended


@BOTH
@virtual_time
async def test_a_reader_goes_on_in_no_other_topic_of_any_of_their_names(topics: list[str]) -> None:
    """▲ Of which its client may hear before it has heard of the deletion."""
    async with connected(TwoTopics()) as (cluster, server, client):
        cluster.life = 1
        cluster.become(cluster.segments)
        async with client.reader(topics) as reader:
            await until(lambda: len(server.consumers) == 2)
            cluster.life = 2
            cluster.become(cluster.segments)
            with pytest.raises(txnclient.TopicNotFound, match=TOPIC):
                await reader.receive(timeout=5)


@virtual_time
async def test_all_their_segments_share_the_window_of_a_reader() -> None:
    async with connected(TwoTopics()) as (cluster, server, client):
        cluster.become({path: facts for path, facts in SPLIT.items() if path != ROOT})
        async with client.reader([OTHER, TOPIC], prefetch=30):
            await until(lambda: len(server.permits) == 3)
            assert list(server.permits.values()) == [10] * 3


@BOTH
@virtual_time
async def test_another_layout_of_any_of_them_wakes_a_watch(topics: list[str]) -> None:
    async with connected(TwoTopics()) as (cluster, _, client):
        cluster.become(cluster.segments)
        async with client.watch(cut(topics, 2)) as watch:
            assert not await watch.wait(1.0)
            cluster.become(SPLIT)
            assert await watch.wait(5.0)


@BOTH
@virtual_time
async def test_a_watch_waits_for_the_layout_that_its_snapshot_has_seen_of_each_of_them(topics: list[str]) -> None:
    async with connected(TwoTopics()) as (_, _, client):
        with pytest.raises(txnclient.Timeout, match=f"waiting for layout 2 of {TOPIC}"):
            await client.watch(cut(topics, 2))
