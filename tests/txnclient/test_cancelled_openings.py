"""Openings whose caller goes away, and objects that are closed amid something: nothing of them stays (scenario C5)."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

import txnclient
from tests.segments.virtual_time import virtual_time
from tests.txnclient.scripted_server import SEGMENTS, TOPIC, Cluster, connected
from tests.txnclient.test_cancelled_calls import cancelled, server_of
from tests.waiting import until

LEFT, RIGHT = SEGMENTS


@pytest.mark.parametrize("topics", [{"topics": TOPIC}, {"topics_pattern": TOPIC}], ids=["named", "by a pattern"])
@virtual_time
async def test_c5_a_consumer_whose_opening_is_cancelled_is_no_member_of_its_subscription(
    topics: dict[str, str],
) -> None:
    """The client is there still, so nobody else would tell the controller."""
    async with connected() as (cluster, client):
        server = server_of(cluster)
        server.hold["join_subscription"] = asyncio.Event()
        opening = client.consumer(subscription="sub", **topics)  # type: ignore[call-overload]
        await cancelled(opening.__aenter__(), lambda: server.seen["join_subscription"])
        server.hold["join_subscription"].set()
        await until(lambda: server.seen["leave_subscription"], within_s=5.0)
        await asyncio.sleep(1.0)
        assert server.seen["subscribe"] == 0


@virtual_time
async def test_c5_a_client_whose_opening_is_cancelled_leaves_no_connection_and_no_task() -> None:
    cluster = Cluster()
    await cluster.start()
    server = server_of(cluster)
    server.hold["watch_cluster"] = asyncio.Event()
    before = len(asyncio.all_tasks())
    opening = txnclient.connect("txn://broker:1", transport=cluster.transport, clock=cluster.clock, random=Random(1))
    await cancelled(opening.__aenter__(), lambda: server.seen["watch_cluster"])
    server.hold["watch_cluster"].set()
    await asyncio.sleep(1.0)
    assert len(asyncio.all_tasks()) == before
    assert not server.followers
    await cluster.stop()


@virtual_time
async def test_c5_a_consumer_that_closes_leaves_the_segments_it_is_about_to_give_back() -> None:
    """An ack of one that was assigned elsewhere is still under way."""
    async with connected() as (cluster, client):
        server = server_of(cluster)
        consumer = await client.consumer(TOPIC, "sub")
        await until(lambda: len(server.consumers) == 2)
        server.deliver(LEFT, 0, b"a")
        message = await consumer.receive()
        server.ignore["ack"] = 1
        acking = asyncio.ensure_future(consumer.ack(message))
        await until(lambda: server.seen["ack"])
        server.assign(RIGHT)
        await until(lambda: consumer.segments == [RIGHT])
        await consumer.close()
        with pytest.raises(txnclient.NotAllowed, match="another consumer"):
            await asyncio.wait_for(acking, 1.0)
        await until(lambda: not server.consumers, within_s=5.0)


async def unheard_of(cluster: Cluster, client: txnclient.Client) -> txnclient.Snapshot:
    """A snapshot of a layout that the client has yet to hear of."""
    await client.describe_topic(TOPIC)
    server = server_of(cluster)
    followers, server.followers = server.followers, {}
    cluster.seal(0)
    cluster.split(0)
    server.followers = followers
    return await client.snapshot(TOPIC)


@virtual_time
async def test_c5_a_watch_whose_opening_is_cancelled_leaves_nothing_behind() -> None:
    async with connected() as (cluster, client):
        newer = await unheard_of(cluster, client)
        listeners = len(client._directory._listeners)
        opening = asyncio.create_task(client.watch(newer).__aenter__())
        await asyncio.sleep(0.1)
        assert len(client._directory._listeners) == listeners + 1
        opening.cancel()
        await asyncio.wait((opening,))
        assert len(client._directory._listeners) == listeners


@virtual_time
async def test_c5_a_watch_that_is_being_opened_while_its_client_closes_is_not_opened() -> None:
    async with connected() as (cluster, client):
        server = server_of(cluster)
        newer = await unheard_of(cluster, client)
        server.ignore["new_txn"] = 1
        await cancelled(client.begin(), lambda: server.seen["new_txn"])  # closing will wait for it
        opened = asyncio.ensure_future(client.watch(newer).__aenter__())
        await asyncio.sleep(0.1)
        closing = asyncio.create_task(client.close())
        await asyncio.sleep(0.1)
        server.push_news()
        with pytest.raises(txnclient.InvalidArgument, match="this client is closed"):
            await opened
        await closing


@virtual_time
async def test_c5_producers_that_are_closed_leave_nothing_at_their_brokers_nor_in_their_client() -> None:
    async with connected() as (cluster, client):
        server = server_of(cluster)
        listeners = []
        for _ in range(3):
            async with client.producer(TOPIC) as producer:
                await producer.send_many([(key, b"x") for key in ("k1", "k3", "k5")])
            listeners.append(len(client._directory._listeners))
        await until(lambda: len(server.closed_producers) == len(server.producers), within_s=5.0)
        assert len(server.producers) > 3
        assert listeners[2] == listeners[0]


@virtual_time
async def test_c8_a_producer_that_was_fenced_as_it_opened_fences_nobody_in_turn() -> None:
    async with connected() as (cluster, client):
        server = server_of(cluster)
        producer = await client.producer(TOPIC, name="p")
        server.refuse["open_producer"] = [txnclient.ProducerFenced("a newer one has connected")]
        with pytest.raises(txnclient.ProducerFenced):
            await producer.send(b"x", key="k")
        for _ in range(2):
            with pytest.raises(txnclient.ProducerFenced) as raised:
                await producer.send(b"x", key="k")
            assert raised.value.fatal
        assert server.seen["open_producer"] == 1
