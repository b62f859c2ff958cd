"""The transaction buffer: what a READ_COMMITTED reader may see (DESIGN §6; PIP-471 `MetadataTransactionBuffer`)."""

from __future__ import annotations

import pytest

from tests.watchers.buffered import SEGMENT, W1, W2, W3, A, B, C, abort, at, fresh, write
from txnwire.errors import ExpiredTransaction, InternalError, TxnConflict
from txnwire.ids import EARLIEST, Position, TxnId
from watchers.outcomes import Decision
from watchers.visibility import TransactionBuffer


def commit(txn_id: TxnId, revision: int = 100, writers: frozenset[int] | None = None) -> Decision:
    return Decision(txn_id, True, revision, writers)


def test_v1_open_transaction_holds_readers_before_its_first_entry() -> None:
    buffer = fresh()
    buffer.confirmed(at(2))
    write(buffer, A, 3)
    buffer.confirmed(at(9))
    assert buffer.max_read_position == at(2)


def test_v1_first_entry_of_a_ledger_holds_readers_at_the_ledgers_start() -> None:
    buffer = TransactionBuffer(SEGMENT, last_confirmed=at(7))
    buffer.op_started(A, 0)
    buffer.appended(A, 0, at(0, 2))
    buffer.confirmed(at(0, 2))
    assert at(7) < buffer.max_read_position == at(-1, 2)


def test_v3_each_end_moves_readers_to_the_next_earliest() -> None:
    buffer = fresh()
    for entry_id, txn_id in enumerate((A, B, C)):
        write(buffer, txn_id, 10 * entry_id + 5)
    buffer.confirmed(at(40))
    assert buffer.pinning(10) == ((A, at(5)), (B, at(15)), (C, at(25)))
    buffer.decided(commit(B))
    assert buffer.max_read_position == at(4)
    buffer.decided(abort(A))
    assert buffer.max_read_position == at(24)
    buffer.decided(commit(C))
    assert buffer.max_read_position == at(40)


def test_v6_own_uncommitted_writes_are_not_read_whoever_asks() -> None:
    buffer = fresh()
    write(buffer, A, 0)
    write(buffer, A, 1)
    assert buffer.max_read_position == at(-1)
    buffer.decided(commit(A))
    assert buffer.max_read_position == at(1)


def test_op_without_entry_holds_nobody() -> None:
    buffer = fresh()
    buffer.op_started(A, 0)
    buffer.confirmed(at(4))
    assert buffer.max_read_position == at(4)


def test_read_position_never_passes_the_last_confirmed_entry() -> None:
    buffer = fresh()
    buffer.confirmed(at(4))
    buffer.op_started(A, 0)
    buffer.appended(A, 0, at(9))
    assert buffer.max_read_position == at(4)
    buffer.confirmed(at(2))
    assert buffer.last_confirmed == at(4)


# ---- decisions


def test_v2_after_commit_everything_of_it_is_visible_after_abort_nothing() -> None:
    buffer = fresh()
    write(buffer, A, 0)
    write(buffer, B, 1)
    assert buffer.decided(commit(A)) == (commit(A), ())
    assert buffer.decided(abort(B)) == (abort(B), ((None, at(1)),))
    assert buffer.max_read_position == at(1)
    assert not buffer.is_aborted(A, 0)
    assert buffer.is_aborted(B, 0)


def test_v4_abort_filters_at_once_what_a_parked_read_returns() -> None:
    """The read was parked below the open transaction; when the abort lets it through, the filter already knows."""
    buffer = fresh()
    write(buffer, A, 0)
    buffer.decided(abort(A))
    assert (buffer.max_read_position, buffer.is_aborted(A, 0)) == (at(0), True)


def test_r2_aborted_is_filtered_while_its_durable_record_hangs() -> None:
    buffer = fresh()
    write(buffer, A, 0)
    buffer.decided(abort(A))
    for _ in range(3):
        assert buffer.clean_up_batch(10) == ((abort(A), ((None, at(0)),)),)
        assert buffer.is_aborted(A, 0)


def test_decision_of_a_transaction_unknown_here_is_dropped() -> None:
    buffer = fresh()
    assert buffer.decided(abort(A)) is None
    assert buffer.clean_up_backlog == 0
    assert not buffer.is_aborted(A, 0)


def test_p7_stale_decision_after_the_first_changes_nothing() -> None:
    buffer = fresh()
    write(buffer, A, 0)
    buffer.decided(abort(A, 100))
    assert buffer.decided(commit(A, 101)) is None
    assert buffer.is_aborted(A, 0)


def test_abort_without_entries_needs_no_record() -> None:
    buffer = fresh()
    buffer.op_started(A, 0)
    buffer.op_finished(A)
    assert buffer.decided(abort(A)) == (abort(A), ())
    assert buffer.watermark == EARLIEST


# ---- ▲ operations in flight


@pytest.mark.parametrize("decision", [commit(A, 7), abort(A, 7)], ids=["commit", "abort"])
def test_decision_waits_for_operations_in_flight(decision: Decision) -> None:
    """▲ In flight from before the op is sent: its entry is still to be appended when the decision is seen."""
    buffer = fresh()
    write(buffer, A, 0)
    buffer.op_started(A, 0)
    assert buffer.decided(decision) is None
    assert buffer.unsettled(7)
    assert not buffer.unsettled(6)
    buffer.appended(A, 0, at(1))
    buffer.confirmed(at(1))
    assert buffer.max_read_position == at(-1)
    applied = buffer.op_finished(A)
    assert applied is not None
    assert applied.aborted == (() if decision.committed else ((None, at(1)),))
    assert buffer.max_read_position == at(1)
    assert not buffer.unsettled(7)


def test_aborted_record_names_the_last_entry_of_an_operation_in_flight() -> None:
    """▲ Applied before that append, the record would name too low a position and be trimmed too early (R3)."""
    buffer = fresh()
    write(buffer, A, 0)
    buffer.op_started(A, 0)
    buffer.decided(abort(A))
    buffer.appended(A, 0, at(50))
    buffer.confirmed(at(50))
    buffer.op_finished(A)
    batch = buffer.clean_up_batch(10)
    buffer.cleaned(batch)
    assert buffer.prunable(at(50), 10) == ()
    assert buffer.prunable(at(51), 10) == ((A, None),)


def test_decision_before_the_ops_answer_is_remembered() -> None:
    buffer = fresh()
    buffer.op_started(A, 0)
    assert buffer.decided(abort(A)) is None
    buffer.appended(A, 0, at(0))
    buffer.confirmed(at(0))
    assert buffer.op_finished(A) == (abort(A), ((None, at(0)),))


def test_l4_op_recorded_but_never_appended_is_cleaned_with_the_decision() -> None:
    buffer = fresh()
    buffer.op_started(A, 0)
    assert buffer.op_finished(A) is None
    assert buffer.holds(A)
    buffer.decided(abort(A))
    assert [applied.decision.txn_id for applied in buffer.clean_up_batch(10)] == [A]


def test_refused_op_leaves_nothing_behind() -> None:
    buffer = fresh()
    buffer.op_started(A, 0)
    buffer.decided(abort(A, 5))
    assert buffer.op_refused(A) is None
    assert not buffer.holds(A)
    assert not buffer.unsettled(5)
    assert buffer.clean_up_backlog == 0


def test_refused_op_lets_a_remembered_decision_through() -> None:
    buffer = fresh()
    write(buffer, A, 0)
    buffer.op_started(A, 0)
    assert buffer.decided(commit(A)) is None
    assert buffer.op_refused(A) == (commit(A), ())


def test_an_operation_behind_the_end_of_its_transaction_awaits_no_decision_for_what_was_written_before() -> None:
    buffer = fresh()
    write(buffer, A, 0)
    assert buffer.pins(A)
    buffer.decided(abort(A))
    buffer.cleaned(buffer.clean_up_batch(1))
    buffer.op_started(A, 0)
    assert buffer.holds(A)
    assert not buffer.pins(A)
    assert buffer.op_refused(A) is None


def test_last_of_several_operations_in_flight_lets_the_decision_through() -> None:
    buffer = fresh()
    for _ in range(3):
        buffer.op_started(A, 0)
    buffer.decided(commit(A))
    assert buffer.op_refused(A) is None
    assert buffer.op_finished(A) is None
    assert buffer.op_finished(A) == (commit(A), ())


def test_operation_behind_a_known_decision_is_refused_here() -> None:
    buffer = fresh()
    write(buffer, A, 0)
    buffer.op_started(A, 0)
    buffer.decided(abort(A, reason="timeout"))
    with pytest.raises(TxnConflict, match=r"0000-0000000000000001 is ABORTED \(reason: timeout\)"):
        buffer.op_started(A, 0)
    buffer.op_refused(A)
    with pytest.raises(TxnConflict):
        buffer.op_started(A, 0)
    buffer.cleaned(buffer.clean_up_batch(1))
    assert not buffer.holds(A)


def test_operation_in_a_fenced_transaction_is_expired() -> None:
    buffer = fresh()
    write(buffer, A, 0)
    buffer.decided(abort(A, reason="fenced"))
    with pytest.raises(ExpiredTransaction, match="fenced by a newer holder"):
        buffer.op_started(A, 0)


def test_entry_without_a_registered_operation_is_an_error() -> None:
    buffer = fresh()
    with pytest.raises(InternalError, match="no operation in flight"):
        buffer.appended(A, 0, at(0))
    write(buffer, A, 0)
    with pytest.raises(InternalError, match="no operation in flight"):
        buffer.appended(A, 0, at(1))
    buffer.op_started(A, 0)
    with pytest.raises(InternalError, match="appended after 1:0"):
        buffer.appended(A, 0, at(0))
    buffer.appended(A, 0, at(3))
    with pytest.raises(InternalError, match="appended after 1:3"):
        buffer.appended(A, 0, at(3))
    buffer.confirmed(at(7))
    for entry_id in (6, 7):
        with pytest.raises(InternalError, match=f"1:{entry_id} was appended after"):
            buffer.appended(A, 0, at(entry_id))


# ---- named transactions: (transaction, writer)


def test_writers_that_do_not_count_are_aborted_each_for_itself() -> None:
    buffer = fresh()
    for entry_id, writer in enumerate((W1, W2, W1, W3)):
        write(buffer, A, entry_id, writer)
    applied = buffer.decided(commit(A, writers=frozenset({W1})))
    assert applied is not None
    assert sorted(applied.aborted) == [(W2, at(1)), (W3, at(3))]
    assert [buffer.is_aborted(A, writer) for writer in (W1, W2, W3)] == [False, True, True]
    assert not buffer.is_aborted(B, W2)


def test_empty_writer_list_counts_nobody_an_absent_one_everybody() -> None:
    for writers, aborted in ((frozenset[int](), True), (None, False)):
        buffer = fresh()
        write(buffer, A, 0, W1)
        buffer.decided(commit(A, writers=writers))
        assert buffer.is_aborted(A, W1) is aborted


def test_losers_are_all_writers_registered_or_scanned_not_what_etcd_still_holds() -> None:
    """▲ W2 came from the ledger of an earlier owner, W3's op is the only one left in etcd: neither is asked for."""
    buffer = fresh()
    buffer.loaded(A)
    buffer.scanned(A, W2, at(3))
    buffer.confirmed(at(3))
    write(buffer, A, 4, W3)
    applied = buffer.decided(commit(A, writers=frozenset({W1})))
    assert applied is not None
    assert sorted(applied.aborted) == [(W2, at(3)), (W3, at(4))]


def test_writer_without_entries_here_needs_no_record() -> None:
    buffer = fresh()
    write(buffer, A, 0, W1)
    buffer.op_started(A, W2)
    buffer.op_finished(A)
    assert buffer.decided(commit(A, writers=frozenset({W1}))) == (commit(A, writers=frozenset({W1})), ())


# ---- watermark


def test_watermark_stays_below_open_and_below_aborted_until_the_record_is_durable() -> None:
    """▲ A successor scans from the watermark: above it must lie whatever it still has to learn a position of."""
    buffer = fresh()
    buffer.confirmed(at(4))
    write(buffer, A, 5)
    write(buffer, B, 6)
    buffer.confirmed(at(9))
    assert buffer.watermark == at(4)
    buffer.decided(abort(A))
    assert (buffer.max_read_position, buffer.watermark) == (at(5), at(4))
    buffer.cleaned(buffer.clean_up_batch(10))
    assert buffer.watermark == at(5)
    buffer.decided(commit(B))
    assert buffer.watermark == at(9)


def test_watermark_waits_for_the_records_of_losers_too() -> None:
    buffer = fresh()
    write(buffer, A, 0, W1)
    write(buffer, A, 1, W2)
    buffer.decided(commit(A, writers=frozenset({W1})))
    assert buffer.watermark == at(-1)
    buffer.cleaned(buffer.clean_up_batch(1))
    assert buffer.watermark == at(1)


def test_watermark_is_never_below_where_it_started() -> None:
    buffer = TransactionBuffer(SEGMENT, watermark=at(7), last_confirmed=at(7))
    assert buffer.watermark == at(7)
    buffer = TransactionBuffer(SEGMENT, watermark=at(7))
    assert buffer.watermark == at(7)


# ---- recovery


def test_what_was_decided_earlier_is_unsettled_too_while_an_operation_is_in_flight() -> None:
    """▲ A cut at a later revision must wait for it as one at its own does."""
    buffer = fresh()
    write(buffer, A, 0)
    buffer.op_started(A, 0)
    buffer.decided(commit(A, revision=100))
    assert [buffer.unsettled(revision) for revision in (99, 100, 101)] == [False, True, True]


def test_whatever_is_in_flight_is_unsettled_though_one_of_a_later_decision_stands_before_it() -> None:
    buffer = fresh()
    for txn_id, revision in ((A, 200), (B, 100)):
        buffer.op_started(txn_id, 0)
        buffer.decided(commit(txn_id, revision=revision))
    assert [buffer.unsettled(revision) for revision in (99, 150)] == [False, True]


def test_statistics_name_what_holds_readers_back() -> None:
    buffer = fresh()
    write(buffer, A, 0)
    write(buffer, B, 1)
    buffer.op_started(B, 0)
    buffer.decided(commit(B))
    found = buffer.statistics()
    assert (found.open, found.pinning, found.deferred, found.cleaning, found.aborted) == (2, 2, 1, 0, 0)
    assert (found.earliest_open, found.earliest_position) == (A, at(0))


def test_the_record_of_writer_0_is_never_taken_for_that_of_the_whole_transaction() -> None:
    """▲ It goes to the sidecar under its own key, and leaves the record of the whole one where it is."""
    loser, whole = (TxnId(1, 1), 0), (TxnId(1, 2), None)
    buffer = TransactionBuffer("s", aborted={loser: Position(1, 5), whole: Position(1, 6)}, watermark=Position(2, 0))
    assert dict(buffer.durable(Position(1, 9))) == {loser: Position(1, 5), whole: Position(1, 6)}
    buffer.moved(1, {loser: Position(1, 5)})
    assert dict(buffer.durable(Position(1, 9))) == {whole: Position(1, 6)}
    assert list(buffer.prunable(Position(2, 0), 10)) == [whole]


def test_r3_what_a_sidecar_holds_is_aborted_until_its_ledger_is_trimmed() -> None:
    whole, loser, late = (TxnId(1, 1), None), (TxnId(1, 2), 7), (TxnId(1, 3), None)
    buffer = TransactionBuffer(
        "s", aborted={whole: Position(1, 5), loser: Position(1, 9), late: Position(2, 0)}, watermark=Position(2, 0)
    )
    assert dict(buffer.durable(Position(1, 9))) == {whole: Position(1, 5), loser: Position(1, 9)}
    buffer.moved(1, buffer.durable(Position(1, 9)))
    assert buffer.records_in_store == 1
    assert buffer.is_aborted(TxnId(1, 1), 0)
    assert buffer.is_aborted(TxnId(1, 2), 7)
    assert list(buffer.prunable(Position(3, 0), 10)) == [late]
    buffer.in_sidecar(2, {late: Position(2, 0), (TxnId(1, 4), None): Position(2, 1)})
    buffer.trimmed(Position(2, 0))
    assert not buffer.is_aborted(TxnId(1, 1), 0)
    assert not buffer.is_aborted(TxnId(1, 2), 7)
    assert buffer.is_aborted(TxnId(1, 3), 0)
    buffer.trimmed(Position(3, 0))
    assert not buffer.is_aborted(TxnId(1, 4), 0)
    assert buffer.statistics().aborted == 0


def test_r3_what_the_sidecars_of_several_ledgers_hold_is_forgotten_as_they_are_trimmed_together() -> None:
    buffer = fresh()
    for ledger_id in (1, 2, 3):
        buffer.in_sidecar(ledger_id, {(TxnId(1, ledger_id), None): Position(ledger_id, 5)})
    buffer.trimmed(Position(3, 0))
    assert list(buffer.aborted_records()) == [(TxnId(1, 3), None)]
