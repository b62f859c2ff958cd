"""What concerns several subscriptions, consumers or topics at once is told to each of them; in virtual time."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from tests.segments.controlling import TOPIC, Inbox, Process, joining, running
from tests.segments.virtual_time import LoopClock, virtual_time
from txnstore import keys
from txnstore.memory.memory_etcd import MemoryEtcd
from txnstore.records import Drained, LayoutChange, encode
from txnstore.store import Commit, Put
from txnwire.errors import InvalidArgument
from txnwire.names import TopicName
from txnwire.proto import txn_pb2 as pb

NAMES = ("one", "two", "three")
QUEUE = pb.SUBSCRIPTION_TYPE_QUEUE


async def split(process: Process) -> list[str]:
    """The children's paths."""
    layout = (await process.directory.wait_topic(TOPIC.path)).split(0)
    await process.store.commit(Commit(puts=(Put(keys.topic(TOPIC.path), encode(layout.record)),)))
    return list(layout.active_paths)


@virtual_time
async def test_consumers_of_all_subscriptions_that_have_drained_a_parent_get_its_children() -> None:
    async with running(MemoryEtcd(LoopClock()), "a") as [a]:
        await a.controller.create_topic(TOPIC, 1, "")
        inboxes = [Inbox() for _ in NAMES]
        for name, inbox in zip(NAMES, inboxes, strict=True):
            await a.controller.join(joining("w", subscription=name), inbox)
        children = await split(a)
        puts = [Put(keys.drained(TOPIC.path, name, 0), encode(Drained(end=(1, 0)))) for name in NAMES]
        await a.store.commit(Commit(puts=tuple(puts)))
        await asyncio.sleep(5.0)
        assert [list(inbox.pushed[-1].segments) for inbox in inboxes] == [children] * 3


@virtual_time
async def test_all_consumers_of_all_queues_of_a_topic_are_told_of_a_layout() -> None:
    async with running(MemoryEtcd(LoopClock()), "a") as [a]:
        await a.controller.create_topic(TOPIC, 1, "")
        inboxes = [Inbox() for _ in range(6)]
        for number, inbox in enumerate(inboxes):
            await a.controller.join(joining(f"w{number}", subscription=NAMES[number % 3], type=QUEUE), inbox)
        children = await split(a)
        await asyncio.sleep(5.0)
        assert [[*inbox.pushed[-1].segments][1:] for inbox in inboxes] == [children] * 6


@virtual_time
async def test_the_consumers_of_all_subscriptions_of_a_deleted_topic_are_told_to_join_again() -> None:
    async with running(MemoryEtcd(LoopClock()), "a") as [a]:
        await a.controller.create_topic(TOPIC, 1, "")
        inboxes = [Inbox() for _ in range(4)]
        for name, inbox in zip((*NAMES, "queue"), inboxes, strict=True):
            type = QUEUE if name == "queue" else pb.SUBSCRIPTION_TYPE_STREAM
            await a.controller.join(joining("w", subscription=name, type=type), inbox)
        assert a.controller.statistics().subscriptions == 4
        await a.controller.delete_topic(TOPIC, force=True)
        assert [[told.epoch for told in inbox.pushed] for inbox in inboxes] == [[0]] * 4
        assert a.controller.statistics().subscriptions == 0


@virtual_time
async def test_changes_of_several_topics_that_are_heard_of_together_are_all_gone_on_with() -> None:
    """Their requests may have timed out before they learned that the change was stored."""
    async with running(MemoryEtcd(LoopClock()), "a") as [a]:
        topics = [TopicName("public", "nyc", name) for name in NAMES]
        puts = []
        for number, topic in enumerate(topics):
            await a.controller.create_topic(topic, 1, "")
            record = (await a.directory.wait_topic(topic.path)).record
            change = LayoutChange(id=f"{number}", kind="split", parents=[record.segments[0].id], since_ms=1)
            puts.append(Put(keys.topic(topic.path), encode(replace(record, changes=[change]))))
        await a.store.commit(Commit(puts=tuple(puts)))
        await asyncio.sleep(1.0)
        assert a.controller.statistics().layouts.under_way == 3


@virtual_time
async def test_the_consumers_of_a_queue_read_with_one_isolation_whichever_of_them_asks_again() -> None:
    async with running(MemoryEtcd(LoopClock()), "a") as [a]:
        await a.controller.create_topic(TOPIC, 1, "")

        async def join(name: str, isolation: pb.Isolation) -> None:
            asked = joining(name, type=QUEUE)
            asked.isolation = isolation
            await a.controller.join(asked, Inbox())

        for name in ("w1", "w2", "w1"):
            await join(name, pb.ISOLATION_READ_COMMITTED)
        for name in ("w1", "w2", "w3"):
            with pytest.raises(InvalidArgument, match="they read with one isolation"):
                await join(name, pb.ISOLATION_READ_UNCOMMITTED)
