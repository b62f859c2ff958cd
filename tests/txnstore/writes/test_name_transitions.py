"""Named transactions: who finds what under a name, and races for it."""

from __future__ import annotations

import pytest

from txnstore import keys, records
from txnstore.memory.memory_store import MemoryStore
from txnstore.records import ABORTED, COMMITTED, OPEN, Header, TxnName
from txnstore.store import Commit, CommitVerdict, Delete, KeyValue, Put, created_at
from txnstore.writes.name_transitions import (
    KEEP_MS,
    Expired,
    Keep,
    NameDeletion,
    NameRetention,
    NameState,
    plan_begin_named,
    plan_delete_name,
    plan_expire_name,
    read_begin_named_verdict,
    read_name,
)
from txnstore.writes.transitions import RecordedDecision, decide
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
        (
            named(FIRST),
            header(COMMITTED, list(WRITERS)),
            NameState(FIRST, RecordedDecision(COMMITTED, 25, None, WRITERS)),
        ),
        (named(FIRST, COMMITTED, list(WRITERS)), None, NameState(FIRST, RecordedDecision(COMMITTED, 0, None, WRITERS))),
        (named(FIRST, COMMITTED), None, NameState(FIRST, RecordedDecision(COMMITTED, 0))),
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
    one = plan_begin_named(FIRST, epoch, OPENED, NAME, None, Keep())
    two = plan_begin_named(SECOND, epoch, OPENED, NAME, None, Keep())
    assert read_begin_named_verdict(one, await memory_store.commit(one), FIRST, "aa").begun
    verdict = read_begin_named_verdict(two, await memory_store.commit(two), SECOND, "aa")
    assert not verdict.begun
    assert verdict.record is not None
    assert read_name(verdict.record, await memory_store.get(keys.txn(FIRST))) == NameState(FIRST)
    assert await memory_store.get(keys.txn(SECOND)) is None


async def test_after_an_abort_the_name_starts_afresh(memory_store: MemoryStore) -> None:
    epoch = await start(memory_store)
    await memory_store.commit(plan_begin_named(FIRST, epoch, OPENED, NAME, None, Keep()))
    aborted = decide(OPENED, ABORTED, finalized_ms=2, reason="client", writers=None)
    await memory_store.commit(Commit(puts=(Put(keys.txn(FIRST), records.encode(aborted)),)))
    record = await memory_store.get(KEY)
    assert read_name(record, await memory_store.get(keys.txn(FIRST))) == NameState(None)
    again = plan_begin_named(SECOND, epoch, OPENED, NAME, record, Keep())
    assert (await memory_store.commit(again)).succeeded
    record = await memory_store.get(KEY)
    assert read_name(record, await memory_store.get(keys.txn(SECOND))) == NameState(SECOND)


async def test_a_lost_begin_of_a_name_finds_itself(memory_store: MemoryStore) -> None:
    """▲ It is the one that others may have joined, so it is kept and not replaced by a fresh id."""
    epoch = await start(memory_store)
    plan = plan_begin_named(FIRST, epoch, OPENED, NAME, None, Keep())
    await memory_store.commit(plan)
    again = await memory_store.commit(plan)
    repeated = CommitVerdict(False, again.revision, again.reads, repeated=True)
    assert read_begin_named_verdict(plan, repeated, FIRST, "aa")[:2] == (True, OPENED)


@pytest.mark.parametrize("existing", [True, False])
async def test_a_lost_tcid_begins_no_name(memory_store: MemoryStore, existing: bool) -> None:
    epoch = await start(memory_store)
    record = None
    if existing:
        await memory_store.commit(Commit(puts=(Put(KEY, named(FIRST, ABORTED).value),)))
        record = await memory_store.get(KEY)
    await memory_store.commit(Commit(deletes=(Delete(keys.tc(1)),)))
    plan = plan_begin_named(SECOND, epoch, OPENED, NAME, record, Keep())
    with pytest.raises(NotOwner):
        read_begin_named_verdict(plan, await memory_store.commit(plan), SECOND, "aa")


# ---- retention

NEWEST = Keep(newest=True)
DAY_MS = 24 * 3600 * 1000


def record(name: str, created: int, outcome: str | None, collected_ms: int = 0, keep: Keep = NEWEST) -> KeyValue:
    named = TxnName(
        v=1,
        txn_id=str(TxnId(1, created)),
        outcome=outcome,
        collected_ms=collected_ms,
        keep_ms=keep.ms,
        keep_newest=keep.newest,
    )
    return KeyValue(keys.txn_name(name), records.encode(named), 2, created, created + 1000)


def expired(*found: KeyValue, after_ms: int = 0) -> list[str]:
    """Names that may go `after_ms` past what is kept by default."""
    retention = NameRetention(KEEP_MS + after_ms)
    gone = [one for each in sorted(found, key=lambda each: each.key) if (one := retention.saw(each)) is not None]
    assert len(dict.fromkeys(gone)) == len(gone)
    return sorted(keys.unquote_text(one.key[len(keys.TXN_NAME) :].decode()) for one in gone)


def test_names_expire_but_never_the_newest_commit_of_a_prefix() -> None:
    """▲ A query that comes back after a year finds the batch it has written last."""
    old = [record(f"sink/q/{number}", number, COMMITTED) for number in range(1, 5)]
    other = [record("sink/p/7", 3, COMMITTED), record("alone", 1, COMMITTED), record("sink/q/1/x", 1, COMMITTED)]
    assert expired(*old, *other) == ["sink/q/1", "sink/q/2", "sink/q/3"]


def test_what_lies_between_two_names_of_a_prefix_hides_none_of_them() -> None:
    """`q/1/x` and `q-1` sort between names of `q`; `q/1` and `q` are prefixes of their own."""
    names = ["q", "q-1/1", "q/0", "q/1", "q/1/x/1", "q/1/x/2", "q/1/y", "q/2", "q0/7", "r/1"]
    found = [record(name, number, COMMITTED) for number, name in enumerate(names, start=1)]
    assert expired(*found) == ["q/0", "q/1", "q/1/x/1"]


def test_names_begun_in_one_group_commit_are_told_apart() -> None:
    """They share the revision; ▲ one of them stays, and that one is not deleted."""
    assert expired(*(record(f"q/{number}", 5, COMMITTED) for number in range(4))) == ["q/0", "q/1", "q/2"]


def test_only_what_asked_to_be_kept_as_the_newest_is_kept_for_ever() -> None:
    """`orders/<id>/charge`: the last part is not what counts up, and each is the newest of its prefix."""
    charges = [record(f"orders/{number}/charge", number, COMMITTED, keep=Keep()) for number in range(1, 4)]
    assert expired(*charges) == [f"orders/{number}/charge" for number in range(1, 4)]
    asked, unasked = record("q/1", 1, COMMITTED), record("q/2", 2, COMMITTED, keep=Keep())
    assert expired(asked, unasked) == ["q/2"], "of those that asked it is the newest"


def test_a_record_of_an_earlier_version_is_kept_as_that_promised() -> None:
    value = b'{"v":1,"txn_id":"1:5","outcome":"COMMITTED","collected_ms":0}'
    assert NameRetention(100 * KEEP_MS).saw(KeyValue(keys.txn_name("q/1"), value, 2, 1, 1)) is None


def test_a_name_is_kept_for_as_long_as_its_begin_asked_for() -> None:
    def kept(days: int) -> KeyValue:
        return record(f"q/{days}", days, COMMITTED, keep=Keep(days * DAY_MS))

    assert expired(kept(7), kept(40)) == ["q/7"]
    assert expired(kept(7), kept(40), after_ms=10 * DAY_MS) == ["q/40", "q/7"]
    assert expired(record("q/1", 1, ABORTED, keep=Keep(40 * DAY_MS))) == []


def test_the_newest_commit_is_told_by_its_begin_not_by_the_wall_clock_or_the_name() -> None:
    """Clocks are stepped, and 10 sorts before 9."""
    assert expired(record("q/9", 9, COMMITTED, 20_000), record("q/10", 10, COMMITTED, 5_000), after_ms=20_000) == [
        "q/9"
    ]


def test_an_aborted_or_undecided_name_makes_no_older_commit_go() -> None:
    committed, aborted = record("q/1", 1, COMMITTED), record("q/2", 2, ABORTED)
    assert expired(committed, aborted, record("q/3", 3, None)) == ["q/2"]


def test_what_was_collected_within_the_month_stays() -> None:
    assert expired(record("q/1", 1, COMMITTED, 1_000), record("q/2", 2, COMMITTED, 2_000)) == []
    assert expired(record("q/1", 1, COMMITTED, 1_000), record("q/2", 2, COMMITTED, 2_000), after_ms=1_000) == ["q/1"]


async def test_a_name_that_was_begun_again_meanwhile_is_not_deleted(memory_store: MemoryStore) -> None:
    """▲ It was read as aborted, and names an open transaction by now."""
    epoch = await start(memory_store)
    await memory_store.commit(Commit(puts=(Put(KEY, named(FIRST, ABORTED).value),)))
    found = await memory_store.get(KEY)
    assert found is not None
    passed = NameDeletion().saw_ended(found, ABORTED)
    assert passed == Expired(KEY, found.mod_revision)
    assert (await memory_store.commit(plan_begin_named(SECOND, epoch, OPENED, NAME, found, Keep()))).succeeded
    assert not (await memory_store.commit(plan_delete_name(passed))).succeeded
    assert await memory_store.get(KEY) is not None


def test_whoever_asks_for_a_deletion_waits_for_no_time_and_keeps_the_newest_that_asked_for_it() -> None:
    """A record rounds its time up, so one of this second lies in the future."""
    deletion = NameDeletion()
    far = 10**15
    found = [record(f"q/{number}", number, COMMITTED, far) for number in (1, 2)]
    found += [record("q/3", 3, COMMITTED, far, Keep(far)), record("q/4", 4, None)]
    passed = [deletion.saw_ended(each, COMMITTED) for each in found[:3]] + [deletion.saw_ended(found[3], ABORTED)]
    assert [one and keys.txn_name_text(one.key) for one in passed] == [None, "q/1", "q/3", "q/4"]


async def test_a_name_that_was_begun_again_meanwhile_is_not_forgotten(memory_store: MemoryStore) -> None:
    epoch = await start(memory_store)
    await memory_store.commit(Commit(puts=(Put(KEY, named(FIRST, ABORTED).value), Put(b"/leader/x", b""))))
    found, leader = await memory_store.get(KEY), await memory_store.get(b"/leader/x")
    assert found is not None
    assert leader is not None
    guard = created_at(leader.key, leader.create_revision)
    assert (await memory_store.commit(plan_begin_named(SECOND, epoch, OPENED, NAME, found, Keep()))).succeeded
    assert not (await memory_store.commit(plan_expire_name(Expired(KEY, found.mod_revision), guard))).succeeded
    now = await memory_store.get(KEY)
    assert now is not None
    deposed = created_at(leader.key, leader.create_revision + 1)
    assert not (await memory_store.commit(plan_expire_name(Expired(KEY, now.mod_revision), deposed))).succeeded
    assert (await memory_store.commit(plan_expire_name(Expired(KEY, now.mod_revision), guard))).succeeded
