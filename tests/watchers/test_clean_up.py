"""Clean-up as it arrives in a store: what is written, deleted and left alone, over faults too (DESIGN §5, §6)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

import pytest

from segments.subscription.cursors.cursor import Cursor
from tests.segments.ledger_lengths import LedgerLengths
from tests.waiting import idle, until
from tests.watchers.clean_up_targets import Deletes, Losing
from tests.watchers.headers import begin, end
from tests.watchers.participants import SEGMENT, SUBSCRIPTION, Held, own, present
from txnstore import keys, records
from txnstore.memory.memory_etcd import MemoryEtcd
from txnstore.memory.memory_store import NO_FAULT, Fate, MemoryStore
from txnstore.records import AbortedRecord, CursorMark, Watermark
from txnstore.store import MAX_COMMIT_BYTES, Commit, CommitVerdict, EventKind, MetadataStore, Put
from txnwire.clock import SystemClock
from txnwire.errors import InvalidArgument, NotOwner, Timeout, TxnError
from txnwire.ids import EARLIEST, Position, TxnId
from watchers.acks import AckPosition
from watchers.clean_up import CleanUp, CleanUpPlan, CleanUpSettings
from watchers.outcomes import Decision

A, B, C = TxnId(0, 1), TxnId(0, 2), TxnId(0, 3)
QUICK = CleanUpSettings(linger_s=0.002, retry_s=0.01)
MARK = keys.cursor_block(SEGMENT, SUBSCRIPTION, "mark")
ALL = b"/"


def entry(entry_id: int) -> AckPosition:
    return AckPosition(Position(1, entry_id), 1)


@pytest.fixture
async def clean_up(any_store: MetadataStore) -> AsyncIterator[CleanUp]:
    clean_up = CleanUp(any_store, SystemClock(), QUICK)
    await clean_up.start()
    try:
        yield clean_up
    finally:
        await clean_up.close()


async def held_by(store: MetadataStore, clean_up: CleanUp) -> Held:
    held = Held(store, await own(store))
    clean_up.add(held.writes)
    clean_up.add(held.acks)
    return held


def decide(held: Held, clean_up: CleanUp, decision: Decision) -> None:
    held.decided(decision)
    clean_up.wake(held.writes)
    clean_up.wake(held.acks)


async def finish(store: MetadataStore, held: Held, clean_up: CleanUp, txn_id: TxnId, *, commit: bool) -> None:
    decide(held, clean_up, Decision(txn_id, commit, await end(store, txn_id, commit=commit)))


# ---- over both stores


async def test_ended_transactions_leave_their_header_and_what_has_to_stay(
    any_store: MetadataStore, clean_up: CleanUp
) -> None:
    held = await held_by(any_store, clean_up)
    for txn_id in (A, B, C):
        await begin(any_store, txn_id)
        await held.write(txn_id)
    await held.write(B)
    await held.ack(A, entry(0), entry(3))
    await held.ack(A, entry(1))
    await held.ack(B, entry(2))
    await finish(any_store, held, clean_up, A, commit=True)
    await finish(any_store, held, clean_up, B, commit=False)
    for target in (held.writes, held.acks):
        await clean_up.drain(target, timeout_s=10)
    ops = await present(any_store, keys.TXN_OP)
    assert [keys.op_parts(key) for key in ops] == [(C, SEGMENT, None)]
    assert list(await present(any_store, b"/idx/")) == [keys.write_index(SEGMENT, C)]
    state = await present(any_store, keys.SEGMENT_STATE)
    assert state == {
        keys.aborted(SEGMENT, B): records.encode(AbortedRecord(max_position=(1, 3))),
        keys.watermark(SEGMENT): records.encode(Watermark(position=(1, 1))),
    }
    cursor = await any_store.range(keys.CURSOR, keys.prefix_end(keys.CURSOR))
    loaded = Cursor.load(LedgerLengths({1: 9}), EARLIEST, cursor.records)
    assert [loaded.acked(Position(1, entry_id)) for entry_id in range(4)] == [-1, -1, 0, -1]
    assert held.errors == []
    assert clean_up.statistics().backlog == 0


async def test_aborted_record_and_op_deletion_share_a_revision(any_store: MetadataStore, clean_up: CleanUp) -> None:
    """▲ Durable before or with the deletion: nobody can read a moment in which neither stands."""
    held = await held_by(any_store, clean_up)
    await begin(any_store, A)
    await held.write(A)
    await held.ack(A, entry(5))
    (op, ack) = await present(any_store, keys.TXN_OP)
    revision = await end(any_store, A, commit=False)
    watch = any_store.watch(ALL, keys.prefix_end(ALL), from_revision=revision + 1)
    decide(held, clean_up, Decision(A, False, revision))
    seen: dict[tuple[EventKind, bytes], int] = {}
    async for batch in watch:
        seen.update({(event.kind, event.record.key): event.record.mod_revision for event in batch.events})
        if sum(kind is EventKind.DELETE for kind, _ in seen) == 4:
            break
    await watch.close()
    ops_gone = {seen[EventKind.DELETE, key] for key in sorted((op, ack))}
    assert seen[EventKind.PUT, keys.aborted(SEGMENT, A)] in ops_gone


async def test_one_write_transactions_cost_two_mutations_each(any_store: MetadataStore) -> None:
    """In steady state, between two watermarks: the op and its index key, nothing more."""
    clean_up = CleanUp(any_store, SystemClock(), QUICK)
    held = Held(any_store, await own(any_store))
    held.writes._flushed_s = float("inf")  # the watermark of this second has been written
    txns = [TxnId(1, counter) for counter in range(1, 101)]
    for txn_id in txns:
        await begin(any_store, txn_id)
        await held.write(txn_id)
        revision = await end(any_store, txn_id)
        held.decided(Decision(txn_id, True, revision))
    watch = any_store.watch(ALL, keys.prefix_end(ALL), from_revision=revision + 1)
    clean_up.add(held.writes)
    await clean_up.start()
    events = 0
    async for batch in watch:
        assert all(event.kind is EventKind.DELETE for event in batch.events)
        events += len(batch.events)
        if events >= 2 * len(txns):
            break
    assert events == 2 * len(txns)
    await until(lambda: clean_up.statistics().cleaned == len(txns))
    assert clean_up.statistics().commits <= 4
    await watch.close()
    await clean_up.close()


async def test_new_owner_stops_the_old_ones_clean_up(any_store: MetadataStore, clean_up: CleanUp) -> None:
    held = await held_by(any_store, clean_up)
    await begin(any_store, A)
    await held.write(A)
    await held.ack(A, entry(0))
    revision = await end(any_store, A, commit=False)
    await own(any_store)
    before = await present(any_store, ALL)
    decide(held, clean_up, Decision(A, False, revision))
    await until(lambda: len(held.errors) == 2)
    assert all(isinstance(error, NotOwner) for error in held.errors)
    assert await present(any_store, ALL) == before
    clean_up.wake(held.writes)
    await clean_up.drain(held.writes, timeout_s=1)


async def test_p11_late_old_cursor_write_never_lands_on_a_newer_one(any_store: MetadataStore) -> None:
    """▲ The old value was on its way when its connection broke; it arrives after the next one was written."""
    held = Held(any_store, await own(any_store))
    for entry_id in (0, 1, 2):
        held.pending.ack([entry(entry_id)])
        plan = held.acks.plan(100.0 + entry_id)
        assert plan is not None
        if entry_id == 1:
            late = plan
            continue
        held.acks.settle(plan, await any_store.commit(plan.commit), 100.0 + entry_id)
    assert not (await any_store.commit(late.commit)).succeeded
    found = await any_store.get(MARK)
    assert found is not None
    assert found.value == records.encode(CursorMark(position=(1, 2)))


async def test_p11_record_changed_elsewhere_is_merged_not_overwritten(
    any_store: MetadataStore, clean_up: CleanUp
) -> None:
    held = await held_by(any_store, clean_up)
    held.pending.ack([entry(0)])
    await clean_up.drain(held.acks, timeout_s=10)
    await any_store.commit(Commit(puts=(Put(MARK, records.encode(CursorMark(position=(1, 7)))),)))
    held.pending.ack([entry(1)])
    await clean_up.drain(held.acks, timeout_s=10)
    assert held.cursor.mark_delete == Position(1, 7)
    found = await any_store.get(MARK)
    assert found is not None
    assert found.value == records.encode(CursorMark(position=(1, 7)))
    assert clean_up.statistics().lost_compares == 1


async def test_plain_acks_and_watermark_are_flushed_without_clean_up(
    any_store: MetadataStore, clean_up: CleanUp
) -> None:
    held = await held_by(any_store, clean_up)
    for entry_id in range(3):
        held.pending.ack([entry(entry_id)])
        clean_up.wake(held.acks)
        held.buffer.confirmed(Position(1, entry_id))
        clean_up.wake(held.writes)
        await idle(5)
    expected = {MARK: [1, 2], keys.watermark(SEGMENT): [1, 2]}

    async def stands() -> bool:
        found = [await any_store.get(key) for key in expected]
        return all(record is not None and b"[1,2]" in record.value for record in found)

    await until(stands, "both marks", within_s=10)


# ---- faults, in memory


class LoseAnswers:
    """Every second commit is applied, and its answer lost."""

    def __init__(self) -> None:
        self.commits = 0
        self.active = False

    def fate(self, request: str, client: str) -> Fate:
        if request != "commit" or not self.active:
            return NO_FAULT
        self.commits += 1
        return Fate(arrive_s=0.0, fail_s=0.005) if self.commits % 2 else NO_FAULT

    def watch_delay_s(self, client: str) -> float:
        return 0.0


async def test_e2_commit_that_landed_unanswered_is_taken_for_done() -> None:
    faults = LoseAnswers()
    store = MemoryStore(MemoryEtcd(SystemClock()), SystemClock(), random.Random(0), faults=faults)
    clean_up = CleanUp(store, SystemClock(), QUICK)
    await clean_up.start()
    held = await held_by(store, clean_up)
    txns = [TxnId(2, counter) for counter in range(1, 31)]
    for index, txn_id in enumerate(txns):
        await begin(store, txn_id)
        await held.write(txn_id)
        await held.ack(txn_id, entry(index))
    faults.active = True
    for index, txn_id in enumerate(txns):
        decide(held, clean_up, Decision(txn_id, index % 2 == 0, 1000 + index))
        await asyncio.sleep(0.001)
    await until(lambda: clean_up.statistics().backlog == 0)
    faults.active = False
    for target in (held.writes, held.acks):
        await clean_up.drain(target, timeout_s=10)
    assert await present(store, keys.TXN_OP) == {}
    assert len(await present(store, keys.aborted_records(SEGMENT))) == 15
    blocks = await store.range(keys.CURSOR, keys.prefix_end(keys.CURSOR))
    loaded = Cursor.load(LedgerLengths({1: 40}), EARLIEST, blocks.records)
    assert [loaded.acked(Position(1, index)) for index in range(4)] == [-1, 0, -1, 0]
    assert clean_up.statistics().lost_compares == 0
    assert held.errors == []
    await clean_up.close()
    await store.close()


async def test_clean_up_waits_out_a_store_that_is_away(memory_store: MemoryStore) -> None:
    clean_up = CleanUp(memory_store, SystemClock(), QUICK)
    await clean_up.start()
    held = await held_by(memory_store, clean_up)
    await begin(memory_store, A)
    await held.write(A)
    revision = await end(memory_store, A)
    memory_store.etcd.crash()
    decide(held, clean_up, Decision(A, True, revision))
    with pytest.raises(Timeout, match=r"writes of .* were not cleaned up within .* s: 1 left"):
        await clean_up.drain(held.writes, timeout_s=0.05)
    assert held.writes.backlog == 1
    memory_store.etcd.restart()
    await clean_up.drain(held.writes, timeout_s=10)
    assert await present(memory_store, keys.TXN_OP) == {}
    await clean_up.close()


async def test_clean_up_that_a_full_store_refuses_is_made_once_there_is_room_though_nothing_else_comes(
    memory_store: MemoryStore,
) -> None:
    clean_up = CleanUp(memory_store, SystemClock(), QUICK)
    await clean_up.start()
    held = await held_by(memory_store, clean_up)
    await begin(memory_store, A)
    await held.write(A)
    revision = await end(memory_store, A, commit=False)
    plenty, memory_store.etcd.quota_bytes = memory_store.etcd.quota_bytes, 1
    decide(held, clean_up, Decision(A, False, revision))
    await until(lambda: memory_store.etcd.no_space and clean_up.statistics().in_flight == 0)
    assert held.writes.backlog == 1
    memory_store.etcd.quota_bytes, memory_store.etcd.no_space = plenty, False
    await until(lambda: held.writes.backlog == 0)
    assert await present(memory_store, keys.TXN_OP) == {}
    assert held.errors == []
    await clean_up.close()


class SlowAnswers(LoseAnswers):
    def fate(self, request: str, client: str) -> Fate:
        return Fate(answer_s=0.01) if request == "commit" and self.active else NO_FAULT


@pytest.mark.parametrize("losses", [1, 2, 5])
async def test_clean_up_whose_compare_is_lost_is_tried_until_it_is_not(memory_store: MemoryStore, losses: int) -> None:
    clean_up = CleanUp(memory_store, SystemClock(), QUICK)
    await clean_up.start()
    target = Losing(losses)
    clean_up.add(target)
    clean_up.wake(target)
    await until(lambda: target.backlog == 0)
    assert clean_up.statistics().lost_compares == losses
    await clean_up.close()


@pytest.mark.parametrize(("deletes", "at_once"), [(2, 64), (3, 43), (16, 8), (100, 8)])
async def test_small_commits_are_in_flight_in_large_numbers_and_large_ones_in_small(deletes: int, at_once: int) -> None:
    faults = SlowAnswers()
    store = MemoryStore(MemoryEtcd(SystemClock()), SystemClock(), random.Random(0), faults=faults)
    clean_up = CleanUp(store, SystemClock(), CleanUpSettings(linger_s=0.0))
    await clean_up.start()
    faults.active = True
    for commits in (100, 200):
        most = 0
        for number in range(100):
            target = Deletes(f"/segment-{commits}-{number}", deletes)
            clean_up.add(target)
            clean_up.wake(target)
        while clean_up.statistics().backlog:
            await asyncio.sleep(0)
            most = max(most, clean_up.statistics().in_flight)
        assert most == at_once
        assert clean_up.statistics().commits == commits
    await clean_up.close()
    await store.close()


async def test_what_waits_for_an_answer_goes_on_also_where_nobody_is_left_to_hear_that() -> None:
    """Its segment was lost meanwhile: others wait for their turn behind the bound, and nothing else may come."""
    faults = SlowAnswers()
    store = MemoryStore(MemoryEtcd(SystemClock()), SystemClock(), random.Random(0), faults=faults)
    clean_up = CleanUp(store, SystemClock(), CleanUpSettings(linger_s=0.0, max_in_flight=1, small_keys=1))
    await clean_up.start()
    going, waiting = Deletes("/going", 2), Deletes("/waiting", 2)
    faults.active = True
    for target in (going, waiting):
        clean_up.add(target)
        clean_up.wake(target)
    await until(lambda: clean_up.statistics().in_flight == 1)
    await idle()
    clean_up.remove(going)
    await until(lambda: waiting.backlog == 0)
    await clean_up.close()
    await store.close()


async def test_at_most_one_unanswered_commit_per_participant() -> None:
    """▲ Decisions go on coming while answers take their time."""

    faults = SlowAnswers()
    store = MemoryStore(MemoryEtcd(SystemClock()), SystemClock(), random.Random(0), faults=faults)
    clean_up = CleanUp(store, SystemClock(), CleanUpSettings(linger_s=0.0, full_batch=1))
    await clean_up.start()
    held = await held_by(store, clean_up)
    txns = [TxnId(2, counter) for counter in range(1, 41)]
    for txn_id in txns:
        await begin(store, txn_id)
        await held.write(txn_id)
    faults.active = True
    most = 0
    for txn_id in txns:
        decide(held, clean_up, Decision(txn_id, True, 1000))
        await asyncio.sleep(0.001)
        most = max(most, clean_up.statistics().in_flight)
    await until(lambda: clean_up.statistics().backlog == 0)
    assert most == 1
    await clean_up.close()
    await store.close()


async def test_closed_or_removed_nothing_more_is_written(memory_store: MemoryStore) -> None:
    clean_up = CleanUp(memory_store, SystemClock(), QUICK)
    await clean_up.start()
    held = await held_by(memory_store, clean_up)
    await begin(memory_store, A)
    await held.write(A)
    clean_up.remove(held.writes)
    clean_up.remove(held.writes)
    decide(held, clean_up, Decision(A, True, await end(memory_store, A)))
    await clean_up.close()
    clean_up.wake(held.acks)
    await asyncio.sleep(0.01)
    assert len(await present(memory_store, keys.TXN_OP)) == 1


async def test_drain_of_a_segment_that_is_lost_meanwhile_says_so(memory_store: MemoryStore) -> None:
    clean_up = CleanUp(memory_store, SystemClock(), QUICK)
    await clean_up.start()
    held = await held_by(memory_store, clean_up)
    await begin(memory_store, A)
    await held.write(A)
    held.decided(Decision(A, True, await end(memory_store, A)))
    await own(memory_store)
    with pytest.raises(NotOwner):
        await clean_up.drain(held.writes, timeout_s=10)
    await clean_up.close()


class TooLarge:
    """A `CleanUpTarget` whose records no store takes."""

    name = "acks that are too large"
    backlog = 1

    def __init__(self) -> None:
        self.errors: list[TxnError] = []

    def plan(self, now_s: float, *, everything: bool = False) -> CleanUpPlan | None:
        return CleanUpPlan(Commit(puts=(Put(MARK, bytes(MAX_COMMIT_BYTES + 1)),)))

    def settle(self, plan: CleanUpPlan, result: CommitVerdict, now_s: float) -> bool:
        raise AssertionError("it was never sent")

    def next_flush_s(self) -> float | None:
        return None

    def lost(self, error: TxnError) -> None:
        self.errors.append(error)


async def test_a_commit_that_is_refused_before_it_is_sent_ends_the_participant(
    any_store: MetadataStore, clean_up: CleanUp
) -> None:
    """▲ Acks must not go on being answered while nothing of them is ever stored."""
    woken, drained = TooLarge(), TooLarge()
    clean_up.add(woken)
    clean_up.wake(woken)
    await until(lambda: len(woken.errors) == 1)
    clean_up.add(drained)
    with pytest.raises(InvalidArgument, match="cut it into several"):
        await clean_up.drain(drained, timeout_s=10)
    assert len(drained.errors) == 1
