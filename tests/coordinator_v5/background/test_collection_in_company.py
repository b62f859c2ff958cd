"""Collection beside transactions that cannot be collected yet, and beside keys and headers as nobody here writes them
(DESIGN §5)."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import pytest
from msgspec.structs import replace

from coordinator_v5.background.collector import NAMED_WRITERS_AT_ONCE, TRIED_AT_ONCE
from coordinator_v5.settings import CoordinatorSettings
from coordinator_v5.transactions import Seen
from tests.coordinator_v5.decided import check_outcomes, run_transactions
from tests.coordinator_v5.processes import ONE_TCID, SEGMENT, Process, fresh_etcd, headers, within
from tests.segments.virtual_time import virtual_time
from tests.waiting import until
from txnstore import keys, records
from txnstore.etcd.wire import CommitEncoder
from txnstore.records import ABORTED, COMMITTED, REASON_LOST, GcHorizon, RegistrationRecord
from txnstore.store import MAX_COMMIT_BYTES, Commit, CommitVerdict, Delete, Put, RangeResult
from txnwire.errors import StoreUnavailable
from txnwire.ids import TxnId
from txnwire.turns import turns_divided_by


@virtual_time
async def test_e5_ops_of_every_second_transaction_hold_back_none_of_the_others() -> None:
    """What is left of a batch without those set aside has more runs of ids than one commit takes."""
    etcd = fresh_etcd()
    process = await Process(etcd, "one").start()
    epoch = await process.own()
    decided: dict[TxnId, str] = {}
    held: dict[TxnId, str] = {}
    for number in range(120):
        txn_id = (await process.coordinator.begin(0)).txn_id
        if number % 2:
            assert await process.write(txn_id, epoch=epoch, counter=number)
        of = held if number % 2 else decided
        of[txn_id] = (await process.coordinator.end(txn_id, commit=True)).state
    collector, aside = process.coordinator._collector, dict[TxnId, None]()
    set_aside = collector._set_aside

    def noted(txn_id: TxnId, seen: Seen) -> None:
        aside[txn_id] = None
        set_aside(txn_id, seen)

    collector._set_aside = noted  # type: ignore[method-assign]
    await until(lambda: len(headers(etcd)) == len(held), within_s=75)
    assert {keys.txn_of(record.key) for record in headers(etcd)} == set(held)
    assert aside.keys() == held.keys()
    await check_outcomes(process, decided)
    await process.close()


@virtual_time
async def test_e5_a_page_full_of_one_transaction_s_ops_hides_no_op_of_another_behind_it() -> None:
    """Dies if only the first page of ops is looked at: those around the second one would never be collected."""
    etcd = fresh_etcd()
    process = await Process(etcd, "one", dataclasses.replace(ONE_TCID, keys_at_once=2)).start()
    epoch = await process.own()
    before, long, short, behind = [(await process.coordinator.begin(0)).txn_id for _ in range(4)]
    for counter, txn_id in enumerate((long, long, long, short)):
        assert await process.write(txn_id, epoch=epoch, counter=counter)
    for txn_id in (before, long, short, behind):
        await process.coordinator.end(txn_id, commit=True)
    await until(lambda: [keys.txn_of(record.key) for record in headers(etcd)] == [long, short], within_s=75)
    await check_outcomes(process, {before: COMMITTED, behind: COMMITTED})
    await process.close()


@virtual_time
async def test_all_that_are_set_aside_are_tried_again_in_one_round_in_however_many_turns() -> None:
    etcd = fresh_etcd()
    settings = dataclasses.replace(ONE_TCID, collect_every_s=10.0)
    with turns_divided_by(TRIED_AT_ONCE):  # one at once
        process = await Process(etcd, "one", settings).start()
    epoch = await process.own()
    for counter in range(3):
        held = (await process.coordinator.begin(0)).txn_id
        assert await process.write(held, epoch=epoch, counter=counter)
        await process.coordinator.end(held, commit=True)
    await until(lambda: process.coordinator.statistics().stuck == 3, within_s=75)
    etcd.mvcc.commit([Commit(deletes=(Delete(keys.TXN_OP, keys.prefix_end(keys.TXN_OP)),))])
    assert await until(lambda: not headers(etcd)) < 1.5 * settings.collect_every_s
    await process.close()


@pytest.mark.parametrize("left_over", [False, True])
@virtual_time
async def test_a_header_that_a_repair_has_put_a_third_time_is_collected_with_its_neighbours(left_over: bool) -> None:
    """A repair turns COMMITTED into ABORTED where a part of the transaction is lost."""
    etcd = fresh_etcd()
    process = await Process(etcd, "one").start()
    decided = await run_transactions(process, 9)
    dropped = (await process.coordinator.begin(0)).txn_id
    if left_over:
        assert await process.write(dropped, epoch=await process.own())
    await process.coordinator.end(dropped, commit=True)
    decided |= await run_transactions(process, 9)
    header = await process.header(dropped)
    assert header is not None
    await process.close()
    lost = replace(header, state=ABORTED, reason=REASON_LOST, writers=None)
    etcd.mvcc.commit(
        [Commit(puts=(Put(keys.txn(dropped), records.encode(lost)),), deletes=(Delete(keys.owner(SEGMENT)),))]
    )
    repaired = await Process(etcd, "two").start()
    await until(lambda: not headers(etcd), within_s=90)
    assert within(etcd, keys.TXN_OP) == []
    await check_outcomes(repaired, decided | {dropped: ABORTED})
    await repaired.close()


@pytest.mark.parametrize("prefix", [keys.TXN, keys.TXN_OP])
@virtual_time
async def test_a_strange_key_between_headers_or_ops_holds_back_no_collection(prefix: bytes) -> None:
    etcd = fresh_etcd()
    process = await Process(etcd, "one").start()
    decided = await run_transactions(process, 20)
    strange = prefix + str(sorted(decided)[9]).encode() + b"\xff/x"
    etcd.mvcc.commit([Commit(puts=(Put(strange, b"by hand"),))])
    await until(lambda: [record.key for record in headers(etcd) if record.key != strange] == [], within_s=75)
    assert etcd.mvcc.get(strange) is not None
    await check_outcomes(process, decided)
    await process.close()


@virtual_time
async def test_a_strange_key_among_the_ops_of_one_transaction_holds_back_that_one_alone() -> None:
    etcd = fresh_etcd()
    process = await Process(etcd, "one").start()
    decided = await run_transactions(process, 20)
    held = sorted(decided)[9]
    etcd.mvcc.commit([Commit(puts=(Put(keys.txn_ops(held) + b"\xff", b"by hand"),))])
    await asyncio.sleep(120)  # its ops are looked at
    assert [keys.txn_of(record.key) for record in headers(etcd)] == [held]
    await run_transactions(process, 1)
    await process.close()


@virtual_time
async def test_what_is_looked_at_as_its_id_is_lost_is_not_counted_as_stuck_for_ever() -> None:
    etcd = fresh_etcd()
    process = await Process(etcd, "one").start()
    held = (await process.coordinator.begin(0)).txn_id
    assert await process.write(held, epoch=await process.own())
    await process.coordinator.end(held, commit=True)
    read, lost = process.store.range, list[bytes]()

    async def lost_meanwhile(start: bytes, end: bytes, **options: Any) -> RangeResult:
        found = await read(start, end, **options)
        if start == keys.txn_ops(held) and not lost:  # as after a refusal
            lost.append(start)
            process.coordinator._lost(0)
        return found

    process.store.range = lost_meanwhile  # type: ignore[method-assign]
    await until(lambda: lost, within_s=75)
    await asyncio.sleep(5)
    assert process.coordinator.statistics().stuck == 0
    assert process.coordinator._collector._tries == {}
    await process.close()


@virtual_time
async def test_what_is_stuck_as_its_id_is_lost_is_stuck_here_no_more() -> None:
    etcd = fresh_etcd()
    process = await Process(etcd, "one").start()
    held = (await process.coordinator.begin(0)).txn_id
    assert await process.write(held, epoch=await process.own())
    await process.coordinator.end(held, commit=True)
    await until(lambda: process.coordinator.statistics().stuck == 1, within_s=75)
    taken = Put(keys.tc(0), records.encode(RegistrationRecord(id="two", address="two:1")))
    for commit in (Commit(deletes=(Delete(keys.tc(0)),)), Commit(puts=(taken,))):
        etcd.mvcc.commit([commit])
    await until(lambda: process.coordinator.owned_tcids == ())
    assert process.coordinator.statistics().stuck == 0
    await process.close()


async def stream_of_others(process: Process) -> None:
    while True:
        await run_transactions(process, 1)
        await asyncio.sleep(0.25)


@virtual_time
async def test_e5_one_with_ops_is_tried_again_in_time_though_others_are_decided_all_the_while() -> None:
    """It is tried after 1, 2, 4 and 8 s; dies if it then waits behind those whose retention is not over."""
    etcd = fresh_etcd()
    process = await Process(etcd, "one").start()
    held = (await process.coordinator.begin(0)).txn_id
    assert await process.write(held, epoch=await process.own())
    await process.coordinator.end(held, commit=True)
    others = asyncio.create_task(stream_of_others(process))
    await asyncio.sleep(70)  # its retention, and the first tries
    assert process.coordinator.statistics().stuck == 1
    prefix = keys.write_ops(held, SEGMENT)
    etcd.mvcc.commit([Commit(deletes=(Delete(prefix, keys.prefix_end(prefix)),))])
    await until(lambda: etcd.mvcc.get(keys.txn(held)) is None, within_s=20)
    others.cancel()
    await process.close()


@pytest.mark.parametrize("refusals", [1, 3], ids=["interrupted", "refused"])
@virtual_time
async def test_a_round_that_failed_is_made_again_at_once_though_others_are_decided_all_the_while(refusals: int) -> None:
    """What the round has left comes first in the next one."""
    etcd = fresh_etcd()
    process = await Process(etcd, "one").start()
    first = (await process.coordinator.begin(0)).txn_id
    await process.coordinator.end(first, commit=True)
    others = asyncio.create_task(stream_of_others(process))
    write, failed = process.store.commit, list[int]()

    async def failing(commit: Commit, **options: Any) -> CommitVerdict:
        if len(failed) < refusals and any(delete.key == keys.txn(first) for delete in commit.deletes):
            failed.append(len(failed) + 1)
            if refusals == 1:
                raise StoreUnavailable("just now")
            horizon = records.encode(GcHorizon(revision=len(failed)))  # another coordinator's
            etcd.mvcc.commit([Commit(puts=(Put(keys.GC_HORIZON, horizon),))])
        return await write(commit, **options)

    process.store.commit = failing  # type: ignore[method-assign]
    await until(lambda: len(failed) == refusals, within_s=75)
    await until(lambda: etcd.mvcc.get(keys.txn(first)) is None, within_s=5)
    others.cancel()
    await process.close()


async def left_ops(process: Process, count: int) -> list[TxnId]:
    """Committed transactions with an op each in a segment that has no owner any more."""
    epoch, left = await process.own(), []
    for counter in range(count):
        txn_id = (await process.coordinator.begin(0)).txn_id
        assert await process.write(txn_id, counter=counter, epoch=epoch)
        await process.coordinator.end(txn_id, commit=True, writers=[])
        left.append(txn_id)
    process.etcd.mvcc.commit([Commit(deletes=(Delete(keys.owner(SEGMENT)),))])
    return left


@virtual_time
async def test_an_op_that_cannot_be_read_keeps_no_other_transaction_from_being_collected() -> None:
    """Whoever looks at what it has left is told of it, and goes on: dies if each round ends there."""
    etcd = fresh_etcd()
    process = await Process(etcd, "one").start()
    strange, *_ = await left_ops(process, 2)
    (op, _) = within(etcd, keys.TXN_OP)
    etcd.mvcc.commit([Commit(puts=(Put(op.key, b"not an op"),))])
    await asyncio.sleep(90)  # it has been looked at
    decided = await run_transactions(process, 5)
    await until(lambda: [keys.txn_of(record.key) for record in headers(etcd)] == [strange], within_s=75)
    await check_outcomes(process, decided)
    await process.close()


@virtual_time
async def test_what_many_transactions_have_left_in_a_segment_without_an_owner_is_cleared_soon() -> None:
    """A hundred in each round; dies if each takes a round of its own."""
    etcd = fresh_etcd()
    process = await Process(etcd, "one").start()
    await left_ops(process, 90)
    await until(lambda: not headers(etcd), within_s=60 + 15)
    assert within(etcd, keys.TXN_OP) == []
    assert process.coordinator._collector._tries == {}
    await process.close()


@virtual_time
async def test_what_one_transaction_has_left_in_many_segments_is_cleared_in_one_look() -> None:
    """Dies if a look ends behind one segment: the next comes ever later."""
    etcd = fresh_etcd()
    process = await Process(etcd, "one").start()
    left = (await process.coordinator.begin(0)).txn_id
    segments = [f"{SEGMENT}{number}" for number in range(5)]
    for segment in segments:
        assert await process.write(left, segment, epoch=await process.own(segment))
    await process.coordinator.end(left, commit=False)
    etcd.mvcc.commit([Commit(deletes=tuple(Delete(keys.owner(segment)) for segment in segments))])
    await until(lambda: len(within(etcd, keys.TXN_OP)) < 5, within_s=90)
    assert await until(lambda: not headers(etcd)) < 5
    assert all(process.record(keys.aborted(segment, left)) for segment in segments)
    await process.close()


@virtual_time
async def test_named_ones_with_many_writers_are_collected_in_commits_that_the_store_takes() -> None:
    """Their lists go into the records of their names: together these would be larger than a commit."""
    etcd = fresh_etcd()
    process = await Process(etcd, "one", CoordinatorSettings(tcids=1, header_retention_s=5.0)).start()
    coordinator = process.coordinator
    writers = [f"{number:016x}" for number in range(NAMED_WRITERS_AT_ONCE // 2 + 1)]
    for number in range(6):
        begun = await coordinator.begin_named(0, name=f"job/{number}")
        await coordinator.end(begun.txn_id, commit=True, writers=writers, name=f"job/{number}")
    send, sizes = process.store.commit, list[int]()

    async def measured(commit: Commit, **options: Any) -> CommitVerdict:
        sizes.append(len(CommitEncoder(b"").transaction(commit)))
        return await send(commit, **options)

    process.store.commit = measured  # type: ignore[method-assign]
    await until(lambda: not headers(etcd))
    assert max(sizes) <= MAX_COMMIT_BYTES
    for number in range(6):
        found = (await coordinator.begin_named(0, name=f"job/{number}")).decision
        assert found is not None
        assert found.writers == tuple(writers)
    await process.close()
