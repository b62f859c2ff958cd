"""Acks in transactions: PIP-31's machine of PENDING, PENDING_ACK and DELETED (DESIGN §6, "Pending acks")."""

from __future__ import annotations

import pytest

from segments.subscription.cursors.cursor import Cursor
from tests.segments.ledger_lengths import LedgerLengths
from tests.watchers.pending_acks import SEGMENT, A, B, C, abort, acked, at, commit, part, reserve, whole
from txnwire.errors import ExpiredTransaction, InternalError, InvalidArgument, Overloaded, TxnConflict
from txnwire.ids import EARLIEST, TxnId
from watchers.acks import WHOLE, AckOp
from watchers.pending_acks import AppliedAcks, PendingAcks

W1, W2 = 0x11, 0x22


def test_p1_ack_hides_abort_redelivers_commit_sticks(pending: PendingAcks, cursor: Cursor) -> None:
    acked(pending, A, whole(0), whole(2))
    acked(pending, A, whole(4))
    assert [pending.skip(at(entry_id)) for entry_id in range(5)] == [WHOLE, 0, WHOLE, 0, WHOLE]
    assert pending.decided(abort(A)) == AppliedAcks(abort(A), (), (whole(0), whole(2), whole(4)))
    assert [pending.skip(at(entry_id)) for entry_id in range(5)] == [0] * 5
    acked(pending, B, whole(0), whole(2))
    assert pending.decided(commit(B)) == AppliedAcks(commit(B), (whole(0), whole(2)), ())
    assert [pending.skip(at(entry_id)) for entry_id in range(3)] == [WHOLE, 0, WHOLE]
    assert cursor.mark_delete == at(0)


def test_p3_second_ack_conflicts_after_abort_it_may_after_commit_it_is_refused(pending: PendingAcks) -> None:
    acked(pending, A, whole(3))
    with pytest.raises(TxnConflict, match=r"@1:3 of subscription sub is being acked in transaction 0000-0+1"):
        reserve(pending, B, whole(3))
    pending.decided(abort(A))
    acked(pending, B, whole(3))
    pending.decided(commit(B))
    with pytest.raises(TxnConflict, match=r"@1:3 of subscription sub is acked already"):
        reserve(pending, C, whole(3))


def test_p3_conflict_on_one_of_many_reserves_none(pending: PendingAcks) -> None:
    acked(pending, A, whole(3))
    with pytest.raises(TxnConflict):
        reserve(pending, B, whole(1), whole(2), whole(3))
    assert pending.skip(at(1)) == 0
    assert not pending.holds(B)


def test_message_is_held_before_its_op_is_sent(pending: PendingAcks) -> None:
    """▲ Reserve before the op is sent: two ops of two transactions in flight at once would both land."""
    reserve(pending, A, whole(3))
    with pytest.raises(TxnConflict):
        reserve(pending, B, whole(3))
    assert pending.skip(at(3)) == WHOLE


def test_definite_refusal_gives_the_messages_back(pending: PendingAcks) -> None:
    pending.release(reserve(pending, A, whole(3), part(4, 0b1)))
    assert (pending.skip(at(3)), pending.skip(at(4))) == (0, 0)
    assert not pending.holds(A)
    acked(pending, B, whole(3))


def test_refused_resend_keeps_what_the_first_sending_holds(pending: PendingAcks) -> None:
    """▲ Released is only what this op reserved: the first one has landed."""
    acked(pending, A, whole(3))
    resend = reserve(pending, A, whole(3))
    pending.release(resend)
    with pytest.raises(TxnConflict):
        reserve(pending, B, whole(3))
    assert pending.decided(commit(A)) == AppliedAcks(commit(A), (whole(3),), ())


def test_answer_to_an_op_comes_once(pending: PendingAcks) -> None:
    reservation = acked(pending, A, whole(3))
    with pytest.raises(InternalError, match="landed twice"):
        pending.confirmed(reservation)
    with pytest.raises(InternalError, match="landed twice"):
        pending.release(reservation)


def test_p7_stale_commit_after_abort_changes_nothing(pending: PendingAcks, cursor: Cursor) -> None:
    acked(pending, A, whole(0))
    pending.decided(abort(A))
    assert pending.decided(commit(A)) is None
    assert (pending.skip(at(0)), cursor.mark_delete) == (0, EARLIEST)


def test_p4_one_transaction_on_two_subscriptions_each_for_itself() -> None:
    ledgers = LedgerLengths({1: 10})
    one, other = (PendingAcks(SEGMENT, name, Cursor(ledgers, EARLIEST)) for name in ("one", "other"))
    acked(one, A, whole(0))
    assert other.skip(at(0)) == 0
    acked(other, B, whole(0))
    one.decided(commit(A))
    assert other.decided(commit(A)) is None
    assert other.cursor.mark_delete == EARLIEST


# ---- cumulative


@pytest.mark.parametrize("second", [1, 3, 5], ids=["lower", "equal", "higher"])
def test_p2_second_transaction_acking_cumulatively_conflicts_wherever(pending: PendingAcks, second: int) -> None:
    acked(pending, A, whole(3), cumulative=True)
    with pytest.raises(TxnConflict, match="is being acked in transaction"):
        reserve(pending, B, whole(second), cumulative=True)


@pytest.mark.parametrize(("second", "allowed"), [(1, False), (3, False), (5, True)], ids=["lower", "equal", "higher"])
def test_p2_after_a_commit_only_a_higher_cumulative_ack_is_taken(
    pending: PendingAcks, cursor: Cursor, second: int, allowed: bool
) -> None:
    acked(pending, A, whole(3), cumulative=True)
    pending.decided(commit(A))
    assert cursor.mark_delete == at(3)
    if not allowed:
        with pytest.raises(TxnConflict, match="and all before it are acked already"):
            reserve(pending, B, whole(second), cumulative=True)
        return
    acked(pending, B, whole(second), cumulative=True)
    pending.decided(commit(B))
    assert cursor.mark_delete == at(second)


@pytest.mark.parametrize("second", [1, 3, 5], ids=["lower", "equal", "higher"])
def test_p2_one_transaction_may_ack_cumulatively_again(pending: PendingAcks, cursor: Cursor, second: int) -> None:
    acked(pending, A, whole(3), cumulative=True)
    acked(pending, A, whole(second), cumulative=True)
    assert pending.earliest_unacked() == at(max(3, second) + 1)
    pending.decided(commit(A))
    assert cursor.mark_delete == at(max(3, second))


def test_p2_abort_of_a_cumulative_ack_rewinds(pending: PendingAcks) -> None:
    acked(pending, A, whole(3), cumulative=True)
    assert [pending.skip(at(entry_id)) for entry_id in (0, 3, 4)] == [WHOLE, WHOLE, 0]
    assert pending.decided(abort(A)) == AppliedAcks(abort(A), (), (whole(3),))
    assert pending.earliest_unacked() == at(0)


def test_p3_covering_cumulative_ack_conflicts_with_an_individual_one(pending: PendingAcks) -> None:
    acked(pending, A, whole(3))
    acked(pending, A, whole(7))
    with pytest.raises(TxnConflict, match="@1:3 "):
        reserve(pending, B, whole(5), cumulative=True)
    acked(pending, B, whole(2), cumulative=True)


def test_p3_individual_ack_below_a_pending_cumulative_one_conflicts(pending: PendingAcks) -> None:
    acked(pending, A, part(3, 0b0011), cumulative=True)
    with pytest.raises(TxnConflict):
        reserve(pending, B, whole(1))
    with pytest.raises(TxnConflict):
        reserve(pending, B, part(3, 0b0001))
    acked(pending, B, part(3, 0b0100))
    acked(pending, B, whole(4))


def test_p8_cumulative_ack_of_part_of_an_entry_then_more_of_it(pending: PendingAcks, cursor: Cursor) -> None:
    acked(pending, A, part(3, 0b0011), cumulative=True)
    pending.decided(commit(A))
    assert (cursor.mark_delete, pending.skip(at(3))) == (at(2), 0b0011)
    with pytest.raises(TxnConflict):
        reserve(pending, B, part(3, 0b0001), cumulative=True)
    acked(pending, B, part(3, 0b0111), cumulative=True)
    pending.decided(commit(B))
    assert pending.skip(at(3)) == 0b0111


def test_cumulative_ack_names_exactly_one_position(pending: PendingAcks) -> None:
    with pytest.raises(InvalidArgument, match="names 2 positions"):
        reserve(pending, A, whole(1), whole(2), cumulative=True)
    with pytest.raises(InvalidArgument, match="names 0 positions"):
        reserve(pending, A)


# ---- part of an entry


def test_p8_two_transactions_ack_different_messages_of_one_entry(pending: PendingAcks, cursor: Cursor) -> None:
    acked(pending, A, part(0, 0b0011))
    with pytest.raises(TxnConflict):
        reserve(pending, B, part(0, 0b0110))
    with pytest.raises(TxnConflict):
        reserve(pending, B, whole(0))
    acked(pending, B, part(0, 0b1100))
    assert pending.skip(at(0)) == 0b1111
    assert pending.skip(at(0), 4) == WHOLE
    pending.decided(commit(B))
    pending.decided(abort(A))
    assert pending.skip(at(0)) == 0b1100
    acked(pending, C, part(0, 0b0011))
    pending.decided(commit(C))
    assert cursor.mark_delete == at(0)


# ---- plain acks


@pytest.mark.parametrize("landed", [True, False])
def test_decision_waits_for_ack_ops_in_flight(pending: PendingAcks, cursor: Cursor, landed: bool) -> None:
    """▲ An op in flight may have landed before the commit: its ack counts then, and only then."""
    acked(pending, A, whole(0))
    late = reserve(pending, A, whole(1))
    reserve(pending, B, whole(5))
    assert pending.decided(commit(B, 9)) is None
    assert pending.decided(commit(A, 7)) is None
    assert pending.unsettled(7)
    assert not pending.unsettled(6)
    assert cursor.mark_delete == EARLIEST
    applied = pending.confirmed(late) if landed else pending.release(late)
    assert applied is not None
    assert applied.acked == ((whole(0), whole(1)) if landed else (whole(0),))
    assert cursor.mark_delete == at(1 if landed else 0)
    assert not pending.unsettled(7)


def test_refused_only_op_of_a_decided_transaction_leaves_nothing(pending: PendingAcks) -> None:
    only = reserve(pending, A, whole(0))
    pending.decided(commit(A, 7))
    assert pending.release(only) is None
    assert pending.skip(at(0)) == 0
    assert not pending.unsettled(7)
    assert pending.clean_up_backlog == 0


def test_ack_behind_a_known_decision_is_refused(pending: PendingAcks) -> None:
    acked(pending, A, whole(0))
    waiting = reserve(pending, A, whole(1))
    pending.decided(abort(A, reason="fenced"))
    with pytest.raises(ExpiredTransaction):
        reserve(pending, A, whole(5))
    pending.confirmed(waiting)
    with pytest.raises(ExpiredTransaction):
        reserve(pending, A, whole(5))
    pending.cleaned(pending.clean_up_batch(1))


# ---- named transactions


def test_acks_are_held_per_writer_and_losers_go_back(pending: PendingAcks, cursor: Cursor) -> None:
    """Two attempts of one task ack the same input; the commit names the one that counts."""
    acked(pending, A, whole(0), writer=W1)
    acked(pending, A, whole(0), whole(1), writer=W2)
    decision = commit(A, writers=frozenset({W1}))
    assert pending.decided(decision) == AppliedAcks(decision, (whole(0),), (whole(1),))
    assert cursor.mark_delete == at(0)
    assert pending.skip(at(1)) == 0


def test_what_a_loser_acked_and_a_winner_too_is_not_released(pending: PendingAcks, cursor: Cursor) -> None:
    acked(pending, A, part(2, 0b0011), whole(3), writer=W1)
    acked(pending, A, part(2, 0b0110), part(3, 0b0001), whole(4), writer=W2)
    decision = commit(A, writers=frozenset({W1}))
    applied = pending.decided(decision)
    assert applied is not None
    assert applied.released == (part(2, 0b0100), whole(4))


def test_a_loser_s_cumulative_ack_within_a_winner_s_releases_nothing(pending: PendingAcks, cursor: Cursor) -> None:
    acked(pending, A, whole(3), cumulative=True, writer=W1)
    acked(pending, A, whole(2), cumulative=True, writer=W2)
    applied = pending.decided(commit(A, writers=frozenset({W1})))
    assert applied is not None
    assert applied.released == ()
    assert cursor.mark_delete == at(3)


def test_commit_that_counts_nobody_releases_everything(pending: PendingAcks, cursor: Cursor) -> None:
    acked(pending, A, whole(3), cumulative=True, writer=W1)
    decision = commit(A, writers=frozenset())
    assert pending.decided(decision) == AppliedAcks(decision, (), (whole(3),))
    assert cursor.mark_delete == EARLIEST


# ---- bounds


def test_ack_the_cursor_could_not_hold_is_refused_before_its_op_is_sent() -> None:
    """A commit cannot be refused any more, so the room is taken when the ack is reserved."""
    cursor = Cursor(LedgerLengths({1: 20_000}), EARLIEST, max_blocks=1)
    pending = PendingAcks(SEGMENT, "sub", cursor)
    with pytest.raises(Overloaded):
        reserve(pending, A, whole(1), whole(9000))
    assert cursor.statistics().blocks == 0
    assert not pending.holds(A)
    acked(pending, A, whole(9000))
    with pytest.raises(Overloaded):
        pending.ack([whole(5000)])
    pending.decided(commit(A))
    assert cursor.acked(at(9000)) == WHOLE


def test_an_ack_that_is_refused_for_want_of_room_keeps_none_of_the_room_it_had_taken() -> None:
    """However many it had taken room for by then: each refusal would leave less, until everything is refused."""
    cursor = Cursor(LedgerLengths({1: 40_000}), EARLIEST, max_blocks=2, max_partial=2)
    pending = PendingAcks(SEGMENT, "sub", cursor)
    for _ in range(3):
        with pytest.raises(Overloaded):
            reserve(pending, A, whole(1), whole(5000), whole(9000))
        with pytest.raises(Overloaded):
            reserve(pending, A, part(1, 0b1), part(2, 0b1), part(3, 0b1))
    assert cursor.statistics().blocks == 0
    acked(pending, B, part(11, 0b1), part(12, 0b1))
    acked(pending, B, whole(9000))


@pytest.mark.parametrize("aborted", [False, True], ids=["refused", "aborted"])
def test_messages_that_go_back_give_back_all_the_room_they_had_taken(aborted: bool) -> None:
    cursor = Cursor(LedgerLengths({1: 40_000}), EARLIEST, max_blocks=2)
    pending = PendingAcks(SEGMENT, "sub", cursor)
    for _ in range(3):
        reservation = reserve(pending, A, whole(5000), whole(9000))
        if aborted:
            pending.confirmed(reservation)
            pending.decided(abort(A))
            pending.cleaned(pending.clean_up_batch(1))
        else:
            pending.release(reservation)
    assert cursor.statistics().blocks == 0
    acked(pending, B, whole(13_000), whole(17_000))


def test_aborted_entries_are_passed_over_beyond_the_bound() -> None:
    """A refusal would leave the mark-delete position before them, and the cursor full, for ever."""
    cursor = Cursor(LedgerLengths({1: 20_000}), EARLIEST, max_blocks=1, max_partial=1)
    pending = PendingAcks(SEGMENT, "sub", cursor)
    for entry_id in range(1, 12_000):
        assert pending.pass_over(at(entry_id))
    assert not pending.pass_over(at(7))
    pending.ack([whole(0)])
    assert cursor.mark_delete == at(11_999)


def test_p2_lowest_pending_is_found_among_many_that_are_gone(pending: PendingAcks, cursor: Cursor) -> None:
    acked(pending, A, whole(9, 2))
    for round_number in range(200):
        txn_id = TxnId(1, round_number + 1)
        acked(pending, txn_id, whole(3), whole(5))
        pending.decided(abort(txn_id))
    assert pending.ack_cumulative(whole(9, 2))
    assert cursor.mark_delete == at(8, 2)


# ---- restart


def test_p5_restart_restores_pending_acks_and_finishes_decided_leftovers(cursor: Cursor) -> None:
    pending = PendingAcks(SEGMENT, "sub", cursor)
    pending.restore(AckOp(b"k1", A, 0, False, (whole(0), part(4, 0b1))))
    pending.restore(AckOp(b"k2", A, 0, False, (whole(1),)))
    pending.restore(AckOp(b"k3", B, 0, True, (whole(2, 2),)))
    assert pending.open_transactions() == (A, B)
    assert pending.decided(commit(A)) == AppliedAcks(commit(A), (whole(0), part(4, 0b1), whole(1)), ())
    assert cursor.mark_delete == at(1)
    with pytest.raises(TxnConflict):
        reserve(pending, A, whole(3), cumulative=True)
    assert [applied.decision.txn_id for applied in pending.clean_up_batch(5)] == [A]


def test_p5_what_was_admitted_once_is_restored_though_the_cursor_has_no_room_for_it_now() -> None:
    """Refused, it would keep the segment from being taken over, by anybody."""
    cursor = Cursor(LedgerLengths({1: 20_000}), EARLIEST, max_blocks=1, max_partial=1)
    pending = PendingAcks(SEGMENT, "sub", cursor)
    pending.pass_over(at(5000))  # aborted, as it is not bounded either
    pending.restore(AckOp(b"k1", A, 0, False, (whole(9000), part(1, 0b01), part(2, 0b01))))
    pending.decided(commit(A))
    assert [cursor.acked(at(entry_id)) for entry_id in (9000, 1, 2)] == [WHOLE, 0b01, 0b01]


def test_p6_leftover_that_was_applied_before_the_crash_changes_nothing(cursor: Cursor) -> None:
    """The cursor got to etcd, the deletion of the op did not; newer plain acks went further meanwhile."""
    cursor.ack_cumulative(whole(5))
    cursor.ack(whole(7))
    pending = PendingAcks(SEGMENT, "sub", cursor)
    pending.restore(AckOp(b"k1", A, 0, False, (whole(2), whole(7))))
    pending.restore(AckOp(b"k2", A, 0, True, (whole(3),)))
    pending.decided(commit(A))
    assert (cursor.mark_delete, cursor.acked(at(7))) == (at(5), WHOLE)


def test_earliest_unacked_passes_acked_and_pending(pending: PendingAcks, cursor: Cursor) -> None:
    assert pending.earliest_unacked() == at(0)
    acked(pending, A, whole(0), whole(2), whole(9))
    cursor.ack(whole(1))
    cursor.ack(whole(0, 2))
    assert pending.earliest_unacked() == at(3)
    acked(pending, A, part(8, 0b1), cumulative=True)
    assert pending.earliest_unacked() == at(8)
    acked(pending, A, whole(8))
    assert pending.earliest_unacked() == at(1, 2)
