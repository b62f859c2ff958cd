"""Alarms of a full etcd, one for each of its members."""

from __future__ import annotations

import pytest

from txnstore.etcd import rpc_pb2 as pb
from txnstore.etcd.backend import EtcdBackend
from txnstore.etcd.embedded_etcd import EmbeddedEtcd
from txnstore.etcd.etcd_store import EtcdSettings, EtcdStore
from txnstore.store import Commit, Put
from txnwire.clock import SystemClock, SystemRandom
from txnwire.errors import StoreFull

pytestmark = [pytest.mark.process, pytest.mark.timeout(60)]

ACTIVATE, NO_SPACE = 1, 1


async def test_e3_the_alarms_of_all_members_are_disarmed(etcd_process: EmbeddedEtcd) -> None:
    """Each member raises one of its own, and any of them keeps every put out."""
    settings = EtcdSettings(endpoints=(etcd_process.url,), development=True)
    store = await EtcdStore.connect(settings, clock=SystemClock(), random=SystemRandom())
    try:
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
    finally:
        await store.close()
