"""The controller's part of deletion: mark, wait, forget; in virtual time, with controllers that die behind any step."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from random import Random

import pytest
from structlog.testing import capture_logs

from segments.controller.deletions import SEGMENTS_AT_ONCE, Deletions
from segments.controller.stream_groups import StreamGroups
from segments.controller.topic_users import TopicUsers
from segments.layout.topology import Topology
from tests.segments.controlling import TOPIC, Fates, Inbox, Process, joining, running, subscription_of
from tests.segments.virtual_time import LoopClock, virtual_time
from txnstore import keys, records
from txnstore.election import Leadership
from txnstore.memory.memory_etcd import MemoryEtcd
from txnstore.memory.memory_store import NO_FAULT, Fate, MemoryStore
from txnstore.records import SubscriptionRecord, TopicRecord
from txnstore.store import Commit, Delete, KeyValue, Lease, Put, absent
from txnstore.writes.deletion_transitions import plan_mark_topic
from txnwire.errors import (
    DataCorrupt,
    InvalidArgument,
    NotAllowed,
    NotOwner,
    Overloaded,
    SubscriptionNotFound,
    Timeout,
    TopicExists,
    TopicNotFound,
    TxnError,
)
from txnwire.ids import Position
from txnwire.proto import txn_pb2 as pb

NOT_OURS = (keys.LEADER, keys.INCARNATION, keys.SENDER, keys.DATA_FOLDER)
SEGMENTS = ("public/nyc/flights/0000-7fff-0", "public/nyc/flights/8000-ffff-1")


def names(etcd: MemoryEtcd) -> list[str]:
    """Of everything but elections and fences."""
    found = etcd.mvcc.range(b"\0", b"\xff")[0]
    return [record.key.decode() for record in found if not record.key.startswith(NOT_OURS)]


def topic_record(etcd: MemoryEtcd) -> TopicRecord:
    found = etcd.mvcc.get(keys.topic(TOPIC.path), 0)
    assert found is not None
    return records.decode(TopicRecord, found.value, key=found.key)


async def own(process: Process, *paths: str) -> None:
    for path in paths:
        for key in (keys.owner(path), keys.ledger(path)):
            await process.store.commit(Commit(puts=(Put(key, b'{"broker":"b","address":"b:1","ledgers":[]}'),)))


async def let_go(process: Process, *paths: str) -> None:
    """As an owner does that has erased its segment."""
    for path in paths:
        deletes = (Delete(keys.owner(path)), Delete(keys.ledger(path)))
        await process.store.commit(Commit(deletes=deletes))


class DiesBehind:
    """The process's commits number `left` go well, the next one may still land, and nothing after it is heard of."""

    def __init__(self, left: int, *, silent: bool) -> None:
        self.left = left
        self.silent = silent
        self.dead = False

    def fate(self, request: str, client: str) -> Fate:
        if self.dead:
            return Fate(arrive_s=None, fail_s=0.05)
        if request != "commit":
            return NO_FAULT
        self.left -= 1
        if self.left >= 0:
            return NO_FAULT
        self.dead = True
        return Fate(arrive_s=0.0 if self.silent else None, fail_s=0.05)

    def watch_delay_s(self, client: str) -> float:
        return 0.0


@virtual_time
async def test_a_topic_goes_once_its_segments_owners_are_done() -> None:
    etcd = MemoryEtcd(LoopClock())
    async with running(etcd, "a") as [a]:
        await a.controller.create_topic(TOPIC, 2, "")
        await own(a, *SEGMENTS)
        await a.directory.wait_owner(SEGMENTS[1])
        deleting = asyncio.ensure_future(a.controller.delete_topic(TOPIC, force=False))
        await asyncio.sleep(1.0)
        assert topic_record(etcd).deleting_ms
        with pytest.raises(TopicNotFound):
            await a.controller.join(joining("w"), Inbox())
        await let_go(a, SEGMENTS[0])
        await asyncio.sleep(5.0)
        assert not deleting.done()
        await let_go(a, SEGMENTS[1])
        await deleting
        assert names(etcd) == ["/segment-ids"]
        with pytest.raises(TopicNotFound):
            await a.controller.delete_topic(TOPIC, force=False)


@pytest.mark.parametrize(
    "left",
    [
        keys.ledger(SEGMENTS[0]),
        keys.ledger_page(SEGMENTS[0], 1),
        keys.owner(SEGMENTS[1]),
        keys.watermark(SEGMENTS[0]),
        keys.writes_by_segment(SEGMENTS[0]) + b"0001-0000000000000001",
        keys.acks_by_segment_subscription(SEGMENTS[1], "s") + b"0001-0000000000000001",
    ],
)
@virtual_time
async def test_s8_the_record_stays_while_a_segment_has_anything_left(left: bytes) -> None:
    etcd = MemoryEtcd(LoopClock())
    async with running(etcd, "a") as [a]:
        await a.controller.create_topic(TOPIC, 2, "")
        await a.store.commit(Commit(puts=(Put(left, b'{"broker":"b","address":"b:1"}'),)))
        with pytest.raises(Timeout, match="not confirmed within"):
            await a.controller.delete_topic(TOPIC, force=True)
        assert topic_record(etcd).deleting_ms
        await a.store.commit(Commit(deletes=(Delete(left),)))
        with suppress(TopicNotFound):
            await a.controller.delete_topic(TOPIC, force=True)
        assert names(etcd) == ["/segment-ids"]


@virtual_time
async def test_ids_of_deleted_topics_are_never_used_again() -> None:
    etcd = MemoryEtcd(LoopClock())
    async with running(etcd, "a") as [a]:
        for first in (0, 3, 6):
            await a.controller.create_topic(TOPIC, 3, "")
            assert [entry.id for entry in topic_record(etcd).segments] == [first, first + 1, first + 2]
            await a.controller.delete_topic(TOPIC, force=True)


@virtual_time
async def test_a_topic_created_while_its_namesake_is_deleted_waits_for_the_end() -> None:
    etcd = MemoryEtcd(LoopClock())
    async with running(etcd, "a") as [a]:
        await a.controller.create_topic(TOPIC, 2, "")
        await own(a, SEGMENTS[0])
        await a.directory.wait_owner(SEGMENTS[0])
        deleting = asyncio.ensure_future(a.controller.delete_topic(TOPIC, force=True))
        await asyncio.sleep(0.5)
        creating = asyncio.ensure_future(a.controller.create_topic(TOPIC, 1, ""))
        await asyncio.sleep(0.5)
        assert not creating.done()
        await let_go(a, SEGMENTS[0])
        await asyncio.gather(deleting, creating)
        assert [entry.id for entry in topic_record(etcd).segments] == [2]
        assert not topic_record(etcd).deleting_ms


@virtual_time
async def test_a_topic_in_use_is_refused_without_force() -> None:
    etcd = MemoryEtcd(LoopClock())
    async with running(etcd, "a") as [a]:
        await a.controller.create_topic(TOPIC, 2, "")
        await own(a, *SEGMENTS)
        await a.directory.wait_owner(SEGMENTS[1])
        a.positions.connected = {SEGMENTS[0]: (1, 2), SEGMENTS[1]: (1, 1)}
        with pytest.raises(NotAllowed, match="2 producers and 3 consumers"):
            await a.controller.delete_topic(TOPIC, force=False)
        assert not topic_record(etcd).deleting_ms


@pytest.mark.parametrize("silent", [False, True], ids=["lost", "landed"])
@pytest.mark.parametrize("steps", range(4))
@virtual_time
async def test_s8_the_next_controller_goes_on_behind_any_step(steps: int, silent: bool) -> None:
    """Steps: the marks of a topic and of a subscription of another, and their ends."""
    other = type(TOPIC)("public", "nyc", "delays")
    etcd = MemoryEtcd(LoopClock())
    async with running(etcd, "a", "b") as [a, b]:
        await a.controller.create_topic(TOPIC, 2, "")
        await a.controller.create_topic(other, 1, "")
        segment = "public/nyc/delays/0000-ffff-0"
        for process in (a, b):
            process.positions.answers[segment] = Position(1, 0)
        await a.controller.join(joining("w", topic=str(other)), Inbox())
        await a.controller.leave(
            pb.LeaveSubscription(topic=str(other), subscription="s", consumer="w", incarnation=1), Inbox()
        )
        await own(a, SEGMENTS[0])
        await b.directory.wait_owner(SEGMENTS[0])
        dying = DiesBehind(steps, silent=silent)
        a.fates.fate = dying.fate  # type: ignore[method-assign]
        asked = [
            asyncio.ensure_future(a.controller.delete_topic(TOPIC, force=True)),
            asyncio.ensure_future(a.controller.delete_subscription(other, "s", force=True)),
        ]
        await asyncio.sleep(0.2)
        await let_go(b, SEGMENTS[0])
        await asyncio.sleep(1.0)
        a.kill()
        await b.controller.wait_leading(timeout_s=60.0)
        with suppress(TopicNotFound):
            await b.controller.delete_topic(TOPIC, force=True)
        with suppress(SubscriptionNotFound):
            await b.controller.delete_subscription(other, "s", force=True)
        assert names(etcd) == ["/segment-ids", "/topic/public/nyc/delays"]
        await a.controller.close()
        for end in await asyncio.gather(*asked, return_exceptions=True):
            assert end is None or isinstance(end, TxnError), end


@virtual_time
async def test_a_mark_found_at_the_start_of_a_term_is_gone_on_with() -> None:
    etcd = MemoryEtcd(LoopClock())
    async with running(etcd, "a", "b") as [a, b]:
        await a.controller.create_topic(TOPIC, 2, "")
        await own(a, SEGMENTS[0])
        await a.directory.wait_owner(SEGMENTS[0])
        asked = asyncio.ensure_future(a.controller.delete_topic(TOPIC, force=True))
        await asyncio.sleep(0.5)
        a.kill()
        await b.controller.wait_leading(timeout_s=60.0)
        await let_go(b, SEGMENTS[0])
        await asyncio.sleep(5.0)
        assert names(etcd) == ["/segment-ids"], "nobody has asked again"
        asked.cancel()


@virtual_time
async def test_p9_a_marked_subscription_found_at_the_start_of_a_term_is_gone_on_with() -> None:
    """Nobody could join it any more, and what it keeps could not be trimmed."""
    etcd = MemoryEtcd(LoopClock())
    async with running(etcd, "a", "b") as [a, b]:
        await a.controller.create_topic(TOPIC, 2, "")
        a.positions.answers = {SEGMENTS[0]: Position(1, 0)}
        await a.controller.join(joining("w"), Inbox())
        asked = asyncio.ensure_future(a.controller.delete_subscription(TOPIC, "s", force=True))
        await asyncio.sleep(1.0)
        assert (await subscription_of(a.store)).deleting_ms, "the second segment has no owner at the moment"
        a.kill()
        b.positions.answers = dict.fromkeys(SEGMENTS, Position(1, 0))
        await b.controller.wait_leading(timeout_s=60.0)
        await asyncio.sleep(5.0)
        assert names(etcd) == ["/topic/public/nyc/flights"], "nobody has asked again"
        asked.cancel()


@virtual_time
async def test_an_unreadable_record_keeps_no_controller_from_leading() -> None:
    etcd = MemoryEtcd(LoopClock())
    async with running(etcd, "a", "b") as [a, b]:
        await a.controller.create_topic(TOPIC, 2, "")
        for key in (keys.topic("public/nyc/broken"), keys.subscription(TOPIC.path, "broken")):
            await a.store.commit(Commit(puts=(Put(key, b"?"),)))
        a.kill()
        await b.controller.wait_leading(timeout_s=60.0)
        await b.controller.delete_topic(TOPIC, force=True)


@virtual_time
async def test_p9_a_subscription_goes_once_every_owner_has_dropped_it() -> None:
    etcd = MemoryEtcd(LoopClock())
    async with running(etcd, "a") as [a]:
        await a.controller.create_topic(TOPIC, 2, "")
        a.positions.answers = {SEGMENTS[0]: Position(1, 0)}
        inbox = Inbox()
        await a.controller.join(joining("w"), inbox)
        deleting = asyncio.ensure_future(a.controller.delete_subscription(TOPIC, "s", force=True))
        await asyncio.sleep(1.0)
        assert (await subscription_of(a.store)).deleting_ms, "the second segment has no owner at the moment"
        with pytest.raises(Overloaded, match="being deleted"):
            await a.controller.join(joining("w"), inbox)
        a.positions.answers[SEGMENTS[1]] = Position(1, 0)
        await deleting
        assert sorted(dict.fromkeys(a.positions.dropped)) == [(path, "s") for path in SEGMENTS]
        assert names(etcd) == ["/topic/public/nyc/flights"]
        with pytest.raises(SubscriptionNotFound):
            await a.controller.delete_subscription(TOPIC, "s", force=True)
        await a.controller.join(joining("w"), inbox)
        assert not (await subscription_of(a.store)).deleting_ms


@virtual_time
async def test_p9_a_controller_keeps_nothing_of_subscriptions_that_are_gone() -> None:
    """Each reader of a short-lived job may have one of its own."""
    async with running(MemoryEtcd(LoopClock()), "a") as [a]:
        await a.controller.create_topic(TOPIC, 2, "")
        a.positions.answers = dict.fromkeys(SEGMENTS, Position(1, 0))
        await a.controller.join(joining("w"), Inbox())
        await a.controller.delete_subscription(TOPIC, "s", force=True)
        term = a.controller._term
        assert term is not None
        with pytest.raises(TopicNotFound):
            await a.controller.join(joining("w", topic="topic://public/nyc/misspelt"), Inbox())
        assert (term.groups._groups, len(term.groups._opening), term.groups._links) == ({}, 0, {})


@virtual_time
async def test_p9_of_a_topic_with_many_segments_every_owner_drops_a_deleted_subscription() -> None:
    """What one of them kept would be the next one's of the name: its cursor, and acks that are pending."""
    etcd = MemoryEtcd(LoopClock())
    async with running(etcd, "a") as [a]:
        await a.controller.create_topic(TOPIC, 2 * SEGMENTS_AT_ONCE + 1, "")
        paths = Topology(TOPIC, topic_record(etcd)).active_paths
        a.positions.answers = dict.fromkeys(paths, Position(1, 0))
        await a.controller.join(joining("w"), Inbox())
        await a.controller.delete_subscription(TOPIC, "s", force=True)
        assert sorted(a.positions.dropped) == sorted((path, "s") for path in paths)


@virtual_time
async def test_a_deletion_goes_on_once_what_was_damaged_is_mended() -> None:
    """Whoever waits is told; whoever mends it knows of no deletion, and the term goes on."""
    etcd = MemoryEtcd(LoopClock())
    async with running(etcd, "a") as [a]:
        await a.controller.create_topic(TOPIC, 2, "")
        a.positions.answers = dict.fromkeys(SEGMENTS, Position(1, 0))
        await a.controller.join(joining("w"), Inbox())
        a.positions.damaged[SEGMENTS[1]] = DataCorrupt(f"{SEGMENTS[1]}/1.ledger: offset 434: checksum damaged")
        for _ in range(20):
            with pytest.raises(DataCorrupt, match="offset 434"):
                await a.controller.delete_subscription(TOPIC, "s", force=True)
            await asyncio.sleep(0.5)
        a.positions.asked.clear()
        await asyncio.sleep(60.0)
        assert len(a.positions.asked) <= 7 * len(SEGMENTS), "by one task, however often it was asked for"
        assert (await subscription_of(a.store)).deleting_ms
        a.positions.damaged.clear()
        await asyncio.sleep(15.0)
        assert names(etcd) == ["/topic/public/nyc/flights"], "nobody has asked again"


@virtual_time
async def test_a_deletion_that_waits_for_mending_ends_with_its_term() -> None:
    etcd = MemoryEtcd(LoopClock())
    async with running(etcd, "a", "b") as [a, b]:
        await a.controller.create_topic(TOPIC, 2, "")
        a.positions.answers = dict.fromkeys(SEGMENTS, Position(1, 0))
        await a.controller.join(joining("w"), Inbox())
        a.positions.damaged[SEGMENTS[1]] = DataCorrupt(f"{SEGMENTS[1]}/1.ledger: offset 434: checksum damaged")
        with pytest.raises(DataCorrupt):
            await a.controller.delete_subscription(TOPIC, "s", force=True)
        await a.controller.close()
        asked = len(a.positions.asked)
        await b.controller.wait_leading(timeout_s=60.0)
        await asyncio.sleep(60.0)
        assert len(a.positions.asked) == asked


@virtual_time
async def test_p9_a_member_that_no_broker_has_taken_in_is_told_that_its_subscription_is_gone() -> None:
    """It holds an assignment and is on its way to the broker: by that alone it would ask there for ever."""
    async with running(MemoryEtcd(LoopClock()), "a") as [a]:
        await a.controller.create_topic(TOPIC, 2, "")
        a.positions.answers = dict.fromkeys(SEGMENTS, Position(1, 0))
        inbox = Inbox()
        await a.controller.join(joining("w"), inbox)
        await a.controller.delete_subscription(TOPIC, "s", force=True)
        assert [(told.epoch, told.incarnation) for told in inbox.pushed][-1:] == [(0, 1)], "join again"
        request = joining("w")
        request.again = True
        with pytest.raises(SubscriptionNotFound):
            await a.controller.join(request, inbox)


class SlowFirstRead(Fates):
    """The next read is answered late, with what it found at once."""

    def __init__(self) -> None:
        super().__init__()
        self.armed = False

    def fate(self, request: str, client: str) -> Fate:
        if request == "read" and self.armed:
            self.armed = False
            return Fate(answer_s=3.0)
        return super().fate(request, client)


@virtual_time
async def test_an_assignment_planned_before_the_deletion_does_not_outlive_its_subscription() -> None:
    """▲ Its put compares that the subscription stands."""
    etcd = MemoryEtcd(LoopClock())
    async with running(etcd, "a", "b") as [a, b]:
        await a.controller.create_topic(TOPIC, 2, "")
        await a.controller.join(joining("w"), Inbox())
        await a.store.commit(Commit(deletes=(Delete(keys.assignment(TOPIC.path, "s")),)))
        await a.controller.close()
        await b.controller.wait_leading(timeout_s=60.0)
        slow = SlowFirstRead()
        b.fates.fate = slow.fate  # type: ignore[method-assign]
        await b.directory.fetch_topic(TOPIC.path)
        b.directory_fates.watch_lag_s = 60.0
        slow.armed = True
        join = asyncio.ensure_future(b.controller.join(joining("x"), Inbox()))
        await asyncio.sleep(0.1)
        assert not slow.armed
        await b.controller.delete_topic(TOPIC, force=True)
        with pytest.raises(TxnError):
            await join
        await asyncio.sleep(30.0)
        assert names(etcd) == ["/segment-ids"]


@virtual_time
async def test_a_subscription_joined_before_the_deletion_does_not_outlive_its_topic() -> None:
    """▲ Its put compares that the topic is as it was read."""
    etcd = MemoryEtcd(LoopClock())
    async with running(etcd, "a") as [a]:
        await a.controller.create_topic(TOPIC, 2, "")
        a.positions.answers = dict.fromkeys(SEGMENTS, Position(1, 0))
        a.positions.pause_s = 3.0
        join = asyncio.ensure_future(a.controller.join(joining("x", start=pb.Start(latest=True)), Inbox()))
        await asyncio.sleep(0.1)
        await a.controller.delete_topic(TOPIC, force=True)
        with pytest.raises(TxnError):
            await join
        await asyncio.sleep(30.0)
        assert names(etcd) == ["/segment-ids"]


@virtual_time
async def test_policies_are_changed_one_by_one() -> None:
    etcd = MemoryEtcd(LoopClock())
    async with running(etcd, "a") as [a]:
        await a.controller.create_topic(TOPIC, 1, '{"retention_ms":5}')
        await a.controller.update_topic(TOPIC, '{"retention_bytes":7,"trim_undrained":true}')
        assert topic_record(etcd).policies == {"retention_ms": 5, "retention_bytes": 7, "trim_undrained": True}
        await a.controller.update_topic(TOPIC, '{"retention_ms":null,"trim_undrained":null}')
        assert topic_record(etcd).policies == {"retention_bytes": 7}
        with pytest.raises(InvalidArgument, match="retention_ms: expected a positive integer, found 0"):
            await a.controller.update_topic(TOPIC, '{"retention_ms":0}')
        with pytest.raises(InvalidArgument, match="unknown policy 'retention'"):
            await a.controller.update_topic(TOPIC, '{"retention":null}')
        with pytest.raises(InvalidArgument, match="trim_undrained: expected true or false"):
            await a.controller.update_topic(TOPIC, '{"trim_undrained":1}')
        with pytest.raises(TopicExists):
            await a.controller.create_topic(TOPIC, 1, '{"retention_ms":5}')


def test_a_record_that_is_marked_is_not_marked_again() -> None:
    record = records.encode(TopicRecord(epoch=1, next_segment_id=1, segments=[], deleting_ms=5))
    found = KeyValue(keys.topic(TOPIC.path), record, 1, 1, 1)
    assert plan_mark_topic(found, still_held=absent(b"x"), now_ms=9) is None


class OwnersOfAnotherTime:
    """Nobody hears from them before the lease of whoever asks is lost: as of a process that slept meanwhile."""

    def __init__(self, lease: Lease) -> None:
        self._lease = lease

    async def users(self, segment: str, subscription: str | None) -> tuple[int, int]:
        return 0, 0

    async def drop_subscription(self, segment: str, subscription: str) -> None:
        await self._lease.wait_lost()
        raise Timeout(f"{segment} did not answer")


@pytest.mark.leaves("leases", "its holder reaches the store no more")
@virtual_time
async def test_the_end_of_a_term_is_no_failure_of_the_deletions_under_way() -> None:
    etcd, clock = MemoryEtcd(LoopClock()), LoopClock()
    async with running(etcd, "a") as [a]:
        await a.controller.create_topic(TOPIC, 1, "")
        store = MemoryStore(etcd, clock, Random(1), name="b")
        lease = await store.grant_lease(3.0)
        record = SubscriptionRecord(type="stream", start={"kind": "earliest"})
        key = keys.subscription(TOPIC.path, "s")
        leads = await store.commit(
            Commit(puts=(Put(b"/held-by-b", b"", lease=lease.id), Put(key, records.encode(record))))
        )
        leadership = Leadership(store, b"/held-by-b", leads.revision, lease)
        groups = StreamGroups(None, leadership, {}, rejoin_s=1.0, on_deposed=lambda: None)  # type: ignore[arg-type]
        deletions = Deletions(
            store, a.directory, clock, Random(2), OwnersOfAnotherTime(lease), leadership=leadership, groups=groups,
            users=TopicUsers({}, {}), grace_s=0.0, on_deposed=lambda: None,
        )  # fmt: skip
        with capture_logs() as logs:
            deleting = asyncio.ensure_future(deletions.delete_subscription(TOPIC, "s", force=True))
            await asyncio.sleep(1.0)
            store.memory_backend.disconnect()
            with pytest.raises(NotOwner, match="controller no longer"):
                await deleting
        assert [one["event"] for one in logs if one["event"].startswith("deletion_")][-1] == "deletion_left"
        assert not [one for one in logs if one["log_level"] == "error"]
        await store.close()
