"""Maintenance of an etcd of several members: the alarm of each, and one that is down."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from txnstore.etcd import rpc_pb2 as pb
from txnstore.etcd.backend import EtcdBackend
from txnstore.etcd.embedded_etcd import EmbeddedEtcd, free_port
from txnstore.etcd.etcd_store import EtcdSettings, EtcdStore
from txnstore.store import Commit, Put
from txnwire.clock import SystemClock, SystemRandom
from txnwire.errors import StoreFull

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
    """Its file would grow to the quota for as long."""
    async with connected(etcd_process.url, f"http://127.0.0.1:{free_port()}") as store, asyncio.timeout(20):
        await store.defragment()
