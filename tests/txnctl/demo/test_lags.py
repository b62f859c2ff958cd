"""What the demo says about lags: all of it, and what is left once nobody can have held a transaction back."""

from __future__ import annotations

import pytest

from txnctl.demo.journal import ABORTED, BEGUN, COMMITTED, INTENT, JournalLine
from txnctl.demo.lags import lags, unfinished

ANSWERED_S, READ_S = 2.8, 2.9
OTHERS = {
    "ended before it committed": (0.0, 1.5, COMMITTED, 100.0),
    "held it until shortly before it was read": (0.5, 2.89, COMMITTED, 10.0),
    "held it, then aborted": (0.5, 2.89, ABORTED, 10.0),
    "began after it had written": (1.9, 2.89, COMMITTED, 100.0),
    "was open still when it was read": (0.5, 9.0, COMMITTED, 100.0),
}


def life(txn_id: str, begun: float, ended: float, event: str, *, written: float) -> list[JournalLine]:
    return [
        JournalLine(txn_id, BEGUN, 1, at_s=begun),
        JournalLine(txn_id, INTENT, 1, at_s=written),
        JournalLine(txn_id, event, 1, at_s=ended),
    ]


@pytest.mark.parametrize("what", OTHERS)
def test_a_lag_is_counted_from_the_commit_and_from_when_nobody_held_it_any_more(what: str) -> None:
    begun, ended, event, free_ms = OTHERS[what]
    it = life("it", 1.0, ANSWERED_S, COMMITTED, written=1.8)
    found = lags(it + life("other", begun, ended, event, written=ended), {"it": READ_S}, {})
    assert found.since_commit == [pytest.approx(100.0)]
    assert found.since_free == [pytest.approx(free_ms)]


def test_a_killed_workers_transaction_holds_until_it_was_given_up() -> None:
    lines = [JournalLine("killed", BEGUN, 1, at_s=0.0), *life("it", 1.0, 2.0, COMMITTED, written=1.5)]
    assert unfinished(lines) == ["killed"]
    found = lags(lines, {"it": 10.25}, {"killed": 10.0})
    assert found.since_commit == [pytest.approx(8250.0)]
    assert found.since_free == [pytest.approx(250.0)]


def test_what_began_unknown_when_is_no_excuse() -> None:
    other = [JournalLine("other", COMMITTED, 1, at_s=READ_S - 0.01)]
    assert lags(life("it", 1.0, ANSWERED_S, COMMITTED, written=1.8) + other, {"it": READ_S}, {}).since_free == [
        pytest.approx(100.0)
    ]


def test_aborted_and_unread_transactions_have_no_lag() -> None:
    lines = life("aborted", 0.0, 1.0, ABORTED, written=0.5) + life("unread", 0.0, 1.0, COMMITTED, written=0.5)
    assert lags(lines, {"aborted": 2.0}, {}).since_commit == []
