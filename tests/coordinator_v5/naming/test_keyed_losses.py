"""A coordinator id that is lost while a begin of a transaction key is on its way (DESIGN §9)."""

from __future__ import annotations

import asyncio

import pytest

from coordinator_v5.naming.names import Begun
from coordinator_v5.settings import CoordinatorSettings
from tests.coordinator_v5.processes import Connection, Process, in_virtual_time, open_headers
from tests.waiting import until
from txnstore.memory.memory_etcd import MemoryEtcd
from txnstore.memory.memory_store import Fate

KEY = "nightly/job 7"
GRACE_S = 3.0
SETTINGS = CoordinatorSettings(tcids=1, header_retention_s=5.0, client_grace_s=GRACE_S)


async def begin(process: Process, connection: Connection, number: int) -> Begun:
    return await process.coordinator.begin_keyed(
        0,
        key=KEY,
        epoch=0,
        number=number,
        attempt=b"begin/%d" % number,
        timeout_ms=200_000,
        connection=connection,
    )


@pytest.mark.parametrize("stays", [True, False], ids=["stays", "vanishes"])
def test_k7_a_keyed_begin_that_is_answered_once_its_id_was_lost_stays_its_client_s(stays: bool) -> None:
    """▲ Its client knows of no loss, and announces nothing. One that vanishes loses it after the grace all the same."""

    async def scenario(etcd: MemoryEtcd) -> None:
        process = await Process(etcd, "one", SETTINGS).start()
        connection = Connection("holder")
        coordinator = process.coordinator
        assert await coordinator.connect_key(0, key=KEY, epoch=-1, attempt=b"c", connection=connection) == 0
        first = await begin(process, connection, 1)  # ids are in hand
        await coordinator.end(first.txn_id, commit=True)
        process.fates.script = [Fate(arrive_s=0.001, answer_s=0.3)]
        beginning = asyncio.ensure_future(begin(process, connection, 2))
        await asyncio.sleep(0.1)
        etcd.expire_lease(etcd.leases()[0])
        await until(lambda: coordinator.owned_tcids == ())
        begun = await beginning
        assert coordinator.owned_tcids == (), "answered while nobody has the id"
        await until(lambda: coordinator.owned_tcids == (0,))
        if stays:
            await asyncio.sleep(10 * GRACE_S)
            assert open_headers(etcd) == [begun.txn_id]
        coordinator.disconnected(connection)
        assert await until(lambda: not open_headers(etcd), within_s=GRACE_S + 2) >= GRACE_S
        await until(lambda: coordinator.statistics().sessions == 0, within_s=GRACE_S + 2)
        await process.close()

    in_virtual_time(scenario)


def test_k7_a_holder_whose_connect_is_answered_once_its_id_was_lost_is_nobody_s_here() -> None:
    """▲ Its holders meet at the next owner, where it announces itself; here nothing would drop it."""

    async def scenario(etcd: MemoryEtcd) -> None:
        process = await Process(etcd, "one", SETTINGS).start()
        coordinator, first, second = process.coordinator, Connection("first"), Connection("second")
        process.fates.script = [Fate(arrive_s=0.001, answer_s=0.3)]
        connecting = asyncio.ensure_future(
            coordinator.connect_key(0, key=KEY, epoch=-1, attempt=b"c", connection=first)
        )
        await asyncio.sleep(0.1)
        etcd.expire_lease(etcd.leases()[0])
        await until(lambda: coordinator.owned_tcids == ())
        other = await Process(etcd, "two", SETTINGS).start()
        await until(lambda: other.coordinator.owned_tcids == (0,))
        assert await connecting == 0
        assert coordinator.owned_tcids == (), "answered while another has the id"
        assert await other.coordinator.connect_key(0, key=KEY, epoch=0, attempt=b"d", connection=second) == 1
        told = [one.coordinator.key_epoch_held("anonymous", KEY) for one in (process, other)]
        await process.close()
        await other.close()
        assert told == [None, 1]

    in_virtual_time(scenario)
