"""What callers have let go of does not stay open (C5)."""

from __future__ import annotations

from simulation.judges.let_go import ENDED_S, LetGoJudge, Lifetimes
from txnstore import keys, records
from txnstore.records import ABORTED, OPEN, Header
from txnstore.store import Event, EventKind, KeyValue
from txnwire.ids import TxnId

BEGUN_MS = 5_000


def header(number: int, lifetime_s: float, state: str = OPEN) -> Event:
    timeout_ms = BEGUN_MS + round(lifetime_s * 1000)
    value = records.encode(Header(state=state, timeout_ms=timeout_ms, created_ms=BEGUN_MS))
    record = KeyValue(
        key=keys.txn(TxnId(0, number)), value=value, create_revision=1, mod_revision=1, version=1, lease=0
    )
    return Event(kind=EventKind.PUT, record=record)


def test_what_was_let_go_and_stays_open_is_found_once() -> None:
    lifetimes = Lifetimes()
    kept_s, left_s = lifetimes.next_s(), lifetimes.next_s()
    judge = LetGoJudge(lifetimes, lambda: -100.0)
    judge.saw(1.0, [header(1, kept_s), header(2, left_s), header(3, 15.0)])
    lifetimes.end(left_s, 2.0)
    for at in (2.0 + ENDED_S, 2.1 + ENDED_S, 3.0 + ENDED_S):
        judge.look_at_the_time(at)
    assert [text.partition(",")[0] for text in judge.findings] == [str(TxnId(0, 2))]


def test_what_ends_in_time_or_amid_faults_is_not_found() -> None:
    lifetimes = Lifetimes()
    ended_s, amid_s = lifetimes.next_s(), lifetimes.next_s()
    judge = LetGoJudge(lifetimes, lambda: 10.0)
    judge.saw(1.0, [header(1, ended_s), header(2, amid_s)])
    lifetimes.end(ended_s, 2.0)
    lifetimes.end(amid_s, 2.0)
    judge.saw(3.0, [header(1, ended_s, ABORTED)])
    judge.look_at_the_time(10.0 + ENDED_S)
    assert judge.findings == []
    assert judge.ended == 1


def test_a_begin_that_lands_behind_its_cancellation_counts_from_then_on() -> None:
    lifetimes = Lifetimes()
    lifetime_s = lifetimes.next_s()
    lifetimes.end(lifetime_s, 1.0)
    judge = LetGoJudge(lifetimes, lambda: -100.0)
    judge.saw(4.0, [header(1, lifetime_s)])
    judge.look_at_the_time(3.9 + ENDED_S)
    assert judge.findings == []
    judge.look_at_the_time(4.1 + ENDED_S)
    assert len(judge.findings) == 1


def test_no_two_lifetimes_that_are_open_at_once_are_alike() -> None:
    lifetimes = Lifetimes()
    assert len({lifetimes.next_s() for _ in range(1_000)}) == 1_000
