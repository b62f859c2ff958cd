"""Begin and end on one coordinator and on several: ids, repeats, what is told about the past."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

import pytest

from coordinator_v5.begins import MAX_EXTRA, MAX_TRIES
from coordinator_v5.settings import CoordinatorSettings
from tests.coordinator_v5.processes import (
    LANDS_LATE,
    LOST_AFTER,
    LOST_BEFORE,
    ONE_TCID,
    Connection,
    Process,
    fresh_etcd,
    headers,
    open_headers,
)
from tests.segments.virtual_time import virtual_time
from tests.waiting import until
from txnstore import keys
from txnstore.memory.memory_store import Fate
from txnstore.records import ABORTED, COMMITTED, REASON_CLIENT, REASON_UNANSWERED
from txnstore.store import Commit, Delete
from txnstore.writes.transitions import RecordedDecision, decision_of
from txnwire.errors import (
    InvalidArgument,
    InvalidTxnState,
    NotOwner,
    OutcomeUnknown,
    StoreFull,
    Timeout,
    TxnError,
    TxnNotFound,
)
from txnwire.ids import TxnId

T = TypeVar("T")


@virtual_time
async def test_a4_empty_transactions_commit_and_abort() -> None:
    etcd = fresh_etcd()
    process = await Process(etcd, "one").start()
    for commit, state in ((True, COMMITTED), (False, ABORTED)):
        begun = await process.coordinator.begin(0, timeout_ms=5_000)
        decision = await process.coordinator.end(begun.txn_id, commit=commit)
        header = await process.header(begun.txn_id)
        assert header is not None
        assert decision.state == header.state == state
        record = process.record(keys.txn(begun.txn_id))
        assert record is not None
        assert decision.revision == record.mod_revision
        assert header.timeout_ms == begun.deadline_ms == header.created_ms + 5_000
    statistics = process.coordinator.statistics()
    assert (statistics.committed, statistics.aborted, statistics.aborted_by) == (1, 1, {REASON_CLIENT: 1})
    assert (statistics.timed_out, statistics.vanished, statistics.sweeping) == (0, 0, 0)
    await process.close()


@virtual_time
async def test_ids_count_up_and_are_never_reused_over_restarts() -> None:
    etcd = fresh_etcd()
    seen: list[TxnId] = []
    for _ in range(3):
        process = await Process(etcd, "one", CoordinatorSettings(tcids=1, id_block=8)).start()
        begun = await asyncio.gather(*(process.coordinator.begin(0) for _ in range(50)))
        seen += [one.txn_id for one in begun]
        await process.close()
    assert len(set(seen)) == len(seen)
    assert seen == sorted(seen)
    assert seen[0] == TxnId(0, 1)


@virtual_time
async def test_begin_never_waits_for_a_block_at_a_steady_rate() -> None:
    etcd = fresh_etcd()
    process = await Process(etcd, "one", CoordinatorSettings(tcids=1, id_block=64)).start()
    await asyncio.sleep(0.1)
    tc = process.coordinator._state.tcids[0]
    for _ in range(500):
        begun = asyncio.ensure_future(process.coordinator.begin(0))
        await asyncio.sleep(0)
        assert not tc.waiting
        await begun
    await process.close()


@pytest.mark.parametrize("fate", [LOST_BEFORE, LOST_AFTER, LANDS_LATE])
@virtual_time
async def test_a_block_whose_reply_was_lost_is_never_used(fate: Fate) -> None:
    """▲ Dies if a refused CAS that shows our own record counts as success: then both writers use the block."""
    etcd = fresh_etcd()
    process = await Process(etcd, "one", CoordinatorSettings(tcids=1, id_block=8)).start()
    await asyncio.sleep(1)
    process.fates.script = [fate]
    ids = [(await process.coordinator.begin(0)).txn_id.counter for _ in range(40)]
    assert ids == sorted(set(ids))
    await process.close()


@virtual_time
async def test_a_tcid_of_somebody_else_is_refused() -> None:
    etcd = fresh_etcd()
    process = await Process(etcd, "one").start()
    with pytest.raises(NotOwner, match="coordinator id 7"):
        await process.coordinator.begin(7)
    await process.close()


@virtual_time
async def test_timeouts_names_and_attempts_are_checked() -> None:
    etcd = fresh_etcd()
    process = await Process(etcd, "one", CoordinatorSettings(tcids=1, max_timeout_s=60)).start()
    with pytest.raises(InvalidArgument, match="60000 ms"):
        await process.coordinator.begin(0, timeout_ms=60_001)
    with pytest.raises(InvalidArgument, match="33 bytes"):
        await process.coordinator.begin(0, attempt=bytes(33))
    await process.close()


@pytest.mark.parametrize("fate", [LOST_BEFORE, LOST_AFTER, LANDS_LATE])
@pytest.mark.parametrize("commit", [True, False])
@virtual_time
async def test_d1_an_end_whose_reply_was_lost_answers_ok_and_the_opposite_is_refused(fate: Fate, commit: bool) -> None:
    """The store repeats the same write until its verdict is definite, so both truths end in one story."""
    etcd = fresh_etcd()
    process = await Process(etcd, "one").start()
    begun = await process.coordinator.begin(0)
    process.fates.script = [fate]
    first = await process.coordinator.end(begun.txn_id, commit=commit)
    again = await process.coordinator.end(begun.txn_id, commit=commit)
    assert first == again
    assert first.revision > 0
    with pytest.raises(InvalidTxnState):
        await process.coordinator.end(begun.txn_id, commit=not commit)
    statistics = process.coordinator.statistics()
    assert (statistics.committed, statistics.aborted) == (int(commit), int(not commit))
    await process.close()


@virtual_time
async def test_d1_an_end_that_is_not_answered_in_time_may_be_asked_again_of_whichever_coordinator() -> None:
    """▲ `OutcomeUnknown` is for what nobody will ever tell."""
    etcd = fresh_etcd()
    one, two = await Process(etcd, "one").start(), await Process(etcd, "two").start()
    for process in (one, two):
        txn_id = (await one.coordinator.begin(0)).txn_id
        process.fates.script = [LOST_BEFORE] * 1000
        with pytest.raises(Timeout):
            await process.coordinator.end(txn_id, commit=True)
        process.fates.script.clear()
        assert (await process.coordinator.end(txn_id, commit=True)).state == COMMITTED
    await one.close()
    await two.close()


@virtual_time
async def test_d1_a_commit_repeated_while_the_first_is_unanswered_gets_the_first_answer() -> None:
    etcd = fresh_etcd()
    process = await Process(etcd, "one").start()
    begun = await process.coordinator.begin(0)
    process.fates.script = [Fate(arrive_s=0.001, answer_s=5.0)]
    end = process.coordinator.end
    asked = [asyncio.ensure_future(end(begun.txn_id, commit=commit)) for commit in (True, True, False)]
    answers = await asyncio.gather(*asked, return_exceptions=True)
    assert answers[0] == answers[1]
    assert isinstance(answers[2], InvalidTxnState)
    await process.close()


@virtual_time
async def test_d3_two_coordinators_end_one_transaction_and_tell_the_same_story() -> None:
    etcd = fresh_etcd()
    one, two = await Process(etcd, "one").start(), await Process(etcd, "two").start()
    for _ in range(20):
        begun = await one.coordinator.begin(0)
        answers = await asyncio.gather(
            one.coordinator.end(begun.txn_id, commit=True),
            two.coordinator.end(begun.txn_id, commit=False),
            return_exceptions=True,
        )
        header = await one.header(begun.txn_id)
        assert header is not None
        winners = [answer for answer in answers if not isinstance(answer, BaseException)]
        assert [winner.state for winner in winners] == [header.state]
        assert sum(isinstance(answer, InvalidTxnState) for answer in answers) == 1
    await one.close()
    await two.close()


@virtual_time
async def test_d5_unknown_collected_and_forgotten_ids_give_distinct_answers() -> None:
    etcd = fresh_etcd()
    one, two = await Process(etcd, "one").start(), await Process(etcd, "two").start()
    kept = (await one.coordinator.begin(0)).txn_id
    await one.coordinator.end(kept, commit=True)
    aborted = (await one.coordinator.begin(0)).txn_id
    await one.coordinator.end(aborted, commit=False)
    await until(lambda: not headers(etcd), within_s=300.0)
    for process in (one, two):
        end = process.coordinator.end
        assert (await end(kept, commit=True)).state == COMMITTED
        assert (await end(aborted, commit=False)).state == ABORTED
        with pytest.raises(InvalidTxnState):
            await end(kept, commit=False)
        with pytest.raises(OutcomeUnknown, match="which writers counted"):
            await end(kept, commit=True, writers=["000000000000000a"])
        for never in (TxnId(0, 1_000_000), TxnId(9, 1)):
            with pytest.raises(TxnNotFound):
                await end(never, commit=True)
    with pytest.raises(TxnNotFound):
        await one.coordinator.end(TxnId(0, 600), commit=True)
    with pytest.raises(OutcomeUnknown):
        await two.coordinator.end(TxnId(0, 600), commit=True)
    etcd.mvcc.commit([Commit(deletes=(Delete(keys.outcome_block(kept)),))])
    with pytest.raises(OutcomeUnknown):
        await one.coordinator.end(kept, commit=True)
    await one.close()
    await two.close()


# ---- D7: lost begins ----


@pytest.mark.parametrize("fate", [LOST_BEFORE, LOST_AFTER, LANDS_LATE])
@virtual_time
async def test_d7_a_begin_whose_reply_was_lost_leaves_one_transaction(fate: Fate) -> None:
    etcd = fresh_etcd()
    process = await Process(etcd, "one").start()
    process.fates.script = [fate]
    begun = await process.coordinator.begin(0)
    await asyncio.sleep(5)
    assert open_headers(etcd) == [begun.txn_id]
    await process.close()


@pytest.mark.parametrize("landed", [True, False])
@virtual_time
async def test_d7_a_begin_unanswered_for_long_is_served_with_a_fresh_id_and_the_lost_one_aborted(landed: bool) -> None:
    """▲ The lost begin is repeated under its own id until definite, then aborted; the late-index mark waits for it."""
    etcd = fresh_etcd()
    process = await Process(etcd, "one", CoordinatorSettings(tcids=1, mark_every_s=0.5)).start()
    process.fates.script = [Fate(arrive_s=0.001 if landed else None, fail_s=8.0)]
    begun, took = await _timed(process.coordinator.begin(0))
    assert 2.0 <= took < 3.0
    assert begun.txn_id == TxnId(0, 2)
    await process.coordinator.end(begun.txn_id, commit=True)
    await asyncio.sleep(3)
    tc = process.coordinator._state.tcids[0]
    assert tc.mark() == 1
    assert tc.seq.record.indexed_below == 1
    await until(lambda: _reason(process, TxnId(0, 1)) == REASON_UNANSWERED)
    assert open_headers(etcd) == []
    await asyncio.sleep(1)
    assert tc.mark() > 2
    await process.close()


@virtual_time
async def test_d7_the_same_attempt_repeated_gets_the_same_answer() -> None:
    etcd = fresh_etcd()
    process = await Process(etcd, "one").start()
    first, second, other = Connection("a"), Connection("a"), Connection("b")
    begin = process.coordinator.begin
    begun = await begin(0, attempt=b"x" * 8, connection=first)
    process.coordinator.disconnected(first)
    assert await begin(0, attempt=b"x" * 8, connection=second) == begun
    assert (await begin(0, attempt=b"x" * 8, connection=other)).txn_id != begun.txn_id
    together = await asyncio.gather(*(begin(0, attempt=b"y" * 8, connection=second) for _ in range(5)))
    assert len({one.txn_id for one in together}) == 1
    assert len(open_headers(etcd)) == 3
    await process.coordinator.end(begun.txn_id, commit=True)
    assert (await begin(0, attempt=b"x" * 8, connection=second)).txn_id != begun.txn_id
    await process.close()


@pytest.mark.parametrize(("lease_ttl_s", "error"), [(60.0, Timeout), (5.0, NotOwner)])
@virtual_time
async def test_a_begin_that_the_store_never_answers_is_told_so_and_leaves_nothing_open(
    lease_ttl_s: float, error: type[TxnError]
) -> None:
    """Each of many, and each repetition, in time."""
    etcd = fresh_etcd()
    process = await Process(etcd, "one", CoordinatorSettings(tcids=1, lease_ttl_s=lease_ttl_s)).start()
    await asyncio.sleep(1)
    etcd.pause()
    attempts = [*(bytes([number]) * 8 for number in range(20)), *[b"repeated"] * 3]
    begins = (process.coordinator.begin(0, attempt=attempt, connection=Connection("a")) for attempt in attempts)
    answering = asyncio.wait_for(asyncio.gather(*begins, return_exceptions=True), 30)
    answers, took = await _timed(answering)
    assert [type(answer) for answer in answers] == [error] * len(attempts)
    assert took < CoordinatorSettings().answer_s + 1.5
    etcd.resume()
    await asyncio.sleep(30)
    assert open_headers(etcd) == []
    await process.close()


@virtual_time
async def test_an_end_that_the_store_never_answers_is_told_so_and_decided_all_the_same() -> None:
    etcd = fresh_etcd()
    process = await Process(etcd, "one").start()
    begun = [(await process.coordinator.begin(0)).txn_id for _ in range(20)]
    etcd.pause()
    ends = (process.coordinator.end(txn_id, commit=True) for txn_id in begun)
    answers, took = await _timed(asyncio.gather(*ends, return_exceptions=True))
    assert [type(answer) for answer in answers] == [Timeout] * len(begun)
    assert took < CoordinatorSettings().answer_s + 1.5
    etcd.resume()
    for txn_id in begun:
        assert (await process.coordinator.end(txn_id, commit=True)).state == COMMITTED
    await process.close()


@virtual_time
async def test_an_end_that_was_told_of_its_timeout_is_not_answered_again_once_it_is_decided() -> None:
    etcd = fresh_etcd()
    process = await Process(etcd, "one").start()
    begun = await process.coordinator.begin(0)
    etcd.pause()
    answers: list[RecordedDecision | TxnError] = []
    assert process.coordinator.end_nowait(begun.txn_id, answers.append, commit=True)
    await until(lambda: len(answers) == 1, within_s=15)
    etcd.resume()
    await until(lambda: not open_headers(etcd))
    await asyncio.sleep(1)
    assert [type(answer) for answer in answers] == [Timeout]
    await process.close()


@virtual_time
async def test_e3_above_the_soft_limit_begins_are_refused_and_ends_are_not() -> None:
    etcd = fresh_etcd()
    process = await Process(etcd, "one").start()
    begun = await process.coordinator.begin(0)
    etcd.quota_bytes = 1
    process.store._soft_limit.exceeded = lambda: True  # type: ignore[method-assign]
    with pytest.raises(StoreFull):
        await process.coordinator.begin(0)
    assert process.coordinator.statistics().open == 1
    etcd.quota_bytes = 1 << 30
    assert (await process.coordinator.end(begun.txn_id, commit=True)).state == COMMITTED
    await process.close()


@virtual_time
async def test_l2_a_delayed_end_of_one_transaction_never_ends_the_next() -> None:
    etcd = fresh_etcd()
    process = await Process(etcd, "one", ONE_TCID).start()
    first = await process.coordinator.begin(0, timeout_ms=2_000)
    await until(lambda: not open_headers(etcd))
    second = await process.coordinator.begin(0)
    with pytest.raises(InvalidTxnState, match="timeout"):
        await process.coordinator.end(first.txn_id, commit=True)
    assert open_headers(etcd) == [second.txn_id]
    await process.close()


@virtual_time
async def test_closing_frees_the_tcids_at_once() -> None:
    etcd = fresh_etcd()
    one = await Process(etcd, "one").start()
    two = await Process(etcd, "two").start()
    assert two.coordinator.owned_tcids == ()
    await one.close()
    assert await until(lambda: two.coordinator.owned_tcids == (0,)) < 1.0
    await two.close()


@pytest.mark.parametrize("ends", [False, True], ids=["begin", "end"])
@virtual_time
async def test_closing_waits_for_a_request_in_flight(ends: bool) -> None:
    """Otherwise its answer is lost with the process, and its client asks another coordinator."""
    process = await Process(fresh_etcd(), "one").start()
    begun = await process.coordinator.begin(0)

    async def ask() -> None:
        await (process.coordinator.end(begun.txn_id, commit=True) if ends else process.coordinator.begin(0))

    process.fates.script = [Fate(answer_s=0.5)]
    asked = asyncio.create_task(ask())
    await asyncio.sleep(0.01)
    assert process.fates.script == [], "it is in flight"
    await process.coordinator.close()
    assert asked.done()
    await asked
    await process.store.close()


async def _timed(call: Awaitable[T]) -> tuple[T, float]:
    started = asyncio.get_running_loop().time()
    return await call, asyncio.get_running_loop().time() - started


def _reason(process: Process, txn_id: TxnId) -> str | None:
    record = process.record(keys.txn(txn_id))
    decision = None if record is None else decision_of(record)
    return None if decision is None else decision.reason


@virtual_time
async def test_an_outage_of_the_store_multiplies_no_begins() -> None:
    """A fresh id is of use where the store answers others; in an outage it is one more header that lands after it."""
    etcd = fresh_etcd()
    process = await Process(etcd, "one").start()
    await process.coordinator.begin(0)
    before = len(headers(etcd))
    process.fates.script = [LOST_BEFORE] * 1000
    asked = [asyncio.create_task(process.coordinator.begin(0)) for _ in range(100)]
    await asyncio.sleep(6)
    process.fates.script.clear()
    begun = {answer.txn_id for answer in await asyncio.gather(*asked)}
    await asyncio.sleep(5)
    assert len(begun) == 100
    assert len(headers(etcd)) - before <= 100 + MAX_EXTRA
    assert sorted(open_headers(etcd))[1:] == sorted(begun)
    await process.close()


@virtual_time
async def test_d7_a_begin_repeated_after_a_timeout_is_served_with_the_header_that_is_on_its_way() -> None:
    etcd = fresh_etcd()
    process = await Process(etcd, "one").start()
    connection = Connection("a client")
    await process.coordinator.announce(connection, [])
    process.fates.script = [LOST_BEFORE] * 1000
    for _ in range(3):
        with pytest.raises(Timeout):
            await process.coordinator.begin(0, attempt=b"one", connection=connection)
    again = asyncio.create_task(process.coordinator.begin(0, attempt=b"one", connection=connection))
    await asyncio.sleep(1)
    process.fates.script.clear()
    begun = await again
    await asyncio.sleep(3)
    assert open_headers(etcd) == [begun.txn_id]
    assert len(headers(etcd)) <= MAX_TRIES
    assert (await process.coordinator.begin(0, attempt=b"one", connection=connection)).txn_id == begun.txn_id
    await process.close()


@virtual_time
async def test_a_second_request_for_an_end_under_way_sends_no_second_end() -> None:
    """Dies if it does: etcd refuses it, and the coordinator takes the refusal for another one's decision."""
    etcd = fresh_etcd()
    process = await Process(etcd, "one", ONE_TCID).start()
    begun = await process.coordinator.begin(0)
    ends = [process.coordinator.end(begun.txn_id, commit=True) for _ in range(2)]
    first, second = await asyncio.gather(*ends)
    assert first == second
    await asyncio.sleep(1)
    statistics = process.coordinator.statistics()
    assert (statistics.committed, statistics.cas_conflict) == (1, 0)
    await process.close()
