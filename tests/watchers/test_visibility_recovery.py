"""What a transaction buffer is loaded with, and when aborted records go (R1, R3)."""

from __future__ import annotations

from tests.watchers.buffered import SEGMENT, W1, A, B, C, abort, at, fresh, write
from txnwire.ids import Position, TxnId
from watchers.visibility import AbortedKey, TransactionBuffer


def test_r1_scan_pins_an_open_transaction_at_its_own_first_entry() -> None:
    buffer = TransactionBuffer(SEGMENT, watermark=at(1), last_confirmed=at(9), aborted={(B, None): at(3)})
    buffer.loaded(A)
    for entry_id, txn_id in ((2, C), (3, B), (5, A), (6, A)):
        buffer.scanned(txn_id, 0, at(entry_id))
    assert buffer.max_read_position == at(4)
    assert buffer.is_aborted(B, 0)
    assert not buffer.is_aborted(C, 0)
    assert buffer.open_transactions() == (A,)
    assert buffer.decided(abort(A)) == (abort(A), ((None, at(6)),))


def test_r1_a_refused_op_leaves_what_was_found_of_its_transaction() -> None:
    """A store that is full refuses it: the transaction goes on, and what a former owner has stored of it is decided."""
    buffer = TransactionBuffer(SEGMENT, last_confirmed=at(5))
    buffer.loaded(A)
    buffer.scanned(A, 0, at(5))
    buffer.op_started(A, 0)
    assert buffer.op_refused(A) is None
    assert buffer.holds(A)
    assert buffer.decided(abort(A)) == (abort(A), ((None, at(5)),))
    assert (buffer.is_aborted(A, 0), buffer.max_read_position) == (True, at(5))


def test_r1_decided_leftover_is_filtered_before_the_first_read() -> None:
    buffer = TransactionBuffer(SEGMENT, last_confirmed=at(5))
    buffer.loaded(A)
    buffer.scanned(A, 0, at(5))
    buffer.decided(abort(A))
    assert (buffer.is_aborted(A, 0), buffer.max_read_position) == (True, at(5))


def test_leftover_whose_aborted_record_is_durable_already_is_not_recorded_again() -> None:
    """Clean-up of an ownerless segment recorded it with an unknown position; narrowing that would trim it too early."""
    buffer = TransactionBuffer(SEGMENT, last_confirmed=at(5), aborted={(A, None): None}, fenced_below=at(-1, 2))
    buffer.loaded(A)
    buffer.scanned(A, 0, at(5))
    assert buffer.decided(abort(A)) == (abort(A), ())
    assert buffer.prunable(at(-1, 2), 1) == ()


def test_new_write_in_a_loaded_transaction_extends_its_record() -> None:
    buffer = TransactionBuffer(SEGMENT, last_confirmed=at(5))
    buffer.loaded(A)
    buffer.scanned(A, 0, at(5))
    buffer.op_started(A, 0)
    buffer.appended(A, 0, at(0, 2))
    buffer.confirmed(at(0, 2))
    buffer.op_finished(A)
    assert buffer.decided(abort(A)) == (abort(A), ((None, at(0, 2)),))
    assert buffer.watermark == at(4)


# ---- retention


def test_r3_aborted_record_lives_until_its_last_entry_is_trimmed() -> None:
    buffer = TransactionBuffer(
        SEGMENT, aborted={(A, None): at(5), (B, W1): at(3), (C, None): None}, fenced_below=at(-1, 4)
    )
    assert buffer.prunable(at(3), 10) == ()
    assert buffer.prunable(at(6), 1) == ((B, W1),)
    assert buffer.prunable(at(6), 10) == ((B, W1), (A, None))
    buffer.pruned([(B, W1)])
    assert not buffer.is_aborted(B, W1)
    assert buffer.is_aborted(A, 0)
    assert buffer.prunable(at(6), 10) == ((A, None),)
    buffer.pruned([(A, None)])
    assert buffer.prunable(at(-1, 4), 10) == ()


def test_r3_record_with_an_unknown_position_goes_with_everything_before_the_first_ledger_of_this_owner() -> None:
    """▲ §5: only once all that is older than the ledger of an owner that fenced afterwards is trimmed."""
    buffer = TransactionBuffer(SEGMENT, aborted={(A, None): None}, fenced_below=at(-1, 4))
    assert buffer.prunable(at(999, 3), 10) == ()
    assert buffer.prunable(at(0, 4), 10) == ((A, None),)


def test_r3_records_are_prunable_lowest_first_whichever_others_have_moved_to_a_sidecar() -> None:
    """The lowest one is found first: behind another one it would stay for as long as that."""
    records: dict[AbortedKey, Position | None] = {(TxnId(1, n), None): at(n) for n in (1, 5, 2, 6, 7, 3, 4)}
    buffer = TransactionBuffer(SEGMENT, aborted=records)
    buffer.moved(1, {(TxnId(1, n), None): at(n) for n in (1, 2)})
    assert buffer.prunable(at(5), 10) == ((TxnId(1, 3), None), (TxnId(1, 4), None))


def test_records_in_the_store_are_counted_from_a_position_on_without_those_that_are_trimmed() -> None:
    records: dict[AbortedKey, Position | None] = {(A, None): at(1), (B, W1): at(3), (C, None): at(5)}
    buffer = TransactionBuffer(SEGMENT, aborted=records)
    assert [buffer.records_from(at(entry_id)) for entry_id in (0, 2, 3, 4, 6)] == [3, 2, 2, 1, 0]
    buffer.pruned([(B, W1)])
    assert [buffer.records_from(at(entry_id)) for entry_id in (0, 2, 3, 4, 6)] == [2, 1, 1, 1, 0]


def test_record_that_is_not_durable_yet_is_not_prunable() -> None:
    buffer = fresh()
    write(buffer, A, 0)
    buffer.decided(abort(A))
    assert buffer.prunable(at(10), 10) == ()
    batch = buffer.clean_up_batch(1)
    for _ in range(2):
        buffer.cleaned(batch)
        assert buffer.prunable(at(10), 10) == ((A, None),)
        assert (buffer.records_in_store, buffer.clean_up_backlog) == (1, 0)


def test_all_of_a_batch_is_durable_once_it_is_cleaned() -> None:
    buffer = fresh()
    for entry_id, txn_id in enumerate((A, B, C)):
        write(buffer, txn_id, entry_id)
        buffer.decided(abort(txn_id))
    buffer.cleaned(buffer.clean_up_batch(2))
    assert buffer.durable(at(9)) == {(A, None): at(0), (B, None): at(1)}
    assert (buffer.clean_up_backlog, buffer.watermark) == (1, at(1))


def test_aborted_set_can_be_exported() -> None:
    loaded = {(A, None): at(5), (B, W1): at(3), (B, W1 + 1): at(4)}
    buffer = TransactionBuffer(SEGMENT, aborted=loaded, last_confirmed=at(6))
    write(buffer, C, 7)
    buffer.decided(abort(C))
    assert buffer.aborted_records() == loaded | {(C, None): at(7)}
