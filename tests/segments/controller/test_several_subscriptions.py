"""What concerns several subscriptions, consumers or topics at once is told to each of them; in virtual time."""

from __future__ import annotations

import asyncio
import random

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from segments.controller import queue_group
from segments.layout.layout_transitions import Seal
from segments.layout.topology import create_record
from tests.segments.controller.test_controller_terms import elected_again
from tests.segments.controlling import TOPIC, Inbox, Process, joining, leaving, running
from tests.segments.virtual_time import LoopClock, virtual_time
from tests.waiting import until
from txnstore import keys
from txnstore.memory.memory_etcd import MemoryEtcd
from txnstore.memory.memory_store import MemoryStore
from txnstore.records import Drained, LayoutChange, TopicRecord, encode
from txnstore.store import Commit, Put
from txnwire.errors import InvalidArgument, NotOwner, Overloaded
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
        told = a.controller.statistics()
        assert (told.subscriptions, told.connected_consumers) == (4, 4)
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
            await a.controller.create_topic(topic, 2, "")
            record = (await a.directory.wait_topic(topic.path)).record
            puts.append(Put(keys.topic(topic.path), encode(with_splits(record, f"{number}"))))
        await a.store.commit(Commit(puts=tuple(puts)))
        await asyncio.sleep(1.0)
        assert a.controller.statistics().layouts.under_way == 6


def with_splits(record: TopicRecord, of: str) -> TopicRecord:
    """Of all its segments."""
    changes = [LayoutChange(id=f"{of}-{one.id}", kind="split", parents=[one.id], since_ms=1) for one in record.segments]
    return replace(record, changes=changes)


@pytest.mark.parametrize("divisor", [1, 1000])  # all topics in one page, one in each
@virtual_time
async def test_changes_that_an_earlier_term_has_begun_are_all_gone_on_with_until_the_term_ends(divisor: int) -> None:
    """▲ Producers of a segment that is left out may wait for the end of its seal; one that goes on keeps the controller
    from closing."""
    etcd = MemoryEtcd(LoopClock(), pages_divided_by=divisor)
    writer = MemoryStore(etcd, LoopClock(), random.Random(1), name="writer")
    record = create_record(2, policies={}, created_ms=1)
    puts = [Put(keys.topic(f"public/nyc/{name}"), encode(with_splits(record, name))) for name in NAMES]
    await writer.commit(Commit(puts=tuple(puts)))
    process, asked = Process(etcd, "a"), list[str]()

    async def hangs(segment: str, change_id: str) -> Seal:
        asked.append(segment)
        await asyncio.sleep(3600.0)
        raise NotOwner(segment)

    process.positions.seal = hangs  # type: ignore[method-assign]
    await process.start()
    await until(lambda: len(asked) == 6)
    assert process.controller.statistics().layouts.under_way == 6
    async with asyncio.timeout(60.0):
        await process.close()
    await writer.close()


@virtual_time
async def test_the_consumers_of_all_queues_are_told_to_join_the_next_term_again() -> None:
    """▲ It finds no assignment of them in etcd: one that is not told gets no new layout."""
    etcd = MemoryEtcd(LoopClock())
    async with running(etcd, "a") as [a]:
        await a.controller.create_topic(TOPIC, 1, "")
        inboxes = [Inbox() for _ in NAMES]
        for name, inbox in zip(NAMES, inboxes, strict=True):
            await a.controller.join(joining("w", subscription=name, type=QUEUE), inbox)
        await elected_again(etcd, a)
        await asyncio.sleep(1.0)
        assert [[told.epoch for told in inbox.pushed] for inbox in inboxes] == [[0]] * 3


@virtual_time
async def test_all_consumers_that_are_given_up_together_are_told_in_the_log() -> None:
    async with running(MemoryEtcd(LoopClock()), "a") as [a]:
        await a.controller.create_topic(TOPIC, 4, "")
        link = Inbox()
        for name in ("stays", "w1", "w2"):
            await a.controller.join(joining(name), Inbox() if name == "stays" else link)
        a.controller.disconnected(link)
        with capture_logs() as logs:
            await asyncio.sleep(30.0)
        given_up = [log["consumer"].partition("@")[0] for log in logs if log["event"] == "consumer_given_up"]
        assert given_up == ["w1", "w2"]


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


@virtual_time
async def test_consumers_of_a_full_queue_may_join_again_and_one_more_once_another_has_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """▲ They join again over a new connection and after each change of the controller: refused, they would hear of no
    further layout."""
    monkeypatch.setattr(queue_group, "MAX_CONSUMERS", 2)
    async with running(MemoryEtcd(LoopClock()), "a") as [a]:
        await a.controller.create_topic(TOPIC, 1, "")
        for name in ("w1", "w2", "w1", "w2"):
            await a.controller.join(joining(name, type=QUEUE), Inbox())
        with pytest.raises(Overloaded, match="2 consumers already"):
            await a.controller.join(joining("w3", type=QUEUE), Inbox())
        await a.controller.leave(leaving("w1"), Inbox())
        await a.controller.join(joining("w3", type=QUEUE), Inbox())
        assert a.controller.statistics().connected_consumers == 2
