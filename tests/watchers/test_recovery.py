"""What a new owner reads of a segment, at one revision, and what it makes of that (DESIGN §6, "Recovery")."""

from __future__ import annotations

import asyncio
import random

import pytest

from segments.subscription.cursors.cursor import Cursor
from tests.segments.ledger_lengths import LedgerLengths
from tests.segments.virtual_time import LoopClock, virtual_time
from tests.waiting import until_turn
from tests.watchers.headers import DECIDED_MS, Notes, begin, collect, end
from tests.watchers.participants import SEGMENT, SUBSCRIPTION, Held, own
from txnstore import keys, records
from txnstore.memory.memory_etcd import MemoryEtcd
from txnstore.memory.memory_store import NO_FAULT, Fate, MemoryStore
from txnstore.records import AbortedRecord, Header
from txnstore.store import Commit, CommitVerdict, Delete, MetadataStore, Put
from txnwire.clock import SystemClock
from txnwire.errors import DataCorrupt, NotOwner, Timeout, TxnConflict
from txnwire.ids import EARLIEST, Position, TxnId
from txnwire.turns import turns_divided_by
from watchers.acks import WHOLE, AckPosition
from watchers.clean_up import CleanUp, CleanUpSettings
from watchers.decisions import DecisionWatch
from watchers.outcomes import Decision
from watchers.pending_acks import PendingAcks
from watchers.recovery import POSITIONS_AT_ONCE, SegmentState, load_state
from watchers.visibility import TransactionBuffer

A, B, C, D = (TxnId(0, counter) for counter in range(1, 5))
LEDGERS = LedgerLengths({1: 100, 2: 0})
QUICK = CleanUpSettings(linger_s=0.001)


def at(entry_id: int) -> Position:
    return Position(1, entry_id)


def entry(entry_id: int, indexes: int = WHOLE) -> AckPosition:
    return AckPosition(at(entry_id), 4, indexes)


Log = list[tuple[TxnId, int, Position]]


async def written(held: Held, log: Log, txn_id: TxnId, writer: int = 0) -> None:
    log.append((txn_id, writer, await held.write(txn_id, writer)))


async def recovered(state: SegmentState, log: Log) -> TransactionBuffer:
    """As the segment does it: the tail from the watermark, then decided leftovers."""
    last = log[-1][2] if log else EARLIEST
    with turns_divided_by(1000):  # one at once
        buffer = await state.transaction_buffer(last_confirmed=last, fenced_below=Position(2, -1))
    for txn_id, writer, position in log:
        if position > state.watermark:
            buffer.scanned(txn_id, writer, position)
    for decision in state.decisions:
        buffer.decided(decision)
    return buffer


def cursor_of(state: SegmentState) -> Cursor:
    return Cursor.load(LEDGERS, EARLIEST, state.cursor_blocks.get(SUBSCRIPTION, ()))


async def test_r1_open_pins_aborted_is_filtered_committed_is_visible(any_store: MetadataStore) -> None:
    """Nothing had been cleaned up when the owner died; A is decided, B is decided the other way round, C is open."""
    held, log = Held(any_store, await own(any_store)), Log()
    for txn_id in (A, B, C):
        await begin(any_store, txn_id)
    for txn_id in (A, B, C, A, C):
        await written(held, log, txn_id)
    aborted = await end(any_store, B, commit=False, reason="timeout")
    committed = await end(any_store, A)
    epoch = await own(any_store)
    state = await load_state(any_store, SEGMENT, epoch)
    assert state.decisions == [
        Decision(B, False, aborted, None, "timeout", DECIDED_MS),
        Decision(A, True, committed, None, None, DECIDED_MS),
    ]
    assert (state.open_transactions, state.absent_headers) == ([C], [])
    assert (state.watermark, state.watermark_record) == (EARLIEST, None)
    buffer = await recovered(state, log)
    assert buffer.max_read_position == at(1)
    assert (buffer.is_aborted(A, 0), buffer.is_aborted(B, 0)) == (False, True)
    assert {applied.decision.txn_id: applied.aborted for applied in buffer.clean_up_batch(9)} == {
        B: ((None, at(1)),),
        A: (),
    }


async def test_r1_committed_stays_visible_after_its_header_is_gone(any_store: MetadataStore) -> None:
    held, log = Held(any_store, await own(any_store)), Log()
    clean_up = CleanUp(any_store, SystemClock(), QUICK)
    await clean_up.start()
    clean_up.add(held.writes)
    for txn_id, commit in ((A, True), (B, False)):
        await begin(any_store, txn_id)
        await written(held, log, txn_id)
        held.decided(Decision(txn_id, commit, await end(any_store, txn_id, commit=commit)))
    await clean_up.drain(held.writes, timeout_s=10)
    await clean_up.close()
    state = await load_state(any_store, SEGMENT, await own(any_store))
    assert state.watermark == at(1)
    assert state.aborted == {(B, None): at(1)}
    assert (state.written, state.decisions, state.open_transactions) == ([], [], [])
    buffer = await recovered(state, log)
    assert buffer.max_read_position == at(1)
    assert (buffer.is_aborted(A, 0), buffer.is_aborted(B, 0)) == (False, True)


async def test_losers_of_a_named_transaction_are_found_in_the_tail(any_store: MetadataStore) -> None:
    held, log = Held(any_store, await own(any_store)), Log()
    await begin(any_store, A)
    for writer in (1, 2, 3):
        await written(held, log, A, writer)
    await end(any_store, A, writers=["0000000000000002"])
    state = await load_state(any_store, SEGMENT, await own(any_store))
    buffer = await recovered(state, log)
    assert [buffer.is_aborted(A, writer) for writer in (1, 2, 3)] == [True, False, True]


@pytest.mark.parametrize("at_once", [1, 1000])
async def test_records_of_a_writer_and_of_an_unknown_position_are_read(any_store: MetadataStore, at_once: int) -> None:
    """Left by the clean-up of a segment without an owner (▲ §5)."""
    epoch = await own(any_store)
    for key, position in ((keys.aborted(SEGMENT, A, 7), (1, 5)), (keys.aborted(SEGMENT, B), None)):
        value = records.encode(AbortedRecord(max_position=position))
        await any_store.commit(Commit(puts=(Put(key, value),)))
    state = await load_state(any_store, SEGMENT, epoch, at_once=at_once)
    assert state.aborted == {(A, 7): at(5), (B, None): None}
    buffer = await recovered(state, [])
    assert buffer.aborted_records() == {(A, 7): at(5), (B, None): Position(2, -1)}


@pytest.mark.parametrize("at_once", [1, 1000])
async def test_all_cursor_records_of_all_subscriptions_are_read(memory_store: MemoryStore, at_once: int) -> None:
    epoch = await own(memory_store)
    wanted = {"one": ["1-0", "1-1", "mark"], "two": ["1-0", "mark"]}
    puts = [Put(keys.cursor_block(SEGMENT, name, block), b"{}") for name, blocks in wanted.items() for block in blocks]
    await memory_store.commit(Commit(puts=tuple(puts)))
    state = await load_state(memory_store, SEGMENT, epoch, at_once=at_once)
    found = {name: [keys.cursor_parts(one.key)[2] for one in blocks] for name, blocks in state.cursor_blocks.items()}
    assert found == wanted
    assert state.subscriptions == ["one", "two"]


async def test_p5_pending_acks_are_restored_and_decided_leftovers_finished_once(any_store: MetadataStore) -> None:
    held = Held(any_store, await own(any_store))
    for txn_id in (A, B, C, D):
        await begin(any_store, txn_id)
    await held.ack(A, entry(0), entry(5, 0b0011))
    await held.ack(A, entry(6))
    await held.ack(B, entry(1))
    await held.ack(C, entry(2), entry(7, 0b1100), writer=9)
    await held.ack(D, entry(3))
    for txn_id, commit in ((A, True), (B, False)):
        await end(any_store, txn_id, commit=commit)
    epoch = await own(any_store)
    state = await load_state(any_store, SEGMENT, epoch)
    assert state.subscriptions == [SUBSCRIPTION]
    assert state.open_transactions == [C, D]
    pending = await state.pending_acks(SUBSCRIPTION, cursor_of(state))
    for decision in state.decisions:
        pending.decided(decision)
    assert [pending.skip(at(index), 4) for index in range(8)] == [WHOLE, 0, WHOLE, WHOLE, 0, 0b0011, WHOLE, 0b1100]
    with pytest.raises(TxnConflict):
        pending.reserve(D, 0, (entry(2),), cumulative=False)
    pending.decided(Decision(C, True, 99, frozenset({9})))
    assert pending.cursor.acked(at(2)) == WHOLE
    assert pending.cursor.acked(at(7)) == 0b1100
    assert {applied.decision.txn_id for applied in pending.clean_up_batch(9)} == {A, B, C}
    again = await load_state(any_store, SEGMENT, epoch)
    assert again == state


async def test_p6_crash_between_the_cursor_and_the_next_acks_applies_exactly_once(any_store: MetadataStore) -> None:
    """A committed ack is in the cursor with its op's deletion; newer plain acks were not written yet and come again."""
    held = Held(any_store, await own(any_store))
    for txn_id in (A, B):
        await begin(any_store, txn_id)
        await held.ack(txn_id, entry(txn_id.counter))
        revision = await end(any_store, txn_id)
        held.decided(Decision(txn_id, True, revision))
        if txn_id == A:
            plan = held.acks.plan(100.0)
            assert plan is not None
            assert held.acks.settle(plan, await any_store.commit(plan.commit), 100.0)
    held.pending.ack_cumulative(entry(9))
    state = await load_state(any_store, SEGMENT, await own(any_store))
    assert state.decisions == [Decision(B, True, revision, None, None, DECIDED_MS)]
    cursor = cursor_of(state)
    assert [cursor.acked(at(index)) for index in range(3)] == [0, WHOLE, 0]
    pending = await state.pending_acks(SUBSCRIPTION, cursor)
    for decision in state.decisions:
        pending.decided(decision)
    assert [cursor.acked(at(index)) for index in range(4)] == [0, WHOLE, WHOLE, 0]


async def test_p6_cursor_written_but_the_owner_died_before_it_heard(any_store: MetadataStore) -> None:
    held = Held(any_store, await own(any_store))
    await begin(any_store, A)
    await held.ack(A, entry(0))
    held.decided(Decision(A, True, await end(any_store, A)))
    plan = held.acks.plan(100.0)
    assert plan is not None
    await any_store.commit(plan.commit)
    held.pending.ack_cumulative(entry(4))
    plan = held.acks.plan(200.0)
    assert plan is not None
    assert isinstance(result := await any_store.commit(plan.commit), CommitVerdict)
    assert not held.acks.settle(plan, result, 200.0)
    assert held.cursor.mark_delete == at(4)
    state = await load_state(any_store, SEGMENT, await own(any_store))
    assert (state.decisions, state.ack_ops) == ([], {})
    assert cursor_of(state).mark_delete == at(0)


async def test_header_absent_for_an_indexed_transaction_is_held_not_decided(any_store: MetadataStore) -> None:
    """▲ Still pinned; whoever loads has to look whether it is still the owner."""
    held, log = Held(any_store, await own(any_store)), Log()
    for txn_id in (A, B, C):
        await begin(any_store, txn_id)
        await written(held, log, txn_id)
        if txn_id != B:
            await collect(any_store, txn_id)
    state = await load_state(any_store, SEGMENT, await own(any_store))
    assert (state.open_transactions, state.absent_headers, state.decisions) == ([A, B, C], [A, C], [])
    assert (await recovered(state, log)).max_read_position == at(-1)


async def test_decision_made_between_the_read_and_the_end_of_loading_is_not_missed(any_store: MetadataStore) -> None:
    held, log = Held(any_store, await own(any_store)), Log()
    watch = DecisionWatch(any_store, SystemClock())
    await watch.start()
    for txn_id in (A, B):
        await begin(any_store, txn_id)
        await written(held, log, txn_id)
    notes = Notes()
    membership = watch.join(notes)
    await end(any_store, A)
    state = await load_state(any_store, SEGMENT, held.epoch)
    revision = await end(any_store, B, commit=False)
    await watch.wait_followed(revision, timeout_s=10)
    buffer = await recovered(state, log)
    await membership.loaded(state.open_transactions)
    assert (state.decisions[0].txn_id, notes.told) == (A, [B])
    buffer.decided(notes.decisions[0])
    assert (buffer.max_read_position, buffer.is_aborted(B, 0)) == (at(1), True)
    await watch.close()


@pytest.mark.parametrize("before", range(2, 8))
async def test_everything_is_of_one_revision_headers_included(before: int) -> None:
    """A is decided and cleaned up between the reads of one load: none of it is seen, the watch will tell."""

    class DecideBetweenReads:
        reads = 0

        def fate(self, request: str, client: str) -> Fate:
            if request == "read" and client == "loading":
                self.reads += 1
                if self.reads == before:
                    header = Header(state=records.COMMITTED, timeout_ms=1, created_ms=0)
                    puts = [Put(keys.txn(A), records.encode(header))]
                    puts.append(Put(keys.aborted(SEGMENT, B), records.encode(AbortedRecord(max_position=(1, 9)))))
                    puts.append(Put(keys.cursor_block(SEGMENT, SUBSCRIPTION, "mark"), b"{}"))
                    gone = [keys.TXN_OP, keys.writes_by_segment(SEGMENT), keys.acks_by_segment(SEGMENT)]
                    deletes = [Delete(prefix, keys.prefix_end(prefix)) for prefix in gone]
                    etcd.mvcc.commit([Commit(puts=tuple(puts), deletes=tuple(deletes))])
            return NO_FAULT

        def watch_delay_s(self, client: str) -> float:
            return 0.0

    etcd, faults = MemoryEtcd(SystemClock()), DecideBetweenReads()
    store = MemoryStore(etcd, SystemClock(), random.Random(0), name="loading", faults=faults)
    others = MemoryStore(etcd, SystemClock(), random.Random(1))
    held = Held(others, await own(others))
    await begin(others, A)
    await held.write(A)
    await held.ack(A, entry(0))
    state = await load_state(store, SEGMENT, held.epoch)
    assert faults.reads >= before
    assert (state.aborted, state.cursor_blocks) == ({}, {})
    assert (state.open_transactions, state.written, state.decisions) == ([A], [A], [])
    assert len(state.ack_ops[SUBSCRIPTION]) == 1
    await store.close()
    await others.close()


async def test_segment_owned_by_somebody_else_is_not_loaded(any_store: MetadataStore) -> None:
    epoch = await own(any_store)
    await own(any_store)
    with pytest.raises(NotOwner, match=f"had epoch {epoch}, now epoch {epoch + 2}"):
        await load_state(any_store, SEGMENT, epoch)
    await any_store.commit(Commit(deletes=(Delete(keys.owner(SEGMENT)),)))
    with pytest.raises(NotOwner, match=f"had epoch {epoch}, now nobody"):
        await load_state(any_store, SEGMENT, epoch)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (keys.watermark(SEGMENT), b"{"),
        (keys.aborted(SEGMENT, A), b"[]"),
        (keys.op(keys.ack_ops(A, SEGMENT, "sub"), 1, 1), b'{"v":1,"kind":"write","segment":"s"}'),
        (keys.txn(A), b'{"v":9,"state":"OPEN","timeout_ms":1,"created_ms":1}'),
    ],
)
async def test_r5_record_that_does_not_parse_is_named(memory_store: MemoryStore, key: bytes, value: bytes) -> None:
    epoch = await own(memory_store)
    await memory_store.commit(Commit(puts=(Put(keys.ack_index(SEGMENT, "sub", A), b""), Put(key, value))))
    with pytest.raises(DataCorrupt, match=key.decode()):
        await load_state(memory_store, SEGMENT, epoch)


async def test_load_that_compaction_overtakes_starts_over(memory_store: MemoryStore) -> None:
    held = Held(memory_store, await own(memory_store))
    for txn_id in (A, B):
        await begin(memory_store, txn_id)
        await held.write(txn_id)
    mvcc = memory_store.etcd.mvcc
    loading = asyncio.create_task(load_state(memory_store, SEGMENT, held.epoch))
    compacted = 0
    while not loading.done() and compacted < 3:
        await asyncio.sleep(0)
        await memory_store.commit(Commit(puts=(Put(b"/elsewhere", b""),)))
        if mvcc.revision > mvcc.compacted:
            memory_store.etcd.compact(mvcc.revision)
            compacted += 1
    state = await loading
    assert state.open_transactions == [A, B]
    assert compacted > 0


async def test_load_is_timed(memory_store: MemoryStore) -> None:
    epoch = await own(memory_store)
    memory_store.memory_backend.disconnect()
    with pytest.raises(Timeout, match=r"no answer from etcd within 0\.05 s"):
        await load_state(memory_store, SEGMENT, epoch, timeout_s=0.05)


@pytest.mark.parametrize("at_once", [1, 7, 1000])
async def test_many_pending_acks_are_read_some_at_a_time(any_store: MetadataStore, at_once: int) -> None:
    held = Held(any_store, await own(any_store))
    txns = [TxnId(4, counter) for counter in range(1, 81)]
    for index, txn_id in enumerate(txns):
        await begin(any_store, txn_id)
        await held.ack(txn_id, entry(index))
    for more in range(80, 90):
        await held.ack(txns[0], entry(more))
    state = await load_state(any_store, SEGMENT, held.epoch, at_once=at_once)
    assert [op.txn_id for op in state.ack_ops[SUBSCRIPTION]] == [txns[0]] * 10 + txns
    assert state.open_transactions == txns
    pending: PendingAcks = await state.pending_acks(SUBSCRIPTION, cursor_of(state))
    assert pending.earliest_unacked() == at(90)


async def test_others_have_their_turn_between_the_positions_of_many_acks(memory_store: MemoryStore) -> None:
    held = Held(memory_store, await own(memory_store))
    await begin(memory_store, A)
    for number in range(0, 40, 4):
        await held.ack(A, *(entry(number + each) for each in range(4)))
    state = await load_state(memory_store, SEGMENT, held.epoch)
    with turns_divided_by(POSITIONS_AT_ONCE // 4):
        restoring = asyncio.ensure_future(state.pending_acks(SUBSCRIPTION, cursor_of(state)))
    assert await until_turn(restoring.done, "the acks to be restored") >= 10
    assert (await restoring).statistics().positions == 40


@virtual_time
async def test_however_long_a_load_takes_it_goes_on_while_the_store_answers() -> None:
    """60 000 pending acks took longer than any limit over all of them, at each owner again."""

    class SlowReads:
        def fate(self, request: str, client: str) -> Fate:
            return Fate(arrive_s=0.2, answer_s=0.2) if request == "read" and client == "loading" else NO_FAULT

        def watch_delay_s(self, client: str) -> float:
            return 0.0

    clock = LoopClock()
    etcd = MemoryEtcd(clock)
    store = MemoryStore(etcd, clock, random.Random(0), name="loading", faults=SlowReads())
    others = MemoryStore(etcd, clock, random.Random(1))
    held = Held(others, await own(others))
    txns = [TxnId(4, counter) for counter in range(1, 21)]
    for index, txn_id in enumerate(txns):
        await begin(others, txn_id)
        await held.ack(txn_id, entry(index))
    begun_s = clock.monotonic()
    state = await load_state(store, SEGMENT, held.epoch, timeout_s=1.0, at_once=1)
    assert state.open_transactions == txns
    assert clock.monotonic() - begun_s > 10
    await store.close()
    await others.close()
