"""Plain acks of what a transaction has acked and not decided."""

from __future__ import annotations

import pytest

from segments.subscription.cursors.cursor import Cursor
from tests.segments.ledger_lengths import LedgerLengths
from tests.watchers.pending_acks import SEGMENT, A, B, abort, acked, at, commit, part, whole
from txnwire.errors import Overloaded
from txnwire.ids import EARLIEST
from watchers.acks import WHOLE, AckOp, AckPosition
from watchers.outcomes import Decision
from watchers.pending_acks import PendingAcks


def test_plain_ack_on_a_pending_message_is_dropped(pending: PendingAcks, cursor: Cursor) -> None:
    acked(pending, A, whole(0), part(1, 0b0001))
    assert not pending.ack([whole(0)])
    assert not pending.ack([part(1, 0b0001)])
    assert pending.ack([part(1, 0b0011)])
    assert cursor.acked(at(1)) == 0b0010
    assert pending.ack([whole(1), whole(3), whole(4)])
    assert [cursor.acked(at(entry_id)) for entry_id in (1, 3, 4)] == [0b1110, WHOLE, WHOLE]
    pending.decided(abort(A))
    assert [pending.skip(at(0)), pending.skip(at(1))] == [0, 0b1110]


def test_plain_acks_tell_that_any_of_them_moved_the_cursor(pending: PendingAcks) -> None:
    """The cursor is then stored, also if the last of them adds nothing: it was acked before, or is pending."""
    acked(pending, A, whole(4))
    assert pending.ack([whole(0)])
    assert pending.ack([whole(2), whole(0)])
    assert pending.ack([whole(3), whole(4)])
    assert not pending.ack([whole(2), whole(3), whole(4)])


def test_plain_ack_of_unknown_extent_on_a_partly_pending_entry_is_dropped(pending: PendingAcks, cursor: Cursor) -> None:
    acked(pending, A, part(0, 0b0001))
    assert not pending.ack([AckPosition(at(0), 0)])
    assert cursor.acked(at(0)) == 0


def test_plain_ack_below_a_pending_cumulative_one_is_dropped(pending: PendingAcks, cursor: Cursor) -> None:
    acked(pending, A, part(3, 0b0011), cumulative=True)
    assert not pending.ack([whole(2)])
    assert pending.ack([whole(3)])
    assert cursor.acked(at(3)) == 0b1100
    assert not pending.ack_cumulative(whole(2))
    assert cursor.mark_delete == EARLIEST


@pytest.mark.parametrize("decision", [commit(A), abort(A)])
def test_plain_cumulative_ack_leaves_out_what_is_pending_until_it_is_decided(
    pending: PendingAcks, cursor: Cursor, decision: Decision
) -> None:
    acked(pending, A, whole(3), part(6, 0b0010), whole(0, 2))
    assert pending.ack_cumulative(part(4, 0b0011))
    assert (cursor.mark_delete, cursor.acked(at(3)), cursor.acked(at(4))) == (at(2), 0, 0b0011)
    assert pending.ack_cumulative(whole(8, 2))
    assert not pending.ack_cumulative(whole(8, 2))
    assert cursor.mark_delete == at(2)
    assert [cursor.acked(at(n)) for n in range(3, 8)] == [0, WHOLE, WHOLE, 0b1101, WHOLE]
    assert [cursor.acked(at(n, 2)) for n in (0, 1, 8, 9)] == [0, WHOLE, WHOLE, 0]
    applied = pending.decided(decision)
    assert applied is not None
    assert cursor.mark_delete == (at(8, 2) if decision.committed else at(2))
    if not decision.committed:
        assert applied.released == (whole(3), part(6, 0b0010), whole(0, 2))
        assert [pending.skip(at(n), 4) for n in range(3, 8)] == [0, WHOLE, WHOLE, 0b1101, WHOLE]
        assert pending.ack_cumulative(whole(8, 2))
        assert cursor.mark_delete == at(8, 2)


@pytest.mark.parametrize("decision", [commit(A), abort(A)])
def test_plain_cumulative_ack_behind_a_pending_cumulative_one_acks_what_lies_between(
    pending: PendingAcks, cursor: Cursor, decision: Decision
) -> None:
    acked(pending, A, part(3, 0b0011), cumulative=True)
    acked(pending, A, part(3, 0b0100), whole(5))
    assert not pending.ack_cumulative(part(3, 0b0011))
    assert pending.ack_cumulative(whole(7))
    assert [cursor.acked(at(n)) for n in range(9)] == [0, 0, 0, 0b1000, WHOLE, 0, WHOLE, WHOLE, 0]
    pending.decided(decision)
    assert cursor.mark_delete == (at(7) if decision.committed else EARLIEST)
    assert pending.earliest_unacked() == (at(8) if decision.committed else at(0))


def test_plain_cumulative_ack_of_more_than_the_cursor_holds_is_refused_until_the_pending_one_is_decided() -> None:
    cursor = Cursor(LedgerLengths({1: 10, 2: 10, 3: 10}), EARLIEST, max_blocks=2)
    pending = PendingAcks(SEGMENT, "sub", cursor)
    acked(pending, A, whole(3))
    with pytest.raises(Overloaded):
        pending.ack_cumulative(whole(5, 3))
    assert (cursor.mark_delete, cursor.acked(at(4))) == (at(2), 0)
    assert pending.ack_cumulative(whole(5, 2))
    pending.decided(commit(A))
    assert pending.ack_cumulative(whole(5, 3))
    assert cursor.mark_delete == at(5, 3)


def test_plain_cumulative_ack_over_what_recovery_found_applied(cursor: Cursor) -> None:
    cursor.ack_cumulative(whole(5))
    pending = PendingAcks(SEGMENT, "sub", cursor)
    pending.restore(AckOp(b"k1", A, 0, False, (whole(2),)))
    assert pending.ack_cumulative(whole(7))
    assert cursor.mark_delete == at(7)
    pending.restore(AckOp(b"k2", A, 0, False, (whole(9),)))
    assert pending.ack_cumulative(whole(3, 2))
    assert (cursor.mark_delete, cursor.acked(at(3, 2))) == (at(8), WHOLE)


def test_plain_cumulative_ack_over_a_pending_cumulative_one_that_was_trimmed(
    pending: PendingAcks, cursor: Cursor
) -> None:
    """▲ What lies between the two is acked as well, or it would come again although its ack was answered."""
    acked(pending, A, whole(2), cumulative=True)
    cursor.ack_cumulative(AckPosition(at(4), 0))
    acked(pending, B, whole(7))
    assert pending.ack_cumulative(whole(9))
    assert cursor.mark_delete == at(6)
    assert pending.earliest_unacked() == at(0, 2)


def test_plain_cumulative_ack_below_everything_pending_is_whole(pending: PendingAcks, cursor: Cursor) -> None:
    acked(pending, A, whole(3))
    assert pending.ack_cumulative(whole(2))
    assert cursor.mark_delete == at(2)
