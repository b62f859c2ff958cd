"""E2 for the coordinator: every write it makes, at every place in a script, lost before or after it was applied.

Whatever happens to a request, the client is told nothing that the store does not say, and nothing is left open."""

from __future__ import annotations

import asyncio
import functools

import pytest

from coordinator_v5.settings import CoordinatorSettings
from tests.coordinator_v5.processes import (
    LANDS_LATE,
    LOST_AFTER,
    LOST_BEFORE,
    Connection,
    Process,
    fresh_etcd,
    headers,
    in_virtual_time,
    open_headers,
    within,
)
from tests.segments.virtual_time import virtual_time
from tests.waiting import until
from txnstore import keys
from txnstore.memory.memory_etcd import MemoryEtcd
from txnstore.memory.memory_store import Fate
from txnstore.records import ABORTED, COMMITTED
from txnwire.errors import TxnError
from txnwire.ids import TxnId

SETTINGS = CoordinatorSettings(tcids=1, id_block=4, header_retention_s=5.0, mark_every_s=0.5)
SLOW = Fate(arrive_s=0.001, fail_s=6.0)
NEVER = Fate(arrive_s=None, fail_s=6.0)
ENDED_WITHIN_S = 30.0
"""Of the script's end: half of the time that transactions have whose clients have gone or were never told of them."""


async def script(process: Process, told: dict[TxnId, str]) -> None:
    """Commits, an abort, a timeout, a vanished client, long and short ones: every kind of write there is."""
    coordinator = process.coordinator
    gone = Connection("gone")

    async def ended(*, commit: bool, pause_s: float) -> None:
        begun = await coordinator.begin(0, timeout_ms=60_000)
        await asyncio.sleep(pause_s)
        told[begun.txn_id] = (await coordinator.end(begun.txn_id, commit=commit)).state

    async def left(connection: Connection | None, timeout_ms: int) -> None:
        begun = await coordinator.begin(0, timeout_ms=timeout_ms, connection=connection)
        told[begun.txn_id] = ABORTED

    await ended(commit=True, pause_s=0)
    await ended(commit=False, pause_s=0.2)
    await left(None, 2_500)
    await left(gone, 60_000)
    coordinator.disconnected(gone)
    await asyncio.gather(ended(commit=True, pause_s=1.5), ended(commit=True, pause_s=0.01))
    await ended(commit=True, pause_s=2.5)


async def ended_and_collected(etcd: MemoryEtcd, process: Process, told: dict[TxnId, str]) -> None:
    """Run the script until nothing of it is left; whatever is read meanwhile, no decision changes."""
    states: dict[TxnId, str] = {}

    def look() -> None:
        for record in headers(etcd):
            if record.version == 2:
                state = COMMITTED if b'"COMMITTED"' in record.value else ABORTED
                assert states.setdefault(keys.txn_of(record.key), state) == state

    running = asyncio.ensure_future(script(process, told))
    while not running.done():
        look()
        await asyncio.sleep(0.05)
    await running
    over = asyncio.ensure_future(until(lambda: not open_headers(etcd), within_s=ENDED_WITHIN_S))
    while not over.done():
        look()
        await asyncio.sleep(0.05)
    await over
    look()
    assert {txn_id: states[txn_id] for txn_id in told} == told
    unknown = states.keys() - told.keys()
    assert all(states[txn_id] == ABORTED for txn_id in unknown), "a lost begin is aborted"
    await until(lambda: not headers(etcd))
    await until(lambda: process.coordinator.statistics().collected == len(states), within_s=ENDED_WITHIN_S)


@functools.cache
def places() -> int:
    """Requests that write, of a run without faults: as far as one is met, any other run goes the same way."""

    async def scenario(etcd: MemoryEtcd) -> int:
        process = await Process(etcd, "one", SETTINGS).start()
        before = process.fates.commits
        await ended_and_collected(etcd, process, {})
        written = process.fates.commits - before
        await process.close()
        return written

    return in_virtual_time(scenario)


@pytest.mark.parametrize("fate", [LOST_BEFORE, LOST_AFTER, LANDS_LATE, SLOW, NEVER], ids=str)
def test_e2_an_unknown_outcome_at_any_write(fate: Fate) -> None:
    async def scenario(etcd: MemoryEtcd, place: int) -> None:
        process = await Process(etcd, "one", SETTINGS).start()
        process.fates.skip, process.fates.script = place, [fate]
        told: dict[TxnId, str] = {}
        await ended_and_collected(etcd, process, told)
        assert process.fates.script == [], "nothing was injected"
        assert within(etcd, keys.TXN_BY_DEADLINE) == []
        for txn_id, state in told.items():
            assert (await process.coordinator.end(txn_id, commit=state == COMMITTED)).state == state
        await process.close()

    assert places() > 20
    for place in range(places()):
        try:
            in_virtual_time(functools.partial(scenario, place=place))
        except BaseException as error:
            error.add_note(f"the write with {place} before it: {fate}")
            raise


@virtual_time
async def test_l1_a_begin_taken_up_after_its_transaction_was_collected_raises_nothing_from_the_dead() -> None:
    """Sent, unanswered, sent again and answered; the first sending reaches etcd long after commit and retention."""
    etcd = fresh_etcd()
    process = await Process(etcd, "one", SETTINGS).start()
    process.fates.script = [Fate(arrive_s=60.0, fail_s=0.5)]
    begun = await process.coordinator.begin(0, timeout_ms=5_000)
    await process.coordinator.end(begun.txn_id, commit=True)
    await until(lambda: not headers(etcd))
    await asyncio.sleep(70)
    assert headers(etcd) == []
    assert (await process.coordinator.end(begun.txn_id, commit=True)).state == COMMITTED
    await process.close()


@pytest.mark.parametrize("place", range(0, 12, 2))
@pytest.mark.parametrize("down_s", [1.0, 4.0, 12.0])
@virtual_time
async def test_e2_etcd_gone_for_a_while_at_any_write(place: int, down_s: float) -> None:
    """Calls fail with retriable errors or wait; afterwards all goes on, and what was told is true."""
    etcd = fresh_etcd()
    process = await Process(etcd, "one", SETTINGS).start()
    told: dict[TxnId, str] = {}
    failed: list[TxnError] = []

    async def client(number: int) -> None:
        for turn in range(8):
            try:
                begun = await process.coordinator.begin(0, timeout_ms=8_000)
                told[begun.txn_id] = "unknown"
                commit = (number + turn) % 3 != 0
                told[begun.txn_id] = (await process.coordinator.end(begun.txn_id, commit=commit)).state
            except TxnError as error:
                failed.append(error)
                await asyncio.sleep(0.5)

    clients = asyncio.gather(*(client(number) for number in range(4)))
    before = process.fates.commits
    await until(lambda: process.fates.commits >= before + place)
    etcd.crash()
    await asyncio.sleep(down_s)
    etcd.restart()
    await clients
    assert all(error.retriable for error in failed)
    await until(lambda: not open_headers(etcd), within_s=60)
    for txn_id, state in told.items():
        header = await process.header(txn_id)
        if header is not None and state != "unknown":
            assert header.state == state
    await until(lambda: process.coordinator.owned_tcids == (0,))
    begun = await process.coordinator.begin(0)
    await process.coordinator.end(begun.txn_id, commit=True)
    await process.close()
