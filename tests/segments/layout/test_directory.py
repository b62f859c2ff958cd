"""The directory: what it holds equals a fresh reading, over every fault of a watch."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from segments.layout.directory import APPLIED_AT_ONCE, CONTROLLER, Directory, DirectoryChange
from segments.layout.topology import create_record
from tests.segments.virtual_time import LoopClock, run, virtual_time
from tests.waiting import until
from txnstore import keys
from txnstore.etcd.etcd_store import EtcdStore
from txnstore.memory.memory_etcd import MemoryEtcd
from txnstore.memory.memory_store import NO_FAULT, Fate, MemoryStore
from txnstore.records import AssignmentRecord, OwnerRecord, RegistrationRecord, encode
from txnstore.store import Commit, Delete, MetadataStore, Put, RangeResult, StoreWatch, WatchBatch
from txnwire.clock import SystemClock
from txnwire.errors import DataCorrupt, InvalidArgument, Timeout, Unauthorized
from txnwire.tasks import Tasks

TOPIC = "public/nyc/flights"
SEGMENT = f"{TOPIC}/0000-ffff-0"


def topic_value(segments: int = 1) -> bytes:
    return encode(create_record(segments, policies={}, created_ms=1))


async def put(store: MetadataStore, *records: tuple[bytes, bytes], lease: int = 0) -> int:
    result = await store.commit(Commit(puts=tuple(Put(key, value, lease) for key, value in records)))
    assert result.succeeded
    return result.revision


class SlowWatches:
    """Changes reach the followers after `delay_s` seconds."""

    def __init__(self) -> None:
        self.delay_s = 0.0

    def fate(self, request: str, client: str) -> Fate:
        return NO_FAULT

    def watch_delay_s(self, client: str) -> float:
        return self.delay_s


@asynccontextmanager
async def followed(etcd: MemoryEtcd, faults: SlowWatches | None = None) -> AsyncIterator[tuple[MemoryStore, Directory]]:
    store = MemoryStore(etcd, LoopClock(), random.Random(1), faults=faults)
    directory = Directory(store, LoopClock())
    await directory.start()
    try:
        yield store, directory
    finally:
        await directory.close()
        await store.close()


async def check_follows_everything(store: MetadataStore, directory: Directory) -> None:
    """Contract over both backends: one record of each kind, put, seen, deleted, gone."""
    lease = await store.grant_lease(10.0)
    assert directory.topic(TOPIC) is None
    member = encode(RegistrationRecord(id="b1", address="h:1"))
    topic_revision = await put(store, (keys.topic(TOPIC), topic_value(2)))
    epoch = await put(store, (keys.owner(SEGMENT), encode(OwnerRecord(broker="b1", address="h:1"))), lease=lease.id)
    await put(store, (keys.tc(10), member), (keys.tc(2), member), lease=lease.id)
    await put(store, (keys.broker("b1"), member), lease=lease.id)
    await put(store, (keys.leader(CONTROLLER), member), lease=lease.id)
    last = await put(store, (keys.assignment(TOPIC, "s"), encode(AssignmentRecord(epoch=3, consumers={"a@1": []}))))

    await directory.wait_revision(topic_revision)
    await directory.wait_revision(last, prefix=keys.ASSIGNMENT)
    await directory.wait_until(lambda: directory.leader(CONTROLLER), timeout_s=10.0, what="a leader")
    topology = directory.topic(TOPIC)
    assert topology is not None
    assert len(topology.active) == 2
    owner = await directory.wait_owner(SEGMENT)
    assert (owner.broker, owner.address, owner.epoch, owner.lease) == ("b1", "h:1", epoch, lease.id)
    await directory.wait_until(lambda: len(directory.coordinators()) == 2, timeout_s=5.0, what="two coordinators")
    assert list(directory.coordinators()) == [2, 10]
    await directory.wait_until(lambda: directory.brokers().get("b1"), timeout_s=5.0, what="a broker")
    assignment = directory.assignment(TOPIC, "s")
    assert assignment is not None
    assert assignment.epoch == 3

    await lease.revoke()
    await store.commit(Commit(deletes=(Delete(keys.topic(TOPIC)),)))
    await directory.wait_until(
        lambda: (
            not (
                directory.topics()
                or directory.owners()
                or directory.brokers()
                or directory.coordinators()
                or directory.leader(CONTROLLER)
            )
        ),
        timeout_s=5.0,
        what="everything to be gone",
    )


@virtual_time
async def test_follows_every_record_of_the_cluster_in_memory() -> None:
    async with followed(MemoryEtcd(LoopClock())) as (store, directory):
        await check_follows_everything(store, directory)


async def test_follows_every_record_of_the_cluster_on_etcd(store: EtcdStore) -> None:
    directory = Directory(store, SystemClock())
    await directory.start()
    try:
        await check_follows_everything(store, directory)
    finally:
        await directory.close()


@virtual_time
async def test_a_topic_created_a_moment_ago_is_never_denied() -> None:
    slow = SlowWatches()
    async with followed(MemoryEtcd(LoopClock()), slow) as (store, directory):
        slow.delay_s = 5.0
        revision = await put(store, (keys.topic(TOPIC), topic_value()))
        assert directory.topic(TOPIC) is None
        assert await directory.fetch_topic(TOPIC) is not None
        assert directory.topic(TOPIC) is not None
        assert await directory.fetch_topic("public/nyc/none") is None
        with pytest.raises(Timeout, match="revision"):
            await directory.wait_revision(revision, timeout_s=1.0)
        await directory.wait_revision(revision, timeout_s=10.0)


@virtual_time
async def test_of_a_large_re_listing_others_have_their_turns_and_all_of_it_is_told_at_once() -> None:
    """▲ Layouts with some of their new owners must not be told under the revision of all."""
    etcd = MemoryEtcd(LoopClock())
    writer = MemoryStore(etcd, LoopClock(), random.Random(2), name="writer")
    count = 10 * APPLIED_AT_ONCE
    async with followed(etcd) as (store, directory):
        store.memory_backend.disconnect()
        for at in range(0, count, 100):
            owners = [keys.owner(f"{TOPIC}/0000-ffff-{number}") for number in range(at, at + 100)]
            owner = encode(OwnerRecord(broker="b", address="h:1"))
            revision = await put(writer, *((key, owner) for key in owners))
        etcd.compact(revision)
        told: list[int] = []
        directory.add_listener(lambda change: told.append(len(change.owners)))
        store.memory_backend.reconnect()
        parts: set[int] = set()
        while not told:
            parts.add(len(directory.owners()))
            assert len(directory.owners()) in (0, count) or directory.layout_revision(TOPIC) < revision
            await asyncio.sleep(0)
        assert len(parts) >= 10
        assert told == [count]
        assert directory.layout_revision(TOPIC) == revision
    await writer.close()


@virtual_time
async def test_e1_after_a_cut_a_crash_and_compaction_the_directory_equals_a_fresh_reading() -> None:
    etcd = MemoryEtcd(LoopClock())
    writer = MemoryStore(etcd, LoopClock(), random.Random(2), name="writer")
    async with followed(etcd) as (store, directory):
        await put(writer, (keys.topic("t/n/stays"), topic_value()), (keys.topic("t/n/goes"), topic_value()))
        await directory.wait_topic("t/n/goes")
        store.memory_backend.disconnect()
        await writer.commit(Commit(deletes=(Delete(keys.topic("t/n/goes")),)))
        await put(writer, (keys.topic("t/n/comes"), topic_value(3)))
        revision = await put(writer, (b"/other", b"x"))
        await put(writer, (keys.owner(SEGMENT), encode(OwnerRecord(broker="b", address="h:1"))))
        etcd.compact(revision)
        etcd.crash()
        await asyncio.sleep(1.0)
        assert sorted(directory.topics()) == ["t/n/goes", "t/n/stays"]  # stale, and says nothing else
        etcd.restart()
        store.memory_backend.reconnect()
        await directory.wait_topic("t/n/comes")
        await directory.wait_owner(SEGMENT)
        fresh = Directory(writer, LoopClock())
        await fresh.start()
        assert sorted(directory.topics()) == sorted(fresh.topics()) == ["t/n/comes", "t/n/stays"]
        assert dict(directory.owners()) == dict(fresh.owners())
        await fresh.close()
    await writer.close()


class RefusedOnce(MemoryStore):
    """The first watch is refused, as with credentials that an operator has yet to mend; so may be the first read."""

    refused = False
    refuses_reads = False

    async def range(self, start: bytes, end: bytes, **options: Any) -> RangeResult:
        if start == keys.TOPIC and self.refuses_reads:
            self.refuses_reads = False
            raise Unauthorized("the store refuses this user")
        return await super().range(start, end, **options)

    def watch(self, start: bytes, end: bytes, *, from_revision: int) -> StoreWatch:
        if start == keys.TOPIC and not self.refused:
            self.refused = True
            return _RefusedWatch()
        return super().watch(start, end, from_revision=from_revision)


class _RefusedWatch:
    def __aiter__(self) -> _RefusedWatch:
        return self

    async def __anext__(self) -> WatchBatch:
        raise Unauthorized("the store refuses this user")

    async def close(self) -> None:
        pass


@virtual_time
async def test_a_watch_that_ends_in_an_error_is_opened_again() -> None:
    store = RefusedOnce(MemoryEtcd(LoopClock()), LoopClock(), random.Random(1))
    directory = Directory(store, LoopClock())
    await directory.start()
    await put(store, (keys.topic(TOPIC), topic_value()))
    await directory.wait_topic(TOPIC)
    assert store.refused
    await directory.close()
    await store.close()


@virtual_time
async def test_neither_a_change_nor_an_error_of_the_store_ends_what_follows_it() -> None:
    """▲ An end would be shown as a defect of the process, and each one pauses it for longer."""
    tasks = Tasks()
    with tasks.in_charge():
        store = RefusedOnce(MemoryEtcd(LoopClock()), LoopClock(), random.Random(1))
        directory = Directory(store, LoopClock())
        await directory.start()
        for segments in (1, 2, 3):
            await directory.wait_revision(await put(store, (keys.topic(TOPIC), topic_value(segments))))
        assert store.refused
    assert tasks.failures == {}
    await directory.close()
    await store.close()


@virtual_time
async def test_a_first_reading_that_is_refused_is_asked_for_again() -> None:
    store = RefusedOnce(MemoryEtcd(LoopClock()), LoopClock(), random.Random(1))
    store.refuses_reads = True
    await put(store, (keys.topic(TOPIC), topic_value()))
    directory = Directory(store, LoopClock())
    await directory.start()
    assert directory.topic(TOPIC) is not None
    assert not store.refuses_reads
    await directory.close()
    await store.close()


@virtual_time
async def test_the_revision_of_the_cluster_rises_with_each_kind_of_process() -> None:
    """▲ Of two states a client keeps the one with the higher revision: the other would hide a process for good."""
    member = encode(RegistrationRecord(id="a", address="h:1"))
    async with followed(MemoryEtcd(LoopClock())) as (store, directory):

        async def check_rises(key: bytes) -> None:
            revision = await put(store, (key, member))
            await until(lambda: directory.cluster_revision() == revision)

        for key in (keys.tc(1), keys.broker("a"), keys.leader(CONTROLLER)):
            await check_rises(key)


def test_listeners_hear_each_change_and_one_that_fails_harms_no_other() -> None:
    heard: list[DirectoryChange] = []
    too_late: list[DirectoryChange] = []

    async def scenario() -> None:
        def broken(change: DirectoryChange) -> None:
            raise ValueError("a listener's bug")

        async with followed(MemoryEtcd(LoopClock())) as (store, directory):
            directory.add_listener(broken)
            directory.add_listener(heard.append)
            unlisten = directory.add_listener(too_late.append)
            unlisten()
            await put(store, (keys.topic(TOPIC), topic_value()))
            await put(store, (keys.owner(SEGMENT), encode(OwnerRecord(broker="b", address="h:1"))))
            await directory.wait_owner(SEGMENT)
            await asyncio.sleep(0.1)

    run(scenario(), unhandled=2)
    assert heard == [DirectoryChange(topics=(TOPIC,)), DirectoryChange(owners=(SEGMENT,))]
    assert too_late == []


@virtual_time
async def test_an_unreadable_record_hides_no_other() -> None:
    async with followed(MemoryEtcd(LoopClock())) as (store, directory):
        await put(
            store,
            (keys.topic("t/n/bad"), b'{"v":9}'),
            (keys.topic("not-a-topic"), b"x"),
            (keys.topic(TOPIC), topic_value()),
        )
        await directory.wait_topic(TOPIC)
        assert list(directory.topics()) == [TOPIC]
        with pytest.raises(DataCorrupt, match="t/n/bad"):
            directory.topic("t/n/bad")


@virtual_time
async def test_waiting_says_what_was_waited_for() -> None:
    async with followed(MemoryEtcd(LoopClock())) as (_, directory):
        with pytest.raises(Timeout, match=f"an owner of {SEGMENT}"):
            await directory.wait_owner(SEGMENT, timeout_s=3.0)
        with pytest.raises(InvalidArgument, match="does not follow"):
            await directory.wait_revision(1, prefix=b"/txn/")


@virtual_time
async def test_starting_without_a_store_ends_in_time() -> None:
    etcd = MemoryEtcd(LoopClock())
    etcd.crash()
    store = MemoryStore(etcd, LoopClock(), random.Random(1))
    with pytest.raises(Timeout, match="first reading"):
        await Directory(store, LoopClock()).start(timeout_s=5.0)
    await store.close()


class SlowReads(SlowWatches):
    """Each reading takes `answer_s` seconds."""

    def __init__(self, answer_s: float) -> None:
        super().__init__()
        self.answer_s = answer_s

    def fate(self, request: str, client: str) -> Fate:
        return Fate(answer_s=self.answer_s) if request == "read" else NO_FAULT


@virtual_time
async def test_each_kind_of_record_has_its_own_time_to_be_read_at_the_start() -> None:
    """A large cluster's directory starts, too: what is bounded is a store that does not answer."""
    store = MemoryStore(MemoryEtcd(LoopClock()), LoopClock(), random.Random(1), faults=SlowReads(4.0))
    directory = Directory(store, LoopClock())
    await directory.start(timeout_s=5.0)
    await directory.close()
    await store.close()


@virtual_time
async def test_every_topic_of_one_change_gets_its_revision() -> None:
    """▲ Otherwise clients refuse the newest layout of all but one of them."""
    topics = ["t/n/a", "t/n/b", "t/n/c"]
    owner = encode(OwnerRecord(broker="b1", address="h:1"))
    async with followed(MemoryEtcd(LoopClock())) as (store, directory):
        created = await put(store, *((keys.topic(path), topic_value()) for path in topics))
        await directory.wait_revision(created)
        assert [directory.layout_revision(path) for path in topics] == [created] * 3
        owned = await put(store, *((keys.owner(f"{path}/0000-ffff-0"), owner) for path in topics))
        await directory.wait_revision(owned, prefix=keys.OWNER)
        assert [directory.layout_revision(path) for path in topics] == [owned] * 3


@virtual_time
async def test_the_revision_of_a_layout_never_falls_though_owners_are_followed_ahead_of_topics() -> None:
    """▲ A client keeps the layout with the highest: it would refuse the newest one."""
    faults = SlowWatches()
    async with followed(MemoryEtcd(LoopClock()), faults) as (store, directory):
        await directory.wait_revision(await put(store, (keys.topic(TOPIC), topic_value())))
        faults.delay_s = 30.0
        layout = await put(store, (keys.topic(TOPIC), topic_value(2)))
        await asyncio.sleep(1.0)
        faults.delay_s = 0.0
        owned = await put(store, (keys.owner(SEGMENT), encode(OwnerRecord(broker="b1", address="h:1"))))
        await directory.wait_revision(owned, prefix=keys.OWNER)
        assert directory.layout_revision(TOPIC) == owned
        assert directory.topic_revision(TOPIC) < layout
        await directory.wait_revision(layout, timeout_s=60.0)
        assert directory.layout_revision(TOPIC) == owned
