"""Decisions noted for cuts: what is asked too late is not known, and said so."""

from __future__ import annotations

from txnwire.ids import Position, TxnId
from watchers.noted_decisions import NotedDecisions

ONE, TWO, THREE = (TxnId(0, counter) for counter in (1, 2, 3))


def test_decisions_after_a_revision_are_known_since_noting_began() -> None:
    noted = NotedDecisions(10)
    noted.note(12, TWO, Position(1, 5))
    noted.note(11, ONE, Position(1, 1))  # it waited for an operation in flight
    assert noted.known_above == 10
    assert noted.copy() == [(12, TWO, Position(1, 5)), (11, ONE, Position(1, 1))]


def test_past_the_bound_the_oldest_is_forgotten_and_no_longer_claimed() -> None:
    noted = NotedDecisions(0, most=2)
    for revision, txn_id in ((5, ONE), (7, TWO), (9, THREE)):
        noted.note(revision, txn_id, Position(1, revision))
    assert len(noted) == 2
    assert noted.known_above == 5
    assert [txn_id for _, txn_id, _ in noted.copy()] == [TWO, THREE]


def test_past_the_bound_nothing_is_claimed_that_was_forgotten_out_of_order() -> None:
    """▲ A cut would take the forgotten transaction for one without a decision, and show it by half."""
    noted = NotedDecisions(0, most=1)
    for revision, txn_id in ((7, TWO), (5, ONE), (9, THREE)):
        noted.note(revision, txn_id, Position(1, revision))
    assert noted.known_above == 7
