"""E1: watches under faults, in virtual time over the in-memory etcd."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import pytest

from tests.segments.virtual_time import LoopClock, virtual_time
from tests.txnstore.faulty_store import (
    LOST_AFTER,
    LOST_BEFORE,
    A,
    B,
    Script,
    client,
)
from tests.waiting import until
from txnstore.access.following import _QUEUED_BATCHES, FollowingWatch
from txnstore.memory.memory_etcd import MemoryEtcd
from txnstore.store import (
    Commit,
    Delete,
    EventKind,
    Put,
    RangeResult,
    StoreWatch,
)


class Follower:
    """Keeps a copy of a range by a watch alone."""

    def __init__(self, watch: StoreWatch) -> None:
        self.watch = watch
        self.records: dict[bytes, bytes] = {}
        self.revision = 0
        self.resyncs = 0

    async def follow(self) -> None:
        async for batch in self.watch:
            assert batch.revision > self.revision
            self.revision = batch.revision
            if batch.resync:
                self.resyncs += 1
                self.records.clear()
            for event in batch.events:
                if event.kind is EventKind.PUT:
                    self.records[event.record.key] = event.record.value
                else:
                    self.records.pop(event.record.key, None)


@pytest.mark.parametrize("seed", range(8))
@virtual_time
async def test_e1_state_by_watch_equals_a_fresh_reading(seed: int) -> None:
    """The watch is cut, compacted away, delayed and starved while keys come, change and go."""
    chance = random.Random(seed)
    etcd = MemoryEtcd(LoopClock())
    writer = client(etcd, name="writer")
    opening = Script("watch", [LOST_BEFORE, LOST_AFTER] * 3, watch_delays_s=[0.0, 0.002, 0.3])
    reader = client(etcd, opening, name="reader")
    follower = Follower(reader.watch(b"/k/", b"/k0", from_revision=1))
    following = asyncio.ensure_future(follower.follow())
    faults: list[Callable[[], None]] = [
        etcd.cut,
        reader.memory_backend.disconnect,
        reader.memory_backend.reconnect,
        lambda: etcd.compact(etcd.mvcc.revision) if etcd.mvcc.revision > etcd.mvcc.compacted else None,
    ]
    for _ in range(300):
        key = b"/k/%d" % chance.randrange(12)
        change = Commit(puts=(Put(key, b"%d" % chance.randrange(99)),))
        await writer.commit(change if chance.random() < 0.7 else Commit(deletes=(Delete(key),)))
        await asyncio.sleep(chance.choice([0, 0, 0.01, 0.2]))
        if chance.random() < 0.1:
            chance.choice(faults)()
    reader.memory_backend.reconnect()
    await writer.commit(Commit(puts=(Put(b"/k/end", b""),)))
    await until(lambda: b"/k/end" in follower.records, within_s=30)
    assert follower.records == {record.key: record.value for record in etcd.mvcc.range(b"/k/", b"/k0")[0]}
    await reader.close()
    await writer.close()
    await following


@virtual_time
async def test_e1_a_watch_resumes_behind_its_last_event() -> None:
    etcd = MemoryEtcd(LoopClock())
    store = client(etcd)
    watch = store.watch(b"/k/", b"/k0", from_revision=1)
    seen = []
    for n in range(5):
        await store.commit(Commit(puts=(Put(A, b"%d" % n), Put(B, b"%d" % n))))
        seen += [event.record.value for event in (await anext(watch)).events]
        etcd.cut()
    assert seen == [b"%d" % n for n in range(5) for _ in range(2)]
    await store.close()


@virtual_time
async def test_e1_a_slow_follower_holds_nothing_up_and_loses_nothing() -> None:
    etcd = MemoryEtcd(LoopClock())
    store = client(etcd)
    watch = store.watch(b"/k/", b"/k0", from_revision=1)
    for n in range(500):
        await store.commit(Commit(puts=(Put(A, b"%d" % n),)))
    seen: list[bytes] = []
    while len(seen) < 500:
        seen += [event.record.value for event in (await anext(watch)).events]
    assert seen == [b"%d" % n for n in range(500)]
    await store.close()


@virtual_time
async def test_e1_a_watch_that_could_not_list_anew_for_long_does_so_later() -> None:
    """▲ It was compacted away, and etcd answers no read for longer than a listing is waited for."""
    etcd = MemoryEtcd(LoopClock())
    reads = Script("read", [LOST_BEFORE] * 100)
    store, writer = client(etcd, reads), client(etcd, name="writer")
    for key in (A, B):
        await writer.commit(Commit(puts=(Put(key, b"1"),)))
    etcd.compact(etcd.mvcc.revision)
    watch = store.watch(b"/k/", b"/k0", from_revision=1)
    batch = await asyncio.wait_for(anext(watch), 600)
    assert (batch.resync, [event.record.key for event in batch.events]) == (True, [A, B])
    assert reads.sent > 100
    await store.close()
    await writer.close()


@virtual_time
async def test_e1_a_follower_that_takes_nothing_is_not_read_ahead_for_without_bound() -> None:
    etcd = MemoryEtcd(LoopClock())
    store = client(etcd)
    watch = store.watch(b"/k/", b"/k0", from_revision=1)
    for n in range(3 * _QUEUED_BATCHES):
        await store.commit(Commit(puts=(Put(A, b"%d" % n),)))
        await asyncio.sleep(0.1)
    assert len(watch._batches) == _QUEUED_BATCHES
    await store.close()


@virtual_time
async def test_e1_what_is_written_right_behind_the_listing_of_a_compacted_range_is_followed() -> None:
    """▲ The watch goes on at the next revision: one later, and a lone change in between would never be told."""
    etcd = MemoryEtcd(LoopClock())
    store = client(etcd)
    for n in range(3):
        await store.commit(Commit(puts=(Put(A, b"%d" % n),)))
    etcd.compact(etcd.mvcc.revision)

    async def relist(start: bytes, end: bytes) -> RangeResult:
        listed = await store.range(start, end)
        await store.commit(Commit(puts=(Put(A, b"behind it"),)))
        assert etcd.mvcc.revision == listed.revision + 1
        return listed

    watch = FollowingWatch(store.memory_backend, relist, b"/k/", b"/k0", 1, on_close=lambda _: None)
    listed, behind = await anext(watch), await asyncio.wait_for(anext(watch), 10.0)
    assert (listed.resync, [event.record.value for event in listed.events]) == (True, [b"2"])
    assert (behind.resync, [event.record.value for event in behind.events]) == (False, [b"behind it"])
    await watch.close()
    await store.close()
