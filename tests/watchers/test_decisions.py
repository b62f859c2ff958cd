"""The decision watch: who is told what, and that it is all of it whatever fails in the watch (DESIGN §6)."""

from __future__ import annotations

import asyncio
import random
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from tests.segments.virtual_time import LoopClock, virtual_time
from tests.waiting import idle, until, until_turn
from tests.watchers.decision_watch import NEVER, OFTEN, A, B, C
from tests.watchers.headers import DECIDED_MS, Notes, begin, collect, end
from txnstore import keys, records
from txnstore.memory.memory_etcd import MemoryEtcd
from txnstore.memory.memory_store import MemoryStore
from txnstore.records import Header
from txnstore.store import Commit, Event, EventKind, KeyValue, MetadataStore, Put, WatchBatch
from txnwire.clock import SystemClock
from txnwire.errors import StoreUnavailable, Timeout
from txnwire.ids import TxnId
from watchers.decisions import EVENTS_AT_ONCE, DecisionSettings, DecisionWatch
from watchers.outcomes import Decision

BAD_WRITERS = records.encode(Header(state=records.COMMITTED, timeout_ms=1, created_ms=1, writers=["7", "x+1"]))


async def test_holder_is_told_of_the_decision_and_nobody_else(any_store: MetadataStore, watch: DecisionWatch) -> None:
    one, other = Notes(), Notes()
    memberships = [watch.join(notes) for notes in (one, other)]
    for membership in memberships:
        await membership.loaded([])
    memberships[0].add(A)
    memberships[0].add(A)
    for membership in memberships:
        membership.add(B)
    for txn_id in (A, B, C):
        await begin(any_store, txn_id)
    revisions = [
        await end(any_store, A, commit=False, reason="timeout"),
        await end(any_store, B, writers=["000000000000002a", "ffffffffffffffff"]),
        await end(any_store, C),
    ]
    await watch.wait_followed(revisions[-1], timeout_s=10)
    told_b = Decision(B, True, revisions[1], frozenset({42, (1 << 64) - 1}), None, DECIDED_MS)
    assert one.decisions == [Decision(A, False, revisions[0], None, "timeout", DECIDED_MS), told_b]
    assert other.decisions == [told_b]
    found = watch.statistics()
    assert (found.held, found.decisions, found.events) == (0, 2, 6)


async def test_begin_decides_nothing_and_collection_neither(any_store: MetadataStore, watch: DecisionWatch) -> None:
    notes = Notes()
    membership = watch.join(notes)
    await membership.loaded([A])
    with capture_logs() as logs:
        await begin(any_store, A)
        await collect(any_store, A)
        await begin(any_store, B)
        await watch.wait_followed(await end(any_store, B), timeout_s=10)
    assert (notes.decisions, logs) == ([], [])
    assert watch.statistics().held == 1


async def test_decisions_made_while_loading_are_kept_for_those_found_held(
    any_store: MetadataStore, watch: DecisionWatch
) -> None:
    """▲ Joined before it loads: A and B are decided between the load's read and its end."""
    for txn_id in (A, B, C):
        await begin(any_store, txn_id)
    notes = Notes()
    membership = watch.join(notes)
    await end(any_store, B)
    revision = await end(any_store, A, commit=False)
    await watch.wait_followed(revision, timeout_s=10)
    assert notes.decisions == []
    await membership.loaded([A, B, C])
    assert notes.told == [B, A]
    await watch.wait_followed(await end(any_store, C), timeout_s=10)
    assert notes.told == [B, A, C]


async def test_what_is_decided_while_many_are_taken_in_is_told_once_and_in_order(memory_store: MemoryStore) -> None:
    watch = DecisionWatch(memory_store, SystemClock(), NEVER)
    notes = Notes()
    membership = watch.join(notes)
    found = [TxnId(1, number) for number in range(1, 20_000)]
    await membership.expect(found)
    value = records.encode(Header(state=records.COMMITTED, timeout_ms=1, created_ms=1))

    def header_of(txn_id: TxnId, revision: int) -> KeyValue:
        return KeyValue(keys.txn(txn_id), value, 2, 1, revision)

    def decide(*decided: tuple[TxnId, int]) -> None:
        watch._take_part([Event(EventKind.PUT, header_of(*one)) for one in decided])

    decide(*((txn_id, 10 + number) for number, txn_id in enumerate(reversed(found[-2 * EVENTS_AT_ONCE :]))))
    loading = asyncio.ensure_future(membership.loaded(found))
    await until_turn(lambda: watch.statistics().held >= 5_000, "many that are held")
    held = watch.statistics().held
    assert 1_000 < held < len(found) - 2 * EVENTS_AT_ONCE
    decide((found[held + EVENTS_AT_ONCE], 90_001), (found[0], 90_002))
    watch._compare([keys.txn(found[1])], [header_of(found[1], 90_003)])
    turns = 0
    turns = await until_turn(lambda: notes.decisions, "a decision that is told")
    assert turns >= 10
    assert not loading.done()
    decide((found[3], 90_004))  # between two turns of telling
    await loading
    decide((found[1], 90_003), (found[2], 90_005))
    told = [decision.revision for decision in notes.decisions]
    assert told == [*range(10, 10 + 2 * EVENTS_AT_ONCE), 90_001, 90_002, 90_003, 90_004, 90_005]
    assert watch.statistics().held == len(found) - len(told)


async def test_to_leave_costs_what_one_holds_and_not_what_the_others_do(memory_store: MemoryStore) -> None:
    """A broker whose lease is gone lets all its segments go in one turn of the loop."""
    watch = DecisionWatch(memory_store, SystemClock(), NEVER)
    staying, leaving = watch.join(Notes()), watch.join(Notes())
    await staying.loaded([TxnId(1, number) for number in range(10_000)])
    await leaving.loaded([A, TxnId(1, 1)])
    lines = 0

    def count(*_: object) -> Any:
        nonlocal lines
        lines += 1
        return count

    before = sys.gettrace()  # of a coverage run
    sys.settrace(count)
    try:
        leaving.leave()
    finally:
        sys.settrace(before)
    assert lines < 100
    assert watch.statistics().held == 10_000


async def test_each_holder_is_told_while_another_loads(memory_store: MemoryStore) -> None:
    """What is kept for whoever loads is told to those who serve, all of them, at once."""
    watch = DecisionWatch(memory_store, SystemClock(), NEVER)
    await watch.start()
    several = [Notes() for _ in range(3)]
    memberships = [watch.join(notes) for notes in several]
    for membership in memberships[:2]:
        await membership.loaded([A])
    await begin(memory_store, A)
    await watch.wait_followed(await end(memory_store, A), timeout_s=10)
    assert [notes.told for notes in several] == [[A], [A], []]
    await memberships[2].loaded([A])
    assert several[2].told == [A]
    await watch.close()


async def test_who_has_dropped_or_left_is_told_nothing(any_store: MetadataStore, watch: DecisionWatch) -> None:
    notes, gone = Notes(), Notes()
    staying, leaving = watch.join(notes), watch.join(gone)
    for membership in (staying, leaving):
        await membership.loaded([])
        membership.add(A)
        membership.add(B)
    staying.drop(A)
    staying.drop(A)
    leaving.leave()
    leaving.leave()
    for txn_id in (A, B):
        await begin(any_store, txn_id)
        revision = await end(any_store, txn_id)
    await watch.wait_followed(revision, timeout_s=10)
    assert (notes.told, gone.told) == ([B], [])


async def test_decision_for_many_waits_a_moment_and_is_followed_only_once_told(memory_store: MetadataStore) -> None:
    """The answer to the commit goes first. ▲ Nobody reads at a revision whose decision has not been told yet."""
    settings = DecisionSettings(reconcile_interval_s=3600.0, wide=3, wide_pause_s=0.05, wide_interval_s=0.0)
    watch = DecisionWatch(memory_store, SystemClock(), settings)
    await watch.start()
    try:
        several = [Notes() for _ in range(3)]
        for notes in several:
            membership = watch.join(notes)
            await membership.loaded([])
            membership.add(A)
        for txn_id in (A, B):
            await begin(memory_store, txn_id)
        loop = asyncio.get_running_loop()
        ended_s = loop.time()
        value = records.encode(Header(state=records.COMMITTED, timeout_ms=1, created_ms=1))
        puts = tuple(Put(keys.txn(txn_id), value) for txn_id in (B, A))  # one batch; the first is for nobody here
        revision = (await memory_store.commit(Commit(puts=puts))).revision
        assert watch.followed_revision < revision
        await watch.wait_followed(revision, timeout_s=10)
        assert [notes.told for notes in several] == [[A]] * 3
        assert loop.time() - ended_s >= 0.045
    finally:
        await watch.close()


async def test_absent_header_of_a_held_transaction_is_never_a_decision(memory_store: MemoryStore) -> None:
    """▲ Still held, and its participant is asked to check that it is the owner."""
    watch = DecisionWatch(memory_store, SystemClock(), OFTEN)
    await watch.start()
    several = [Notes() for _ in range(2)]
    for notes in several:
        await watch.join(notes).loaded([A, B])
    await until(lambda: all(notes.absent.count(one) >= 2 for notes in several for one in (A, B)), within_s=5)
    assert [notes.decisions for notes in several] == [[], []]
    assert watch.statistics().held == 2
    await begin(memory_store, A)
    await end(memory_store, A)
    await until(lambda: all(notes.told == [A] for notes in several))
    await watch.close()


async def test_a_header_that_is_still_open_as_it_is_read_again_is_neither_a_decision_nor_an_error(
    memory_store: MemoryStore,
) -> None:
    watch = DecisionWatch(memory_store, SystemClock(), OFTEN)
    await watch.start()
    notes = Notes()
    await begin(memory_store, A)
    await watch.join(notes).loaded([A])
    with capture_logs() as logs:
        await until(lambda: watch.statistics().reread >= 2, within_s=5)
    assert (notes.told, notes.absent, logs) == ([], [], [])
    assert watch.statistics().held == 1
    await watch.close()


async def test_e1_after_compaction_absent_headers_are_doubted_not_decided() -> None:
    """▲ Of four held ones the resync shows one decided, one open and two not at all."""
    etcd = MemoryEtcd(SystemClock())
    store = MemoryStore(etcd, SystemClock(), random.Random(0))
    others = MemoryStore(etcd, SystemClock(), random.Random(1))
    watch = DecisionWatch(store, SystemClock(), DecisionSettings(reconcile_interval_s=3600.0, nudge_s=3600.0))
    await watch.start()
    notes = Notes()
    membership = watch.join(notes)
    await membership.loaded([])
    gone = [C, TxnId(7, 2)]
    for txn_id in (A, B, *gone):
        membership.add(txn_id)
        await begin(others, txn_id)
    store.memory_backend.disconnect()
    for txn_id in gone:
        await collect(others, txn_id)
    revision = await end(others, A)
    etcd.compact(etcd.mvcc.revision)
    store.memory_backend.reconnect()
    await watch.wait_followed(revision, timeout_s=10)
    assert notes.decisions == [Decision(A, True, revision, None, None, DECIDED_MS)]
    await until(lambda: notes.absent == gone, within_s=5)
    found = watch.statistics()
    assert (found.resyncs, found.held, found.absent) == (1, 3, 2)
    await watch.close()
    await store.close()
    await others.close()


async def test_of_a_large_resync_others_have_their_turns_and_what_is_held_meanwhile_stays_held() -> None:
    etcd = MemoryEtcd(SystemClock())
    store = MemoryStore(etcd, SystemClock(), random.Random(0))
    watch = DecisionWatch(store, SystemClock(), NEVER)
    await watch.start()
    notes = Notes()
    membership = watch.join(notes)
    await membership.loaded([A, TxnId(1, 5), TxnId(1, 9 * EVENTS_AT_ONCE + 5)])
    open_ones = [KeyValue(keys.txn(TxnId(1, number)), b"", 1, 1, 1) for number in range(10 * EVENTS_AT_ONCE)]
    value = records.encode(Header(state=records.COMMITTED, timeout_ms=1, created_ms=1))
    listed = [*open_ones, KeyValue(keys.txn(A), value, 2, 1, 70)]
    events = tuple(Event(EventKind.PUT, record) for record in listed)
    taking = asyncio.ensure_future(watch._take(WatchBatch(90, events, resync=True)))
    turns = 0
    while not taking.done():
        await asyncio.sleep(0)
        turns += 1
        if turns == 3:
            assert (watch.followed_revision, notes.told) == (1, [])
            membership.add(B)
    assert turns >= 10
    assert (watch.followed_revision, notes.told, watch.statistics().held) == (90, [A], 3)
    await until(lambda: notes.absent == [B], "the one that the resync does not show", within_s=5)
    await watch.close()
    await store.close()


@pytest.mark.parametrize("unreadable", [b"{]", BAD_WRITERS], ids=["", "writers"])
async def test_unreadable_header_is_reported_and_stays_held(memory_store: MemoryStore, unreadable: bytes) -> None:
    watch = DecisionWatch(memory_store, SystemClock(), NEVER)
    await watch.start()
    notes = Notes()
    membership, other = watch.join(notes), watch.join(Notes())
    await membership.loaded([A, B])
    await other.loaded([A])
    with capture_logs() as logs:
        for value in (b"x", unreadable):
            await memory_store.commit(Commit(puts=(Put(keys.txn(A), value),)))
        await begin(memory_store, B)
        await watch.wait_followed(await end(memory_store, B), timeout_s=10)
    assert notes.told == [B]
    assert watch.statistics().held == 1
    assert [entry["event"] for entry in logs] == ["header_unreadable"]
    membership.leave()
    assert watch.statistics().held == 1
    other.leave()
    assert watch.statistics().held == 0, "its participants have left, and nobody waits for it any more"
    await watch.close()


async def test_wait_for_a_revision_is_timed(memory_store: MemoryStore) -> None:
    watch = DecisionWatch(memory_store, SystemClock(), DecisionSettings(nudge_s=0.01))
    await watch.start()
    memory_store.memory_backend.disconnect()
    with pytest.raises(Timeout, match=r"waited 0\.05 s for 1000"):
        await watch.wait_followed(1000, timeout_s=0.05)
    assert not watch._waiters
    await watch.close()


async def test_closing_fails_those_who_wait(memory_store: MemoryStore) -> None:
    watch = DecisionWatch(memory_store, SystemClock(), NEVER)
    await watch.start()
    waiting = asyncio.create_task(watch.wait_followed(1000, timeout_s=60))
    await idle()
    await watch.close()
    with pytest.raises(StoreUnavailable, match="not followed here any more"):
        await waiting
    await watch.close()


async def test_watch_that_ends_for_good_is_told(memory_store: MemoryStore) -> None:
    failures: list[BaseException] = []
    watch = DecisionWatch(memory_store, SystemClock(), NEVER, on_failed=failures.append)
    await watch.start()
    await memory_store.close()
    await until(lambda: len(failures) == 1)
    with pytest.raises(StoreUnavailable, match="not followed any more"):
        await watch.wait_followed(1000, timeout_s=1)
    await watch.close()


async def test_watch_that_ends_for_good_fails_those_who_wait_at_once(memory_store: MemoryStore) -> None:
    """Dies if they wait until they would read headers."""
    watch = DecisionWatch(memory_store, SystemClock(), DecisionSettings(nudge_s=3600.0))
    await watch.start()
    waiting = asyncio.create_task(watch.wait_followed(1000, timeout_s=5))
    await idle()
    await memory_store.close()
    with pytest.raises(StoreUnavailable, match="not followed any more"):
        await waiting
    await watch.close()


async def test_a_defect_as_headers_are_read_again_is_told(memory_store: MemoryStore) -> None:
    failures: list[BaseException] = []
    watch = DecisionWatch(memory_store, SystemClock(), OFTEN, on_failed=failures.append)
    await watch.start()

    async def defect(*_: object, **__: object) -> tuple[int, list[KeyValue | None]]:
        raise ZeroDivisionError

    memory_store.get_many = defect  # type: ignore[method-assign]
    await watch.join(Notes()).loaded([A])
    await until(lambda: [type(failure) for failure in failures] == [ZeroDivisionError], within_s=5)
    await watch.close()


async def test_headers_that_cannot_be_read_again_just_now_are_read_later(memory_store: MemoryStore) -> None:
    failures: list[BaseException] = []
    watch = DecisionWatch(memory_store, SystemClock(), OFTEN, on_failed=failures.append)
    notes = Notes()
    read, failed = memory_store.get_many, list[int]()

    async def fails_at_first(*args: Any, **options: Any) -> tuple[int, list[KeyValue | None]]:
        if len(failed) < 3:
            failed.append(len(failed))
            raise StoreUnavailable("just now")
        return await read(*args, **options)

    await watch.start()
    memory_store.get_many = fails_at_first  # type: ignore[method-assign]
    await watch.join(notes).loaded([A])
    await until(lambda: len(failed) == 3 and notes.absent, within_s=5)
    assert failures == []
    await watch.close()


# ---- E1 as a property


TXNS = [TxnId(0, counter) for counter in range(1, 7)]


ACTIONS = [
    "begin",
    "commit",
    "abort",
    "collect",
    "cut",
    "disconnect",
    "reconnect",
    "compact",
    "crash",
    "restart",
    "wait",
]


steps = st.lists(st.tuples(st.sampled_from(ACTIONS), st.sampled_from(TXNS)), max_size=40)


@settings(max_examples=60, deadline=None)
@given(steps)
@virtual_time
async def test_e1_state_equals_a_fresh_reading_whatever_befell_the_watch(steps: list[tuple[str, TxnId]]) -> None:
    """Cut, compacted away, disconnected, restarted: in the end everything held is as a fresh reading has it."""
    clock = LoopClock()
    etcd = MemoryEtcd(clock)
    store = MemoryStore(etcd, clock, random.Random(0))
    others = MemoryStore(etcd, clock, random.Random(1), name="others")
    watch = DecisionWatch(store, clock)
    await watch.start()
    notes = Notes()
    membership = watch.join(notes)
    await membership.loaded([])
    decided: dict[TxnId, Decision] = {}
    begun: dict[TxnId, None] = {}
    for action, txn_id in steps:
        if not etcd.running and action in ("begin", "commit", "abort", "collect", "compact"):
            continue
        if action == "begin" and txn_id not in begun:
            begun[txn_id] = None
            membership.add(txn_id)
            await begin(others, txn_id)
        elif action in ("commit", "abort") and txn_id in begun and txn_id not in decided:
            revision = await end(others, txn_id, commit=action == "commit")
            decided[txn_id] = Decision(txn_id, action == "commit", revision, None, None, DECIDED_MS)
        elif action == "collect" and txn_id in decided and txn_id in notes.told:
            await collect(others, txn_id)  # it has no op left, so it has been told
        elif action == "wait":
            await asyncio.sleep(0.5)
        else:
            _inject(action, etcd, store)
    store.memory_backend.reconnect()
    if not etcd.running:
        etcd.restart()
    await watch.wait_followed(etcd.mvcc.revision, timeout_s=60)
    assert sorted(notes.decisions, key=lambda one: one.revision) == sorted(
        decided.values(), key=lambda one: one.revision
    )
    assert watch.statistics().held == len(begun) - len(decided)
    assert notes.absent == []
    await watch.close()
    await store.close()
    await others.close()


def _inject(action: str, etcd: MemoryEtcd, store: MemoryStore) -> None:
    if action == "cut":
        etcd.cut()
    elif action == "disconnect":
        store.memory_backend.disconnect()
    elif action == "reconnect":
        store.memory_backend.reconnect()
    elif action == "compact" and etcd.mvcc.revision > etcd.mvcc.compacted:
        etcd.compact(etcd.mvcc.revision)
    elif action == "crash" and etcd.running:
        etcd.crash()
    elif action == "restart" and not etcd.running:
        etcd.restart()
