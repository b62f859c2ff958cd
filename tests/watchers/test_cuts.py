"""One segment's part of a cut: what does not count at its revision, behind a position (DESIGN §10)."""

from __future__ import annotations

import pytest

from tests.watchers.buffered import SEGMENT, W1, W2, A, B, C, abort, at, fresh, write
from tests.watchers.test_visibility import commit
from txnwire.ids import EARLIEST, TxnId
from txnwire.turns import at_once, turns_divided_by
from watchers.visibility import CUT_AT_ONCE, BufferCut, TransactionBuffer

D, E, F = TxnId(5, 1), TxnId(5, 2), TxnId(5, 3)


def test_a_cut_whose_decisions_were_not_noted_from_the_first_is_not_answered() -> None:
    """▲ It cannot tell what was decided since its revision, and would show that."""
    buffer = fresh()
    assert at_once(buffer.cut(100, EARLIEST)) is None
    for entry_id, (txn_id, revision) in enumerate(((A, 90), (B, 80))):
        write(buffer, txn_id, entry_id)
        buffer.decided(commit(txn_id, revision))
    buffer.note_decisions()
    assert at_once(buffer.cut(89, EARLIEST)) is None
    assert at_once(buffer.cut(90, EARLIEST)) == BufferCut(at(1), (), ())
    write(buffer, C, 2)
    buffer.decided(commit(C, 95))
    buffer.note_decisions()
    assert at_once(buffer.cut(90, EARLIEST)) == BufferCut(at(2), (C,), ()), "noting anew forgets nothing"
    buffer.forget_decisions()
    assert at_once(buffer.cut(100, EARLIEST)) is None


@pytest.mark.parametrize("divisor", [1, CUT_AT_ONCE])
def test_a_cut_shows_the_moment_of_its_first_step(divisor: int) -> None:
    """▲ A and B are open then; C, D and F were decided behind its revision, E before it, each in part or whole."""
    buffer = TransactionBuffer(SEGMENT, aborted={(TxnId(6, n), None): at(n) for n in (0, 1, 2)}, last_confirmed=at(3))
    buffer.note_decisions()
    for entry_id, txn_id in enumerate((A, B, C, D, E, F)):
        write(buffer, txn_id, 4 + 2 * entry_id, W1)
        write(buffer, txn_id, 5 + 2 * entry_id, W2)
    buffer.decided(commit(E, 100, frozenset()))
    buffer.decided(commit(C, 101, frozenset({W1})))
    buffer.decided(abort(D, 102))
    buffer.decided(commit(F, 103, frozenset()))
    with turns_divided_by(divisor):
        steps = buffer.cut(100, at(0))
        next(steps)
        buffer.decided(abort(A, 104))
        buffer.pruned([(TxnId(6, 1), None), (E, W1)])
        next(steps)
        next(steps)
        buffer.decided(abort(B, 105))
        cut = at_once(steps)
    gone = ((TxnId(6, 1), None), (TxnId(6, 2), None), (E, W1), (E, W2))
    assert cut == BufferCut(at(15), (A, B, C, D, F), gone)


def test_a_cut_leaves_out_what_is_decided_behind_it_and_has_nothing_here() -> None:
    buffer = fresh()
    buffer.note_decisions()
    buffer.op_started(A, W1)
    buffer.op_finished(A)
    buffer.decided(commit(A, 101))
    write(buffer, B, 0)
    assert at_once(buffer.cut(100, EARLIEST)) == BufferCut(at(0), (B,), ())


def test_a_cut_names_nothing_that_is_over_before_the_position_from_which_it_is_asked() -> None:
    buffer = fresh()
    buffer.note_decisions()
    for entry_id, (txn_id, writer) in enumerate(((A, W1), (B, W1), (C, W1), (C, W2), (D, W1), (B, W1))):
        write(buffer, txn_id, entry_id, writer)
    for txn_id in (A, B, D):
        buffer.decided(abort(txn_id))
    buffer.decided(commit(C, writers=frozenset()))
    assert at_once(buffer.cut(100, at(3))) == BufferCut(at(5), (), ((B, None), (D, None)))
    assert at_once(buffer.cut(100, at(2))) == BufferCut(at(5), (), ((B, None), (D, None), (C, W2)))
    assert at_once(buffer.cut(100, at(5))) == BufferCut(at(5), (), ())


def test_what_is_decided_behind_a_cut_is_no_part_of_it_where_nothing_of_it_is_up_to_the_end() -> None:
    buffer = fresh()
    buffer.note_decisions()
    for entry_id, txn_id in enumerate((A, B)):
        buffer.op_started(txn_id, 0)
        buffer.appended(txn_id, 0, at(entry_id))
        buffer.op_finished(txn_id)
        buffer.decided(commit(txn_id, 101))
    buffer.confirmed(at(0))
    assert at_once(buffer.cut(100, EARLIEST)) == BufferCut(at(0), (A,), ())
