"""Begins and ends that are asked for again, and what a coordinator shows of them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from coordinator_v5.settings import CoordinatorSettings
from tests.coordinator_v5.processes import LOST_BEFORE, Connection, Process, fresh_etcd, headers
from tests.segments.virtual_time import virtual_time
from tests.waiting import until
from txnstore.records import COMMITTED
from txnstore.store import Commit, CommitVerdict
from txnwire.errors import Timeout

WRITERS = ("00000000000000a1", "00000000000000a2")


@virtual_time
async def test_d7_a_begin_repeated_behind_its_time_out_has_the_whole_time_again() -> None:
    """▲ Its header is on its way still, and is used: the time of the first request counts no more."""
    etcd = fresh_etcd()
    process, connection = await Process(etcd, "one").start(), Connection("a")
    await process.coordinator.begin(0)  # ids are in hand
    process.fates.script = [LOST_BEFORE] * 1000
    with pytest.raises(Timeout):
        await process.coordinator.begin(0, attempt=b"a", connection=connection)
    repeated = asyncio.ensure_future(process.coordinator.begin(0, attempt=b"a", connection=connection))
    await asyncio.sleep(CoordinatorSettings().answer_s * 0.7)
    process.fates.script.clear()
    await repeated
    await process.close()


@virtual_time
async def test_d1_a_named_commit_made_and_collected_between_read_and_write_is_answered_with_its_writers() -> None:
    """Its header is gone by then: only the record of its name says which writers count."""
    etcd = fresh_etcd()
    one = await Process(etcd, "one", CoordinatorSettings(tcids=1, header_retention_s=5.0)).start()
    two = await Process(etcd, "two").start()
    begun = await one.coordinator.begin_named(0, name="job")
    write = two.store.commit

    async def overtaken(commit: Commit, **options: Any) -> CommitVerdict:
        await one.coordinator.end(begun.txn_id, commit=True, writers=WRITERS)
        await until(lambda: not headers(etcd), within_s=20.0)
        return await write(commit, **options)

    two.store.commit = overtaken  # type: ignore[method-assign]
    decision = await two.coordinator.end(begun.txn_id, commit=True, writers=WRITERS, name="job")
    assert (decision.state, decision.writers) == (COMMITTED, WRITERS)
    await one.close()
    await two.close()


@virtual_time
async def test_the_oldest_open_transaction_is_that_of_all_coordinator_ids() -> None:
    etcd = fresh_etcd()
    process = await Process(etcd, "one", CoordinatorSettings(tcids=3)).start()
    begun = []
    for tcid in (1, 0, 2):
        begun.append(await process.coordinator.begin(tcid))
        await asyncio.sleep(5.0)
    assert 15.0 <= process.coordinator.statistics().oldest_open_s < 15.5
    await process.coordinator.end(begun[0].txn_id, commit=True)
    assert 10.0 <= process.coordinator.statistics().oldest_open_s < 10.5
    await process.close()
