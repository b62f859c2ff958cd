"""Clients that do not read what is pushed to them: they get the newest state at once when they do. In virtual time."""

from __future__ import annotations

import pytest

from segments.layout import layout_service
from tests.segments.controlling import TOPIC
from tests.segments.layout.test_layout_service import CREATE, WATCH_CLUSTER, WATCH_LAYOUT, serving
from tests.segments.memory_transport import MemoryTransport
from tests.segments.virtual_time import LoopClock, virtual_time
from txnstore import keys
from txnstore.memory.memory_etcd import MemoryEtcd
from txnstore.records import OwnerRecord, RegistrationRecord, encode
from txnstore.store import Commit, Put


@virtual_time
async def test_a_client_that_has_not_read_gets_the_newest_layout_once_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """▲ Also if others were told meanwhile: nothing else would tell it of an owner."""
    monkeypatch.setattr(layout_service, "_BUSY_BYTES", 0)
    async with serving(MemoryEtcd(LoopClock())) as served:
        await served.process.controller.wait_leading(timeout_s=5.0)
        transport = MemoryTransport()
        slow, quick = await served.clients_by_memory(transport, 2)
        for client in (slow, quick):
            await client.call(CREATE)
            await client.call(WATCH_LAYOUT)
        transport.connections[0].pause(True)
        for broker in ("b1", "b2", "b3"):
            owner = Put(keys.owner(f"{TOPIC.path}/8000-ffff-1"), encode(OwnerRecord(broker=broker, address="h:1")))
            await served.process.store.commit(Commit(puts=(owner,)))
            await quick.wait_push(lambda last, told=broker: last.layout.segments[1].owner == told)  # type: ignore[misc]
        assert not slow.pushed
        transport.connections[0].pause(False)
        await slow.wait_push(lambda last: last.layout.segments[1].owner == "b3")
        owners = [push.layout.segments[1].owner for push in slow.pushed]
        assert owners == ["b1", "b3"], "what it has not read holds back no newer state, and is not sent twice"


@virtual_time
async def test_a_client_that_has_not_read_gets_the_newest_cluster_once_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout_service, "_BUSY_BYTES", 0)
    async with serving(MemoryEtcd(LoopClock())) as served:
        await served.process.controller.wait_leading(timeout_s=5.0)
        transport = MemoryTransport()
        slow, quick = await served.clients_by_memory(transport, 2)
        for client in (slow, quick):
            await client.call(WATCH_CLUSTER)
        transport.connections[0].pause(True)
        for tcid in range(3):
            holder = encode(RegistrationRecord(id="c", address="h:3"))
            await served.process.store.commit(Commit(puts=(Put(keys.tc(tcid), holder),)))
            await quick.wait_push(lambda last, told=tcid + 1: len(last.cluster.coordinators) == told)  # type: ignore[misc]
        transport.connections[0].pause(False)
        await slow.wait_push(lambda last: len(last.cluster.coordinators) == 3)
        assert [len(push.cluster.coordinators) for push in slow.pushed] == [1, 3]
