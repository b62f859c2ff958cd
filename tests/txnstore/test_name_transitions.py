"""Named transactions: who finds what under a name, and races for it."""

from __future__ import annotations

import pytest

from txnstore import keys, records
from txnstore.memory_store import MemoryStore
from txnstore.name_transitions import (
    NameRetention,
    NameState,
    plan_begin_named,
    plan_expire_name,
    read_begin_named_verdict,
    read_name,
)
from txnstore.records import ABORTED, COMMITTED, OPEN, Header, TxnName
from txnstore.store import Commit, CommitResult, Delete, KeyValue, Put, created_at
from txnstore.transitions import Decision, decide
from txnwire.errors import NotOwner, OutcomeUnknown
from txnwire.ids import TxnId

NAME = "sink/query-7/42"
KEY = keys.txn_name(NAME)
FIRST, SECOND = TxnId(1, 5), TxnId(1, 6)
OPENED = Header(state=OPEN, timeout_ms=9, created_ms=1, name=NAME, attempt="aa")
WRITERS = ("000000000000000a",)


def named(txn_id: TxnId, outcome: str | None = None, writers: list[str] | None = None) -> KeyValue:
    value = records.encode(TxnName(v=1, txn_id=str(txn_id), outcome=outcome, writers=writers))
    return KeyValue(KEY, value, 1, 30, 30)


def header(state: str, writers: list[str] | None = None) -> KeyValue:
    if state == OPEN:
        return KeyValue(keys.txn(FIRST), records.encode(OPENED), 1, 20, 20)
    decided = decide(OPENED, state, finalized_ms=2, reason="client", writers=writers)
    return KeyValue(keys.txn(FIRST), records.encode(decided), 2, 20, 25)


@pytest.mark.parametrize(
    ("record", "found", "expected"),
    [
        (None, None, NameState(None)),
        (named(FIRST), header(OPEN), NameState(FIRST)),
        (named(FIRST), header(ABORTED), NameState(None)),
        (named(FIRST), header(COMMITTED, list(WRITERS)), NameState(FIRST, Decision(COMMITTED, 25, None, WRITERS))),
        (named(FIRST, COMMITTED, list(WRITERS)), None, NameState(FIRST, Decision(COMMITTED, 0, None, WRITERS))),
        (named(FIRST, COMMITTED), None, NameState(FIRST, Decision(COMMITTED, 0))),
        (named(FIRST, ABORTED), None, NameState(None)),
        (named(FIRST), None, OutcomeUnknown),
    ],
)
def test_what_a_name_stands_for(record: KeyValue | None, found: KeyValue | None, expected: object) -> None:
    if isinstance(expected, type):
        with pytest.raises(OutcomeUnknown, match="txn-name"):
            read_name(record, found)
    else:
        assert read_name(record, found) == expected


async def start(store: MemoryStore) -> int:
    return (await store.commit(Commit(puts=(Put(keys.tc(1), b"{}"),)))).revision


async def test_of_two_who_begin_a_free_name_one_joins_the_other(memory_store: MemoryStore) -> None:
    epoch = await start(memory_store)
    one = plan_begin_named(FIRST, epoch, OPENED, NAME, None)
    two = plan_begin_named(SECOND, epoch, OPENED, NAME, None)
    assert read_begin_named_verdict(one, await memory_store.commit(one), FIRST, "aa").begun
    verdict = read_begin_named_verdict(two, await memory_store.commit(two), SECOND, "aa")
    assert not verdict.begun
    assert verdict.record is not None
    assert read_name(verdict.record, await memory_store.get(keys.txn(FIRST))) == NameState(FIRST)
    assert await memory_store.get(keys.txn(SECOND)) is None


async def test_after_an_abort_the_name_starts_afresh(memory_store: MemoryStore) -> None:
    epoch = await start(memory_store)
    await memory_store.commit(plan_begin_named(FIRST, epoch, OPENED, NAME, None))
    aborted = decide(OPENED, ABORTED, finalized_ms=2, reason="client", writers=None)
    await memory_store.commit(Commit(puts=(Put(keys.txn(FIRST), records.encode(aborted)),)))
    record = await memory_store.get(KEY)
    assert read_name(record, await memory_store.get(keys.txn(FIRST))) == NameState(None)
    again = plan_begin_named(SECOND, epoch, OPENED, NAME, record)
    assert (await memory_store.commit(again)).succeeded
    record = await memory_store.get(KEY)
    assert read_name(record, await memory_store.get(keys.txn(SECOND))) == NameState(SECOND)


async def test_a_lost_begin_of_a_name_finds_itself(memory_store: MemoryStore) -> None:
    """▲ It is the one that others may have joined, so it is kept and not replaced by a fresh id."""
    epoch = await start(memory_store)
    plan = plan_begin_named(FIRST, epoch, OPENED, NAME, None)
    await memory_store.commit(plan)
    again = await memory_store.commit(plan)
    repeated = CommitResult(False, again.revision, again.reads, repeated=True)
    assert read_begin_named_verdict(plan, repeated, FIRST, "aa")[:2] == (True, OPENED)


@pytest.mark.parametrize("existing", [True, False])
async def test_a_lost_tcid_begins_no_name(memory_store: MemoryStore, existing: bool) -> None:
    epoch = await start(memory_store)
    record = None
    if existing:
        await memory_store.commit(Commit(puts=(Put(KEY, named(FIRST, ABORTED).value),)))
        record = await memory_store.get(KEY)
    await memory_store.commit(Commit(deletes=(Delete(keys.tc(1)),)))
    plan = plan_begin_named(SECOND, epoch, OPENED, NAME, record)
    with pytest.raises(NotOwner):
        read_begin_named_verdict(plan, await memory_store.commit(plan), SECOND, "aa")


# ---- retention

MONTH = 30


def record(name: str, created: int, outcome: str | None, collected_ms: int = 0) -> KeyValue:
    value = records.encode(TxnName(v=1, txn_id=str(TxnId(1, created)), outcome=outcome, collected_ms=collected_ms))
    return KeyValue(keys.txn_name(name), value, 2, created, created + 1000)


def expired(*found: KeyValue, before_ms: int = MONTH, limit: int = 100) -> list[str]:
    retention = NameRetention(before_ms, limit)
    for one in found:
        retention.saw(one)
    return sorted(keys.unquote_text(key[len(keys.TXN_NAME) :].decode()) for key, _ in retention.expired())


def test_names_expire_but_never_the_newest_commit_of_a_prefix() -> None:
    """▲ A query that comes back after a year finds the batch it has written last."""
    old = [record(f"sink/q/{number}", number, COMMITTED, number) for number in range(1, 5)]
    other = [
        record("sink/p/7", 3, COMMITTED, 1),
        record("alone", 1, COMMITTED, 1),
        record("sink/q/1/x", 1, COMMITTED, 1),
    ]
    assert expired(*old, *other) == ["sink/q/1", "sink/q/2", "sink/q/3"]
    assert expired(*reversed(old), *other) == ["sink/q/1", "sink/q/2", "sink/q/3"]


def test_the_newest_commit_is_told_by_its_begin_not_by_the_wall_clock_or_the_name() -> None:
    """Clocks are stepped, and 10 sorts before 9."""
    assert expired(record("q/9", 9, COMMITTED, 20), record("q/10", 10, COMMITTED, 5)) == ["q/9"]


def test_an_aborted_or_undecided_name_makes_no_older_commit_go() -> None:
    committed, aborted = record("q/1", 1, COMMITTED, 1), record("q/2", 2, ABORTED, 1)
    assert expired(committed, aborted, record("q/3", 3, None)) == ["q/2"]


def test_what_was_collected_within_the_month_stays() -> None:
    assert expired(record("q/1", 1, COMMITTED, MONTH), record("q/2", 2, COMMITTED, MONTH + 1)) == []
    assert expired(record("q/1", 1, COMMITTED, MONTH - 1), record("q/2", 2, COMMITTED, MONTH + 1)) == ["q/1"]


def test_the_limit_counts_what_goes_not_what_is_kept() -> None:
    """Else many prefixes with one commit each would keep all others from ever going."""
    kept = [record(f"a{number}/1", number + 1, COMMITTED, 1) for number in range(10)]
    assert expired(*kept, record("z/1", 50, COMMITTED, 1), record("z/2", 51, COMMITTED, 1), limit=1) == ["z/1"]


async def test_a_name_that_was_begun_again_meanwhile_is_not_forgotten(memory_store: MemoryStore) -> None:
    epoch = await start(memory_store)
    await memory_store.commit(Commit(puts=(Put(KEY, named(FIRST, ABORTED).value), Put(b"/leader/x", b""))))
    found, leader = await memory_store.get(KEY), await memory_store.get(b"/leader/x")
    assert found is not None
    assert leader is not None
    guard = created_at(leader.key, leader.create_revision)
    assert (await memory_store.commit(plan_begin_named(SECOND, epoch, OPENED, NAME, found))).succeeded
    assert not (await memory_store.commit(plan_expire_name(KEY, found.mod_revision, guard))).succeeded
    now = await memory_store.get(KEY)
    assert now is not None
    deposed = created_at(leader.key, leader.create_revision + 1)
    assert not (await memory_store.commit(plan_expire_name(KEY, now.mod_revision, deposed))).succeeded
    assert (await memory_store.commit(plan_expire_name(KEY, now.mod_revision, guard))).succeeded
