"""Named transactions that another coordinator ends, or whose coordinator's clock is wrong (scenarios A5, C11)."""

from __future__ import annotations

import asyncio

from coordinator_v5.service import _listed
from coordinator_v5.settings import CoordinatorSettings
from tests.coordinator_v5.naming.test_names import NAME, W1, begin, close, commit, two
from tests.coordinator_v5.processes import Process, fresh_etcd
from tests.coordinator_v5.test_clocks import SETTINGS, TEN_MINUTES_MS, TIMEOUT_MS, stamped
from tests.segments.virtual_time import virtual_time
from tests.waiting import until
from txnstore import keys, records
from txnstore.records import TxnName
from txnstore.writes.name_transitions import Keep


@virtual_time
async def test_a5_a_commit_through_another_coordinator_notes_what_it_is_given() -> None:
    etcd = fresh_etcd()
    one, other = await two(etcd)
    txn_id = (await begin(one)).txn_id
    assert (await commit(other, txn_id, [W1], note="rows=3")).note == "rows=3"
    found = await begin(one)
    assert found.decision is not None
    assert found.decision.note == "rows=3"
    await close(one, other)


@virtual_time
async def test_a5_an_end_through_another_coordinator_leaves_no_deadline_key() -> None:
    etcd = fresh_etcd()
    settings = CoordinatorSettings(tcids=2, header_retention_s=5.0, index_after_s=1.0)
    one = await Process(etcd, "one", CoordinatorSettings(tcids=1, header_retention_s=5.0, index_after_s=1.0)).start()
    other = await Process(etcd, "two", settings).start()
    txn_id = (await begin(one, timeout_ms=TIMEOUT_MS)).txn_id
    key = keys.deadline((await begin(one)).deadline_ms, txn_id)
    await until(lambda: etcd.mvcc.get(key) is not None)
    await commit(other, txn_id, [W1])
    assert etcd.mvcc.get(key) is None
    await close(one, other)


@virtual_time
async def test_a5_how_long_a_name_is_kept_stands_in_its_record_as_its_begin_asked() -> None:
    etcd = fresh_etcd()
    process = await Process(etcd, "one").start()
    await begin(process, keep=Keep(60_000, newest=True))
    record = etcd.mvcc.get(keys.txn_name(NAME))
    assert record is not None
    named = records.decode(TxnName, record.value, key=record.key)
    assert (named.keep_ms, named.keep_newest) == (60_000, True)
    await close(process)


def test_a5_the_same_list_is_the_same_in_any_order_and_however_often_a_writer_stands_in_it() -> None:
    assert _listed([7, 2, 7]) == _listed([2, 7]) == [f"{2:016x}", f"{7:016x}"]


@virtual_time
async def test_c11_a_name_is_begun_by_the_cluster_s_clock_whatever_the_coordinator_s_own_says() -> None:
    etcd = fresh_etcd()
    second = await Process(etcd, "second", SETTINGS).start()
    await stamped(etcd)
    first = Process(etcd, "first", CoordinatorSettings(tcids=2, client_grace_s=10.0))
    first.clock.step_ms = TEN_MINUTES_MS
    await first.start()
    await until(lambda: first.coordinator.owned_tcids != ())
    await asyncio.sleep(1.0)
    before = await stamped(etcd)
    begun = await begin(first, timeout_ms=TIMEOUT_MS)
    assert abs(begun.deadline_ms - TIMEOUT_MS - before.ms) < 10_000
    first.kill()
    await second.close()
