"""Outcome blocks and when they expire."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from coordinator_v5.settings import CoordinatorSettings
from tests.coordinator_v5.decided import check_outcomes, run_transactions
from tests.coordinator_v5.processes import (
    Process,
    fresh_etcd,
    headers,
    within,
)
from tests.segments.virtual_time import virtual_time
from tests.waiting import until
from txnstore import keys
from txnstore.memory.memory_etcd import MemoryEtcd
from txnstore.store import Commit, CommitVerdict, Put, RangeResult
from txnwire.errors import StoreUnavailable
from txnwire.ids import TxnId

WEEK_MS = 7 * 24 * 3_600_000
SOON = CoordinatorSettings(tcids=1, header_retention_s=1.0, housekeeping_every_s=10.0, outcome_retention_s=600.0)
"""Outcomes expire after ten minutes."""
OWN_BLOCKS = replace(SOON, id_block=4096)
"""A successor takes ids of its own, so a block of its own."""


async def decided(process: Process, etcd: MemoryEtcd) -> dict[TxnId, str]:
    """A transaction whose header was collected."""
    found = await run_transactions(process, 1)
    await until(lambda: not headers(etcd), "the header to be collected")
    return found


async def decided_ahead_and_later(etcd: MemoryEtcd) -> tuple[Process, dict[TxnId, str], dict[TxnId, str]]:
    """What was decided by a clock ten years ahead, and then by a successor, which is returned."""
    former = await Process(etcd, "one", OWN_BLOCKS).start()
    former.clock.step_ms = 520 * WEEK_MS
    ahead = await decided(former, etcd)
    await former.close()
    process = await Process(etcd, "two", OWN_BLOCKS).start()
    return process, ahead, await decided(process, etcd)


@virtual_time
async def test_outcome_blocks_expire_after_seven_days_untouched() -> None:
    etcd = fresh_etcd()
    settings = CoordinatorSettings(tcids=1, header_retention_s=1.0, housekeeping_every_s=10.0)
    process = await Process(etcd, "one", settings).start()
    old = await run_transactions(process, 3)
    await until(lambda: not headers(etcd), within_s=300.0)
    process.clock.step_ms = WEEK_MS - 120_000
    await asyncio.sleep(60)
    await check_outcomes(process, old)
    assert await until(lambda: not within(etcd, keys.TXN_OUTCOME), within_s=300.0) < 90
    await process.close()


@virtual_time
async def test_a_block_that_is_made_after_the_blocks_were_listed_expires_as_well() -> None:
    """They are listed once, and a coordinator may own an id for months."""
    etcd = fresh_etcd()
    process = await Process(etcd, "one", SOON).start()
    await asyncio.sleep(15)  # there are none yet
    await decided(process, etcd)
    process.clock.step_ms = 700_000
    await until(lambda: not within(etcd, keys.TXN_OUTCOME), within_s=60)
    await process.close()


@virtual_time
async def test_a_block_that_is_made_as_the_blocks_are_listed_expires_as_well() -> None:
    etcd = fresh_etcd()
    process = await Process(etcd, "one", SOON).start()
    read, made = process.store.range, list[bytes]()

    async def made_meanwhile(start: bytes, end: bytes, **options: Any) -> RangeResult:
        found = await read(start, end, **options)
        if start.startswith(keys.TXN_OUTCOME) and not made:
            await decided(process, etcd)
            made.append(start)
        return found

    process.store.range = made_meanwhile  # type: ignore[method-assign]
    await until(lambda: made)
    assert len(within(etcd, keys.TXN_OUTCOME)) == 1
    process.clock.step_ms = 700_000
    await until(lambda: not within(etcd, keys.TXN_OUTCOME), within_s=60)
    await process.close()


@virtual_time
async def test_a_block_touched_in_the_future_holds_back_no_other_and_goes_in_its_time_here() -> None:
    """One stamp of a clock that ran ten years ahead kept all outcomes behind it for as long."""
    etcd = fresh_etcd()
    process, ahead, later = await decided_ahead_and_later(etcd)
    blocks = within(etcd, keys.TXN_OUTCOME)
    assert len(blocks) == 2
    await asyncio.sleep(500)
    await check_outcomes(process, ahead | later)
    await until(lambda: not within(etcd, keys.TXN_OUTCOME), within_s=300)
    await process.close()


@virtual_time
async def test_blocks_of_every_coordinator_id_expire() -> None:
    etcd = fresh_etcd()
    process = await Process(etcd, "one", replace(SOON, tcids=3)).start()
    for tcid in range(3):
        await run_transactions(process, 1, tcid=tcid)
    await until(lambda: not headers(etcd))
    assert len(within(etcd, keys.TXN_OUTCOME)) == 3
    process.clock.step_ms = 700_000
    await until(lambda: not within(etcd, keys.TXN_OUTCOME), within_s=60)
    await process.close()


@virtual_time
async def test_all_blocks_touched_in_the_future_go_in_one_round_once_it_is_their_time() -> None:
    etcd = fresh_etcd()
    for name in ("one", "two", "three"):
        process = await Process(etcd, name, OWN_BLOCKS).start()
        process.clock.step_ms = 520 * WEEK_MS
        await decided(process, etcd)
        await process.close()
    process = await Process(etcd, "four", OWN_BLOCKS).start()
    await until(lambda: len(within(etcd, keys.TXN_OUTCOME)) < 3, within_s=700)
    assert await until(lambda: not within(etcd, keys.TXN_OUTCOME)) < OWN_BLOCKS.housekeeping_every_s / 2
    await process.close()


@virtual_time
async def test_a_block_touched_in_the_future_holds_back_no_other() -> None:
    etcd = fresh_etcd()
    process, ahead, _ = await decided_ahead_and_later(etcd)
    process.clock.step_ms = 700_000
    await until(lambda: len(within(etcd, keys.TXN_OUTCOME)) == 1, within_s=60)
    await check_outcomes(process, ahead)
    await process.close()


@virtual_time
async def test_an_outcome_block_that_cannot_be_read_holds_back_none_behind_it() -> None:
    etcd = fresh_etcd()
    for name in ("one", "two"):
        process = await Process(etcd, name, OWN_BLOCKS).start()
        await decided(process, etcd)
        if name == "one":
            await process.close()
    first, _ = within(etcd, keys.TXN_OUTCOME)
    etcd.mvcc.commit([Commit(puts=(Put(first.key, b"not an outcome block"),))])
    process.clock.step_ms = 700_000
    await until(lambda: [one.key for one in within(etcd, keys.TXN_OUTCOME)] == [first.key], within_s=60)
    await process.close()


@virtual_time
async def test_a_strange_key_among_outcome_blocks_ends_no_coordinator_and_holds_back_no_block() -> None:
    etcd = fresh_etcd()
    strange = [keys.TXN_OUTCOME + b"0000/" + name for name in (b"0000000000000 (copy)", b"\xff", b"")]
    etcd.mvcc.commit([Commit(puts=tuple(Put(key, b"by hand") for key in strange))])
    process = await Process(etcd, "one", SOON).start()
    await decided(process, etcd)
    process.clock.step_ms = 700_000
    await until(lambda: [one.key for one in within(etcd, keys.TXN_OUTCOME)] == sorted(strange), within_s=60)
    await process.close()


@virtual_time
async def test_a_backlog_of_many_blocks_is_collected_in_bounded_commits() -> None:
    etcd = fresh_etcd()
    process = await Process(etcd, "one", CoordinatorSettings(tcids=2, id_block=128)).start()
    outcomes = await run_transactions(process, 5_000)
    outcomes |= await run_transactions(process, 50, tcid=1)
    await until(lambda: not headers(etcd), within_s=120)
    await check_outcomes(process, outcomes)
    await process.close()


@virtual_time
async def test_blocks_that_could_not_be_listed_are_listed_again_and_expire() -> None:
    """A failed listing leaves no empty list behind: it would stand for the predecessor's blocks for good."""
    etcd = fresh_etcd()
    before = await Process(etcd, "one", SOON).start()
    await decided(before, etcd)
    await before.close()
    process = await Process(etcd, "two", SOON).start()
    read, failed = process.store.range, list[bytes]()

    async def fails_once(start: bytes, end: bytes, **options: Any) -> RangeResult:
        if start.startswith(keys.TXN_OUTCOME) and not failed:
            failed.append(start)
            raise StoreUnavailable("just now")
        return await read(start, end, **options)

    process.store.range = fails_once  # type: ignore[method-assign]
    process.clock.step_ms = 700_000
    await until(lambda: not within(etcd, keys.TXN_OUTCOME), within_s=60)
    assert failed
    await process.close()


@virtual_time
async def test_outcomes_added_to_a_block_touched_in_the_future_are_kept_as_long_as_others() -> None:
    """▲ Its stamp stays in the future with each of them: the block counts as touched by its revision."""
    etcd = fresh_etcd()
    few_ids = replace(SOON, id_block=4)
    process = await Process(etcd, "one", few_ids).start()
    process.clock.step_ms = 520 * WEEK_MS
    await decided(process, etcd)
    await process.close()
    process = await Process(etcd, "two", few_ids).start()
    await asyncio.sleep(500)
    later = await decided(process, etcd)
    assert len(within(etcd, keys.TXN_OUTCOME)) == 1
    await asyncio.sleep(500)
    await check_outcomes(process, later)
    await until(lambda: not within(etcd, keys.TXN_OUTCOME), within_s=700)
    await process.close()


@virtual_time
async def test_a_block_touched_in_the_future_that_can_no_longer_be_read_is_reported_once() -> None:
    etcd = fresh_etcd()
    process = await Process(etcd, "one", SOON).start()
    process.clock.step_ms = 520 * WEEK_MS
    await decided(process, etcd)
    process.clock.step_ms = 0
    await asyncio.sleep(30)
    (block,) = within(etcd, keys.TXN_OUTCOME)
    etcd.mvcc.commit([Commit(puts=(Put(block.key, b"not an outcome block"),))])
    with capture_logs() as logs:
        await asyncio.sleep(2 * SOON.outcome_retention_s)
    assert [line["event"] for line in logs if line["log_level"] == "error"] == ["outcomes not expired"]
    await process.close()


@pytest.mark.parametrize("ahead", [False, True], ids=["in-line", "set-aside"])
@virtual_time
async def test_a_block_that_is_written_while_it_expires_is_looked_at_again_and_expires_later(ahead: bool) -> None:
    etcd = fresh_etcd()
    process = await Process(etcd, "one", SOON).start()
    process.clock.step_ms = 520 * WEEK_MS if ahead else 0
    await decided(process, etcd)
    process.clock.step_ms = 0
    write, written = process.store.commit, list[bytes]()

    async def written_meanwhile(commit: Commit, **options: Any) -> CommitVerdict:
        for delete in commit.deletes:
            if delete.key.startswith(keys.TXN_OUTCOME) and not written:
                written.append(delete.key)
                (block,) = within(etcd, keys.TXN_OUTCOME)
                etcd.mvcc.commit([Commit(puts=(Put(block.key, block.value),))])
        return await write(commit, **options)

    process.store.commit = written_meanwhile  # type: ignore[method-assign]
    await until(lambda: written, within_s=650)
    assert len(within(etcd, keys.TXN_OUTCOME)) == 1
    await until(lambda: not within(etcd, keys.TXN_OUTCOME), within_s=650 if ahead else 30)
    await process.close()
