"""Leases under faults, in virtual time over the in-memory etcd."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from tests.segments.virtual_time import LoopClock, virtual_time
from tests.txnstore.faulty_store import (
    HANGS,
    LOST_AFTER,
    A,
    Broken,
    Busy,
    Script,
    client,
    record,
)
from txnstore.access.backend import Backend
from txnstore.access.leases import KeptLease
from txnstore.memory.memory_etcd import MemoryEtcd
from txnstore.memory.memory_store import Fate
from txnstore.store import (
    Commit,
    LeaseGone,
    Put,
)


@virtual_time
async def test_a_lease_is_kept_alive() -> None:
    etcd = MemoryEtcd(LoopClock())
    store = client(etcd)
    lease = await store.grant_lease(6)
    await store.commit(Commit(puts=(Put(A, b"", lease.id),)))
    for _ in range(100):
        await asyncio.sleep(1)
        assert lease.valid()
    assert record(etcd, A).lease == lease.id
    await lease.revoke()
    assert lease.id not in etcd.leases()
    await store.close()


@virtual_time
async def test_the_lease_that_lasts_longest_tells_how_long_any_is_held() -> None:
    store = client(MemoryEtcd(LoopClock()))
    assert store.leases_good_until() == -1.0
    for ttl_s in (10, 100, 20):
        await store.grant_lease(ttl_s)
    assert 90 < store.leases_good_until() <= 100
    await store.close()


@virtual_time
async def test_a_store_that_is_closed_ends_all_of_its_watches_and_leases() -> None:
    store = client(MemoryEtcd(LoopClock()))
    watches = [store.watch(key, key + b"0", from_revision=1) for key in (b"/a", b"/b", b"/c")]
    for _ in range(3):
        await store.grant_lease(10)
    following = [asyncio.ensure_future(anext(aiter(watch), None)) for watch in watches]
    await asyncio.sleep(1.0)
    await store.close()
    assert await asyncio.wait_for(asyncio.gather(*following), 5.0) == [None] * 3
    assert asyncio.all_tasks() == {asyncio.current_task()}, "nobody renews a lease any more"


@virtual_time
async def test_a_lease_counts_from_the_sending_of_the_last_answered_keep_alive() -> None:
    """▲ Acks stop TTL minus a margin after that sending: before the store can have given the lease up."""
    etcd = MemoryEtcd(LoopClock())
    slow = Script("keep_alive", [Fate(arrive_s=0.0, answer_s=1.5)] + [HANGS] * 50)
    store = client(etcd, slow)
    granted_at = asyncio.get_running_loop().time()
    lease = await store.grant_lease(10)
    await lease.wait_lost()
    lost_after_s = asyncio.get_running_loop().time() - granted_at
    sent_at_s = 10 / 3
    assert sent_at_s + 10 - 2.0 == pytest.approx(lost_after_s, abs=0.1)
    assert not lease.valid()
    assert etcd.leases() == [lease.id], "the store still has it"
    await store.close()


@virtual_time
async def test_a_lease_that_is_lost_stays_lost() -> None:
    etcd = MemoryEtcd(LoopClock())
    store = client(etcd)
    lease = await store.grant_lease(5)
    store.memory_backend.disconnect()
    await asyncio.sleep(4.2)
    assert not lease.valid()
    store.memory_backend.reconnect()
    await asyncio.sleep(0.1)
    assert not lease.valid()
    await asyncio.sleep(10)
    assert etcd.leases() == [], "it is no longer kept alive"
    await store.close()


@virtual_time
async def test_a_lease_that_expires_early_is_noticed_with_the_next_keep_alive() -> None:
    etcd = MemoryEtcd(LoopClock())
    store = client(etcd)
    lease = await store.grant_lease(6)
    etcd.expire_lease(lease.id)
    async with asyncio.timeout(3):
        await lease.wait_lost()
    with pytest.raises(LeaseGone):
        await store.commit(Commit(puts=(Put(A, b"", lease.id),)))
    await store.close()


@virtual_time
async def test_a_lost_grant_is_repeated_and_the_orphan_expires() -> None:
    etcd = MemoryEtcd(LoopClock())
    store = client(etcd, Script("grant", [LOST_AFTER]))
    lease = await store.grant_lease(3)
    assert len(etcd.leases()) == 2
    await asyncio.sleep(10)
    assert etcd.leases() == [lease.id]
    assert lease.valid()
    await store.close()


@virtual_time
async def test_e4_a_lease_whose_renewal_is_refused_for_a_moment_is_kept() -> None:
    """▲ The store has it still: whoever took it for lost would give up all that it serves."""
    etcd, clock = MemoryEtcd(LoopClock()), LoopClock()
    store = client(etcd)
    busy = Busy(store.memory_backend, times=5)
    sent_at = clock.monotonic()
    lease_id, ttl_s = await store.memory_backend.grant(10)
    lease = KeptLease(cast(Backend, busy), clock, lease_id, ttl_s, sent_at, on_end=lambda _: None)
    await asyncio.sleep(60)
    assert (busy.left, lease.valid()) == (0, True)
    await lease.abandon()
    await store.close()


@virtual_time
async def test_a_lease_whose_keeper_ends_by_a_defect_is_lost_at_once() -> None:
    """▲ Who waits for its loss would rely on it for ever."""
    etcd, clock = MemoryEtcd(LoopClock()), LoopClock()
    store = client(etcd)
    broken, ended = Broken(store.memory_backend), list[KeptLease]()
    lease_id, ttl_s = await store.memory_backend.grant(10)
    lease = KeptLease(cast(Backend, broken), clock, lease_id, ttl_s, clock.monotonic(), on_end=ended.append)
    async with asyncio.timeout(ttl_s / 2):
        await lease.wait_lost()
    assert (lease.valid(), set(ended)) == (False, {lease})
    await store.close()


@virtual_time
async def test_a_lease_that_cannot_be_revoked_in_time_is_left_to_expire() -> None:
    """Whoever gives it up, as at its end, goes on: dies if that raises."""
    etcd = MemoryEtcd(LoopClock())
    store = client(etcd)
    lease = await store.grant_lease(5)
    store.memory_backend.disconnect()
    await lease.revoke()
    assert not lease.valid()
    store.memory_backend.reconnect()
    await asyncio.sleep(10)
    assert etcd.leases() == []
    await store.close()
