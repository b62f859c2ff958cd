"""What a queue's consumers leave behind, and how it counts (DESIGN §7 "Dispatch", SCENARIOS P9)."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from segments.subscription.queue_subscription import QueueSubscription
from tests.segments.brokering import Cluster, Consumer
from tests.waiting import until, until_turn
from txnwire.errors import NotOwner


def counts(consumer: Consumer) -> dict[str, int]:
    return {message.value: message.redelivery_count for message in consumer.messages}


async def test_p9_who_closes_in_order_is_counted_for_what_it_nacks_only(memory_cluster: Cluster) -> None:
    """Workers that are restarted often must not bring to the dead letters what none of them has looked at."""
    cluster = memory_cluster
    [segment] = await cluster.create_topic()
    client = await cluster.connect(await cluster.start())
    producer, leaving = await client.producer(segment), await cluster.queue(client, segment, consumer="leaving")
    for value in "ab":
        await producer.send(value)
    await leaving.wait("a", "b")
    begun, _ = leaving.messages
    await leaving.nack(begun)
    await leaving.wait("a", "b", "a")
    await leaving.close()
    staying = await cluster.queue(client, segment, consumer="staying")
    await staying.wait("a", "b")
    assert counts(staying) == {"a": 1, "b": 0}


@pytest.mark.parametrize("turns", range(4))
async def test_a_read_given_up_before_it_has_begun_does_not_stop_the_queue(memory_cluster: Cluster, turns: int) -> None:
    """The last consumer goes within the turn of the event loop in which a read from disk was started."""
    cluster = memory_cluster
    cluster.settings = replace(cluster.settings, tail_cache_bytes=0)
    [segment] = await cluster.create_topic()
    node = await cluster.start()
    client = await cluster.connect(node)
    producer = await client.producer(segment)
    await producer.send("m")
    going = await cluster.queue(client, segment, permits=0)
    subscription = await node.broker.segments[segment].subscriptions.load("jobs")
    assert isinstance(subscription, QueueSubscription)
    [attached] = subscription._consumers
    subscription.add_permits(attached, 10)
    for _ in range(turns):
        await asyncio.sleep(0)
    subscription.detach(attached)
    await going.close()
    again = await cluster.queue(client, segment)
    await again.wait("m")


async def test_nobody_waits_for_delays_where_nobody_is_attached(memory_cluster: Cluster) -> None:
    """Or a segment that has moved to another broker would stay in memory for as long as its longest delay."""
    cluster = memory_cluster
    [segment] = await cluster.create_topic()
    node = await cluster.start()
    client = await cluster.connect(node)
    producer, consumer = await client.producer(segment), await cluster.queue(client, segment)
    await producer.send("m")
    await consumer.wait("m")
    subscription = await node.broker.segments[segment].subscriptions.load("jobs")
    assert isinstance(subscription, QueueSubscription)
    nacking = asyncio.ensure_future(consumer.nack(*consumer.messages, delay_ms=100))
    await until_turn(lambda: subscription._timer is not None, "the wait for its delay")  # long before its answer, maybe
    await nacking
    await consumer.close()
    assert subscription._timer is None
    again = await cluster.queue(client, segment)
    await again.wait("m")
    assert counts(again) == {"m": 1}


@pytest.mark.parametrize("lost", [False, True], ids=["closed", "lost"])
async def test_p9_a_consumer_that_is_gone_has_no_share_of_what_its_broker_delivers_at_once(
    memory_cluster: Cluster, lost: bool
) -> None:
    """Or workers that come and go would leave the others less and less, and their broker all that they ever were."""
    [segment] = await memory_cluster.create_topic()
    node = await memory_cluster.start()
    going, staying = await memory_cluster.connect(node), await memory_cluster.connect(node)
    shares = (await node.broker.segment(segment)).dispatcher.shares
    await memory_cluster.queue(staying, segment, consumer="staying")
    consumer = await memory_cluster.queue(going, segment, consumer="going")
    assert shares.consumers == 2
    await (going.close() if lost else consumer.close())
    await until(lambda: shares.consumers == 1)


async def test_a_connection_that_ends_gives_back_what_its_other_consumers_have_beside_one_that_is_closed(
    memory_cluster: Cluster,
) -> None:
    """The broker has closed the first of them itself, as a seek does. The lease outlasts a busy machine: after another
    take-over the message would come as well."""
    cluster = memory_cluster
    cluster.settings = replace(cluster.settings, lease_ttl_s=60.0)
    [segment] = await cluster.create_topic()
    node = await cluster.start()
    going, staying = await cluster.connect(node), await cluster.connect(node)
    closed = await cluster.queue(going, segment, name="sought")
    for subscription in node.broker.segments[segment].subscriptions:
        subscription.close(NotOwner("attach again"))
    await until(lambda: closed.closed is not None)
    holding = await cluster.queue(going, segment, name="jobs")
    producer = await staying.producer(segment)
    await producer.send("m")
    await holding.wait("m")
    await going.close()
    await (await cluster.queue(staying, segment, name="jobs", consumer="c2")).wait("m")
