"""Consumers that stay connected while the same controller is elected again, and what comes as a term begins or ends; in
virtual time."""

from __future__ import annotations

import asyncio
import random
from itertools import product
from typing import Any

import pytest

from segments.controller.stream_group import StreamGroup
from segments.controller.term_work import no_controller
from tests.segments.controller.test_controller_failover import lease_of_leader
from tests.segments.controlling import (
    TOPIC,
    Inbox,
    Process,
    assignment_of,
    joining,
    leaving,
    names_of,
    running,
)
from tests.segments.virtual_time import LoopClock, virtual_time
from txnstore import keys
from txnstore.memory.memory_etcd import MemoryEtcd
from txnstore.memory.memory_store import Fate, MemoryStore
from txnstore.records import AssignmentRecord, SubscriptionRecord, encode
from txnstore.store import Commit, MetadataStore, Put, RangeResult
from txnwire.errors import DataCorrupt, NotOwner, StoreUnavailable
from txnwire.ids import Position
from txnwire.proto import txn_pb2 as pb
from txnwire.tasks import Tasks


async def elected_again(etcd: MemoryEtcd, process: Process) -> None:
    """etcd is away for longer than a lease lasts; connections of consumers stay."""
    etcd.crash()
    await asyncio.sleep(20.0)
    etcd.restart()
    await process.controller.wait_leading(timeout_s=30.0)


@virtual_time
async def test_queue_consumers_hear_of_layouts_when_the_same_process_is_elected_again() -> None:
    """▲ Nothing in etcd names them: they are told to join again, and are told of layouts from then on."""
    etcd = MemoryEtcd(LoopClock())
    async with running(etcd, "a") as [a]:
        await a.controller.create_topic(TOPIC, 2, "")
        inbox = Inbox()
        await a.controller.join(joining("w", type=pb.SUBSCRIPTION_TYPE_QUEUE), inbox)
        await elected_again(etcd, a)
        assert [told.epoch for told in inbox.pushed] == [0]
        request = joining("w", type=pb.SUBSCRIPTION_TYPE_QUEUE)
        request.again = True
        await a.controller.join(request, inbox)
        split = (await a.directory.wait_topic(TOPIC.path)).split(0)
        await a.store.commit(Commit(puts=(Put(keys.topic(TOPIC.path), encode(split.record)),)))
        await asyncio.sleep(5.0)
        assert len(inbox.pushed[-1].segments) == 4


@virtual_time
async def test_what_the_last_term_wrote_without_an_answer_is_told_by_the_next_one() -> None:
    """▲ It is what members and layout call for, so nothing is written any more, and nobody else would tell it."""
    etcd = MemoryEtcd(LoopClock())
    async with running(etcd, "a") as [a]:
        await a.controller.create_topic(TOPIC, 2, "")
        first, second = Inbox(), Inbox()
        await a.controller.join(joining("first"), first)
        a.fates.commits = [Fate(arrive_s=0.001, fail_s=15.0)]
        join = asyncio.ensure_future(a.controller.join(joining("second"), second))
        await asyncio.sleep(1.0)
        assert len((await assignment_of(a.store)).consumers) == 2
        assert not first.pushed
        await elected_again(etcd, a)
        await asyncio.sleep(1.0)
        await asyncio.gather(join, return_exceptions=True)
        record = await assignment_of(a.store)
        for inbox in (first, second):
            assert [(one.epoch, len(one.segments)) for one in inbox.pushed][-1:] == [(record.epoch, 1)]


@pytest.mark.parametrize("leaves", [False, True], ids=["disconnects", "leaves"])
@virtual_time
async def test_a_consumer_that_goes_during_a_take_over_is_given_up(leaves: bool) -> None:
    """▲ Its group has been taken up, and nobody leads yet who could be told."""
    etcd = MemoryEtcd(LoopClock())
    async with running(etcd, "a") as [a]:
        await a.controller.create_topic(TOPIC, 2, "")
        goes, stays = Inbox(), Inbox()
        for subscription in ("s", "other"):
            for name in ("goes", "goes-too"):
                await a.controller.join(joining(name, subscription=subscription), goes)
            await a.controller.join(joining("stays", subscription=subscription), stays)
        range_really = a.store.range

        async def slow(start: bytes, *others: Any, **options: Any) -> Any:
            if start == keys.TOPIC:  # of deletions, behind the groups
                if leaves:
                    for subscription, name in product(("s", "other"), ("goes", "goes-too")):
                        leave = leaving(name)
                        leave.subscription = subscription
                        with pytest.raises(NotOwner):
                            await a.controller.leave(leave, goes)
                else:
                    a.controller.disconnected(goes)
            return await range_really(start, *others, **options)

        a.store.range = slow  # type: ignore[method-assign]
        await elected_again(etcd, a)
        await asyncio.sleep(30.0)
        for subscription in ("s", "other"):
            assert list(names_of(await assignment_of(a.store, subscription))) == ["stays"]


class NeverAnswered:
    """A store whose commits get no answer."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def commit(self, commit: Commit) -> None:
        await asyncio.sleep(3600.0)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


@pytest.mark.parametrize("turns", range(12))
@virtual_time
async def test_a_join_that_is_answered_as_the_term_ends_does_not_end_the_controller(turns: int) -> None:
    """At whatever turn of the loop: groups are being closed, each waiting for what it writes."""
    etcd = MemoryEtcd(LoopClock())
    async with running(etcd, "a") as [a]:
        await a.controller.create_topic(TOPIC, 2, "")
        for number in range(5):
            await a.controller.join(joining("w", subscription=f"s{number}"), Inbox())
        known = SubscriptionRecord(type="queue", start={"kind": "earliest"})
        await a.store.commit(Commit(puts=(Put(keys.subscription(TOPIC.path, "queue"), encode(known)),)))
        term = a.controller._term
        assert term is not None
        read_really = a.store.get_many

        async def late(wanted: Any, **options: Any) -> Any:
            found = await read_really(wanted, **options)
            await term.deposed.wait()
            for _ in range(turns):
                await asyncio.sleep(0)
            return found

        a.store.get_many = late  # type: ignore[method-assign]
        queue = joining("w", subscription="queue", type=pb.SUBSCRIPTION_TYPE_QUEUE)
        join = asyncio.ensure_future(a.controller.join(queue, Inbox()))
        await asyncio.sleep(0.5)
        for group in term.groups._groups.values():
            assert isinstance(group, StreamGroup)
            group._store = NeverAnswered(group._store)  # type: ignore[assignment]
            group._membership.join("another@1")
            group.refresh()
        await asyncio.sleep(0.01)
        etcd.expire_lease(lease_of_leader(etcd))
        await asyncio.sleep(0.2)
        a.store.get_many = read_really  # type: ignore[method-assign]
        await asyncio.gather(join, return_exceptions=True)
        await a.controller.wait_leading(timeout_s=30.0)


@pytest.mark.parametrize("turns", range(12, 26))
@virtual_time
async def test_a_controller_that_is_closed_while_its_term_ends_ends_every_group(turns: int) -> None:
    """▲ At whatever turn of the loop: groups are being closed, each waiting for what it writes."""
    etcd = MemoryEtcd(LoopClock())
    async with running(etcd, "a") as [a]:
        await a.controller.create_topic(TOPIC, 2, "")
        for number in range(5):
            await a.controller.join(joining("w", subscription=f"s{number}"), Inbox())
        term = a.controller._term
        assert term is not None
        groups = [group for group in term.groups._groups.values() if isinstance(group, StreamGroup)]
        for group in groups:
            group._store = NeverAnswered(group._store)  # type: ignore[assignment]
            group._membership.join("another@1")
            group.refresh()
        await asyncio.sleep(0.01)
        assert all(group._settling is not None for group in groups)
        term.deposed.set()
        for _ in range(turns):
            await asyncio.sleep(0)
        await a.controller.close()
        assert [group._settling for group in groups] == [None] * 5


@pytest.mark.parametrize("turns", range(8, 18))
@virtual_time
async def test_a_deletion_that_waits_for_mending_ends_with_a_controller_that_is_closed_as_its_term_ends(
    turns: int,
) -> None:
    """▲ At whatever turn of the loop: it waits for another deletion, which is under way."""
    etcd = MemoryEtcd(LoopClock())
    async with running(etcd, "a") as [a]:
        await a.controller.create_topic(TOPIC, 2, "")
        layout = await a.directory.wait_topic(TOPIC.path)
        a.positions.answers = dict.fromkeys(layout.paths.values(), Position(1, 0))
        await a.controller.join(joining("w"), Inbox())
        await a.controller.join(joining("w", subscription="other"), Inbox())
        a.positions.damaged[layout.paths[1]] = DataCorrupt("1.ledger: offset 434: checksum damaged")
        with pytest.raises(DataCorrupt):
            await a.controller.delete_subscription(TOPIC, "s", force=True)
        a.positions.pause_s = 5.0
        other = asyncio.ensure_future(a.controller.delete_subscription(TOPIC, "other", force=True))
        await asyncio.sleep(1.0)
        term = a.controller._term
        assert term is not None
        term.deposed.set()
        for _ in range(turns):
            await asyncio.sleep(0)
        await a.controller.close()
        await asyncio.gather(other, return_exceptions=True)
        asked = len(a.positions.asked)
        await asyncio.sleep(60.0)
        assert len(a.positions.asked) == asked


@virtual_time
async def test_a_deletion_that_is_asked_for_as_a_term_ends_is_not_begun_by_it() -> None:
    """▲ It would go on beside the next term's, for as long as what it waits for is damaged."""
    etcd = MemoryEtcd(LoopClock())
    async with running(etcd, "a") as [a]:
        await a.controller.create_topic(TOPIC, 2, "")
        layout = await a.directory.wait_topic(TOPIC.path)
        a.positions.answers = dict.fromkeys(layout.paths.values(), Position(1, 0))
        await a.controller.join(joining("w"), Inbox())
        a.positions.damaged[layout.paths[1]] = DataCorrupt("1.ledger: offset 434: checksum damaged")
        with pytest.raises(DataCorrupt):
            await a.controller.delete_subscription(TOPIC, "s", force=True)
        read_really, closed = a.store.get_many, asyncio.Event()

        async def late(wanted: Any, **options: Any) -> Any:
            found = await read_really(wanted, **options)
            await closed.wait()
            return found

        a.store.get_many = late  # type: ignore[assignment, method-assign]
        again = asyncio.ensure_future(a.controller.delete_subscription(TOPIC, "s", force=True))
        await asyncio.sleep(0.5)
        await a.controller.close()
        asked = len(a.positions.asked)
        closed.set()
        with pytest.raises(NotOwner):
            await again
        await asyncio.sleep(60.0)
        assert len(a.positions.asked) == asked


@virtual_time
async def test_a_join_that_waits_for_an_owner_as_its_term_ends_makes_no_group_in_it() -> None:
    """▲ Nobody would close it: it would go on with assignments beside the next controller's."""
    async with running(MemoryEtcd(LoopClock()), "a") as [a]:
        await a.controller.create_topic(TOPIC, 2, "")
        layout = await a.directory.wait_topic(TOPIC.path)
        a.positions.answers = dict.fromkeys(layout.paths.values(), Position(1, 0))
        a.positions.pause_s = 1.0
        waiting = asyncio.ensure_future(a.controller.join(joining("w", start=pb.Start(latest=True)), Inbox()))
        await asyncio.sleep(0.5)
        term = a.controller._term
        assert term is not None
        await term.groups.close(no_controller())
        with pytest.raises(NotOwner):
            await waiting
        assert len(term.groups) == 0


@virtual_time
async def test_a_consumer_that_another_controller_has_given_up_is_told_to_join_again() -> None:
    """It has heard nothing of that one: its connection to the first, which leads again, stands."""
    etcd = MemoryEtcd(LoopClock())
    async with running(etcd, "a", "b") as [a, b]:
        await a.controller.create_topic(TOPIC, 2, "")
        inbox = Inbox()
        await a.controller.join(joining("w"), inbox)
        etcd.expire_lease(lease_of_leader(etcd))
        await b.controller.wait_leading(timeout_s=5.0)
        await asyncio.sleep(11.0)
        assert not names_of(await assignment_of(b.store))
        await b.controller.close()
        await a.controller.wait_leading(timeout_s=5.0)
        assert (inbox.pushed[-1].epoch, inbox.pushed[-1].consumer) == (0, "w")
        again = joining("w")
        again.again = True
        assert len((await a.controller.join(again, inbox)).segments) == 2


class _Largest(MemoryStore):
    """Notes the largest answer of a range; the first that is asked for behind a first page fails."""

    largest = 0
    fails = True

    async def range(
        self,
        start: bytes,
        end: bytes,
        *,
        revision: int = 0,
        keys_only: bool = False,
        limit: int = 0,
        timeout_s: float = 30.0,
    ) -> RangeResult:
        if start.startswith(keys.ASSIGNMENT) and start != keys.ASSIGNMENT and self.fails:
            self.fails = False
            raise StoreUnavailable("as the test wants it")
        found = await super().range(
            start, end, revision=revision, keys_only=keys_only, limit=limit, timeout_s=timeout_s
        )
        self.largest = max(self.largest, len(found.records))
        return found


@virtual_time
async def test_a_term_takes_up_however_many_subscriptions_in_pages() -> None:
    """What was taken up before etcd was away goes on as it is."""
    etcd = MemoryEtcd(LoopClock())
    process = Process(etcd, "a")
    store = process.store
    process.controller._store = large = _Largest(etcd, LoopClock(), random.Random(1), name="a")
    for at in range(0, 2500, 50):
        names = [f"s{number}" for number in range(at, at + 50)]
        assigned = [
            Put(keys.assignment(TOPIC.path, name), encode(AssignmentRecord(epoch=1, consumers={}))) for name in names
        ]
        value = encode(SubscriptionRecord(type="stream", start={"kind": "earliest"}))
        await store.commit(Commit(puts=tuple(assigned)))
        await store.commit(Commit(puts=tuple(Put(keys.subscription(TOPIC.path, name), value) for name in names)))
    tasks = Tasks()
    with tasks.in_charge():
        await process.start()
    await process.controller.wait_leading(timeout_s=10.0)
    assert process.controller.statistics().subscriptions == 2500
    assert large.largest <= 1000
    assert not large.fails
    assert tasks.failures == {}, "an outage is no defect of the controller, nor the end of its term"
    await process.close()
    await large.close()
