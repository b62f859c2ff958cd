"""Writers of one named transaction that do not count: each is hidden, recorded, moved and trimmed for itself."""

from __future__ import annotations

import pytest

from tests.watchers.buffered import SEGMENT, W1, W2, W3, A, B, C, abort, at, fresh, write
from tests.watchers.test_visibility import commit
from txnwire.ids import Position
from txnwire.turns import at_once
from watchers.visibility import AbortedKey, TransactionBuffer

W4, W5 = 0x44, 0x55


@pytest.mark.parametrize("writers", [(W1, W2, W1), (W1, W2, W2), (W1, W2, W3)])
def test_an_abort_is_recorded_up_to_the_last_entry_whichever_writer_s_that_is(writers: tuple[int, ...]) -> None:
    """▲ Narrowed to the last of another writer, the record would be trimmed before the entry it hides."""
    buffer = fresh()
    for entry_id, writer in enumerate(writers):
        write(buffer, A, entry_id, writer)
    assert buffer.decided(abort(A)) == (abort(A), ((None, at(2)),))


@pytest.mark.parametrize("refused", [False, True])
def test_a_loser_s_last_entry_is_known_though_its_next_write_fails(refused: bool) -> None:
    buffer = fresh()
    write(buffer, A, 0, W1)
    write(buffer, A, 1, W2)
    for writer in (W1, W2):
        buffer.op_started(A, writer)
        if refused:
            buffer.op_refused(A)
        else:
            buffer.op_finished(A)
    buffer.decided(commit(A, writers=frozenset({W1})))
    assert [buffer.is_aborted(A, writer) for writer in (W1, W2)] == [False, True]
    assert buffer.aborted_records() == {(A, W2): at(1)}


def test_r3_trimming_what_one_loser_wrote_leaves_the_others_of_its_transaction_hidden() -> None:
    """▲ Each record goes with its own data: with the first of them all, the rest would be read as committed."""
    records: dict[AbortedKey, Position | None] = {(A, W1): at(3), (A, W2): at(5), (A, W3): at(9, 2)}
    buffer = TransactionBuffer(SEGMENT, aborted=records, watermark=at(9, 2))
    assert buffer.prunable(at(4), 10) == ((A, W1),)
    buffer.pruned([(A, W1)])
    assert [buffer.is_aborted(A, writer) for writer in (W1, W2, W3)] == [False, True, True]
    assert buffer.prunable(at(4), 10) == ()
    assert buffer.durable(at(9, 2)) == {(A, W2): at(5), (A, W3): at(9, 2)}
    assert buffer.prunable(at(-1, 3), 10) == ((A, W2), (A, W3))


def test_r3_losers_of_one_transaction_go_into_the_sidecars_of_their_own_ledgers() -> None:
    buffer = TransactionBuffer(SEGMENT, aborted={(A, W1): at(3), (A, W2): at(9, 2)}, watermark=at(9, 2))
    first = buffer.durable(at(9))
    assert first == {(A, W1): at(3)}
    buffer.moved(1, first)
    assert [buffer.is_aborted(A, writer) for writer in (W1, W2)] == [True, True]
    assert buffer.durable(at(9, 2)) == {(A, W2): at(9, 2)}, "the other one's stands in etcd yet"
    buffer.moved(2, buffer.durable(at(9, 2)))
    buffer.trimmed(at(-1, 2))
    assert [buffer.is_aborted(A, writer) for writer in (W1, W2)] == [False, True]
    buffer.trimmed(at(-1, 3))
    assert not buffer.is_aborted(A, W2)


def test_r3_a_successor_finds_losers_of_one_transaction_in_etcd_in_sidecars_and_in_the_tail() -> None:
    buffer = TransactionBuffer(SEGMENT, aborted={(A, W1): at(7)}, watermark=at(4), last_confirmed=at(9))
    buffer.in_sidecar(1, {(A, W2): at(3), (A, W3): at(4)})
    assert [buffer.is_aborted(A, writer) for writer in (W1, W2, W3)] == [True, True, True]
    buffer.loaded(A)
    for entry_id, writer in ((7, W1), (8, W4), (9, W5)):
        buffer.scanned(A, writer, at(entry_id))
    decision = commit(A, writers=frozenset({W5}))
    assert buffer.decided(decision) == (decision, ((W4, at(8)),))
    assert [buffer.is_aborted(A, writer) for writer in (W1, W2, W3, W4, W5)] == [True, True, True, True, False]


def test_a_cut_names_no_transaction_that_has_nothing_up_to_its_end() -> None:
    """Of what is appended and not stored yet there may be as many as there are producers: each would be named in every
    snapshot."""
    buffer = fresh()
    buffer.note_decisions()
    for entry_id, txn_id in enumerate((A, B, C)):
        buffer.op_started(txn_id, 0)
        buffer.appended(txn_id, 0, at(entry_id))
    buffer.confirmed(at(0))
    cut = at_once(buffer.cut(100, at(-1)))
    assert cut is not None
    assert (cut.end, cut.undecided) == (at(0), (A,))


def test_records_of_two_losers_are_both_known_in_etcd_once_they_are_durable() -> None:
    buffer = fresh()
    for entry_id, writer in enumerate((W1, W2, W3)):
        write(buffer, A, entry_id, writer)
    buffer.decided(commit(A, writers=frozenset({W1})))
    buffer.cleaned(buffer.clean_up_batch(1))
    assert buffer.records_in_store == 2
    assert buffer.durable(at(9)) == {(A, W2): at(1), (A, W3): at(2)}
    assert buffer.prunable(at(9), 10) == ((A, W2), (A, W3))


def test_a_cut_names_each_loser_of_a_transaction_by_its_own_last_entry() -> None:
    buffer = fresh()
    buffer.note_decisions()
    for entry_id, writer in enumerate((W1, W2, W3)):
        write(buffer, A, entry_id, writer)
    buffer.decided(commit(A, writers=frozenset({W1})))
    whole, rest = at_once(buffer.cut(100, at(-1))), at_once(buffer.cut(100, at(1)))
    assert whole is not None
    assert rest is not None
    assert whole.aborted == ((A, W2), (A, W3))
    assert rest.aborted == ((A, W3),)
