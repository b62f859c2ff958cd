"""A deletion that is still at its last step while something of the same name is made again; in virtual time."""

from __future__ import annotations

import asyncio

import pytest

from tests.segments.controlling import TOPIC, Inbox, Process, joining, running
from tests.segments.virtual_time import LoopClock, virtual_time
from tests.waiting import until_accepted
from txnstore import keys
from txnstore.memory.memory_etcd import MemoryEtcd
from txnstore.memory.memory_store import NO_FAULT, Fate
from txnwire.errors import Overloaded, SubscriptionNotFound, TopicNotFound
from txnwire.ids import Position


async def joined(process: Process, subscription: str = "s") -> Inbox:
    """As a client does: again, until nothing of what is being deleted stands in the way."""
    inbox = Inbox()
    await until_accepted(
        lambda: process.controller.join(joining("new", 2, subscription=subscription), inbox),
        (Overloaded, TopicNotFound),
        "nothing that is being deleted to stand in the way",
        longest_poll_s=0.02,
    )
    return inbox


@pytest.mark.parametrize("answered", [True, False])
@pytest.mark.parametrize("what", ["topic", "subscription"])
@virtual_time
async def test_a_deletion_whose_last_step_is_not_answered_leaves_the_next_of_its_name_alone(
    what: str, answered: bool
) -> None:
    etcd = MemoryEtcd(LoopClock())
    async with running(etcd, "a") as [a]:
        await a.controller.create_topic(TOPIC, 2, "")
        topology = await a.directory.wait_topic(TOPIC.path)
        a.positions.answers = dict.fromkeys(topology.active_paths, Position(1, 1))
        if what == "subscription":
            await a.controller.join(joining("old"), Inbox())
        await asyncio.sleep(1.0)
        a.fates.commits = [NO_FAULT, NO_FAULT if answered else Fate(arrive_s=0.0, fail_s=0.5)]
        if what == "topic":
            deleting = asyncio.ensure_future(a.controller.delete_topic(TOPIC, force=True))
            await asyncio.sleep(0.01)
            await a.controller.create_topic(TOPIC, 2, "")
        else:
            deleting = asyncio.ensure_future(a.controller.delete_subscription(TOPIC, "s", force=True))
            await asyncio.sleep(0.01)
        await joined(a)
        await deleting
        await asyncio.sleep(60.0)
        assert a.controller.statistics().connected_consumers == 1


async def made_again_behind_a_deletion(process: Process) -> asyncio.Future[None]:
    """The deletion of a subscription that has gone with its topic, and looks for it once more only when both stand
    again, with a consumer."""
    await process.controller.create_topic(TOPIC, 2, "")
    await process.controller.join(joining("old"), Inbox())
    deleting = asyncio.ensure_future(process.controller.delete_subscription(TOPIC, "s", force=True))
    await asyncio.sleep(8.0)  # no owner answers: it tries again, ever more slowly
    await process.controller.delete_topic(TOPIC, force=True)
    await process.controller.create_topic(TOPIC, 2, "")
    await joined(process)
    assert not deleting.done()
    return deleting


@virtual_time
async def test_a_deletion_that_another_one_has_ended_leaves_the_next_of_its_name_alone() -> None:
    async with running(MemoryEtcd(LoopClock()), "a") as [a]:
        await (await made_again_behind_a_deletion(a))
        await asyncio.sleep(5.0)
        assert a.controller.statistics().connected_consumers == 1


@virtual_time
async def test_what_is_deleted_while_an_earlier_one_of_its_name_is_forgotten_is_deleted_too() -> None:
    """▲ It would be said to be gone, and stand."""
    async with running(MemoryEtcd(LoopClock()), "a") as [a]:
        earlier = await made_again_behind_a_deletion(a)
        topology = await a.directory.wait_topic(TOPIC.path)
        a.positions.answers = dict.fromkeys(topology.active_paths, Position(1, 1))
        await a.controller.delete_subscription(TOPIC, "s", force=True)
        assert await a.store.get(keys.subscription(TOPIC.path, "s")) is None
        await earlier


@pytest.mark.parametrize("landed_before", [False, True])
@virtual_time
async def test_a_request_for_a_topic_of_before_leaves_the_next_of_its_name_alone(landed_before: bool) -> None:
    """▲ It lands late, or again: the next topic's messages would be lost."""
    async with running(MemoryEtcd(LoopClock()), "a") as [a]:
        await a.controller.create_topic(TOPIC, 2, "")
        life = await a.controller.topic_life(TOPIC)
        await a.controller.delete_topic(TOPIC, force=True, life=life if landed_before else 0)
        with pytest.raises(TopicNotFound, match="does not exist"):
            await a.controller.delete_topic(TOPIC, force=True, life=life)
        await a.controller.create_topic(TOPIC, 2, "")
        with pytest.raises(TopicNotFound, match="another one"):
            await a.controller.delete_topic(TOPIC, force=True, life=life)
        with pytest.raises(TopicNotFound, match="another one"):  # ▲ with the former retention
            await a.controller.update_topic(TOPIC, '{"retention_ms": 1000}', life=life)
        await a.controller.delete_topic(TOPIC, force=True, life=await a.controller.topic_life(TOPIC))
        with pytest.raises(TopicNotFound):
            await a.controller.topic_life(TOPIC)


@virtual_time
async def test_a_request_for_a_subscription_of_before_leaves_the_next_of_its_name_alone() -> None:
    """▲ The next one's acks would be lost, and its messages come again."""
    async with running(MemoryEtcd(LoopClock()), "a") as [a]:
        await a.controller.create_topic(TOPIC, 2, "")
        topology = await a.directory.wait_topic(TOPIC.path)
        a.positions.answers = dict.fromkeys(topology.active_paths, Position(1, 1))
        await joined(a)
        life = await a.controller.subscription_life(TOPIC, "s")
        await a.controller.delete_subscription(TOPIC, "s", force=True, life=life)
        with pytest.raises(SubscriptionNotFound, match="no subscription"):
            await a.controller.subscription_life(TOPIC, "s")
        await joined(a)
        with pytest.raises(SubscriptionNotFound, match="another one"):
            await a.controller.delete_subscription(TOPIC, "s", force=True, life=life)
        assert await a.controller.subscription_life(TOPIC, "s") > life
