"""Members of what is deleted that no broker knows of: standbys, and who heard nothing while another process led."""

from __future__ import annotations

import pytest

from tests.segments.controlling import TOPIC, Inbox, Process, joining, running, with_topic
from tests.segments.virtual_time import LoopClock, virtual_time
from txnstore import keys
from txnstore.memory.memory_etcd import MemoryEtcd
from txnstore.store import Commit, Delete, Put
from txnwire.errors import SubscriptionNotFound, TopicNotFound, TxnError
from txnwire.ids import Position
from txnwire.proto import txn_pb2 as pb

TYPES = [pb.SUBSCRIPTION_TYPE_STREAM, pb.SUBSCRIPTION_TYPE_QUEUE]


async def two_members(process: Process, type: int) -> tuple[Inbox, pb.JoinSubscription]:
    """The second one, which of a stream has no segment; and how it joins again."""
    await with_topic(process, 1)
    path = (await process.directory.wait_topic(TOPIC.path)).active_paths[0]
    process.positions.answers = {path: Position(1, 0)}
    second = Inbox()
    await process.controller.join(joining("a", type=type), Inbox())
    request = joining("b", type=type)
    joined = await process.controller.join(request, second)
    second.pushed.clear()
    request.again, request.life = True, joined.life
    return second, request


async def rejoins(process: Process, request: pb.JoinSubscription, gone: type[TxnError]) -> None:
    with pytest.raises(gone):
        await process.controller.join(request, Inbox())


@pytest.mark.parametrize("type", TYPES)
@pytest.mark.parametrize("deleted", ["topic", "subscription"])
@virtual_time
async def test_a_standby_is_told_and_its_joining_again_says_what_is_gone(deleted: str, type: int) -> None:
    async with running(MemoryEtcd(LoopClock()), "a") as [a]:
        standby, request = await two_members(a, type)
        if deleted == "topic":
            await a.controller.delete_topic(TOPIC, force=True)
        else:
            await a.controller.delete_subscription(TOPIC, "s", force=True)
        assert [told.epoch for told in standby.pushed] == [0]
        await rejoins(a, request, TopicNotFound if deleted == "topic" else SubscriptionNotFound)


@pytest.mark.parametrize("type", TYPES)
@virtual_time
async def test_a_standby_hears_of_a_deletion_under_another_controller_from_the_first_one(type: int) -> None:
    """It stood still meanwhile: to it the first one has led all along."""
    async with running(MemoryEtcd(LoopClock()), "a", "b") as [a, b]:
        standby, request = await two_members(a, type)
        await a.controller.close()
        await b.controller.wait_leading(timeout_s=60.0)
        b.positions.answers = a.positions.answers
        await b.controller.delete_subscription(TOPIC, "s", force=True)
        assert not standby.pushed
        await a.controller.start()
        await b.controller.close()
        await a.controller.wait_leading(timeout_s=60.0)
        assert [told.epoch for told in standby.pushed] == [0]
        await rejoins(a, request, SubscriptionNotFound)


@pytest.mark.parametrize("type", TYPES)
@virtual_time
async def test_a_member_of_a_deleted_subscription_does_not_join_the_next_of_its_name(type: int) -> None:
    async with running(MemoryEtcd(LoopClock()), "a") as [a]:
        _, request = await two_members(a, type)
        await a.controller.delete_subscription(TOPIC, "s", force=True)
        await a.controller.join(joining("c", type=type), Inbox())
        await rejoins(a, request, SubscriptionNotFound)
        request.again = False
        assert (await a.controller.join(request, Inbox())).life > request.life


@virtual_time
async def test_a_topic_made_again_is_not_denied_by_who_still_sees_the_first_one_being_deleted() -> None:
    etcd = MemoryEtcd(LoopClock())
    async with running(etcd, "a", "b") as [a, b]:
        await with_topic(a, 1)
        path = (await a.directory.wait_topic(TOPIC.path)).active_paths[0]
        await b.directory.wait_topic(TOPIC.path)
        deleting = b.directory.wait_until(
            lambda: (known := b.directory.topic(TOPIC.path)) is not None and known.deleting,
            timeout_s=60.0,
            what="the deletion",
        )
        await keep_from_ending(a, path)
        with pytest.raises(TxnError):
            await a.controller.delete_topic(TOPIC, force=True)
        await deleting
        b.directory_fates.watch_lag_s = 1000.0
        await let_end(a, path)
        await a.controller.create_topic(TOPIC, 1, "")
        await a.controller.close()
        await b.controller.wait_leading(timeout_s=60.0)
        joined = await b.controller.join(joining("w"), Inbox())
        assert joined.segments == ["public/nyc/flights/0000-ffff-1"]


async def keep_from_ending(process: Process, path: str) -> None:
    """The deletion of its topic waits for the segment's owner."""
    await process.store.commit(Commit(puts=(Put(keys.owner(path), b'{"broker":"b","address":"b:1"}'),)))
    await process.directory.wait_owner(path)


async def let_end(process: Process, path: str) -> None:
    await process.store.commit(Commit(deletes=(Delete(keys.owner(path)),)))
