"""Collection: retention, outcomes, the horizon, ops that hold a header, leftovers, expiry, several coordinators."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from coordinator_v5.background.collector import TRIED_AT_ONCE
from coordinator_v5.settings import CoordinatorSettings
from tests.coordinator_v5.decided import check_outcomes, run_transactions
from tests.coordinator_v5.processes import (
    LANDS_LATE,
    LOST_AFTER,
    LOST_BEFORE,
    ONE_TCID,
    SEGMENT,
    Process,
    fresh_etcd,
    headers,
    within,
)
from tests.segments.virtual_time import virtual_time
from tests.waiting import until
from txnstore import keys, records
from txnstore.memory.memory_store import Fate
from txnstore.records import ABORTED, COMMITTED, AbortedRecord, GcHorizon, Op
from txnstore.store import Commit, CommitVerdict, Delete, EventKind, KeyValue, Put, RangeResult
from txnstore.writes.collection_transitions import read_horizon
from txnstore.writes.op_transitions import plan_ack_op
from txnwire.errors import StoreUnavailable
from txnwire.ids import TxnId
from txnwire.turns import turns_divided_by


@virtual_time
async def test_headers_go_after_their_retention_and_outcomes_stay() -> None:
    etcd = fresh_etcd()
    process = await Process(etcd, "one").start()
    decided = await run_transactions(process, 200)
    await asyncio.sleep(58)
    assert len(headers(etcd)) == 200
    assert await until(lambda: not headers(etcd)) < 4
    await check_outcomes(process, decided)
    assert process.coordinator.statistics().collected == 200
    assert process.coordinator.statistics().retained == 0
    await process.close()


@virtual_time
async def test_a_collected_transaction_costs_little_more_than_its_header_s_deletion() -> None:
    """Begin 1, end 1, collection 1: the rest is shared by many."""
    etcd = fresh_etcd()
    process = await Process(etcd, "one").start()
    await asyncio.sleep(0.5)
    first = etcd.mvcc.revision + 1
    await run_transactions(process, 600)
    await until(lambda: not headers(etcd), within_s=300.0)
    changes = etcd.mvcc.changes_since(first, at_most=100_000)
    mutations = sum(len(change.events) for change in changes)
    deletions = sum(event.kind is EventKind.DELETE for change in changes for event in change.events)
    assert deletions == 600
    assert mutations <= 3.03 * 600
    await process.close()


@virtual_time
async def test_the_horizon_is_raised_before_or_with_the_deletion() -> None:
    etcd = fresh_etcd()
    process = await Process(etcd, "one", CoordinatorSettings(tcids=3, header_retention_s=5.0)).start()
    revisions: dict[bytes, int] = {}
    for _ in range(30):
        for tcid in range(3):
            await run_transactions(process, 4, tcid=tcid)
        revisions.update({record.key: record.mod_revision for record in headers(etcd) if record.version == 2})
        await asyncio.sleep(0.3)
        gone = revisions.keys() - {record.key for record in headers(etcd)}
        horizon = read_horizon(process.record(keys.GC_HORIZON)).revision
        assert all(revisions[key] <= horizon for key in gone)
    assert horizon > 0
    await process.close()


@virtual_time
async def test_e5_a_header_stays_while_an_op_of_it_remains() -> None:
    etcd = fresh_etcd()
    process = await Process(etcd, "one").start()
    epoch = await process.own()
    held = (await process.coordinator.begin(0)).txn_id
    assert await process.write(held, epoch=epoch)
    await process.coordinator.end(held, commit=True)
    others = await run_transactions(process, 60)
    await until(lambda: len(headers(etcd)) == 1, within_s=75)
    await asyncio.sleep(600)
    assert [keys.txn_of(record.key) for record in headers(etcd)] == [held]
    assert process.coordinator.statistics().stuck == 1
    await check_outcomes(process, others)
    prefix = keys.write_ops(held, SEGMENT)
    etcd.mvcc.commit([Commit(deletes=(Delete(prefix, keys.prefix_end(prefix)),))])
    assert await until(lambda: not headers(etcd)) <= 62
    await check_outcomes(process, {held: COMMITTED})
    assert process.coordinator.statistics().stuck == 0
    await process.close()


@virtual_time
async def test_what_a_round_that_is_interrupted_has_not_come_to_stays_in_line() -> None:
    """Dies if it is forgotten: these headers would stand until another coordinator takes the id over."""
    etcd = fresh_etcd()
    process = await Process(etcd, "one").start()
    epoch = await process.own()
    held = (await process.coordinator.begin(0)).txn_id
    assert await process.write(held, epoch=epoch)
    await run_transactions(process, 60)
    await process.coordinator.end(held, commit=True)
    read, failed = process.store.range, 0

    async def fails_once(start: bytes, end: bytes, **options: Any) -> RangeResult:
        nonlocal failed
        if start.startswith(keys.TXN) and options.get("keys_only") and not failed:  # as after a refusal
            failed += 1
            raise StoreUnavailable("just now")
        return await read(start, end, **options)

    process.store.range = fails_once  # type: ignore[method-assign]
    await until(lambda: [keys.txn_of(record.key) for record in headers(etcd)] == [held], within_s=75)
    assert failed == 1
    await process.close()


@virtual_time
async def test_one_round_takes_all_that_is_due_in_however_many_commits() -> None:
    """Dies if a round ends behind its first commit: what is decided faster than that would pile up."""
    etcd = fresh_etcd()
    settings = replace(ONE_TCID, id_block=keys.OUTCOMES_PER_BLOCK, collect_every_s=10.0)
    for name in ("one", "two"):  # a successor takes ids of its own, so a block of its own
        process = await Process(etcd, name, settings).start()
        decided = await run_transactions(process, 3)
        named = await process.coordinator.begin_named(0, name=name)
        await process.coordinator.end(named.txn_id, commit=True)
        if name == "one":
            await process.close()
    await until(lambda: len(headers(etcd)) < 8, within_s=75)
    assert await until(lambda: not headers(etcd)) < settings.collect_every_s / 2
    assert len(within(etcd, keys.TXN_OUTCOME)) == 2
    await check_outcomes(process, decided)
    await process.close()


@virtual_time
async def test_what_others_refuse_again_and_again_by_raising_the_horizon_is_collected_in_the_next_round() -> None:
    """Coordinators of other ids collect at the same time: a few refusals in a row are no reason to forget headers."""
    etcd = fresh_etcd()
    process = await Process(etcd, "one").start()
    decided = await run_transactions(process, 20)
    send, raised_at = process.store.commit, list[float]()

    async def overtaken(commit: Commit, **options: Any) -> CommitVerdict:
        if len(raised_at) < 9 and any(put.key == keys.GC_HORIZON for put in commit.puts):
            raised_at.append(process.clock.monotonic())
            horizon = records.encode(GcHorizon(revision=len(raised_at)))
            etcd.mvcc.commit([Commit(puts=(Put(keys.GC_HORIZON, horizon),))])
        return await send(commit, **options)

    process.store.commit = overtaken  # type: ignore[method-assign]
    await until(lambda: not headers(etcd), within_s=75)
    rests = [after - before for before, after in pairwise(raised_at)]
    assert [rest >= ONE_TCID.collect_every_s for rest in rests] == [False, False, True] * 2 + [False, False]
    await check_outcomes(process, decided)
    await process.close()


@virtual_time
async def test_what_was_set_aside_goes_back_in_line_in_turns_and_not_to_an_id_that_is_lost_meanwhile() -> None:
    etcd = fresh_etcd()
    process = await Process(etcd, "one").start()
    epoch = await process.own()
    for _ in range(3):
        held = (await process.coordinator.begin(0)).txn_id
        assert await process.write(held, epoch=epoch)
        await process.coordinator.end(held, commit=True)
    await until(lambda: process.coordinator.statistics().stuck == 3, within_s=75)
    collector = process.coordinator._collector
    collector._stuck = {txn_id: stuck._replace(retry_at=0.0) for txn_id, stuck in collector._stuck.items()}
    with turns_divided_by(TRIED_AT_ONCE):  # one at once
        retrying = asyncio.ensure_future(collector._retry_stuck())
        await asyncio.sleep(0)
        assert len(collector._stuck) == 2
        process.coordinator._lost(0)
        await retrying
    assert process.coordinator.statistics().stuck == 0
    assert collector._tries == {}, "taken again, they are tried soon"
    await process.close()


@virtual_time
async def test_e5_an_op_of_the_last_header_of_a_batch_holds_back_none_of_the_others() -> None:
    etcd = fresh_etcd()
    process = await Process(etcd, "one").start()
    epoch = await process.own()
    others = await run_transactions(process, 5)
    held = (await process.coordinator.begin(0)).txn_id
    assert await process.write(held, epoch=epoch)
    await process.coordinator.end(held, commit=True)
    await until(lambda: len(headers(etcd)) == 1, within_s=75)
    assert [keys.txn_of(record.key) for record in headers(etcd)] == [held]
    await check_outcomes(process, others)
    await process.close()


@pytest.mark.parametrize("commit", [True, False])
@virtual_time
async def test_leftovers_of_a_segment_without_an_owner_are_cleared_and_the_header_goes(commit: bool) -> None:
    etcd = fresh_etcd()
    process = await Process(etcd, "one").start()
    epoch = await process.own()
    begun = await process.coordinator.begin(0)
    assert await process.write(begun.txn_id, epoch=epoch)
    await process.coordinator.end(begun.txn_id, commit=commit)
    await asyncio.sleep(90)
    assert len(headers(etcd)) == 1, "its owner may still clean it up"
    etcd.mvcc.commit([Commit(deletes=(Delete(keys.owner(SEGMENT)),))])
    await until(lambda: not headers(etcd))
    assert within(etcd, keys.TXN_OP) == []
    aborted = process.record(keys.aborted(SEGMENT, begun.txn_id))
    if commit:
        assert aborted is None
    else:
        assert aborted is not None
        assert records.decode(AbortedRecord, aborted.value, key=aborted.key).max_position is None
    await process.close()


@pytest.mark.parametrize("disturbed", [False, True])
@virtual_time
async def test_a_loser_beyond_the_first_page_of_ops_stays_hidden(disturbed: bool) -> None:
    """▲ All ops of a segment go at once: a writer that was not among those read would have no record of its abort; nor
    would those of a part of the records that is refused, as one of them has changed since it was read, if the next part
    went all the same, and the ops with it."""
    etcd = fresh_etcd()
    process = await Process(etcd, "one", replace(ONE_TCID, ops_at_once=10)).start()
    read, left = process.store.get_many, [1] if disturbed else []

    async def changed_behind(wanted: Sequence[bytes], **options: Any) -> tuple[int, list[KeyValue | None]]:
        found = await read(wanted, **options)
        if keys.aborted(SEGMENT, begun.txn_id, 2) in wanted and left:
            left.clear()
            unknown = records.encode(AbortedRecord(max_position=None))
            etcd.mvcc.commit([Commit(puts=(Put(keys.aborted(SEGMENT, begun.txn_id, 2), unknown),))])
        return found

    process.store.get_many = changed_behind  # type: ignore[method-assign]
    epoch = await process.own()
    begun = await process.coordinator.begin(0)
    for counter in range(250):
        text = f"{counter // 2 + 1:016x}"
        op = Op(v=1, kind="write", segment=SEGMENT, writer=text)
        put = Put(keys.op(keys.write_ops(begun.txn_id, SEGMENT), epoch, counter), records.encode(op))
        etcd.mvcc.commit([Commit(puts=(put, Put(keys.write_index(SEGMENT, begun.txn_id), b"")))])
    await process.coordinator.end(begun.txn_id, commit=True, writers=[f"{1:016x}"])
    etcd.mvcc.commit([Commit(deletes=(Delete(keys.owner(SEGMENT)),))])
    await until(lambda: not headers(etcd), within_s=300.0)
    assert within(etcd, keys.TXN_OP) == []
    hidden = [process.record(keys.aborted(SEGMENT, begun.txn_id, writer)) for writer in range(1, 126)]
    assert hidden[0] is None
    assert all(hidden[1:])
    assert not left
    await process.close()


@virtual_time
async def test_e5_p6_a_committed_ack_stays_with_its_header_until_somebody_applies_it() -> None:
    etcd = fresh_etcd()
    process = await Process(etcd, "one").start()
    epoch = await process.own()
    begun = await process.coordinator.begin(0)
    ack = Op(v=1, kind="ack", segment=SEGMENT, subscription="s")
    plan = plan_ack_op(begun.txn_id, SEGMENT, "s", epoch, 1, ack, first_in_subscription=True)
    assert (await process.store.commit(plan)).succeeded
    assert await process.write(begun.txn_id, epoch=epoch, counter=2)
    await process.coordinator.end(begun.txn_id, commit=True)
    etcd.mvcc.commit([Commit(deletes=(Delete(keys.owner(SEGMENT)),))])
    await asyncio.sleep(900)
    assert len(headers(etcd)) == 1
    assert [keys.op_parts(record.key)[2] for record in within(etcd, keys.TXN_OP)] == ["s"]
    await process.close()


@virtual_time
async def test_a_collection_by_another_coordinator_is_noticed() -> None:
    """The TCID moved to another one for longer than the retention and came back: nothing is collected twice."""
    etcd = fresh_etcd()
    one, two = await Process(etcd, "one").start(), await Process(etcd, "two").start()
    decided = await run_transactions(one, 30)
    one.pause()
    await until(lambda: two.coordinator.owned_tcids == (0,), within_s=300.0)
    await until(lambda: not headers(etcd), within_s=90)
    await check_outcomes(two, decided)
    one.resume()
    await asyncio.sleep(70)
    await two.close()
    await until(lambda: one.coordinator.owned_tcids == (0,), within_s=300.0)
    decided |= await run_transactions(one, 30)
    await until(lambda: not headers(etcd), within_s=300.0)
    await check_outcomes(one, decided)
    await one.close()


@virtual_time
async def test_decisions_of_other_coordinators_are_found_and_collected() -> None:
    etcd = fresh_etcd()
    one, two = await Process(etcd, "one").start(), await Process(etcd, "two").start()
    begun = [(await one.coordinator.begin(0, timeout_ms=3_000_000)).txn_id for _ in range(20)]
    await asyncio.sleep(3)
    decided = {txn_id: (await two.coordinator.end(txn_id, commit=True)).state for txn_id in begun}
    await until(lambda: one.coordinator.statistics().open == 0, within_s=40)
    assert within(etcd, keys.TXN_BY_DEADLINE) == []
    await until(lambda: not headers(etcd), within_s=70)
    await check_outcomes(one, decided)
    assert one.coordinator.statistics().committed == 0
    await one.close()
    await two.close()


@virtual_time
async def test_a_header_that_cannot_be_read_hides_no_decision_of_another_coordinator_behind_it() -> None:
    etcd = fresh_etcd()
    one, two = await Process(etcd, "one").start(), await Process(etcd, "two").start()
    first, second = [(await one.coordinator.begin(0, timeout_ms=3_000_000)).txn_id for _ in range(2)]
    await asyncio.sleep(3)
    etcd.mvcc.commit([Commit(puts=(Put(keys.txn(first), b"not json"),))])
    await two.coordinator.end(second, commit=True)
    await until(lambda: one.coordinator.statistics().open == 1, within_s=40)
    await one.close()
    await two.close()


@pytest.mark.parametrize("fate", [LOST_BEFORE, LOST_AFTER, LANDS_LATE, Fate(arrive_s=25.0, fail_s=20.0)])
@pytest.mark.parametrize("skip", [0, 1, 2, 3])
@virtual_time
async def test_e2_a_collection_of_unknown_outcome_loses_nothing(fate: Fate, skip: int) -> None:
    etcd = fresh_etcd()
    process = await Process(etcd, "one").start()
    decided: dict[TxnId, str] = {}
    for _ in range(5):
        decided |= await run_transactions(process, 20)
        await asyncio.sleep(2)
    await until(lambda: process.coordinator.statistics().collected > 0)
    process.fates.skip, process.fates.script = skip, [fate]
    await until(lambda: not headers(etcd))
    await check_outcomes(process, decided)
    await until(lambda: process.coordinator.statistics().retained == 0)
    await process.close()


@virtual_time
async def test_what_was_collected_counts_although_its_round_is_interrupted() -> None:
    etcd = fresh_etcd()
    process = await Process(etcd, "one").start()
    await run_transactions(process, 20)
    named = await process.coordinator.begin_named(0, name="a name")
    await process.coordinator.end(named.txn_id, commit=True)
    commit, collecting = process.store.commit, 0

    async def second_fails(one: Commit, **options: Any) -> CommitVerdict:
        nonlocal collecting
        if any(put.key.startswith(keys.TXN_OUTCOME) for put in one.puts):
            collecting += 1
            if collecting == 2:
                raise StoreUnavailable("just now")
        return await commit(one, **options)

    process.store.commit = second_fails  # type: ignore[method-assign]
    await until(lambda: not headers(etcd), within_s=75)
    assert collecting > 2
    assert process.coordinator.statistics().collected == 21
    await process.close()


@virtual_time
async def test_only_a_decided_header_ever_disappears() -> None:
    etcd = fresh_etcd()
    process = await Process(etcd, "one", ONE_TCID).start()
    states: dict[TxnId, str] = {}
    for round_ in range(10):
        begun = await asyncio.gather(*(process.coordinator.begin(0, timeout_ms=200_000) for _ in range(10)))
        for number, one in enumerate(begun):
            states[one.txn_id] = "open"
            if (number + round_) % 4:
                commit = number % 2 == 0
                states[one.txn_id] = (await process.coordinator.end(one.txn_id, commit=commit)).state
    await until(lambda: all(record.version == 1 for record in headers(etcd)), within_s=300.0)
    assert {keys.txn_of(record.key) for record in headers(etcd)} == {
        txn_id for txn_id, state in states.items() if state == "open"
    }
    await check_outcomes(process, {t: s for t, s in states.items() if s in (COMMITTED, ABORTED)})
    await process.close()


@virtual_time
async def test_what_cannot_be_read_is_left_and_all_else_is_collected() -> None:
    """A record of a name, an op of a segment without owner, and a block of outcomes, each written by no one of ours."""
    etcd = fresh_etcd()
    process = await Process(etcd, "one", CoordinatorSettings(tcids=2)).start()
    named = [await process.coordinator.begin_named(0, name=f"job/{n}") for n in range(3)]
    for one in named:
        await process.coordinator.end(one.txn_id, commit=True)
    (left_over,) = [await process.coordinator.begin(0)]
    await process.write(left_over.txn_id, epoch=await process.own())
    await process.coordinator.end(left_over.txn_id, commit=False)
    (op,) = within(etcd, keys.TXN_OP)
    bad = b"[]"
    block = keys.outcome_block(TxnId(1, 1))
    etcd.mvcc.commit([Commit(puts=(Put(keys.txn_name("job/1"), bad), Put(block, bad)))])
    etcd.mvcc.commit([Commit(puts=(Put(op.key + b"/more", bad),), deletes=(Delete(keys.owner(SEGMENT)),))])
    blocked = await run_transactions(process, 3, tcid=1)
    decided = await run_transactions(process, 10)
    await asyncio.sleep(300)
    left = {keys.txn_of(record.key) for record in headers(etcd)}
    assert left == {named[1].txn_id, left_over.txn_id, *blocked}
    await check_outcomes(process, decided)
    etcd.mvcc.commit([Commit(deletes=(Delete(op.key + b"/more"), Delete(block), Delete(keys.txn_name("job/1"))))])
    await until(lambda: not headers(etcd))
    await process.close()
