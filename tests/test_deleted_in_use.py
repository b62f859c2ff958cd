"""Whoever used what was deleted is told, also where another thing of its name has come since; what is used stays."""

from __future__ import annotations

import asyncio

import pytest

import txnclient
import txnclient.sync
from tests.cluster import InProcessCluster
from tests.waiting import until_answer
from txnwire.errors import NotAllowed, SubscriptionNotFound, TopicNotFound

TOPIC = "topic://public/nyc/flights"
OTHER = "topic://public/nyc/delays"


async def values_of(client: txnclient.Client, topic: str) -> list[bytes]:
    async with client.reader(topic, end="latest") as reader:
        return [message.value async for message in reader]


async def make_again(client: txnclient.Client) -> None:
    await client.delete_topic(TOPIC, force=True)
    await client.create_topic(TOPIC, segments=2)


async def test_a_producer_of_a_deleted_topic_does_not_go_on_in_the_next_of_its_name(
    cluster: InProcessCluster, client: txnclient.Client
) -> None:
    await client.create_topic(TOPIC, segments=2)
    await client.create_topic(OTHER)
    async with cluster.connect() as operator, client.producer(TOPIC) as other_way:
        producer = await client.producer(TOPIC)
        elsewhere = await client.producer(OTHER)
        txn = await client.begin()
        await producer.send(b"of the first", key="k", txn=txn)
        await elsewhere.send(b"beside it", txn=txn)
        await make_again(operator)
        with pytest.raises(TopicNotFound):
            await producer.send(b"of the second", key="k", txn=txn)
        with pytest.raises(TopicNotFound):
            await txn.commit()
        for call in (lambda: producer.send(b"x"), lambda: producer.send_many([b"x", b"y"])):
            with pytest.raises(TopicNotFound):
                await call()
        with pytest.raises(TopicNotFound):
            producer.send_nowait(b"x")
        with pytest.raises(TopicNotFound):
            await other_way.send_many([("k", b"x")])
        async with client.producer(TOPIC) as anew:
            await anew.send(b"new", key="k")
        assert await values_of(client, TOPIC) == [b"new"]
        assert await values_of(client, OTHER) == []


async def send_in(producer: txnclient.Producer, txn: txnclient.Transaction, how: str) -> None:
    if how == "send":
        await producer.send(b"x", txn=txn)
    elif how == "send_nowait":
        producer.send_nowait(b"x", txn=txn)
    elif how == "large":
        await producer.send(bytes(6 << 20), txn=txn, chunk=True)
    else:
        await producer.send_many([b"x"], txn=txn)


@pytest.mark.parametrize("how", ["send", "send_nowait", "send_many", "large"])
async def test_no_send_to_what_was_deleted_leaves_its_transaction_able_to_commit(
    cluster: InProcessCluster, client: txnclient.Client, how: str
) -> None:
    await client.create_topic(TOPIC, segments=2)
    async with cluster.connect() as operator:
        producer = await client.producer(TOPIC)
        await make_again(operator)
        await wait_until_known(client)
        txn = await client.begin()
        with pytest.raises(TopicNotFound):
            await send_in(producer, txn, how)
        with pytest.raises(TopicNotFound):
            await txn.commit()
        assert await values_of(client, TOPIC) == []


async def wait_until_known(client: txnclient.Client) -> None:
    """Until the client has heard that the topic is another one, whose segments have ids of their own."""
    await until_answer(
        lambda: client.describe_topic(TOPIC), lambda layout: 0 not in layout.segments, "the new topic", within_s=10.0
    )


async def test_the_synchronous_producer_is_told_the_same(cluster: InProcessCluster, client: txnclient.Client) -> None:
    await client.create_topic(TOPIC, segments=2)
    loop = asyncio.get_running_loop()

    def work() -> None:
        with txnclient.sync.connect(cluster.url) as blocking, blocking.producer(TOPIC) as producer:
            producer.send(b"old")
            asyncio.run_coroutine_threadsafe(make_again(client), loop).result(30.0)
            with pytest.raises(TopicNotFound):
                producer.send(b"lost", key="k")

    await asyncio.to_thread(work)
    assert await values_of(client, TOPIC) == []


@pytest.mark.parametrize("type", ["stream", "queue"])
@pytest.mark.parametrize("deleted", ["subscription", "topic", "topic made again", "subscription made again"])
async def test_every_member_of_what_is_deleted_is_told(
    cluster: InProcessCluster, client: txnclient.Client, deleted: str, type: str
) -> None:
    """Of a stream the second one is a standby: no broker knows of it."""
    await client.create_topic(TOPIC, segments=1)
    async with cluster.connect() as operator:
        members = [await client.consumer(TOPIC, "s", type=type) for _ in range(2)]
        if deleted.startswith("subscription"):
            await operator.delete_subscription(TOPIC, "s", force=True)
        else:
            await operator.delete_topic(TOPIC, force=True)
        if deleted == "topic made again":
            await operator.create_topic(TOPIC, segments=1)
        if deleted.endswith("made again"):
            await operator.consumer(TOPIC, "s", type=type)
        for member in members:
            with pytest.raises((TopicNotFound, SubscriptionNotFound)):
                await member.receive(timeout=15.0)


async def test_who_has_just_been_opened_keeps_what_it_uses(cluster: InProcessCluster, client: txnclient.Client) -> None:
    """A producer that has sent nothing, and consumers of which no broker has heard."""
    await client.create_topic(TOPIC, segments=1)
    async with cluster.connect() as user:
        async with user.producer(TOPIC):
            with pytest.raises(NotAllowed, match="1 producers and 0 consumers"):
                await client.delete_topic(TOPIC)
        async with user.consumer(TOPIC, "s"):
            with pytest.raises(NotAllowed, match="in use"):
                await client.delete_subscription(TOPIC, "s")
            async with user.consumer(TOPIC, "s") as standby:
                assert standby.segments == []
                with pytest.raises(NotAllowed, match="0 producers and 2 consumers"):
                    await client.delete_topic(TOPIC)
        await client.delete_topic(TOPIC)
