"""Coordinators whose wall clocks differ: a transaction has the time that it was given, whoever judges it."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from coordinator_v5.background.stamping import Stamping
from coordinator_v5.settings import CoordinatorSettings
from coordinator_v5.state import CoordinatorState
from coordinator_v5.transactions import OwnedTcid
from tests.coordinator_v5.processes import LOST_BEFORE, Connection, Fates, Process, StepClock, fresh_etcd
from tests.segments.virtual_time import virtual_time
from tests.waiting import until
from txnstore import keys, records
from txnstore.memory.memory_etcd import MemoryEtcd
from txnstore.memory.memory_store import Fate, MemoryStore
from txnstore.records import ABORTED, OPEN, ClockStamp
from txnstore.store import Commit, Delete, Put
from txnstore.writes.transitions import FIRST_SEQ
from txnwire.ids import TxnId

TEN_MINUTES_MS = 600_000
SETTINGS = CoordinatorSettings(tcids=1, client_grace_s=10.0)
TIMEOUT_MS = 300_000


async def stamped(etcd: MemoryEtcd) -> ClockStamp:
    await until(lambda: etcd.mvcc.get(keys.CLOCK) is not None)
    record = etcd.mvcc.get(keys.CLOCK)
    assert record is not None
    return records.decode(ClockStamp, record.value, key=record.key)


async def begun(process: Process, timeout_ms: int = TIMEOUT_MS) -> TxnId:
    return (await process.coordinator.begin_named(0, name="batch-1", timeout_ms=timeout_ms)).txn_id


@virtual_time
async def test_a_clock_that_cannot_be_read_as_the_id_is_lost_ends_no_coordinator() -> None:
    etcd = fresh_etcd()
    process = await Process(etcd, "one", SETTINGS).start()
    await stamped(etcd)
    process.fates.no_reads = True
    etcd.expire_lease(etcd.leases()[0])
    await until(lambda: process.coordinator.owned_tcids == ())
    await asyncio.sleep(15.0)
    process.fates.no_reads = False
    await until(lambda: process.coordinator.owned_tcids == (0,))
    await process.close()


async def is_over(process: Process, txn_id: TxnId) -> bool:
    header = await process.header(txn_id)
    return header is None or header.state == ABORTED


@pytest.mark.parametrize("runs_already", [True, False], ids=["a-standby", "started-afterwards"])
@pytest.mark.parametrize("off_ms", [TEN_MINUTES_MS, -TEN_MINUTES_MS])
@virtual_time
async def test_d6_a_successor_s_clock_neither_aborts_nor_stretches_what_it_takes_over(
    off_ms: int, runs_already: bool
) -> None:
    """C11."""
    etcd = fresh_etcd()
    first = await Process(etcd, "first", SETTINGS).start()
    await stamped(etcd)
    txn_id = await begun(first)
    second = Process(etcd, "second", SETTINGS)
    second.clock.step_ms = off_ms
    starting = asyncio.ensure_future(second.start()) if runs_already else None
    await asyncio.sleep(60.0)
    first.kill()
    await (starting or second.start())
    await until(lambda: second.coordinator.owned_tcids == (0,))
    await asyncio.sleep(200.0)
    header = await second.header(txn_id)
    assert header is not None
    assert header.state == OPEN
    await asyncio.sleep(45.0 if runs_already else 100.0)  # nobody knows how long no stamp was made
    assert await is_over(second, txn_id)
    await second.close()


@virtual_time
async def test_a_begin_is_recorded_by_the_cluster_s_clock_whatever_the_coordinator_s_own_says() -> None:
    etcd = fresh_etcd()
    second = await Process(etcd, "second", SETTINGS).start()
    await stamped(etcd)
    first = Process(etcd, "first", CoordinatorSettings(tcids=2, client_grace_s=10.0))
    first.clock.step_ms = TEN_MINUTES_MS
    await first.start()
    await until(lambda: first.coordinator.owned_tcids != ())
    before = await stamped(etcd)
    (tcid,) = first.coordinator.owned_tcids
    txn = await first.coordinator.begin(tcid, timeout_ms=TIMEOUT_MS, connection=Connection("a"))
    assert abs(txn.deadline_ms - TIMEOUT_MS - before.ms) < 10_000
    first.kill()
    await second.close()


@pytest.mark.parametrize("without_stamp", [True, False])
@virtual_time
async def test_a_take_over_gives_every_transaction_the_grace_of_its_client(without_stamp: bool) -> None:
    etcd = fresh_etcd()
    first = await Process(etcd, "first", SETTINGS).start()
    await stamped(etcd)
    txn_id = await begun(first, 5_000 if not without_stamp else TIMEOUT_MS)
    first.kill()
    await asyncio.sleep(60.0)
    second = Process(etcd, "second", SETTINGS)
    if without_stamp:  # of a cluster of former days
        second.clock.step_ms = TEN_MINUTES_MS
        await second.store.commit(Commit(deletes=(Delete(keys.CLOCK),)))
    await second.start()
    await asyncio.sleep(SETTINGS.client_grace_s - 1.0)
    header = await second.header(txn_id)
    assert header is not None
    assert header.state == OPEN
    await asyncio.sleep(3.0)
    assert await is_over(second, txn_id)
    await second.close()


@virtual_time
async def test_a_stamp_that_lands_late_does_not_set_the_clock_back() -> None:
    etcd = fresh_etcd()
    first = await Process(etcd, "first", SETTINGS).start()
    second = Process(etcd, "second", SETTINGS)
    starting = asyncio.ensure_future(second.start())
    await stamped(etcd)
    await asyncio.sleep(1.0)
    sent, first.fates.script = first.fates.commits, [Fate(arrive_s=30.0, fail_s=29.0)]
    await until(lambda: first.fates.commits > sent)
    first.kill()
    newest_ms = 0
    for _ in range(600):
        await asyncio.sleep(0.1)
        ms = (await stamped(etcd)).ms
        assert ms >= newest_ms
        newest_ms = ms
    await starting
    assert second.coordinator.owned_tcids == (0,)
    await second.close()


@virtual_time
async def test_whoever_lost_id_0_before_its_first_stamp_was_stored_goes_by_the_cluster_s_clock() -> None:
    """Its own clock ran ahead by a day, and it had set the cluster's clock by it: nobody else ever heard of that."""
    etcd = fresh_etcd()
    clock, fates = StepClock(), Fates()
    store = MemoryStore(etcd, clock, Random(1), name="one", faults=fates)
    clock.step_ms = 24 * 3_600_000
    state = CoordinatorState(store, clock, Random(1), SETTINGS)
    await store.commit(Commit(puts=(Put(keys.CLOCK, records.encode(ClockStamp(ms=StepClock().wall_ms()))),)))
    state.tcids[0] = OwnedTcid(0, 1, FIRST_SEQ, id_block=8)
    fates.script = [LOST_BEFORE] * 1000
    tasks = [asyncio.ensure_future(run) for run in (state.cluster.run(), Stamping(state).run())]
    await until(lambda: len(fates.script) < 1000)  # a stamp is on its way
    assert state.cluster.wall_ms() - StepClock().wall_ms() > 23 * 3_600_000
    del state.tcids[0]
    await asyncio.sleep(20.0)  # whether its stamp was stored is not known
    fates.script.clear()
    await store.commit(Commit(puts=(Put(keys.CLOCK, records.encode(ClockStamp(ms=StepClock().wall_ms()))),)))
    await until(lambda: abs(state.cluster.wall_ms() - StepClock().wall_ms()) < 1000, within_s=10.0)
    for task in tasks:
        task.cancel()
    await store.close()
