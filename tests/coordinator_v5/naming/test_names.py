"""Named transactions at coordinators: who joins what, how they end, what is told of them, lost begins (DESIGN §10)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

import pytest

from coordinator_v5.begins import BeginHandler
from coordinator_v5.ends import EndHandler
from coordinator_v5.naming.names import Begun, NameHandler
from coordinator_v5.settings import CoordinatorSettings
from coordinator_v5.state import CoordinatorState
from tests.coordinator_v5.processes import (
    LANDS_LATE,
    LOST_AFTER,
    LOST_BEFORE,
    Connection,
    Fates,
    Process,
    fresh_etcd,
    headers,
    open_headers,
    within,
)
from tests.segments.virtual_time import virtual_time
from tests.waiting import until
from txnstore import keys, records
from txnstore.memory.memory_etcd import MemoryEtcd
from txnstore.memory.memory_store import NO_FAULT, Fate, MemoryStore
from txnstore.records import COMMITTED, TxnName
from txnstore.store import Commit, Delete
from txnstore.writes.transitions import RecordedDecision
from txnwire.errors import InvalidArgument, InvalidTxnState, NotOwner, OutcomeUnknown, Overloaded, Timeout, TxnNotFound
from txnwire.ids import TxnId

NAME = "sink/query-7/42"
TWO_TCIDS = CoordinatorSettings(tcids=2, header_retention_s=5.0)
W1, W2, W3 = (f"{number:016x}" for number in (0xA, 0xB, 0xC))


async def begin(process: Process, name: str = NAME, **options: object) -> Begun:
    tcid = process.coordinator.owned_tcids[0]
    return await process.coordinator.begin_named(tcid, name=name, **options)  # type: ignore[arg-type]


async def commit(
    process: Process, txn_id: TxnId, writers: Sequence[str] | None = None, name: str = NAME, note: str | None = None
) -> RecordedDecision:
    return await process.coordinator.end(txn_id, commit=True, writers=writers, name=name, note=note)


async def abort(process: Process, txn_id: TxnId, name: str = NAME) -> RecordedDecision:
    return await process.coordinator.end(txn_id, commit=False, name=name)


async def two(etcd: MemoryEtcd, settings: CoordinatorSettings = TWO_TCIDS) -> tuple[Process, Process]:
    """Two coordinators, with a TCID each."""
    one = await Process(etcd, "one", CoordinatorSettings(tcids=1, header_retention_s=5.0)).start()
    other = await Process(etcd, "two", settings).start()
    assert (one.coordinator.owned_tcids, other.coordinator.owned_tcids) == ((0,), (1,))
    return one, other


async def close(*processes: Process) -> None:
    for process in processes:
        await process.close()


# ---- joining


@virtual_time
async def test_everybody_who_begins_a_name_joins_one_transaction() -> None:
    etcd = fresh_etcd()
    one, other = await two(etcd)
    asked = (begin(process) for process in (one, other) for _ in range(20))
    begun = await asyncio.gather(*asked)
    assert len({joined.txn_id for joined in begun}) == 1
    assert sum(not joined.joined for joined in begun) == 1
    assert len({joined.deadline_ms for joined in begun}) == 1
    assert open_headers(etcd) == [begun[0].txn_id]
    header = await one.header(begun[0].txn_id)
    assert header is not None
    assert header.name == NAME
    assert (await begin(other, "sink/query-7/43")).txn_id != begun[0].txn_id
    opened = [process.coordinator.statistics().open for process in (one, other)]
    assert sorted(opened) in ([0, 2], [1, 1])
    await close(one, other)


@virtual_time
async def test_who_joins_learns_the_first_one_s_deadline() -> None:
    etcd = fresh_etcd()
    process = await Process(etcd, "one").start()
    first = await begin(process, timeout_ms=7_000)
    assert await begin(process, timeout_ms=50_000) == Begun(first.txn_id, first.deadline_ms, joined=True)
    await close(process)


@virtual_time
async def test_names_are_checked() -> None:
    etcd = fresh_etcd()
    process = await Process(etcd, "one").start()
    for name in ("", "n" * 513, "ü" * 257, "\ud800"):
        with pytest.raises(InvalidArgument, match="transaction name"):
            await process.coordinator.begin_named(0, name=name)
    with pytest.raises(NotOwner):
        await process.coordinator.begin_named(7, name=NAME)
    free_text = "Jürgen's job & / # %41 \n/42"
    txn_id = (await begin(process, free_text)).txn_id
    assert (await begin(process, free_text)).txn_id == txn_id
    (record,) = within(etcd, keys.TXN_NAME)
    assert record.key == keys.txn_name(free_text)
    await close(process)


# ---- the table of outcomes


@pytest.mark.parametrize("collected", [False, True])
@pytest.mark.parametrize("writers", [None, (), (W1,), (W1, W2)])
@virtual_time
async def test_a5_joining_or_committing_it_again_tells_the_outcome(
    writers: Sequence[str] | None, collected: bool
) -> None:
    etcd = fresh_etcd()
    one, other = await two(etcd)
    txn_id = (await begin(one)).txn_id
    first = await commit(one, txn_id, writers)
    if collected:
        await until(lambda: not headers(etcd))
        first = first._replace(revision=0)
    for process in (one, other):
        joined = await begin(process)
        assert (joined.txn_id, joined.joined, joined.decision) == (txn_id, True, first)
        assert await commit(process, txn_id, writers) == first
        assert first.writers == (None if writers is None else tuple(writers))
        for others in (None, [], [W1], [W1, W2], [W3]):
            if (None if others is None else tuple(others)) != writers:
                with pytest.raises(InvalidTxnState, match="another list of writers"):
                    await commit(process, txn_id, others)
        with pytest.raises(InvalidTxnState, match="COMMITTED"):
            await abort(process, txn_id)
    await close(one, other)


@pytest.mark.parametrize("collected", [False, True])
@virtual_time
async def test_a5_the_note_of_a_commit_is_told_as_long_as_its_name_is_known(collected: bool) -> None:
    """Through whichever coordinator. Another note is refused; without one it is the same commit, and so is any where
    the record has none, as those of earlier versions."""
    etcd = fresh_etcd()
    one, other = await two(etcd)
    noted, plain = [(await begin(one, name)).txn_id for name in ("noted", "plain")]
    assert (await commit(one, noted, [W1], "noted", "rows=3")).note == "rows=3"
    await commit(one, plain, [W1], "plain")
    if collected:
        await until(lambda: not headers(etcd))
    for process in (one, other):
        assert (await begin(process, "noted")).decision.note == "rows=3"
        for note in ("rows=3", None):
            assert (await commit(process, noted, [W1], "noted", note)).note == "rows=3"
        with pytest.raises(InvalidTxnState, match="another note: 'rows=3', asked for 'rows=4'"):
            await commit(process, noted, [W1], "noted", "rows=4")
        assert (await commit(process, plain, [W1], "plain", "rows=4")).note is None
    await close(one, other)


@virtual_time
async def test_an_aborted_one_has_no_note() -> None:
    etcd = fresh_etcd()
    process = await Process(etcd, "one").start()
    txn_id = (await begin(process)).txn_id
    assert (await process.coordinator.end(txn_id, commit=False, note="rows=3")).note is None
    await close(process)


@virtual_time
async def test_a_refused_list_and_the_one_that_counts_are_both_named() -> None:
    etcd = fresh_etcd()
    process = await Process(etcd, "one").start()
    txn_id = (await begin(process)).txn_id
    await commit(process, txn_id, [W1, W2])
    with pytest.raises(InvalidTxnState, match=f"{W1}, {W2}, asked for {W3}"):
        await commit(process, txn_id, [W3])
    with pytest.raises(InvalidTxnState, match="asked for all"):
        await commit(process, txn_id)
    with pytest.raises(InvalidTxnState, match="asked for none"):
        await commit(process, txn_id, [])
    many = [f"{number:016x}" for number in range(200)]
    with pytest.raises(InvalidTxnState, match="asked for 200 of them"):
        await commit(process, txn_id, many)
    await close(process)


@pytest.mark.parametrize("collected", [False, True])
@virtual_time
async def test_a5_after_an_abort_the_name_starts_afresh(collected: bool) -> None:
    etcd = fresh_etcd()
    one, other = await two(etcd)
    first = await begin(one)
    aborted = await abort(other, first.txn_id)
    if collected:
        await until(lambda: not headers(etcd))
        aborted = aborted._replace(revision=0, reason=None)
    second = await begin(other)
    assert second.txn_id != first.txn_id
    assert (second.joined, second.decision) == (False, None)
    assert (await begin(one)).txn_id == second.txn_id
    assert (await abort(one, first.txn_id))[:2] == aborted[:2]
    with pytest.raises(InvalidTxnState, match="ABORTED"):
        await commit(one, first.txn_id, [W1])
    await commit(one, second.txn_id, [W1])
    await until(lambda: not headers(etcd))
    record = records.decode(TxnName, within(etcd, keys.TXN_NAME)[0].value, key=b"")
    assert (record.txn_id, record.outcome, record.writers) == (str(second.txn_id), COMMITTED, [W1])
    await close(one, other)


@virtual_time
async def test_d5_a_collected_one_whose_name_record_is_gone_or_not_named_is_unknown() -> None:
    """▲ The bitmap does not tell which writers counted: a wrong "all" would be a lie about what can be read."""
    etcd = fresh_etcd()
    process = await Process(etcd, "one", CoordinatorSettings(tcids=1, header_retention_s=5.0)).start()
    txn_id = (await begin(process)).txn_id
    await commit(process, txn_id, [W1])
    await until(lambda: not headers(etcd))
    with pytest.raises(OutcomeUnknown, match="which writers"):
        await commit(process, txn_id, [W1], name="")
    etcd.mvcc.commit([Commit(deletes=(Delete(keys.txn_name(NAME)),))])
    for writers in (None, [W1]):
        with pytest.raises(OutcomeUnknown, match="which writers"):
            await commit(process, txn_id, writers)
    with pytest.raises(InvalidTxnState, match="COMMITTED"):
        await abort(process, txn_id)
    with pytest.raises(TxnNotFound):
        await commit(process, TxnId(0, 1_000_000), [W1])
    fresh = await begin(process)
    assert (fresh.joined, fresh.decision) == (False, None)
    await close(process)


@virtual_time
async def test_a_name_whose_transaction_was_deleted_by_hand_says_so() -> None:
    etcd = fresh_etcd()
    process = await Process(etcd, "one").start()
    txn_id = (await begin(process)).txn_id
    etcd.mvcc.commit([Commit(deletes=(Delete(keys.txn(txn_id)),))])
    with pytest.raises(OutcomeUnknown, match="no header and no outcome"):
        await begin(process)
    await close(process)


# ---- it belongs to nobody's session


@virtual_time
async def test_a5_no_client_s_end_aborts_it_only_its_deadline_does() -> None:
    etcd = fresh_etcd()
    process = await Process(etcd, "one").start()
    coordinator, connection = process.coordinator, Connection("a")
    begun = await begin(process, timeout_ms=40_000)
    plain = await coordinator.begin(0, timeout_ms=40_000, connection=connection)
    await coordinator.announce(connection, [begun.txn_id, plain.txn_id])
    coordinator.disconnected(connection)
    await until(lambda: open_headers(etcd) == [begun.txn_id], within_s=15)
    await asyncio.sleep(20)
    assert open_headers(etcd) == [begun.txn_id]
    assert coordinator.statistics().sessions == 0
    await until(lambda: not open_headers(etcd), within_s=15)
    with pytest.raises(InvalidTxnState, match="timeout"):
        await commit(process, begun.txn_id, [])
    assert (await begin(process)).txn_id != begun.txn_id
    await close(process)


@virtual_time
async def test_a_successor_keeps_it_open_and_ends_it_at_its_deadline() -> None:
    etcd = fresh_etcd()
    one = await Process(etcd, "one").start()
    begun = await begin(one, timeout_ms=60_000)
    kept = await begin(one, "job/2", timeout_ms=60_000)
    one.kill()
    successor = await Process(etcd, "two").start()
    await until(lambda: successor.coordinator.owned_tcids == (0,), within_s=20)
    assert await begin(successor) == begun._replace(joined=True)
    await asyncio.sleep(30)  # more than any client's grace
    assert len(open_headers(etcd)) == 2
    await commit(successor, kept.txn_id, [W1], name="job/2")
    await until(lambda: not open_headers(etcd), within_s=40)
    header = await successor.header(begun.txn_id)
    assert header is not None
    assert header.reason == "timeout"
    await until(lambda: not headers(etcd), within_s=90)
    assert (await begin(successor, "job/2")).decision == RecordedDecision(COMMITTED, 0, None, (W1,))
    await close(successor)


# ---- lost begins


@pytest.mark.parametrize("fate", [LOST_BEFORE, LOST_AFTER, LANDS_LATE])
@virtual_time
async def test_d7_a_lost_begin_of_a_name_is_repeated_under_its_own_id_and_not_aborted(fate: Fate) -> None:
    """▲ Others may have joined what it has begun: aborting it, as is right without a name, would end it for them."""
    etcd = fresh_etcd()
    settings = CoordinatorSettings(tcids=1, answer_s=0.4, begin_patience_s=0.2)
    process = await Process(etcd, "one", settings).start()
    await asyncio.sleep(1.0)
    process.fates.script = [fate]
    with pytest.raises(Timeout):
        await begin(process, attempt=b"mine")
    await asyncio.sleep(8)
    first = await begin(process, attempt=b"mine")
    assert open_headers(etcd) == [first.txn_id]
    assert not first.joined
    assert (await begin(process, attempt=b"another")).joined
    await asyncio.sleep(20)
    assert open_headers(etcd) == [first.txn_id]
    await commit(process, first.txn_id, [W1])
    statistics = process.coordinator.statistics()
    assert (statistics.begun, statistics.committed, statistics.aborted) == (1, 1, 0)
    await close(process)


@virtual_time
async def test_a_begin_that_lands_late_loses_to_one_that_was_faster_elsewhere() -> None:
    etcd = fresh_etcd()
    one, other = await two(etcd)
    await asyncio.sleep(1.0)
    one.fates.script = [LANDS_LATE]
    late = asyncio.ensure_future(begin(one))
    await asyncio.sleep(0.1)
    faster = await begin(other)
    assert await late == faster._replace(joined=True)
    assert open_headers(etcd) == [faster.txn_id]
    assert one.coordinator.statistics().open == 0
    await close(one, other)


@virtual_time
async def test_what_was_joined_and_ended_elsewhere_before_its_begin_was_answered_is_not_counted_open() -> None:
    etcd = fresh_etcd()
    one, other = await two(etcd)
    await asyncio.sleep(1.0)
    one.fates.script = [LOST_AFTER]
    late = asyncio.ensure_future(begin(one, attempt=b"mine"))
    await asyncio.sleep(0.1)
    joined = await begin(other)
    assert (await commit(other, joined.txn_id, [W1])).state == COMMITTED
    assert (await late).decision == RecordedDecision(
        COMMITTED, (await commit(one, joined.txn_id, [W1])).revision, None, (W1,)
    )
    await until(lambda: one.coordinator.statistics().open == 0, within_s=5)
    assert one.coordinator.statistics().aborted == 0
    await close(one, other)


# ---- many


@virtual_time
async def test_names_that_wait_for_blocks_of_ids_get_one_id_each() -> None:
    etcd = fresh_etcd()
    process = await Process(etcd, "one", CoordinatorSettings(tcids=1, id_block=2)).start()
    await asyncio.sleep(0.5)
    begun = await asyncio.gather(*(begin(process, f"job/{number}") for number in range(40)))
    assert len({one.txn_id for one in begun}) == 40
    assert len(open_headers(etcd)) == 40
    await close(process)


@virtual_time
async def test_where_too_many_are_open_a_name_can_be_joined_but_not_begun() -> None:
    etcd = fresh_etcd()
    process = await Process(etcd, "one", CoordinatorSettings(tcids=1, max_open=2)).start()
    first = await begin(process, "job/1")
    await begin(process, "job/2")
    with pytest.raises(Overloaded):
        await begin(process, "job/3")
    assert (await begin(process, "job/1")).txn_id == first.txn_id
    await commit(process, first.txn_id, name="job/1")
    assert not (await begin(process, "job/3")).joined
    await close(process)


@virtual_time
async def test_many_named_ones_are_collected_in_batches_each_with_its_outcome() -> None:
    etcd = fresh_etcd()
    process = await Process(etcd, "one", CoordinatorSettings(tcids=1, header_retention_s=5.0)).start()
    names = [f"job/{number}" for number in range(100)]
    begun = await asyncio.gather(*(begin(process, name) for name in names))
    for number, (name, one) in enumerate(zip(names, begun, strict=True)):
        if number % 3 == 0:
            await abort(process, one.txn_id, name)
        else:
            await commit(process, one.txn_id, [f"{number:016x}"], name)
    first = etcd.mvcc.revision
    await until(lambda: not headers(etcd))
    assert etcd.mvcc.revision - first < 40, "one commit for each"
    for number, (name, one) in enumerate(zip(names, begun, strict=True)):
        now = await begin(process, name)
        if number % 3 == 0:
            assert now.txn_id != one.txn_id
        else:
            assert now.decision == RecordedDecision(COMMITTED, 0, None, (f"{number:016x}",))
    await close(process)


@pytest.mark.parametrize("seed", range(12))
@virtual_time
async def test_whatever_is_lost_a_name_has_one_story(seed: int) -> None:
    """Two coordinators, three names, lost and late writes. Of one name at most one transaction commits, everybody is
    told that one from then on, with one list of writers, and at most one is open at a time."""
    etcd = fresh_etcd()
    chance = random.Random(seed)
    one, other = await two(etcd)
    committed: dict[str, tuple[TxnId, Sequence[str] | None]] = {}

    async def live(number: int) -> None:
        for _ in range(12):
            await asyncio.sleep(chance.expovariate(2.0))
            process, name = chance.choice((one, other)), f"job/{chance.randrange(3)}"
            if chance.random() < 0.3:
                process.fates.script = [chance.choice((LOST_BEFORE, LOST_AFTER, LANDS_LATE))]
            known = committed.get(name)
            try:
                joined = await begin(process, name, attempt=bytes([number, chance.randrange(256)]))
                if known is not None:
                    assert joined.decision is not None
                    assert (joined.txn_id, joined.decision.writers) == known
                if joined.decision is not None:
                    assert joined.decision.state == COMMITTED
                    told = (joined.txn_id, joined.decision.writers)
                    assert committed.setdefault(name, told) == told
                    continue
                writers = chance.choice((None, (W1,), (W2, W3)))
                if chance.random() < 0.5:
                    await abort(process, joined.txn_id, name)
                    continue
                decision = await commit(process, joined.txn_id, writers, name)
                told = (joined.txn_id, decision.writers)
                assert decision.writers == writers
                assert committed.setdefault(name, told) == told
            except (InvalidTxnState, Timeout):
                continue

    await asyncio.gather(*(live(number) for number in range(6)))
    await asyncio.sleep(90)
    assert not open_headers(etcd)
    for name, told in committed.items():
        for process in (one, other):
            joined = await begin(process, name)
            assert joined.decision is not None
            assert (joined.txn_id, joined.decision.writers) == told
    await close(one, other)


class SlowRead(Fates):
    """The read after the next one arrives late."""

    reads = 0

    def fate(self, request: str, client: str) -> Fate:
        if request != "read" or not self.reads:
            return super().fate(request, client)
        self.reads -= 1
        return Fate(arrive_s=4.0) if not self.reads else NO_FAULT


@virtual_time
async def test_a_name_whose_transaction_is_collected_while_it_is_looked_at_is_looked_at_again() -> None:
    etcd = fresh_etcd()
    process = await Process(etcd, "one", CoordinatorSettings(tcids=1, header_retention_s=1.0)).start()
    slow = SlowRead()
    looking = MemoryStore(etcd, process.clock, random.Random(1), name="looking", faults=slow)
    state = CoordinatorState(looking, process.clock, random.Random(2), CoordinatorSettings())
    ends = EndHandler(state)
    names = NameHandler(state, BeginHandler(state, ends), ends)
    txn_id = (await begin(process)).txn_id
    await commit(process, txn_id, [W1])
    slow.reads = 2
    found = await names.look(NAME)
    assert slow.reads == 0
    assert not headers(etcd), "it was not collected meanwhile: this test proves nothing then"
    assert found.state == (txn_id, RecordedDecision(COMMITTED, 0, None, (W1,)))
    await looking.close()
    await close(process)
