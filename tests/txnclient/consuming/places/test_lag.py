"""How far a subscription is behind, as a consumer asks and the command line shows it."""

from __future__ import annotations

import asyncio
import json

import pytest

import txnclient
import txnclient.sync
from tests.cluster import InProcessCluster
from tests.txnctl.command_line import txnctl
from tests.waiting import until_answer
from txnclient.consuming.places.lag import subscription_lag

ORDERS, INVOICES = "topic://public/default/orders", "topic://public/default/invoices"


async def test_ten_thousand_messages_in_a_few_batches_are_ten_thousand(client: txnclient.Client) -> None:
    await client.create_topic(ORDERS, segments=2)
    await client.create_topic(INVOICES)
    async with (
        client.producer(ORDERS) as orders,
        client.producer(INVOICES) as invoices,
        client.consumer([ORDERS, INVOICES], "s") as consumer,
    ):
        await orders.send_many([(f"k{number}", b"v") for number in range(10_000)])
        await invoices.send(b"one")
        lag = await consumer.lag()
        assert lag.messages == 10_001
        assert lag.seconds is not None
        assert 0 <= lag.seconds < 60
        assert sorted(one.messages for one in lag.segments.values() if one.messages)[0] == 1
        received = 0
        while received < 10_001:
            messages = await consumer.receive_many(1000, timeout=10)
            await consumer.ack(messages)
            received += len(messages)
        assert (await consumer.lag()).messages == 0
        assert (await consumer.lag()).seconds == 0


async def test_of_a_pattern_a_topic_without_the_subscription_makes_the_lag_unknown(client: txnclient.Client) -> None:
    """▲ The pattern has just found it, or it is being deleted: an error would end who obeys it."""
    await client.create_topic(ORDERS)
    await client.create_topic(INVOICES)
    async with client.producer(ORDERS) as producer, client.consumer(ORDERS, "s"):
        await producer.send(b"one")
        for missing in (INVOICES, "topic://public/default/gone"):
            session, topics = client._session, [ORDERS, missing]
            lag = await subscription_lag(session, topics, "s", by_pattern=True)
            assert (lag.messages, lag.seconds, len(lag.segments)) == (None, None, 1)
            with pytest.raises((txnclient.SubscriptionNotFound, txnclient.TopicNotFound)):
                await subscription_lag(session, topics, "s")


async def test_segments_that_nobody_has_attached_to_count(client: txnclient.Client) -> None:
    """The children of a split wait until their parent is drained."""
    await client.create_topic(ORDERS)
    async with client.producer(ORDERS) as producer, client.consumer(ORDERS, "s") as consumer:
        await producer.send_many([(f"k{number}", b"v") for number in range(10)])
        (parent,) = (await client.describe_topic(ORDERS)).active
        await client.split(parent.name)
        await producer.send_many([(f"k{number}", b"v") for number in range(30)])
        lag = await consumer.lag()
        assert lag.messages == 40
        assert lag.segments[parent.path].messages == 10
        assert len(lag.segments) == 3


async def test_a_segment_without_an_owner_is_not_known(cluster: InProcessCluster, client: txnclient.Client) -> None:
    """Neither here nor on the command line, where it is a question mark, and null in JSON; never 0."""
    await client.create_topic(ORDERS)
    async with client.consumer(ORDERS, "s") as consumer, client.producer(ORDERS) as producer:
        await producer.send(b"v")
        described = await command(cluster, "subscriptions", "describe", ORDERS, "s")
        assert "1 message not acked, the oldest" in described
        (row,) = json.loads(await command(cluster, "subscriptions", "list", ORDERS, "-o", "json"))
        assert row["lag_messages"] == 1
        assert 0 <= row["lag_seconds"] < 60
        await cluster.stop_server("broker")
        lag = await consumer.lag()
        assert (lag.messages, lag.seconds) == (None, None)
        assert {(one.messages, one.seconds) for one in lag.segments.values()} == {(None, None)}
        (row,) = json.loads(await command(cluster, "subscriptions", "list", ORDERS, "-o", "json"))
        assert (row["lag_messages"], row["lag_seconds"]) == (None, None)
        _, line = (await command(cluster, "subscriptions", "list", ORDERS)).splitlines()
        assert line.split()[-2:] == ["?", "?"]
        assert "? messages not acked" in await command(cluster, "subscriptions", "describe", ORDERS, "s")
        await cluster.start_server("broker", "broker")
        await until_known(consumer, 1)


async def until_known(consumer: txnclient.Consumer[bytes], messages: int) -> None:
    await until_answer(consumer.lag, lambda lag: lag.messages == messages, f"a lag of {messages}", within_s=20)


async def command(cluster: InProcessCluster, *words: str) -> str:
    done = await txnctl(*words, url=cluster.url)
    assert done.code == 0, done.err
    return done.out


async def test_a_deleted_subscription_has_no_lag(client: txnclient.Client) -> None:
    await client.create_topic(ORDERS)
    consumer = await client.consumer(ORDERS, "s")
    await client.delete_subscription(ORDERS, "s", force=True)
    with pytest.raises(txnclient.SubscriptionNotFound):
        await consumer.lag()
    await consumer.close()
    with pytest.raises(txnclient.InvalidArgument, match="is closed"):
        await consumer.lag()


async def test_without_a_consumer_the_client_tells_the_same(client: txnclient.Client) -> None:
    await client.create_topic(ORDERS)
    await client.create_topic(INVOICES)
    topics = [ORDERS, INVOICES]
    async with client.producer(ORDERS) as producer, client.consumer(topics, "s") as consumer:
        await producer.send(b"v")
        lag, told = await client.lag(topics, "s"), await consumer.lag()
        assert (lag.messages, lag.segments.keys()) == (1, told.segments.keys())
    assert (await client.lag(ORDERS, "s")).messages == 1
    assert (await client.lag(INVOICES, "s")).messages == 0
    with pytest.raises(txnclient.SubscriptionNotFound, match="nobody"):
        await client.lag(ORDERS, "nobody")
    with pytest.raises(txnclient.TopicNotFound, match="gone"):
        await client.lag("topic://public/default/gone", "s")
    with pytest.raises(txnclient.InvalidArgument, match="subscription"):
        await client.lag(ORDERS, "")


async def test_without_await(cluster: InProcessCluster, client: txnclient.Client) -> None:
    await client.create_topic(ORDERS)
    async with client.producer(ORDERS) as producer:
        await producer.send(b"v")

    def ask() -> int | None:
        with txnclient.sync.connect(cluster.url) as other, other.consumer(ORDERS, "s") as consumer:
            messages = consumer.lag().messages
            assert other.lag(ORDERS, "s").messages == messages
            return messages

    assert await asyncio.to_thread(ask) == 1
