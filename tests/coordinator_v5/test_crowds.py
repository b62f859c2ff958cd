"""Many transactions at once: ended by one deadline or one vanished client, or more of them open than there is room."""

from __future__ import annotations

import pytest

from coordinator_v5.settings import CoordinatorSettings
from tests.coordinator_v5.processes import Connection, Process, fresh_etcd, open_headers
from tests.segments.virtual_time import virtual_time
from tests.waiting import until
from txnstore.memory.memory_etcd import MemoryEtcd
from txnstore.memory.memory_store import Fate
from txnwire.errors import Overloaded

AT_ONCE = 20
SLOW = Fate(arrive_s=0.02, answer_s=0.02)


def crowd_of(etcd: MemoryEtcd) -> Process:
    return Process(etcd, "one", CoordinatorSettings(tcids=2, swept_at_once=AT_ONCE, client_grace_s=1.0))


async def most_at_once(process: Process, etcd: MemoryEtcd, left: int) -> int:
    """The most sweep aborts seen on their way until only `left` headers are open."""
    most = 0

    def ended() -> bool:
        nonlocal most
        most = max(most, process.coordinator.statistics().sweeping)
        return len(open_headers(etcd)) == left

    await until(ended, within_s=30)
    return most


@virtual_time
async def test_what_a_vanished_client_leaves_is_aborted_in_parts() -> None:
    """Dies without the bound: all 300 aborts would stand before everybody else's commits in the store's queue."""
    etcd = fresh_etcd()
    process = await crowd_of(etcd).start()
    gone, other = Connection("gone"), Connection("other")
    for number in range(300):
        await process.coordinator.begin(number % 2, timeout_ms=600_000, connection=gone)
    kept = await process.coordinator.begin(1, timeout_ms=600_000, connection=other)
    process.fates.script = [SLOW] * 1000
    process.coordinator.disconnected(gone)
    assert await most_at_once(process, etcd, left=1) == AT_ONCE
    assert open_headers(etcd) == [kept.txn_id]
    await process.close()


@virtual_time
async def test_one_deadline_of_many_is_met_in_parts_and_another_coordinator_id_waits_for_no_crowd() -> None:
    etcd = fresh_etcd()
    process = await crowd_of(etcd).start()
    connection = Connection("a")
    for _ in range(300):
        await process.coordinator.begin(0, timeout_ms=5_000, connection=connection)
    alone = await process.coordinator.begin(1, timeout_ms=5_000, connection=connection)
    process.fates.script = [SLOW] * 1000
    await until(lambda: len(open_headers(etcd)) < 301)
    await until(lambda: alone.txn_id not in open_headers(etcd))
    assert len(open_headers(etcd)) > 100, "it had its turn among them, not behind them"
    assert await most_at_once(process, etcd, left=0) == AT_ONCE
    await process.close()


@virtual_time
async def test_a_begin_beyond_the_bound_is_overloaded_until_one_ends() -> None:
    etcd = fresh_etcd()
    process = await Process(etcd, "one", CoordinatorSettings(tcids=1, max_open=3)).start()
    connection = Connection("a")
    begun = [await process.coordinator.begin(0, connection=connection) for _ in range(3)]
    with pytest.raises(Overloaded, match="3 transactions of coordinator id 0 are open, at most 3"):
        await process.coordinator.begin(0, connection=connection)
    with pytest.raises(Overloaded, match="end some"):
        await process.coordinator.begin_named(0, name="job")
    await process.coordinator.end(begun[0].txn_id, commit=True)
    named = await process.coordinator.begin_named(0, name="job")
    assert (await process.coordinator.begin_named(0, name="job")).txn_id == named.txn_id, "joining adds none"
    await process.close()
