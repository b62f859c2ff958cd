"""What a coordinator finds page by page: transactions that others have ended, and keys that are left over."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from tests.coordinator_v5.processes import ONE_TCID, Process, fresh_etcd, open_headers, within
from tests.segments.virtual_time import virtual_time
from tests.waiting import until
from txnstore import keys, records
from txnstore.memory.memory_store import Fate
from txnstore.records import ABORTED, REASON_CLIENT
from txnstore.store import Commit, Put
from txnstore.writes.transitions import decide
from txnwire.ids import TxnId

PAGES = replace(ONE_TCID, tcids=2, headers_at_once=2, reconcile_every_s=5.0, housekeeping_every_s=5.0)


@pytest.mark.parametrize("unreadable", [False, True])
@virtual_time
async def test_d3_all_that_others_have_ended_is_found_whatever_stands_among_it(unreadable: bool) -> None:
    """Dies if only one coordinator id, only its first page, or only what stands before an unreadable header, counts."""
    etcd = fresh_etcd()
    process = await Process(etcd, "one", PAGES).start()
    begun = [(await process.coordinator.begin(n % 2, timeout_ms=600_000)).txn_id for n in range(9)]
    await until(lambda: len(within(etcd, keys.TXN_BY_DEADLINE)) == 9)
    for txn_id in begun:
        header = await process.header(txn_id)
        assert header is not None
        ended = decide(header, ABORTED, finalized_ms=1, reason=REASON_CLIENT, writers=None)
        value = b"{" if unreadable and txn_id == begun[2] else records.encode(ended)
        etcd.mvcc.commit([Commit(puts=(Put(keys.txn(txn_id), value),))])
    assert process.coordinator.statistics().open == 9
    await until(lambda: process.coordinator.statistics().open == int(unreadable), within_s=12)
    await process.close()


@virtual_time
async def test_a_decision_of_its_own_that_is_found_before_its_answer_counts_as_its_own() -> None:
    """Dies if it is taken for another coordinator's: no coordinator would count it."""
    etcd = fresh_etcd()
    process = await Process(etcd, "one", PAGES).start()
    begun = await process.coordinator.begin(0, timeout_ms=600_000)
    await asyncio.sleep(2 * PAGES.reconcile_every_s)
    process.fates.script = [Fate(arrive_s=0.001, answer_s=3.0)]
    ending = asyncio.ensure_future(process.coordinator.end(begun.txn_id, commit=True))
    await until(lambda: not open_headers(etcd))
    await process.coordinator._sweeper.reconcile()
    assert process.coordinator.statistics().open == 1
    await ending
    statistics = process.coordinator.statistics()
    assert (statistics.open, statistics.committed, statistics.cas_conflict) == (0, 1, 0)
    await process.close()


@virtual_time
async def test_deadline_keys_that_are_left_over_go_page_by_page() -> None:
    etcd = fresh_etcd()
    process = await Process(etcd, "one", PAGES).start()
    begun = await process.coordinator.begin(0, timeout_ms=600_000)
    long_ago_ms = process.clock.wall_ms() - 3_600_000
    header, elsewhere = await process.header(begun.txn_id), TxnId(5, 50)
    assert header is not None
    kept = [keys.deadline(long_ago_ms, txn_id) for txn_id in (begun.txn_id, elsewhere)]
    stale = [keys.deadline(long_ago_ms + number, TxnId(5, 90 + number)) for number in range(9)]
    etcd.mvcc.commit([Commit(puts=(Put(keys.txn(elsewhere), records.encode(header)),))])
    etcd.mvcc.commit([Commit(puts=tuple(Put(key, b"") for key in (*kept, *stale)))])
    await until(lambda: not {record.key for record in within(etcd, keys.TXN_BY_DEADLINE)} & set(stale), within_s=30)
    assert all(etcd.mvcc.get(key) is not None for key in kept), "their transactions are open"
    assert open_headers(etcd) == [begun.txn_id, elsewhere]
    await process.close()
