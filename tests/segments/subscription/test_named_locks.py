"""A segment's locks by name: nothing is kept of names that nobody asks for any more."""

from __future__ import annotations

import asyncio

import pytest

from tests.segments.brokering import Cluster
from txnwire.errors import NotAllowed, SubscriptionNotFound
from txnwire.proto import txn_pb2 as pb


async def test_a_segment_keeps_nothing_of_subscriptions_that_there_are_not(memory_cluster: Cluster) -> None:
    """A client may ask for ever new ones; an application may make and delete one for each of its jobs."""
    cluster = memory_cluster
    [segment] = await cluster.create_topic()
    node = await cluster.start()
    client = await cluster.connect(node)
    for number in range(3):
        with pytest.raises(SubscriptionNotFound):
            await client.subscribe(segment, name=f"unknown{number}", type=pb.SUBSCRIPTION_TYPE_QUEUE)
    assert len(node.broker.segments[segment].subscriptions._loading) == 0


async def test_all_who_wait_for_a_seek_attach_behind_it(memory_cluster: Cluster) -> None:
    cluster = memory_cluster
    [segment] = await cluster.create_topic()
    node = await cluster.start()
    client = await cluster.connect(node)
    await cluster.queue(client, segment)
    async with node.broker.segments[segment].subscriptions._seeking.held("jobs"):
        waiting = [asyncio.ensure_future(cluster.queue(client, segment, consumer=name)) for name in ("c2", "c3")]
        await asyncio.sleep(0.05)
        assert not any(one.done() for one in waiting)
    async with asyncio.timeout(5.0):
        await asyncio.gather(*waiting)


async def test_p9_a_drop_that_lands_late_leaves_the_next_subscription_of_the_name_alone(
    memory_cluster: Cluster,
) -> None:
    """It waits for somebody who loads the name; meanwhile the next subscription of the name is made and acked."""
    cluster = memory_cluster
    [segment] = await cluster.create_topic()
    node = await cluster.start()
    client = await cluster.connect(node)
    await client.producer(segment)
    table = node.broker.segments[segment].subscriptions
    async with table._loading.held("jobs"):
        late = asyncio.ensure_future(table.drop("jobs"))
        await asyncio.sleep(0.05)
        consuming = asyncio.ensure_future(cluster.queue(client, segment))
        await asyncio.sleep(0.05)
    with pytest.raises(NotAllowed, match="is not being deleted"):
        await late
    await consuming
    assert table.loaded("jobs") is not None
