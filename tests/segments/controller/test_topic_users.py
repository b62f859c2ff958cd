"""What is used is not deleted without force: who has sent nothing yet, who has no segment, who is on the way back."""

from __future__ import annotations

import asyncio

import pytest

from segments.controller.topic_users import TopicUsers
from tests.segments.controlling import TOPIC, Fates, Inbox, Process, joining, leaving, running, with_topic
from tests.segments.virtual_time import LoopClock, virtual_time
from tests.waiting import until
from txnstore import keys
from txnstore.memory.memory_etcd import MemoryEtcd
from txnstore.memory.memory_store import Fate
from txnstore.store import Commit, Delete, Put
from txnwire.errors import NotAllowed, Overloaded, TopicNotFound
from txnwire.ids import Position
from txnwire.proto import txn_pb2 as pb

REGISTER = pb.RegisterProducer(topic=str(TOPIC))
OVER = pb.RegisterProducer(topic=str(TOPIC), over=True)
GRACE_S = 10.0


async def owned_topic(process: Process) -> str:
    """One of a single segment, whose owner knows of nobody; its path."""
    await with_topic(process, 1)
    path = (await process.directory.wait_topic(TOPIC.path)).active_paths[0]
    await own(process, path)
    return path


async def own(process: Process, path: str) -> None:
    process.positions.answers = {path: Position(1, 0)}
    await process.store.commit(Commit(puts=(Put(keys.owner(path), b'{"broker":"b","address":"b:1"}'),)))
    await process.directory.wait_owner(path)


async def end(process: Process, path: str, deletion: asyncio.Task[None]) -> None:
    """The owner is done with what is being deleted."""
    await process.directory.wait_until(
        lambda: (topic := process.directory.topic(TOPIC.path)) is not None and topic.deleting,
        timeout_s=30.0,
        what="the mark",
    )
    await process.store.commit(Commit(deletes=(Delete(keys.owner(path)),)))
    await deletion


async def deleted(process: Process, path: str) -> None:
    await end(process, path, asyncio.ensure_future(process.controller.delete_topic(TOPIC, force=False)))


@pytest.mark.parametrize("how", ["over", "disconnected"])
@virtual_time
async def test_a_producer_that_has_sent_nothing_keeps_its_topic(how: str) -> None:
    async with running(MemoryEtcd(LoopClock()), "a") as [a]:
        path = await owned_topic(a)
        one, other = Inbox(), Inbox()
        for link in (one, one, other):
            await a.controller.register_producer(REGISTER, link)
        with pytest.raises(NotAllowed, match="2 producers and 0 consumers"):
            await a.controller.delete_topic(TOPIC, force=False)
        a.controller.disconnected(other)
        with pytest.raises(NotAllowed, match="1 producers and 0 consumers"):
            await a.controller.delete_topic(TOPIC, force=False)
        if how == "over":
            await a.controller.register_producer(OVER, one)
        else:
            a.controller.disconnected(one)
        await deleted(a, path)


@virtual_time
async def test_a_user_whose_end_is_on_its_way_to_the_owner_is_waited_for() -> None:
    """A program that closes its producer, and then deletes its topic, is not told that it uses it."""
    async with running(MemoryEtcd(LoopClock()), "a") as [a]:
        path = await owned_topic(a)
        a.positions.connected = {path: (1, 1)}
        deletion = asyncio.ensure_future(a.controller.delete_topic(TOPIC, force=False))
        await asyncio.sleep(0.25)
        a.positions.connected.clear()
        await end(a, path, deletion)


@virtual_time
async def test_a_producer_that_is_closed_while_it_registers_is_not_counted_for_ever() -> None:
    async with running(MemoryEtcd(LoopClock()), "a") as [a]:
        path = await owned_topic(a)
        closed, lost = Inbox(), Inbox()
        registering = [asyncio.ensure_future(a.controller.register_producer(REGISTER, one)) for one in (closed, lost)]
        await asyncio.sleep(0)
        await a.controller.register_producer(OVER, closed)
        a.controller.disconnected(lost)
        await asyncio.gather(*registering)
        await deleted(a, path)


@pytest.mark.parametrize("type", [pb.SUBSCRIPTION_TYPE_STREAM, pb.SUBSCRIPTION_TYPE_QUEUE])
@virtual_time
async def test_a_member_that_no_broker_knows_of_keeps_topic_and_subscription(type: int) -> None:
    async with running(MemoryEtcd(LoopClock()), "a") as [a]:
        path = await owned_topic(a)
        await a.controller.join(joining("first", type=type), Inbox())
        await a.controller.join(joining("idle", type=type), Inbox())
        for calls in range(2):
            match = f"0 producers and {2 - calls} consumers"
            with pytest.raises(NotAllowed, match=match):
                await a.controller.delete_subscription(TOPIC, "s", force=False)
            with pytest.raises(NotAllowed, match=match):
                await a.controller.delete_topic(TOPIC, force=False)
            await a.controller.leave(leaving("idle" if calls else "first"), Inbox())
        await a.controller.delete_subscription(TOPIC, "s", force=False)
        await deleted(a, path)


@virtual_time
async def test_what_a_segment_without_owner_is_used_by_is_not_guessed() -> None:
    async with running(MemoryEtcd(LoopClock()), "a") as [a]:
        await with_topic(a, 1)
        with pytest.raises(Overloaded, match="no owner"):
            await a.controller.delete_topic(TOPIC, force=False)
        await a.controller.register_producer(REGISTER, Inbox())
        with pytest.raises(NotAllowed):
            await a.controller.delete_topic(TOPIC, force=False)
        await a.controller.delete_topic(TOPIC, force=True)


@pytest.mark.parametrize("comes", [True, False])
@virtual_time
async def test_another_controller_waits_for_users_to_come(comes: bool) -> None:
    async with running(MemoryEtcd(LoopClock()), "a", "b") as [a, b]:
        path = await owned_topic(a)
        await a.controller.register_producer(REGISTER, Inbox())
        await a.controller.close()
        await b.controller.wait_leading(timeout_s=60.0)
        await own(b, path)
        with pytest.raises(Overloaded, match="the controller has changed"):
            await b.controller.delete_topic(TOPIC, force=False)
        if comes:
            await b.controller.register_producer(REGISTER, Inbox())
            with pytest.raises(NotAllowed):
                await b.controller.delete_topic(TOPIC, force=False)
        await asyncio.sleep(GRACE_S)
        if comes:
            with pytest.raises(NotAllowed):
                await b.controller.delete_topic(TOPIC, force=False)
        else:
            await deleted(b, path)


class SlowCommits(Fates):
    """The next commit is answered late."""

    armed = False

    def fate(self, request: str, client: str) -> Fate:
        if request == "commit" and self.armed:
            self.armed = False
            return Fate(arrive_s=2.0, answer_s=2.0)
        return super().fate(request, client)


@pytest.mark.parametrize("who", ["producer", "consumer"])
@virtual_time
async def test_who_comes_while_the_mark_is_on_its_way_is_told_that_the_topic_is_gone(who: str) -> None:
    """▲ It would be told that it is in, and lose what it uses."""
    async with running(MemoryEtcd(LoopClock()), "a") as [a]:
        path = await owned_topic(a)
        slow = SlowCommits()
        a.fates.fate = slow.fate  # type: ignore[method-assign]
        slow.armed = True
        deletion = asyncio.ensure_future(a.controller.delete_topic(TOPIC, force=False))
        await until(lambda: not slow.armed)
        if who == "producer":
            coming = asyncio.ensure_future(a.controller.register_producer(REGISTER, Inbox()))
        else:
            coming = asyncio.ensure_future(a.controller.join(joining("w"), Inbox()))
        with pytest.raises(TopicNotFound):
            await coming
        await end(a, path, deletion)


@virtual_time
async def test_a_producer_of_an_earlier_topic_of_the_name_is_no_user_of_the_next() -> None:
    async with running(MemoryEtcd(LoopClock()), "a") as [a]:
        await owned_topic(a)
        link = Inbox()
        life = await a.controller.register_producer(REGISTER, link)
        await a.store.commit(Commit(deletes=(Delete(keys.owner("public/nyc/flights/0000-ffff-0")),)))
        await a.controller.delete_topic(TOPIC, force=True)
        await with_topic(a, 1)
        path = "public/nyc/flights/0000-ffff-1"
        await own(a, path)
        late = pb.RegisterProducer(topic=str(TOPIC), life=life)
        assert await a.controller.register_producer(late, link) > life
        await deleted(a, path)
        with pytest.raises(TopicNotFound):
            await a.controller.register_producer(REGISTER, link)


def test_who_leaves_takes_all_its_registrations_along() -> None:
    """▲ One that stays counts for ever, and its topic is deleted by force alone."""
    users, link, other = TopicUsers({}, {}), Inbox(), Inbox()
    coming = [users.comes("t/n/x", link, 7) for _ in range(3)]
    users.came(coming[0], 7)
    users.leave("t/n/x", link, 7)
    for one in coming:
        users.came(one, 7)
    assert users.producers("t/n/x", 7) == 0
    for topic in ("t/n/x", "t/n/y", "t/n/z"):
        for of in (link, other):
            users.came(users.comes(topic, of, 7), 7)
            users.comes(topic, of, 7)
    users.disconnected(link)
    assert [users.producers(topic, 7) for topic in ("t/n/x", "t/n/y", "t/n/z")] == [1, 1, 1]


def test_users_are_counted_over_all_subscriptions_and_connections_of_a_topic_and_of_no_other() -> None:
    x, y, link = "t/n/x", "t/n/y", Inbox()
    links = {(y, "a"): {"c0": link}, (x, "a"): {"c1": link, "c2": link}, (x, "b"): {"c1": link}}
    joining: dict[tuple[tuple[str, str], str], object] = {((y, "a"), "c3"): 1, ((x, "a"), "c3"): 2, ((x, "b"), "c4"): 3}
    users = TopicUsers(links, joining)
    assert [users.consumers(x, name) for name in (None, "a", "b", "c")] == [5, 3, 2, 0]
    connections = [Inbox() for _ in range(3)]
    for connection in connections:
        users.came(users.comes(y, connection, 7), 7)
        users.comes(x, connection, 7)
    assert [users.producers(path, 7) for path in (x, y)] == [3, 3]


def test_who_has_no_more_producers_of_one_topic_keeps_those_of_the_others() -> None:
    users, link, topics = TopicUsers({}, {}), Inbox(), ("t/n/x", "t/n/y", "t/n/z")
    for path in topics:
        users.came(users.comes(path, link, 7), 7)
    users.leave("t/n/y", link, 7)
    assert [users.producers(path, 7) for path in topics] == [1, 0, 1]
