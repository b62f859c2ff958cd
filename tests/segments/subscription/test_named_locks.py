"""Locks by name: one holder at a time, and nothing is kept of names that nobody asks for any more."""

from __future__ import annotations

import asyncio

import pytest

from segments.subscription.named_locks import NamedLocks
from tests.segments.brokering import Cluster
from txnwire.errors import SubscriptionNotFound
from txnwire.proto import txn_pb2 as pb


async def test_one_has_a_lock_at_a_time_also_behind_one_that_gave_up() -> None:
    locks, order = NamedLocks(), list[str]()

    async def hold(who: str) -> None:
        async with locks.held("a"):
            order.append(who)
            await asyncio.sleep(0.01)
            order.append(who)

    async with locks.held("b"):
        tasks = [asyncio.ensure_future(hold(who)) for who in "123"]
        await asyncio.sleep(0)
        assert locks.locked("a")
        tasks[1].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert order == ["1", "1", "3", "3"]
        assert locks.locked("b")
        assert not locks.locked("a")
        assert len(locks) == 1
    assert len(locks) == 0


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
