"""Controllers that die, pause, lose their lease or return, in the middle of their work; in virtual time."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest
from msgspec.structs import replace

from segments.layout.directory import CONTROLLER
from tests.segments.controlling import (
    TOPIC,
    Inbox,
    Process,
    assignment_of,
    joining,
    leaving,
    names_of,
    running,
    subscription_of,
)
from tests.segments.virtual_time import LoopClock, virtual_time
from tests.waiting import until_accepted
from txnstore import keys
from txnstore.memory.memory_etcd import DEFAULT_QUOTA_BYTES, MemoryEtcd
from txnstore.memory.memory_store import Fate
from txnstore.records import Drained, RegistrationRecord, TopicRecord, decode, encode
from txnstore.store import Commit, Delete, Put
from txnwire.errors import DataCorrupt, NotOwner, Timeout, TxnError
from txnwire.ids import Position
from txnwire.proto import txn_pb2 as pb


def lease_of_leader(etcd: MemoryEtcd) -> int:
    record = etcd.mvcc.get(keys.leader(CONTROLLER), 0)
    assert record is not None
    return record.lease


@virtual_time
async def test_of_two_controllers_one_leads_and_the_other_says_where_it_is() -> None:
    async with running(MemoryEtcd(LoopClock()), "a", "b") as [a, b]:
        await b.directory.wait_until(lambda: b.directory.leader(CONTROLLER), timeout_s=10.0, what="a leader")
        assert a.controller.leading
        assert not b.controller.leading
        with pytest.raises(Timeout, match="was not elected controller within"):
            await b.controller.wait_leading(timeout_s=2.0)
        for request in (
            b.controller.create_topic(TOPIC, 1, ""),
            b.controller.join(joining("w"), Inbox()),
            b.controller.leave(leaving("w"), Inbox()),
        ):
            with pytest.raises(NotOwner, match="the controller is at a:1"):
                await request


@virtual_time
async def test_a_controller_that_closes_is_followed_before_its_lease_expires() -> None:
    async with running(MemoryEtcd(LoopClock()), "a", "b") as [a, b]:
        await a.controller.close()
        await b.controller.wait_leading(timeout_s=0.5)
        await b.controller.create_topic(TOPIC, 1, "")


@virtual_time
async def test_a_restarted_controller_does_not_wait_for_its_former_lease() -> None:
    etcd = MemoryEtcd(LoopClock())
    async with running(etcd, "a") as [a]:
        a.kill()  # killed: nothing is given back
        successor = await Process(etcd, "a").start()
        await successor.controller.wait_leading(timeout_s=1.0)
        await successor.controller.create_topic(TOPIC, 1, "")
        await successor.close()


@virtual_time
async def test_two_processes_given_one_id_by_mistake_do_not_go_on_ousting_each_other() -> None:
    etcd = MemoryEtcd(LoopClock())
    async with running(etcd, "a") as [a]:
        twin = await Process(etcd, "a").start()
        await twin.controller.wait_leading(timeout_s=1.0)
        await asyncio.sleep(1.0)
        assert not a.controller.leading
        epoch = twin.controller.statistics().epoch
        await asyncio.sleep(60.0)
        assert twin.controller.statistics().epoch == epoch
        await twin.close()


@virtual_time
async def test_after_a_crash_consumers_have_ten_seconds_to_join_the_successor() -> None:
    async with running(MemoryEtcd(LoopClock()), "a", "b") as [a, b]:
        await a.controller.create_topic(TOPIC, 4, "")
        for name in ("returns", "lost"):
            await a.controller.join(joining(name), Inbox())
        before = await assignment_of(a.store)
        a.kill()
        await b.controller.wait_leading(timeout_s=10.0)
        inbox = Inbox()
        reply = await b.controller.join(joining("returns"), inbox)
        assert reply.epoch == before.epoch
        await asyncio.sleep(9.5)
        assert await assignment_of(b.store) == before
        await asyncio.sleep(1.0)
        after = await assignment_of(b.store)
        assert list(names_of(after)) == ["returns"]
        assert after.epoch == before.epoch + 1
        assert len(inbox.pushed[-1].segments) == 4


@virtual_time
async def test_a_topic_whose_deletion_a_successor_ends_leaves_no_group_to_the_next_of_its_name() -> None:
    """▲ The group would find the next topic without its subscription, and end: nobody could join that (chaos 811)."""
    async with running(MemoryEtcd(LoopClock()), "a", "b") as [a, b]:
        await a.controller.create_topic(TOPIC, 2, "")
        await a.controller.join(joining("w"), Inbox())
        a.kill()
        record = await b.store.get(keys.topic(TOPIC.path))
        assert record is not None
        marked = replace(decode(TopicRecord, record.value, key=record.key), deleting_ms=1)
        await b.store.commit(Commit(puts=(Put(record.key, encode(marked)),)))
        await b.controller.wait_leading(timeout_s=10.0)
        await b.directory.wait_until(lambda: b.directory.topic(TOPIC.path) is None, timeout_s=5.0, what="its end")
        await b.controller.create_topic(TOPIC, 3, "")
        await asyncio.sleep(1.0)
        assert len((await b.controller.join(joining("w", 2), Inbox())).segments) == 3


@virtual_time
async def test_layouts_that_change_while_a_successor_takes_over_are_assigned() -> None:
    async with running(MemoryEtcd(LoopClock()), "a", "b") as [a, b]:
        await a.controller.create_topic(TOPIC, 2, "")
        await a.controller.join(joining("w"), Inbox())
        a.kill()
        takes_up = b.controller._take_up_groups

        async def and_then_it_splits(term: Any) -> None:
            await takes_up(term)
            split = (await b.directory.wait_topic(TOPIC.path)).split(0)
            drained = Put(keys.drained(TOPIC.path, "s", 0), encode(Drained(end=(0, -1))))
            await b.store.commit(Commit(puts=(Put(keys.topic(TOPIC.path), encode(split.record)), drained)))
            await asyncio.sleep(1.0)

        b.controller._take_up_groups = and_then_it_splits  # type: ignore[method-assign]
        await b.controller.wait_leading(timeout_s=20.0)
        await asyncio.sleep(1.0)
        [assigned] = (await assignment_of(b.store)).consumers.values()
        assert set(assigned) == set((await b.directory.wait_topic(TOPIC.path)).active_paths)


@virtual_time
async def test_a_deposed_controller_that_does_not_know_it_yet_changes_nothing() -> None:
    """▲ The epoch in every write: without it the paused controller's writes would all land."""
    etcd = MemoryEtcd(LoopClock())
    async with running(etcd, "a", "b") as [a, b]:
        await a.controller.create_topic(TOPIC, 4, "")
        await a.controller.join(joining("w1"), Inbox())
        a.lag(3600.0)  # nor does it hear of anything
        etcd.expire_lease(lease_of_leader(etcd))
        await b.controller.wait_leading(timeout_s=1.0)
        assert a.controller.leading
        before = etcd.mvcc.revision
        writes = [
            a.controller.join(joining("w2"), Inbox()),
            a.controller.join(joining("w2", subscription="new"), Inbox()),
            a.controller.create_topic(TOPIC._replace(name="new"), 1, ""),
        ]
        for outcome in await asyncio.gather(*writes, return_exceptions=True):
            assert isinstance(outcome, NotOwner)
        assert etcd.mvcc.revision == before
        assert not a.controller.leading


@virtual_time
async def test_a_deposed_controller_finds_out_by_a_refused_topic_too() -> None:
    etcd = MemoryEtcd(LoopClock())
    async with running(etcd, "a", "b") as [a, b]:
        a.lag(3600.0)
        etcd.expire_lease(lease_of_leader(etcd))
        await b.controller.wait_leading(timeout_s=1.0)
        with pytest.raises(NotOwner, match="no longer"):
            await a.controller.create_topic(TOPIC, 1, "")
        await asyncio.sleep(0.1)
        assert not a.controller.leading


@pytest.mark.parametrize("fate", [Fate(arrive_s=None, fail_s=60.0), Fate(arrive_s=0.0, fail_s=60.0)])
@pytest.mark.parametrize("place", [0, 1])
@virtual_time
async def test_a_crash_between_the_writes_of_a_first_join_is_taken_up(fate: Fate, place: int) -> None:
    """The controller dies with the subscription's or the first assignment's write unanswered, landed or not. The
    consumer joins the successor; "latest" is what it was when the subscription came to stand."""
    async with running(MemoryEtcd(LoopClock()), "a", "b") as [a, b]:
        await a.controller.create_topic(TOPIC, 1, "")
        path = (await a.directory.wait_topic(TOPIC.path)).active_paths[0]
        a.positions.answers = {path: Position(1, 1)}
        b.positions.answers = {path: Position(2, 2)}
        a.fates.commits = [Fate()] * place + [fate]
        request = joining("w", start=pb.Start(latest=True))
        interrupted = asyncio.create_task(a.controller.join(request, Inbox()))
        await asyncio.sleep(0.1)
        assert a.fates.commits == [], "nothing was injected"
        a.kill()
        await b.controller.wait_leading(timeout_s=10.0)
        reply = await b.controller.join(request, Inbox())
        assert list(reply.segments) == [path]
        created_by_first = place == 1 or fate.arrive_s is not None
        assert (await subscription_of(b.store)).positions == {path: (1, 1) if created_by_first else (2, 2)}
        record = await assignment_of(b.store)
        assert record.consumers == {f"w@{1:016x}": [path]}
        with pytest.raises(TxnError):
            await interrupted


@virtual_time
async def test_joins_that_race_a_fail_over_end_at_exactly_one_controller() -> None:
    async with running(MemoryEtcd(LoopClock()), "a", "b") as [a, b]:
        await a.controller.create_topic(TOPIC, 8, "")

        async def join_somewhere(name: str) -> pb.Assignment:
            processes = itertools.cycle((a, b))
            return await until_accepted(
                lambda: next(processes).controller.join(joining(name), Inbox()),
                NotOwner,
                f"a controller that takes {name}",
            )

        joins = [asyncio.create_task(join_somewhere(f"w{i}")) for i in range(8)]
        await asyncio.sleep(0)
        closing = asyncio.create_task(a.controller.close())
        await asyncio.gather(*joins, closing)
        await asyncio.sleep(1.0)
        record = await assignment_of(b.store)
        assert list(names_of(record)) == [f"w{i}" for i in range(8)]
        assert [len(held) for held in record.consumers.values()] == [1] * 8


@virtual_time
async def test_the_same_process_elected_again_knows_who_is_still_connected() -> None:
    """etcd is away for longer than the lease: consumers of a live connection need not join again."""
    etcd = MemoryEtcd(LoopClock())
    async with running(etcd, "a") as [a]:
        await a.controller.create_topic(TOPIC, 2, "")
        stays, goes = Inbox(), Inbox()
        await a.controller.join(joining("stays"), stays)
        await a.controller.join(joining("goes"), goes)
        epoch = a.controller.statistics().epoch
        etcd.crash()
        await asyncio.sleep(20.0)
        assert not a.controller.leading
        with pytest.raises(NotOwner, match="no controller is elected"):
            await a.controller.join(joining("new"), Inbox())
        a.controller.disconnected(goes)
        etcd.restart()
        await a.controller.wait_leading(timeout_s=30.0)
        assert a.controller.statistics().epoch > epoch
        await asyncio.sleep(9.0)
        assert list(names_of(await assignment_of(a.store))) == ["goes", "stays"]
        await asyncio.sleep(2.0)
        assert list(names_of(await assignment_of(a.store))) == ["stays"]
        await asyncio.sleep(60.0)
        assert list(names_of(await assignment_of(a.store))) == ["stays"]
        assert len(stays.pushed[-1].segments) == 2


@virtual_time
async def test_a_consumer_that_left_while_nobody_led_is_not_held_for_connected() -> None:
    etcd = MemoryEtcd(LoopClock())
    async with running(etcd, "a") as [a]:
        await a.controller.create_topic(TOPIC, 2, "")
        inbox = Inbox()
        await a.controller.join(joining("w"), inbox)
        etcd.crash()
        await asyncio.sleep(20.0)
        with pytest.raises(NotOwner):
            await a.controller.leave(leaving("w"), inbox)
        etcd.restart()
        await a.controller.wait_leading(timeout_s=30.0)
        await asyncio.sleep(11.0)
        assert (await assignment_of(a.store)).consumers == {}


@virtual_time
async def test_a_consumer_that_left_while_another_led_is_not_held_for_connected() -> None:
    """Its connection to the first controller has outlived it there, and that one is elected again."""
    etcd = MemoryEtcd(LoopClock())
    async with running(etcd, "a", "b") as [a, b]:
        await a.controller.create_topic(TOPIC, 2, "")
        left_open, second = Inbox(), Inbox()
        await a.controller.join(joining("w"), left_open)
        etcd.expire_lease(lease_of_leader(etcd))
        await b.controller.wait_leading(timeout_s=5.0)
        await b.controller.join(joining("w"), second)
        await b.controller.leave(leaving("w"), second)
        await b.controller.close()
        await a.controller.wait_leading(timeout_s=5.0)
        await a.controller.join(joining("x"), Inbox())
        assert list(names_of(await assignment_of(a.store))) == ["x"]
        assert not any(one.segments for one in left_open.pushed)
        assert a.controller.statistics().connected_consumers == 1


@virtual_time
async def test_a_successor_whose_directory_lags_takes_no_segment_from_anyone() -> None:
    async with running(MemoryEtcd(LoopClock()), "a", "b") as [a, b]:
        b.directory_fates.watch_lag_s = 60.0
        await a.controller.create_topic(TOPIC, 2, "")
        await a.controller.join(joining("w"), Inbox())
        before = await assignment_of(a.store)
        await a.controller.close()
        await b.controller.wait_leading(timeout_s=1.0)
        assert b.directory.topic(TOPIC.path) is None
        await asyncio.sleep(5.0)
        assert await assignment_of(b.store) == before
        assert (await b.controller.join(joining("w"), Inbox())).epoch == before.epoch


@virtual_time
async def test_an_unreadable_assignment_stops_neither_the_take_over_nor_other_subscriptions() -> None:
    etcd = MemoryEtcd(LoopClock())
    async with running(etcd, "a", "b") as [a, b]:
        await a.controller.create_topic(TOPIC, 1, "")
        await a.controller.join(joining("w", subscription="good"), Inbox())
        await a.store.commit(Commit(puts=(Put(keys.assignment(TOPIC.path, "bad"), b'{"v":1'),)))
        await a.controller.close()
        await b.controller.wait_leading(timeout_s=1.0)
        assert b.controller.statistics().subscriptions == 1, "it goes on with the other, whose consumer is on its way"
        await b.controller.join(joining("w", subscription="good"), Inbox())
        with pytest.raises(DataCorrupt, match=f"/assignment/{TOPIC.path}/bad"):
            await b.controller.join(joining("w", subscription="bad"), Inbox())


@virtual_time
async def test_an_assignment_that_could_not_be_written_is_written_once_what_was_wrong_is_mended() -> None:
    """Though nobody comes or goes meanwhile: its segments would have no consumer."""
    async with running(MemoryEtcd(LoopClock()), "a") as [a]:
        key = keys.assignment(TOPIC.path, "sub")
        await a.controller.create_topic(TOPIC, 2, "")
        await a.controller.join(joining("one", subscription="sub"), Inbox())
        await a.store.commit(Commit(puts=(Put(key, b"garbage"),)))
        two = Inbox()
        with pytest.raises(DataCorrupt):
            await a.controller.join(joining("two", subscription="sub"), two)
        await asyncio.sleep(3.0)
        await a.store.commit(Commit(deletes=(Delete(key),)))
        await asyncio.sleep(3.0)
        assert two.pushed, "it is a member, and hears of its segments"
        assert len(two.pushed[-1].segments) == 1


@virtual_time
async def test_a_leader_key_replaced_behind_its_back_ends_the_term() -> None:
    etcd = MemoryEtcd(LoopClock())
    async with running(etcd, "a") as [a]:
        key = keys.leader(CONTROLLER)
        other = encode(RegistrationRecord(id="operator", address="elsewhere:1"))
        etcd.expire_lease(lease_of_leader(etcd))
        await a.store.commit(Commit(puts=(Put(key, other),)))
        await asyncio.sleep(1.0)
        assert not a.controller.leading


@pytest.mark.parametrize("fate", [Fate(arrive_s=None, fail_s=0.5), Fate(arrive_s=0.0, fail_s=0.5)])
@virtual_time
async def test_e2_an_election_whose_answer_is_lost_is_won_once(fate: Fate) -> None:
    etcd = MemoryEtcd(LoopClock())
    process = Process(etcd, "a")
    process.fates.commits = [fate]
    await process.start()
    try:
        await process.controller.wait_leading(timeout_s=5.0)
        assert process.fates.commits == [], "nothing was injected"
        record = etcd.mvcc.get(keys.leader(CONTROLLER), 0)
        assert record is not None
        assert process.controller.statistics().epoch == record.create_revision
        await process.controller.create_topic(TOPIC, 1, "")
    finally:
        await process.close()
    assert etcd.mvcc.get(keys.leader(CONTROLLER), 0) is None


@virtual_time
async def test_e3_a_join_whose_assignment_finds_no_room_in_etcd_waits_for_it() -> None:
    """Its client would take the refusal for one of the join, and not know that it is a member."""
    etcd = MemoryEtcd(LoopClock())
    async with running(etcd, "a") as [a]:
        await a.controller.create_topic(TOPIC, 2, "")
        await a.controller.join(joining("first"), Inbox())
        etcd.quota_bytes = 0
        joined = asyncio.ensure_future(a.controller.join(joining("second"), Inbox()))
        await asyncio.sleep(3.0)
        assert not joined.done()
        etcd.quota_bytes, etcd.no_space = DEFAULT_QUOTA_BYTES, False
        assert len((await joined).segments) == 1
