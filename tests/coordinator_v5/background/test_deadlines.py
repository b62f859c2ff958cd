"""Deadlines, the late index, stale keys: D2 and D6."""

from __future__ import annotations

import asyncio

import pytest

from coordinator_v5.settings import CoordinatorSettings
from tests.coordinator_v5.processes import ONE_TCID, Connection, Process, fresh_etcd, open_headers, within
from tests.segments.virtual_time import virtual_time
from tests.waiting import until
from txnstore import keys
from txnstore.memory.memory_etcd import MemoryEtcd
from txnstore.memory.memory_store import Fate
from txnstore.memory.mvcc import Change
from txnstore.records import ABORTED, COMMITTED, REASON_TIMEOUT, TxnSeq, decode
from txnstore.store import Commit, Put
from txnwire.errors import InvalidTxnState
from txnwire.ids import TxnId

HOUR_MS = 3_600_000


def deadline_keys(etcd: MemoryEtcd) -> list[tuple[int, TxnId]]:
    return [keys.deadline_parts(record.key) for record in within(etcd, keys.TXN_BY_DEADLINE)]


def mark(process: Process, tcid: int = 0) -> int:
    record = process.record(keys.txn_seq(tcid))
    assert record is not None
    return decode(TxnSeq, record.value, key=record.key).indexed_below


@pytest.mark.parametrize("timeout_ms", [1, 300, 1_000, 1_900, 2_100, 10_000, 60_000])
@virtual_time
async def test_d6_a_transaction_is_aborted_within_a_second_and_a_half_of_its_deadline(timeout_ms: int) -> None:
    etcd = fresh_etcd()
    process = await Process(etcd, "one").start()
    begun = await process.coordinator.begin(0, timeout_ms=timeout_ms)
    took = await until(lambda: not open_headers(etcd), within_s=300.0)
    assert timeout_ms / 1000 <= took <= timeout_ms / 1000 + 1.5
    header = await process.header(begun.txn_id)
    assert header is not None
    assert (header.state, header.reason) == (ABORTED, REASON_TIMEOUT)
    assert process.coordinator.statistics().timed_out == 1
    await process.close()


@virtual_time
async def test_d6_deadlines_of_every_coordinator_id_are_met_in_time() -> None:
    """Dies if each round serves one of them."""
    etcd = fresh_etcd()
    process = await Process(etcd, "one", CoordinatorSettings(tcids=16)).start()
    for tcid in range(16):
        await process.coordinator.begin(tcid, timeout_ms=1_000)
    assert await until(lambda: not open_headers(etcd)) <= 2.5
    await process.close()


@virtual_time
async def test_d6_an_abort_at_the_deadline_that_a_full_etcd_refuses_is_tried_again() -> None:
    """Its client is there and asks for nothing: readers would wait behind it for ever."""
    etcd = fresh_etcd()
    process = await Process(etcd, "one").start()
    await process.coordinator.begin(0, timeout_ms=5_000, connection=Connection("a"))
    await asyncio.sleep(4)
    plenty, etcd.quota_bytes = etcd.quota_bytes, 1
    await asyncio.sleep(3)
    assert len(open_headers(etcd)) == 1
    etcd.quota_bytes, etcd.no_space = plenty, False  # defragmented and disarmed
    await until(lambda: not open_headers(etcd), within_s=10)
    await process.close()


@pytest.mark.parametrize("step_ms", [HOUR_MS, -HOUR_MS])
@virtual_time
async def test_d6_stepping_the_wall_clock_aborts_nothing_and_delays_nothing(step_ms: int) -> None:
    """C11: deadlines go to the monotonic clock once; dies if the sweep compares `timeout_ms` with the wall."""
    etcd = fresh_etcd()
    process = await Process(etcd, "one", CoordinatorSettings(tcids=1, housekeeping_every_s=1.0)).start()
    begun = await process.coordinator.begin(0, timeout_ms=20_000)
    await asyncio.sleep(5)
    process.clock.step_ms = step_ms
    await asyncio.sleep(14)
    assert open_headers(etcd) == [begun.txn_id]
    assert deadline_keys(etcd) == [(begun.deadline_ms, begun.txn_id)]
    assert await until(lambda: not open_headers(etcd)) < 2.5
    assert deadline_keys(etcd) == []
    await process.close()


@virtual_time
async def test_d2_a_commit_whose_write_is_held_past_the_sweep_wins_at_its_own_coordinator() -> None:
    """▲ One end of a transaction at a time: the sweep sends no abort beside the commit that is on its way."""
    etcd = fresh_etcd()
    process = await Process(etcd, "one").start()
    begun = await process.coordinator.begin(0, timeout_ms=5_000)
    await asyncio.sleep(4.9)
    process.fates.script = [Fate(arrive_s=2.0, answer_s=3.0)]
    commit = asyncio.ensure_future(process.coordinator.end(begun.txn_id, commit=True))
    await asyncio.sleep(1.5)
    assert open_headers(etcd) == [begun.txn_id], "nobody has decided it, long behind its deadline"
    assert (await commit).state == COMMITTED
    await asyncio.sleep(1.0)
    statistics = process.coordinator.statistics()
    assert (statistics.timed_out, statistics.cas_conflict) == (0, 0), "no abort was sent"
    await process.close()


@virtual_time
async def test_d2_a_commit_whose_write_is_held_past_the_sweep_of_another_coordinator_is_told_of_the_deadline() -> None:
    etcd = fresh_etcd()
    owner, other = await Process(etcd, "one").start(), await Process(etcd, "two", ONE_TCID).start()
    begun = await owner.coordinator.begin(0, timeout_ms=5_000)
    await asyncio.sleep(4.9)
    other.fates.script = [Fate(arrive_s=2.0, answer_s=2.0)]
    commit = asyncio.ensure_future(other.coordinator.end(begun.txn_id, commit=True))
    await until(lambda: not open_headers(etcd), within_s=1.5)
    assert not other.fates.script, "the commit is on its way"
    assert not commit.done()
    with pytest.raises(InvalidTxnState, match=REASON_TIMEOUT):
        await commit
    header = await owner.header(begun.txn_id)
    assert header is not None
    assert (header.state, header.reason) == (ABORTED, REASON_TIMEOUT)
    assert [process.coordinator.statistics().timed_out for process in (owner, other)] == [1, 0]
    assert other.coordinator.statistics().committed == 0
    await owner.close()
    await other.close()


@virtual_time
async def test_d2_every_interleaving_of_a_commit_around_the_deadline_has_one_winner() -> None:
    etcd = fresh_etcd()
    process = await Process(etcd, "one").start()
    winners: set[str] = set()
    for at_ms in range(4_900, 5_500, 25):
        begun = await process.coordinator.begin(0, timeout_ms=5_000)
        await asyncio.sleep(at_ms / 1000)
        header = None
        try:
            decision = await process.coordinator.end(begun.txn_id, commit=True)
            assert decision.state == COMMITTED
        except InvalidTxnState as error:
            assert REASON_TIMEOUT in str(error)
            decision = None
        header = await process.header(begun.txn_id)
        assert header is not None
        assert header.state == (ABORTED if decision is None else COMMITTED)
        winners.add(header.state)
    assert winners == {COMMITTED, ABORTED}
    await process.close()


@virtual_time
async def test_d6_a_paused_sweeper_wakes_late_and_finds_the_other_s_decisions() -> None:
    """One sleeps through everything; the successor decides; late, the first one sweeps too."""
    etcd = fresh_etcd()
    one, two = await Process(etcd, "one").start(), await Process(etcd, "two").start()
    kept = await one.coordinator.begin(0, timeout_ms=30_000, connection=Connection("a"))
    gone = await one.coordinator.begin(0, timeout_ms=15_000, connection=Connection("b"))
    one.pause()
    await until(lambda: two.coordinator.owned_tcids == (0,))
    await two.coordinator.announce(Connection("a"), [kept.txn_id])
    await two.coordinator.announce(Connection("b"), [gone.txn_id])
    await two.coordinator.end(kept.txn_id, commit=True)
    await asyncio.sleep(40)
    one.resume()
    await asyncio.sleep(2)
    for txn_id, state in ((kept.txn_id, COMMITTED), (gone.txn_id, ABORTED)):
        header = await two.header(txn_id)
        assert header is not None
        assert header.state == state
    assert two.coordinator.statistics().timed_out == 1
    assert one.coordinator.statistics().timed_out == 0
    assert one.coordinator.owned_tcids == ()
    await one.close()
    await two.close()


@virtual_time
async def test_d6_a_sweeper_paused_past_a_deadline_without_a_successor_aborts_at_once() -> None:
    etcd = fresh_etcd()
    process = await Process(etcd, "one", CoordinatorSettings(tcids=1, lease_ttl_s=600.0)).start()
    await process.coordinator.begin(0, timeout_ms=15_000)
    process.pause()
    await asyncio.sleep(60)
    assert len(open_headers(etcd)) == 1
    process.resume()
    assert await until(lambda: not open_headers(etcd)) < 1.5
    await process.close()


@virtual_time
async def test_a_zombie_s_sweep_harms_nothing() -> None:
    """▲ A sweep's abort compares the TCID epoch. Dies without: paused, the zombie has not read that its client went
    to its successor, and for want of a connection calls it vanished."""
    etcd = fresh_etcd()
    settings = CoordinatorSettings(tcids=1, client_grace_s=0.3, mark_every_s=3600.0)
    one, two = await Process(etcd, "one", settings).start(), await Process(etcd, "two", ONE_TCID).start()
    connection = Connection("a")
    begun = await one.coordinator.begin(0, timeout_ms=300_000, connection=connection)
    await until(lambda: bool(deadline_keys(etcd)))
    await asyncio.sleep(1)
    one.pause()
    await until(lambda: two.coordinator.owned_tcids == (0,))
    await two.coordinator.announce(Connection("a"), [begun.txn_id])
    one.coordinator.disconnected(connection)
    tc = one.coordinator._state.tcids[0]
    one.coordinator._ownership._on_lost = lambda _: None
    one.resume()
    await until(lambda: tc.lost)
    assert open_headers(etcd) == [begun.txn_id]
    assert (await two.coordinator.end(begun.txn_id, commit=True)).state == COMMITTED
    await one.close()
    await two.close()


# ---- the late index ----


@virtual_time
async def test_short_transactions_never_pay_for_a_deadline_key() -> None:
    etcd = fresh_etcd()
    process = await Process(etcd, "one", CoordinatorSettings(tcids=1, mark_every_s=1.0)).start()
    await asyncio.sleep(0.1)
    before = etcd.mvcc.revision
    for _ in range(10):
        begun = await process.coordinator.begin(0)
        await process.coordinator.end(begun.txn_id, commit=True)
    assert etcd.mvcc.revision == before + 20
    assert deadline_keys(etcd) == []
    await until(lambda: mark(process) == 11)
    await process.close()


@pytest.mark.parametrize("named", [False, True])
@virtual_time
async def test_the_mark_that_goes_with_a_block_of_ids_never_passes_the_id_just_taken(named: bool) -> None:
    """▲ It passed one in every block, whenever no other transaction was young: a successor that takes over before that
    begin is answered looks for it neither above the mark nor among deadline keys."""
    etcd = fresh_etcd()
    process = await Process(etcd, "one", CoordinatorSettings(tcids=1, id_block=4, mark_every_s=0.01)).start()
    passed: list[str] = []

    def changed(change: Change) -> None:
        seq = etcd.mvcc.get(keys.txn_seq(0))
        mark = 0 if seq is None else decode(TxnSeq, seq.value, key=seq.key).indexed_below
        for event in change.events:
            if event.record.key.startswith(keys.TXN) and event.record.version == 1:
                counter = keys.txn_of(event.record.key).counter
                if counter < mark:
                    passed.append(f"{counter} begins below {mark}")

    etcd.on_change = changed
    for number in range(20):
        coordinator = process.coordinator
        txn_id = (await (coordinator.begin_named(0, name=f"n{number}") if named else coordinator.begin(0))).txn_id
        await coordinator.end(txn_id, commit=True)
    assert passed == []
    await process.close()


@virtual_time
async def test_a_deadline_key_comes_after_a_second_and_goes_with_the_end() -> None:
    etcd = fresh_etcd()
    process = await Process(etcd, "one").start()
    begun = await process.coordinator.begin(0)
    took = await until(lambda: bool(deadline_keys(etcd)))
    assert 1.0 <= took < 1.5
    assert deadline_keys(etcd) == [(begun.deadline_ms, begun.txn_id)]
    await process.coordinator.end(begun.txn_id, commit=True)
    assert deadline_keys(etcd) == []
    await process.close()


@virtual_time
async def test_an_end_that_overtakes_the_late_index_leaves_no_key_behind() -> None:
    etcd = fresh_etcd()
    process = await Process(etcd, "one", CoordinatorSettings(tcids=1, mark_every_s=3600.0)).start()
    for delay_s in (0.05, 0.4, 1.2):
        begun = await process.coordinator.begin(0)
        process.fates.script = [Fate(arrive_s=delay_s, answer_s=0.1)]
        await until(lambda: process.fates.script == [])
        assert deadline_keys(etcd) == [], "the put is on its way"
        await process.coordinator.end(begun.txn_id, commit=True)
        await asyncio.sleep(3)
        assert deadline_keys(etcd) == []
    await process.close()


@virtual_time
async def test_the_end_by_one_that_has_slept_takes_its_successor_s_deadline_key_along() -> None:
    """Any coordinator may end any transaction, also who has not heard yet that another one follows its deadline."""
    etcd = fresh_etcd()
    one, two = await Process(etcd, "one").start(), await Process(etcd, "two").start()
    begun = await one.coordinator.begin(0)
    one.pause()
    await until(lambda: bool(deadline_keys(etcd)))
    assert two.coordinator.owned_tcids == (0,)
    one.coordinator._ownership._on_lost = lambda _: None
    ending = asyncio.ensure_future(one.coordinator.end(begun.txn_id, commit=True))
    one.resume()
    assert (await ending).state == COMMITTED
    assert deadline_keys(etcd) == []
    await one.close()
    await two.close()


@virtual_time
async def test_an_end_right_behind_a_take_over_takes_the_deadline_key_along() -> None:
    """The transaction is new to who has just taken it over, its key is not."""
    etcd = fresh_etcd()
    one, two = await Process(etcd, "one").start(), await Process(etcd, "two").start()
    begun = await one.coordinator.begin(0)
    await until(lambda: bool(deadline_keys(etcd)))
    one.kill()
    await until(lambda: two.coordinator.owned_tcids == (0,))
    assert (await two.coordinator.end(begun.txn_id, commit=True)).state == COMMITTED
    assert deadline_keys(etcd) == []
    await two.close()


@virtual_time
async def test_d6_the_mark_never_passes_an_open_transaction_without_its_key() -> None:
    """▲ Invariant checked after every revision, with late index puts that are lost, late and slow."""
    etcd = fresh_etcd()
    settings = CoordinatorSettings(tcids=1, mark_every_s=0.25, sweep_s=0.1)
    process = await Process(etcd, "one", settings).start()
    fates = [Fate(arrive_s=None, fail_s=0.7), Fate(arrive_s=0.001, fail_s=2.0), Fate(arrive_s=4.0, fail_s=1.0)]
    for round_ in range(60):
        process.fates.script += [fates[round_ % 3]] if round_ % 4 == 0 else []
        begun = asyncio.ensure_future(process.coordinator.begin(0, timeout_ms=3_000))
        await asyncio.sleep(0.2)
        if round_ % 5 == 0 and begun.done():
            await process.coordinator.end(begun.result().txn_id, commit=True)
        indexed = {txn_id for _, txn_id in deadline_keys(etcd)}
        below = mark(process)
        assert all(txn_id in indexed for txn_id in open_headers(etcd) if txn_id.counter < below)
        await asyncio.gather(begun, return_exceptions=True)
    assert mark(process) > 20
    await process.close()


@pytest.mark.parametrize("off_ms", [0, -24 * HOUR_MS], ids=["right", "behind"])
@virtual_time
async def test_stale_deadline_keys_are_swept_and_live_ones_kept(off_ms: int) -> None:
    """By the cluster's clock too: that of this process may be behind it."""
    etcd = fresh_etcd()
    settings = CoordinatorSettings(tcids=1, housekeeping_every_s=5.0, max_timeout_s=7200)
    process = await Process(etcd, "one", settings).start()
    begun = await process.coordinator.begin(0, timeout_ms=7_200_000)
    ended = await process.coordinator.begin(0)
    await process.coordinator.end(ended.txn_id, commit=True)
    now_ms = process.clock.wall_ms()
    stale = [keys.deadline(now_ms - HOUR_MS, txn_id) for txn_id in (ended.txn_id, TxnId(5, 99))]
    etcd.mvcc.commit([Commit(puts=tuple(Put(key, b"") for key in stale))])
    await until(lambda: process.record(keys.CLOCK) is not None)
    process.clock.step_ms = off_ms
    await asyncio.sleep(7)
    assert deadline_keys(etcd) == [(begun.deadline_ms, begun.txn_id)]
    process.clock.step_ms = 4 * HOUR_MS
    await asyncio.sleep(7)
    assert deadline_keys(etcd) == [(begun.deadline_ms, begun.txn_id)]
    assert open_headers(etcd) == [begun.txn_id]
    await process.close()


@virtual_time
async def test_the_deadline_heap_does_not_grow_with_what_has_ended() -> None:
    etcd = fresh_etcd()
    process = await Process(etcd, "one").start()
    left = [(await process.coordinator.begin(0, timeout_ms=60_000)).txn_id for _ in range(3)]
    await asyncio.sleep(2)
    for _ in range(1500):
        begun = await process.coordinator.begin(0, timeout_ms=1_500)
        await process.coordinator.end(begun.txn_id, commit=True)
    assert len(process.coordinator._state.tcids[0]._deadlines) <= 1100
    assert open_headers(etcd) == left
    await until(lambda: not open_headers(etcd), "those that were open meanwhile", within_s=62)
    await process.close()


@virtual_time
async def test_a_begin_without_a_timeout_has_no_longer_one_than_the_maximum() -> None:
    """Where the maximum was set below the default."""
    settings = CoordinatorSettings(tcids=1, max_timeout_s=20.0)
    process = await Process(fresh_etcd(), "one", settings).start()
    begun = await process.coordinator.begin(0)
    header = await process.header(begun.txn_id)
    assert header is not None
    assert (header.timeout_ms - header.created_ms, begun.deadline_ms) == (20_000, header.timeout_ms)
    await process.close()


@virtual_time
async def test_d4_a_transaction_with_a_deadline_key_above_the_mark_is_taken_over_once() -> None:
    """It is found by its key and by its header; of two in memory one would stay open here behind its end."""
    etcd = fresh_etcd()
    settings = CoordinatorSettings(tcids=1, mark_every_s=3600.0)
    one = await Process(etcd, "one", settings).start()
    begun = await one.coordinator.begin(0, timeout_ms=600_000, connection=Connection("a"))
    await until(lambda: len(within(etcd, keys.TXN_BY_DEADLINE)) == 1)
    one.kill()
    two = await Process(etcd, "two", settings).start()
    await until(lambda: two.coordinator.owned_tcids == (0,))
    await two.coordinator.announce(Connection("a"), [begun.txn_id])
    assert two.coordinator.statistics().open == 1
    await two.coordinator.end(begun.txn_id, commit=True)
    assert two.coordinator.statistics().open == 0
    await two.close()
