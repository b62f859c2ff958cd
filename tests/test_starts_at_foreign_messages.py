"""Seeks and readers at messages that are not there: of other topics, of deleted ones of the same name, of what went."""

from __future__ import annotations

import asyncio
from datetime import datetime

import pytest

import txnclient
from tests.cluster import InProcessCluster
from tests.txnclient.queueing import TOPIC, prepared, received
from txnclient import InvalidArgument, MessageId
from txnclient.sync import connect
from txnwire.ids import EARLIEST

OTHER = "topic://public/default/other"


async def of_another_topic(client: txnclient.Client) -> MessageId:
    await client.create_topic(OTHER)
    async with client.producer(OTHER) as producer:
        return await producer.send(b"other")


async def of_an_earlier_life(client: txnclient.Client) -> MessageId:
    await client.create_topic(TOPIC)
    async with client.producer(TOPIC) as producer:
        old = await producer.send(b"old")
    await client.delete_topic(TOPIC)
    return old


@pytest.mark.parametrize(
    ("elsewhere", "said"), [(of_another_topic, OTHER), (of_an_earlier_life, "deleted")], ids=["another", "earlier"]
)
async def test_a_start_at_a_message_of_another_topic_or_life_is_refused_and_moves_nothing(
    cluster: InProcessCluster, client: txnclient.Client, elsewhere: object, said: str
) -> None:
    """▲ It would mean "earliest": all that was acked would come again."""
    assert callable(elsewhere)
    at = await elsewhere(client)
    await prepared(client, 4, segments=2)
    async with client.consumer(TOPIC, "sub") as consumer:
        await consumer.ack(await received(consumer, 4))
        with pytest.raises(InvalidArgument, match=said):
            await consumer.seek(at)
        with pytest.raises(InvalidArgument, match=said):
            await client.seek_subscription(TOPIC, "sub", at)
        with pytest.raises(InvalidArgument, match=said):
            await client.reader(TOPIC, start=at)
        with pytest.raises(InvalidArgument, match=said):
            await client.consumer(TOPIC, "new", start=at)
        assert await consumer.receive_many(1, timeout=0.3) == []

    def work() -> None:
        with connect(cluster.url) as sync, pytest.raises(InvalidArgument, match=said):
            sync.reader(TOPIC, start=at)

    await asyncio.to_thread(work)


async def test_a_seek_of_several_topics_at_one_message_is_refused_and_moves_nothing(client: txnclient.Client) -> None:
    other = await of_another_topic(client)
    await prepared(client, 4, segments=2)
    async with client.consumer([TOPIC, OTHER], "sub") as consumer:
        messages = await received(consumer, 5)
        await consumer.ack(messages)
        with pytest.raises(InvalidArgument, match="each by itself"):
            await consumer.seek(other)
        assert await consumer.receive_many(1, timeout=0.3) == []
        await client.seek_subscription(OTHER, "sub", other)
        assert [message.value for message in await received(consumer, 1)] == [b"other"]


async def test_a_reader_of_several_topics_begins_at_the_message_of_one_and_the_earliest_of_the_others(
    client: txnclient.Client,
) -> None:
    other = await of_another_topic(client)
    values = await prepared(client, 4, segments=1)
    async with client.producer(OTHER) as producer:
        behind = await producer.send(b"behind")
    async with client.reader([TOPIC, OTHER], start=behind, end="latest") as reader:
        found = [message.value async for message in reader]
    assert sorted(found) == sorted([*values, b"behind"])
    assert other != behind


async def test_positions_before_a_time_are_told_of_each_segment(client: txnclient.Client) -> None:
    """Where a consumer by that time begins."""
    topic = "topic://t/n/times"
    await client.create_topic(topic, segments=2)
    async with client.producer(topic) as producer:
        sent = [await producer.send(b"x", key=f"k{n}") for n in range(8)]
    ends = {one.segment: one.position for one in sent}
    assert await client.positions_before(topic, 1) == dict.fromkeys(ends, EARLIEST)
    assert await client.positions_before([topic], 4_000_000_000_000) == ends
    for wrong in ("latest", 0, True, datetime(2026, 11, 24)):
        with pytest.raises(InvalidArgument):
            await client.positions_before(topic, wrong)  # type: ignore[arg-type]
