"""Deletions whose client has left before they were answered; in virtual time."""

from __future__ import annotations

import asyncio
import random

import pytest
from msgspec.structs import replace

from segments.layout.topology import create_record
from tests.segments.controlling import TOPIC, Inbox, joining, running
from tests.segments.virtual_time import LoopClock, virtual_time
from txnstore import keys
from txnstore.memory.memory_etcd import MemoryEtcd
from txnstore.memory.memory_store import NO_FAULT, Fate, MemoryStore
from txnstore.records import SubscriptionRecord, encode
from txnstore.store import Commit, Put
from txnwire.errors import DataCorrupt
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


@pytest.mark.parametrize("divisor", [1, 1000])  # all in one page, one in each
@virtual_time
async def test_every_mark_that_is_found_at_the_start_of_a_term_is_gone_on_with(divisor: int) -> None:
    """▲ What is left out stays marked as long as the term lasts: its name can be used by nobody."""
    etcd = MemoryEtcd(LoopClock(), pages_divided_by=divisor)
    writer = MemoryStore(etcd, LoopClock(), random.Random(1), name="writer")
    lives = create_record(1, policies={}, created_ms=1)
    known = SubscriptionRecord(type="queue", start={"kind": "earliest"})
    topics = [keys.topic(f"public/nyc/{name}") for name in "abc"]
    subscriptions = [keys.subscription(TOPIC.path, name) for name in "abc"]
    stays = [keys.topic(TOPIC.path), keys.subscription(TOPIC.path, "stays")]
    puts = [Put(key, encode(replace(lives, deleting_ms=1))) for key in topics]
    puts += [Put(key, encode(replace(known, deleting_ms=1))) for key in subscriptions]
    puts += [Put(stays[0], encode(lives)), Put(stays[1], encode(known))]
    await writer.commit(Commit(puts=tuple(puts)))
    async with running(etcd, "a") as [a]:
        a.positions.answers = {f"{TOPIC.path}/0000-ffff-0": Position(1, 0)}
        await asyncio.sleep(30.0)
        assert [key for key in (*topics, *subscriptions, *stays) if etcd.mvcc.get(key, 0) is not None] == stays
    await writer.close()


@pytest.mark.parametrize("damaged", [False, True])
@virtual_time
async def test_with_a_term_every_deletion_ends_that_is_under_way_or_waits_for_mending(damaged: bool) -> None:
    """▲ The next controller takes all of them up; one that goes on here keeps this one from closing."""
    etcd = MemoryEtcd(LoopClock())
    async with running(etcd, "a") as [a]:
        await a.controller.create_topic(TOPIC, 1, "")
        [path] = (await a.directory.wait_topic(TOPIC.path)).active_paths
        names = ("one", "two", "three")
        for name in names:
            await a.controller.join(joining("w", subscription=name), Inbox())
        if damaged:
            a.positions.answers = {path: Position(1, 0)}
            a.positions.damaged = {path: DataCorrupt("1.ledger: offset 434: checksum damaged")}
        asked = [asyncio.ensure_future(a.controller.delete_subscription(TOPIC, name, force=True)) for name in names]
        await asyncio.sleep(5.0)
        async with asyncio.timeout(60.0):
            await a.controller.close()
            await asyncio.gather(*asked, return_exceptions=True)
        calls = len(a.positions.asked)
        await asyncio.sleep(60.0)
        assert len(a.positions.asked) == calls
