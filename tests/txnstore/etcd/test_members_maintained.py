"""Maintenance of an etcd of several members: the alarm of each, one that is down, and the snapshot of one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import sha256

import pytest

from tests.waiting import until_accepted
from txnstore.etcd import rpc_pb2 as pb
from txnstore.etcd.backend import EtcdBackend
from txnstore.etcd.embedded_etcd import EmbeddedEtcd, free_port
from txnstore.etcd.etcd_store import EtcdSettings, EtcdStore
from txnstore.store import Commit, Delete, Put
from txnwire.clock import SystemClock, SystemRandom
from txnwire.errors import StoreFull, StoreUnavailable

pytestmark = [pytest.mark.process, pytest.mark.timeout(60)]

ACTIVATE, NO_SPACE = 1, 1


@asynccontextmanager
async def connected(*endpoints: str) -> AsyncIterator[EtcdStore]:
    settings = EtcdSettings(endpoints=endpoints, development=True)
    store = await EtcdStore.connect(settings, clock=SystemClock(), random=SystemRandom())
    try:
        yield store
    finally:
        await store.close()


async def test_e3_the_alarms_of_all_members_are_disarmed(etcd_process: EmbeddedEtcd) -> None:
    """Each member raises one of its own, and any of them keeps every put out."""
    async with connected(etcd_process.url) as store:
        assert isinstance(store._backend, EtcdBackend)
        for member in (1, 2, 3):
            alarm = pb.AlarmRequest(action=ACTIVATE, memberID=member, alarm=NO_SPACE).SerializeToString()
            await store._backend._connection.unary("/etcdserverpb.Maintenance/Alarm", alarm)
        assert (await store.status()).no_space
        with pytest.raises(StoreFull):
            await store.commit(Commit(puts=(Put(b"/k/a", b""),)))
        await store.disarm()
        assert not (await store.status()).no_space
        assert (await store.commit(Commit(puts=(Put(b"/k/a", b""),)))).succeeded


async def test_members_that_are_up_are_defragmented_though_another_is_down(etcd_process: EmbeddedEtcd) -> None:
    """Its file would grow to the quota for as long. One that is down stands before it here, and another one behind."""
    down = [f"http://127.0.0.1:{free_port()}" for _ in range(2)]
    async with connected(down[0], etcd_process.url, down[1]) as store, asyncio.timeout(20):
        await store.commit(Commit(puts=tuple(Put(b"/k/%d" % n, bytes(100_000)) for n in range(9))))
        revision = (await store.commit(Commit(deletes=(Delete(b"/k/", b"/k0"),)))).revision
        await store.compact(revision)
        before = await store.status()
        await store.defragment()
        assert (await store.status()).db_bytes < before.db_bytes / 2


async def test_a_snapshot_has_all_its_pieces(etcd_process: EmbeddedEtcd) -> None:
    """Its records come in pieces of 32 KiB, and the checksum of all of them behind the last."""
    async with connected(etcd_process.url) as store, asyncio.timeout(20):
        await store.commit(Commit(puts=(Put(b"/k/a", bytes(200_000)),)))
        whole = b"".join([piece async for piece in store.snapshot()])
    assert len(whole) > 200_000
    assert sha256(whole[:-32]).digest() == whole[-32:]


async def test_a_snapshot_of_an_etcd_that_has_died_can_be_taken_again(etcd_process: EmbeddedEtcd) -> None:
    async with connected(etcd_process.url) as store, asyncio.timeout(20):
        etcd_process.kill()
        with pytest.raises(StoreUnavailable, match="etcd broke its snapshot off"):
            await anext(store.snapshot())
        await etcd_process.start()
        await until_accepted(lambda: anext(store.snapshot()), StoreUnavailable, "a snapshot")
