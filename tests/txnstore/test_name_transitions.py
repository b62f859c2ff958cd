"""Named transactions: who finds what under a name, and races for it."""

from __future__ import annotations

import pytest

from txnstore import keys, records
from txnstore.memory_store import MemoryStore
from txnstore.name_transitions import NameState, plan_begin_named, read_begin_named_verdict, read_name
from txnstore.records import ABORTED, COMMITTED, OPEN, Header, TxnName
from txnstore.store import Commit, CommitResult, Delete, KeyValue, Put
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
