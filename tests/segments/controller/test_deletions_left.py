"""Deletions whose client has left before they were answered; in virtual time."""

from __future__ import annotations

import asyncio

import pytest

from tests.segments.controlling import TOPIC, Inbox, joining, running
from tests.segments.virtual_time import LoopClock, virtual_time
from txnstore import keys
from txnstore.memory.memory_etcd import MemoryEtcd
from txnstore.memory.memory_store import NO_FAULT, Fate
from txnwire.ids import Position


@pytest.mark.parametrize("what", ["topic", "subscription"])
@virtual_time
async def test_s8_a_deletion_whose_client_leaves_while_the_mark_is_on_its_way_is_gone_on_with(what: str) -> None:
    """▲ It stayed marked until the next controller came, and its name could be used by nobody."""
    etcd = MemoryEtcd(LoopClock())
    async with running(etcd, "a") as [a]:
        await a.controller.create_topic(TOPIC, 2, "")
        topology = await a.directory.wait_topic(TOPIC.path)
        a.positions.answers = dict.fromkeys(topology.active_paths, Position(1, 1))
        await a.controller.join(joining("w"), Inbox())
        a.fates.commits = [Fate(arrive_s=0.2, answer_s=0.2)]
        if what == "topic":
            deleting = asyncio.ensure_future(a.controller.delete_topic(TOPIC, force=True))
        else:
            deleting = asyncio.ensure_future(a.controller.delete_subscription(TOPIC, "s", force=True))
        await asyncio.sleep(0.1)
        deleting.cancel()
        await asyncio.wait((deleting,))
        await asyncio.sleep(30.0)
        key = keys.topic(TOPIC.path) if what == "topic" else keys.subscription(TOPIC.path, "s")
        assert etcd.mvcc.get(key, 0) is None


@pytest.mark.parametrize("what", ["topic", "subscription"])
@virtual_time
async def test_who_asks_once_more_just_as_a_deletion_ends_is_told_that_it_is_done(what: str) -> None:
    """A client whose first request had no answer in time: for it nothing was wrong."""
    etcd = MemoryEtcd(LoopClock())
    async with running(etcd, "a") as [a]:
        await a.controller.create_topic(TOPIC, 2, "")
        topology = await a.directory.wait_topic(TOPIC.path)
        a.positions.answers = dict.fromkeys(topology.active_paths, Position(1, 1))
        await a.controller.join(joining("w"), Inbox())
        key = keys.topic(TOPIC.path) if what == "topic" else keys.subscription(TOPIC.path, "s")

        async def delete() -> None:
            if what == "topic":
                await a.controller.delete_topic(TOPIC, force=True)
            else:
                await a.controller.delete_subscription(TOPIC, "s", force=True)

        a.fates.commits = [NO_FAULT, Fate(answer_s=1.0)]
        first = asyncio.ensure_future(delete())
        await asyncio.sleep(0.5)
        assert etcd.mvcc.get(key, 0) is None
        assert not first.done()
        await delete()
        await first
