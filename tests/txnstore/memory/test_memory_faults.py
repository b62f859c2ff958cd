"""What becomes of requests that come while the in-memory etcd is paused, elects, or is down."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from tests.segments.virtual_time import LoopClock, virtual_time
from tests.txnstore.faulty_store import A, client, create, record
from txnstore.memory.memory_etcd import MemoryEtcd


def elect(etcd: MemoryEtcd) -> None:
    etcd.elect(lambda: False)


@pytest.mark.parametrize("go_on", [MemoryEtcd.resume, elect])
@virtual_time
async def test_what_waits_is_done_as_soon_as_it_goes_on(go_on: Callable[[MemoryEtcd], None]) -> None:
    etcd = MemoryEtcd(LoopClock())
    store = client(etcd)
    lease = await store.grant_lease(3)
    etcd.pause()
    commit = store.commit_nowait(create(A, b"1"))
    await asyncio.sleep(2)
    assert etcd.mvcc.get(A) is None
    go_on(etcd)
    assert (await asyncio.wait_for(commit, 0.1)).succeeded
    assert record(etcd, A).value == b"1"
    await lease.revoke()
    await store.close()


@virtual_time
async def test_what_only_the_old_leader_had_is_never_done() -> None:
    etcd = MemoryEtcd(LoopClock())
    store = client(etcd)
    await store.commit(create(b"/k/first", b""))
    etcd.pause()
    commit = store.commit_nowait(create(A, b"1"))
    await asyncio.sleep(1)
    etcd.elect(lambda: True)
    await asyncio.sleep(1)
    assert not commit.done()
    assert etcd.mvcc.get(A) is None
    await store.close()
    await asyncio.gather(commit, return_exceptions=True)


@virtual_time
async def test_leases_run_on_while_it_is_paused_and_begin_anew_with_another_leader() -> None:
    etcd = MemoryEtcd(LoopClock())
    first, _ = etcd.grant(10)
    etcd.pause()
    await asyncio.sleep(6)
    elect(etcd)
    await asyncio.sleep(6)
    assert etcd.leases() == [first]
    etcd.pause()
    await asyncio.sleep(6)
    etcd.resume()
    await asyncio.sleep(0.1)
    assert etcd.leases() == []
