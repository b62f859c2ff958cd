"""Which heads of entries stand for a message: the same as of the entries themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.txnclient.consuming.received.test_pieces import entry_of
from txnclient import EntryHead, WholeHeads
from txnclient.consuming.received.pieces import Pieces
from txnclient.reading.entry_heads import PieceHead, heads_of
from txnwire.entry import Piece
from txnwire.ids import Position, TxnId
from txnwire.proto import txn_pb2 as pb


class Sent(NamedTuple):
    producer: str
    chunk_id: int
    number: int
    pieces: int


SENT = st.builds(
    lambda producer, chunk_id, number, pieces: Sent(producer, chunk_id, min(number, pieces - 1), pieces),
    st.sampled_from(["p", "q"]),
    st.sampled_from([1, 5]),
    st.integers(0, 2),
    st.integers(1, 3),
)


def head(at: int, sent: Sent) -> EntryHead:
    piece = PieceHead(sent.producer, 7, sent.chunk_id, sent.number, sent.pieces)
    return EntryHead(Position(1, at), None, 0, 1, 100 + at, at, False, piece, sent.producer, 7, sent.chunk_id)


@given(st.lists(SENT, max_size=12))
def test_heads_show_a_large_value_where_and_as_its_entries_do(sent: Sequence[Sent]) -> None:
    pieces, heads = Pieces(in_order=True), WholeHeads()
    for at, one in enumerate(sent):
        piece = Piece(one.chunk_id, one.number, one.pieces, one.pieces)
        value = pieces.add(entry_of(at, b"x", piece, producer=one.producer), piece)
        shown = heads.of([head(at, one)])
        assert [whole.position for whole in shown] == ([] if value is None else [value.position])
        for whole in shown:
            assert value is not None
            assert whole.size_bytes == sum(100 + position.entry_id for position in value.positions)
            assert (whole.messages, whole.piece, whole.publish_time_ms) == (1, None, whole.position.entry_id)


def test_what_is_in_no_pieces_stands_for_itself_between_those_of_a_value() -> None:
    heads = WholeHeads()
    plain = head(1, Sent("p", 1, 0, 1))._replace(piece=None, messages=4)
    shown = heads.of([head(0, Sent("p", 1, 0, 2)), plain])
    assert shown == [plain]
    assert heads.of([head(2, Sent("p", 1, 1, 2))]) == [head(0, Sent("p", 1, 0, 2))._replace(piece=None, size_bytes=202)]


def test_a_column_that_is_too_short_makes_no_page_of_fewer_heads() -> None:
    """▲ A range would look whole."""
    columns = pb.HeadColumns(ledger_ids=[1, 1], entry_ids=[0, 1], counts=[1, 1], sizes_bytes=[1], sequence_ids=[0, 1])
    columns.producer_names.add(name="p")
    columns.publish_times_ms.extend([1, 1])
    with pytest.raises(ValueError, match="shorter"):
        heads_of(pb.ScanEntriesOk(columns=columns))
    columns.sizes_bytes.append(1)
    assert len(heads_of(pb.ScanEntriesOk(columns=columns))) == 2


def test_each_head_of_a_page_names_its_own_producer_transaction_and_place() -> None:
    columns = pb.HeadColumns(
        ledger_ids=[1, 1, 2],
        entry_ids=[7, 8, 0],
        counts=[1, 2, 3],
        sizes_bytes=[10, 20, 30],
        publish_times_ms=[5, 6, 7],
        sequence_ids=[0, 1, 2],
        producers=[1, 0, 1],
        txns=[2, 0, 1],
    )
    for name, incarnation in (("p", 3), ("q", 4)):
        columns.producer_names.add(name=name, incarnation=incarnation)
    for counter in (1, 2):
        columns.txn_ids.add(txnid_least_bits=counter)
    found = heads_of(pb.ScanEntriesOk(columns=columns))
    assert [(one.position, one.messages, one.size_bytes) for one in found] == [
        (Position(1, 7), 1, 10),
        (Position(1, 8), 2, 20),
        (Position(2, 0), 3, 30),
    ]
    assert [(one.producer, one.incarnation) for one in found] == [("q", 4), ("p", 3), ("q", 4)]
    assert [one.txn_id for one in found] == [TxnId(0, 2), None, TxnId(0, 1)]


def test_of_an_older_owner_s_page_all_heads_are_taken() -> None:
    heads = [pb.EntryHead(ledger_id=1, entry_id=number, count=1) for number in range(3)]
    assert [one.position for one in heads_of(pb.ScanEntriesOk(heads=heads))] == [Position(1, n) for n in range(3)]
