"""E7: transactions without end, and an etcd that stays small: headers, operations and deadline keys go, what is gone is
compacted, and of each transaction an outcome bit stays."""

from __future__ import annotations

import asyncio
import random

from coordinator_v5.settings import CoordinatorSettings
from tests.coordinator_v5.processes import SEGMENT, Process, StepClock, fresh_etcd, headers, within
from tests.segments.virtual_time import virtual_time
from tests.waiting import until
from txnstore import keys
from txnstore.maintenance import Maintenance, MaintenanceSettings
from txnstore.memory.memory_etcd import MemoryEtcd
from txnstore.memory.memory_store import MemoryStore
from txnstore.writes.op_transitions import plan_clean_up

RATE, BURST, SECONDS = 1000, 100, 10
KEPT_S = 0.5
QUOTA = 2_500_000
"""Full after two seconds of this load where nothing is compacted."""
SETTINGS = CoordinatorSettings(tcids=1, header_retention_s=KEPT_S, collect_every_s=0.2)
MAINTENANCE = MaintenanceSettings(every_s=0.1, keep_s=KEPT_S, cooldown_s=2.0, pressing_cooldown_s=1.0)


async def work(process: Process, epoch: int, number: int) -> None:
    """One transaction with one operation, which its participant cleans up after the decision."""
    begun = await process.coordinator.begin(0)
    assert await process.write(begun.txn_id, counter=number + 1, epoch=epoch)
    await process.coordinator.end(begun.txn_id, commit=number % 3 != 0)
    await process.store.commit(plan_clean_up(SEGMENT, epoch, writes=[begun.txn_id]))


def live_bytes(etcd: MemoryEtcd, prefix: bytes) -> int:
    return sum(len(record.key) + len(record.value) for record in within(etcd, prefix))


@virtual_time
async def test_e7_a_thousand_transactions_a_second_pass_through_a_quota_many_times_over() -> None:
    """Retention and compaction keep half a second instead of a minute each, and the quota holds two of this load: as
    hours of it are to the usual ones. Nothing is ever refused."""
    etcd = fresh_etcd()
    etcd.quota_bytes = QUOTA
    process = await Process(etcd, "one", SETTINGS).start()
    maintained = MemoryStore(etcd, StepClock(), random.Random(0), name="maintenance")
    maintaining = asyncio.ensure_future(Maintenance(maintained, StepClock(), by="one", settings=MAINTENANCE).run())
    epoch, peaks = await process.own(), [0] * SECONDS
    for burst in range(SECONDS * RATE // BURST):
        async with asyncio.TaskGroup() as group:
            for number in range(burst * BURST, (burst + 1) * BURST):
                group.create_task(work(process, epoch, number))
        second = burst * BURST // RATE
        peaks[second] = max(peaks[second], etcd.mvcc.bytes_in_use)
        await asyncio.sleep(BURST / RATE)
    statistics = process.coordinator.statistics()
    assert statistics.committed + statistics.aborted == SECONDS * RATE
    assert max(peaks[SECONDS // 2 :]) < 1.1 * max(peaks[: SECONDS // 2]) < QUOTA
    assert await until(lambda: not headers(etcd)) < 5 * KEPT_S
    assert within(etcd, keys.TXN_OP) == within(etcd, keys.INDEXES) == []
    assert live_bytes(etcd, keys.TXN_OUTCOME) < SECONDS * RATE, "less than a byte a transaction stays"
    maintaining.cancel()
    await asyncio.wait([maintaining])
    await maintained.close()
    await process.close()
