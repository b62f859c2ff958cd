"""A decision on so many acks that it is applied in parts: what stands between two of them, and at the end."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from segments.subscription.cursors.cursor import Cursor
from tests.segments.ledger_lengths import LedgerLengths
from txnwire.errors import TxnConflict, TxnError
from txnwire.ids import EARLIEST, Position, TxnId
from txnwire.turns import turns_divided_by
from watchers.acks import WHOLE, AckPosition
from watchers.outcomes import Decision
from watchers.pending_acks import APPLIED_AT_ONCE, AppliedPart, PendingAcks, Reservation

A, B = TxnId(0, 1), TxnId(0, 2)
COUNTS, LOSES = 0x11, 0x22


@pytest.fixture(autouse=True)
def _one_at_a_time() -> Iterator[None]:
    with turns_divided_by(APPLIED_AT_ONCE):
        yield


@pytest.fixture
def pending() -> PendingAcks:
    return PendingAcks("s", "sub", Cursor(LedgerLengths({1: 10}), EARLIEST))


def whole(entry_id: int) -> AckPosition:
    return AckPosition(Position(1, entry_id), 4)


def acked(
    pending: PendingAcks, txn_id: TxnId, ack: AckPosition, writer: int = COUNTS, *, cumulative: bool = False
) -> Reservation:
    reservation = pending.reserve(txn_id, writer, (ack,), cumulative=cumulative)
    pending.confirmed(reservation)
    return reservation


def parts(pending: PendingAcks) -> list[AppliedPart]:
    found = []
    while pending.applying:
        found.append(pending.apply_part())
    return found


def test_a_commit_is_applied_part_by_part_and_cleaned_up_behind_the_last() -> None:
    """Dies if it is cleaned up before: a crash between two parts would lose the acks of the others."""
    cursor = Cursor(LedgerLengths({1: 10}), EARLIEST)
    pending = PendingAcks("s", "sub", cursor)
    for entry_id in (1, 2, 3):
        acked(pending, A, whole(entry_id))
    assert pending.decided(Decision(A, True, 5)) is None
    for done, entry_id in enumerate((1, 2, 3)):
        assert [cursor.acked(Position(1, n)) == WHOLE for n in (1, 2, 3)] == [n <= done for n in range(1, 4)]
        assert [pending.skip(Position(1, n)) for n in (1, 2, 3)] == [WHOLE] * 3, "what is to come is not handed out"
        assert pending.holds(A)
        assert pending.clean_up_backlog == 0
        assert pending.apply_part() == AppliedPart((whole(entry_id),), ())
    last = pending.apply_part()
    assert last.whole is not None
    assert last.whole.acked == (whole(1), whole(2), whole(3))
    assert not pending.applying
    assert not pending.holds(A)
    assert pending.clean_up_backlog == 1
    assert pending.statistics().deferred == 0


def test_acks_that_were_refused_count_no_more_among_those_that_are_applied_at_once(pending: PendingAcks) -> None:
    acked(pending, A, whole(7))
    with turns_divided_by(APPLIED_AT_ONCE // 2):  # two at once
        for entry_id in (1, 3, 5):
            both = (whole(entry_id), whole(entry_id + 1))
            pending.release(pending.reserve(A, COUNTS, both, cumulative=False))
        applied = pending.decided(Decision(A, True, 5))
    assert applied is not None
    assert applied.acked == (whole(7),)


def test_between_two_parts_it_admits_nothing_more_and_a_decision_told_twice_changes_nothing(
    pending: PendingAcks,
) -> None:
    acked(pending, A, whole(1))
    acked(pending, A, whole(2))
    pending.decided(Decision(A, True, 5))
    pending.apply_part()
    with pytest.raises(TxnError):
        pending.reserve(A, COUNTS, (whole(5),), cumulative=False)
    assert pending.decided(Decision(A, True, 5)) is None
    assert parts(pending)[-1].whole is not None
    assert pending.clean_up_backlog == 1


def test_what_an_abort_has_released_may_be_acked_by_another_before_the_rest_is(pending: PendingAcks) -> None:
    acked(pending, A, whole(1))
    acked(pending, A, whole(2))
    pending.decided(Decision(A, False, 5))
    while pending.apply_part() != AppliedPart((), (whole(1),)):
        pass
    acked(pending, B, whole(1))
    with pytest.raises(TxnConflict):
        pending.reserve(B, COUNTS, (whole(2),), cumulative=False)
    assert parts(pending)[-1].whole is not None
    assert pending.skip(Position(1, 1)) == WHOLE, "the other one's"
    assert pending.skip(Position(1, 2)) == 0


def test_what_two_acks_name_is_released_with_the_last_of_them(pending: PendingAcks) -> None:
    """Dies if it is given back with the first: it would be due while the other still holds it, and twice."""
    acked(pending, A, whole(1))
    acked(pending, A, whole(1))
    acked(pending, A, whole(2))
    pending.decided(Decision(A, False, 5))
    assert [part.released for part in parts(pending) if part.released] == [(whole(1),), (whole(2),)]


def test_what_counts_is_applied_before_anything_is_released(pending: PendingAcks) -> None:
    """Dies if acks are applied in the order they came in: the message would be delivered once more."""
    acked(pending, A, whole(1), LOSES)
    acked(pending, A, whole(1), COUNTS)
    acked(pending, A, whole(2), LOSES)
    pending.decided(Decision(A, True, 5, frozenset({COUNTS})))
    found = parts(pending)
    assert [part.acked for part in found if part.acked] == [(whole(1),)]
    assert [part.released for part in found if part.released] == [(whole(2),)]


@pytest.mark.parametrize("at_once", [1, 2])
def test_cumulative_acks_release_nothing_before_the_last_of_them_is_gone(pending: PendingAcks, at_once: int) -> None:
    for entry_id in (1, 3, 2):
        acked(pending, A, whole(entry_id), cumulative=True)
    with turns_divided_by(APPLIED_AT_ONCE // at_once):
        pending.decided(Decision(A, False, 5))
        released = list[AckPosition]()
        while not released:
            assert pending.skip(Position(1, 1)) == WHOLE or not pending.statistics().cumulative
            released += pending.apply_part().released
        assert pending.statistics().cumulative == 0
        assert pending.earliest_unacked() == Position(1, 0)
        *before, last = parts(pending)
    assert [*released, *(ack for part in before for ack in part.released)] == [whole(1), whole(3), whole(2)]
    assert last.whole is not None
    assert last.whole.released == (whole(1), whole(3), whole(2))


def test_within_one_part_each_writer_s_acks_count_or_not_for_themselves() -> None:
    cursor = Cursor(LedgerLengths({1: 20}), EARLIEST)
    pending = PendingAcks("s", "sub", cursor)
    writers = (COUNTS, LOSES, LOSES, COUNTS, COUNTS, COUNTS)
    named: dict[int, list[AckPosition]] = {COUNTS: [], LOSES: []}
    for number, writer in enumerate(writers):
        both = (whole(1 + 2 * number), whole(2 + 2 * number))
        pending.confirmed(pending.reserve(A, writer, both, cumulative=False))
        named[writer] += both
    with turns_divided_by(APPLIED_AT_ONCE // 8):  # four in each part
        assert pending.decided(Decision(A, True, 5, frozenset({COUNTS}))) is None
        *before, last = parts(pending)
    assert last.whole is not None
    assert last.whole.acked == tuple(named[COUNTS])
    assert last.whole.released == tuple(named[LOSES])
    assert [ack for part in before for ack in part.acked] == named[COUNTS]
    assert [ack for part in before for ack in part.released] == named[LOSES]
    assert [ack for ack in named[COUNTS] + named[LOSES] if cursor.acked(ack.position) == WHOLE] == named[COUNTS]
    assert pending.statistics().positions == 0
