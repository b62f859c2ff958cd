"""Begins and ends that are asked for again, and what a coordinator shows of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from coordinator_v5.settings import CoordinatorSettings
from tests.coordinator_v5.processes import LOST_BEFORE, Connection, Process, fresh_etcd, headers
from tests.segments.virtual_time import virtual_time
from tests.waiting import until
from txnstore import keys
from txnstore.memory.memory_etcd import MemoryEtcd
from txnstore.memory.memory_store import Fate
from txnstore.records import COMMITTED
from txnstore.store import Commit, CommitVerdict, Delete
from txnwire.errors import NotOwner, StoreFull, StoreUnavailable, Timeout, TxnError
from txnwire.ids import TxnId

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


def fill(etcd: MemoryEtcd, _: TxnId) -> None:
    etcd.quota_bytes = 1


def lose_header(etcd: MemoryEtcd, txn_id: TxnId) -> None:
    etcd.mvcc.commit([Commit(deletes=(Delete(keys.txn(txn_id)),))])


@pytest.mark.parametrize(("spoil", "error"), [(fill, StoreFull), (lose_header, NotOwner)])
@virtual_time
async def test_d1_each_of_several_requests_for_one_end_is_told_that_it_cannot_be_made(
    spoil: Callable[[MemoryEtcd, TxnId], None], error: type[TxnError]
) -> None:
    """The first of them is on its way for all."""
    etcd = fresh_etcd()
    process = await Process(etcd, "one").start()
    txn_id = (await process.coordinator.begin(0)).txn_id
    spoil(etcd, txn_id)
    ends = asyncio.gather(*(process.coordinator.end(txn_id, commit=True) for _ in range(3)), return_exceptions=True)
    assert [type(answer) for answer in await asyncio.wait_for(ends, 5)] == [error] * 3
    await process.close()


@virtual_time
async def test_d1_an_end_that_the_store_refuses_at_once_may_be_asked_for_again() -> None:
    etcd = fresh_etcd()
    process = await Process(etcd, "one").start()
    txn_id = (await process.coordinator.begin(0)).txn_id
    send = process.store.commit_nowait

    def refused(commit: Commit) -> asyncio.Future[CommitVerdict]:
        process.store.commit_nowait = send  # type: ignore[method-assign]
        raise StoreUnavailable("it closes")

    process.store.commit_nowait = refused  # type: ignore[method-assign]
    with pytest.raises(StoreUnavailable):
        await process.coordinator.end(txn_id, commit=True)
    assert (await process.coordinator.end(txn_id, commit=True)).state == COMMITTED
    await process.close()


@virtual_time
async def test_what_another_coordinator_has_decided_counts_here_as_a_conflict_and_as_nothing_else() -> None:
    etcd = fresh_etcd()
    one, two = await Process(etcd, "one").start(), await Process(etcd, "two").start()
    txn_id = (await one.coordinator.begin(0)).txn_id
    for process in (two, one):
        assert (await process.coordinator.end(txn_id, commit=True)).state == COMMITTED
    counts = [process.coordinator.statistics() for process in (one, two)]
    assert [(of.cas_ok, of.cas_conflict, of.cas_reject, of.committed) for of in counts] == [(1, 1, 0, 0), (1, 0, 0, 1)]
    await one.close()
    await two.close()


@virtual_time
async def test_the_begin_of_a_name_counts_as_a_compare_and_set_and_a_begin_that_joins_it_does_not() -> None:
    etcd = fresh_etcd()
    process = await Process(etcd, "one").start()
    for attempt in (b"first", b"second"):
        await process.coordinator.begin_named(0, name="job", attempt=attempt)
    of = process.coordinator.statistics()
    assert (of.begun, of.cas_ok, of.cas_conflict, of.cas_reject) == (1, 1, 0, 0)
    await process.close()


@virtual_time
async def test_of_two_first_begins_of_a_name_one_counts_as_a_conflict() -> None:
    etcd = fresh_etcd()
    settings = CoordinatorSettings(tcids=2)
    one, two = await Process(etcd, "one", settings).start(), await Process(etcd, "two", settings).start()
    await until(lambda: all(len(process.coordinator.statistics().tcids) == 1 for process in (one, two)))
    async with asyncio.TaskGroup() as group:
        for process in (one, two):
            tcid = process.coordinator.statistics().tcids[0]
            group.create_task(process.coordinator.begin_named(tcid, name="job"))
    counts = [process.coordinator.statistics() for process in (one, two)]
    assert sorted((of.begun, of.cas_ok, of.cas_conflict, of.cas_reject) for of in counts) == [
        (0, 0, 1, 0),
        (1, 1, 0, 0),
    ]
    await one.close()
    await two.close()


@pytest.mark.parametrize("name", ["", "job"])
@virtual_time
async def test_a_begin_under_an_id_that_another_process_has_counts_as_refused(name: str) -> None:
    etcd = fresh_etcd()
    process = await Process(etcd, "one").start()
    coordinator = process.coordinator
    await coordinator.begin(0)  # ids are in hand
    etcd.mvcc.commit([Commit(deletes=(Delete(keys.tc(0)),))])
    with pytest.raises(NotOwner):
        await (coordinator.begin_named(0, name=name) if name else coordinator.begin(0))
    assert coordinator.statistics().cas_reject == 1
    await process.close()


@virtual_time
async def test_the_numbers_are_those_of_all_coordinator_ids() -> None:
    etcd = fresh_etcd()
    settings = CoordinatorSettings(tcids=3, swept_at_once=1)
    process = await Process(etcd, "one", settings).start()
    for number in range(6):
        ended = await process.coordinator.begin(number % 3)
        await process.coordinator.end(ended.txn_id, commit=True)
        await process.coordinator.begin(number % 3, timeout_ms=1_000)
    statistics = process.coordinator.statistics()
    assert (statistics.tcids, statistics.open, statistics.retained) == ((0, 1, 2), 6, 6)
    process.fates.script = [Fate(arrive_s=5.0, answer_s=0.0)] * 100
    await asyncio.sleep(2.0)  # the first abort is on its way, five are due
    assert (process.coordinator.statistics().sweeping, process.coordinator.statistics().overdue) == (1, 6)
    await process.close()


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
