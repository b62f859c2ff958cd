"""Ack positions: the wire's form, the op record's form, and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txnstore import keys, records
from txnstore.records import Op
from txnwire.errors import DataCorrupt, InvalidArgument
from txnwire.ids import Position, TxnId
from txnwire.proto import txn_pb2 as pb
from watchers import acks
from watchers.acks import WHOLE, AckOp, AckPosition

SEGMENT = "public/default/orders/0000-ffff-0"
KEY = keys.op(keys.ack_ops(TxnId(1, 7), SEGMENT, "sub"), 5, 1)


def positions() -> st.SearchStrategy[AckPosition]:
    places = st.builds(Position, st.integers(1, 1 << 40), st.integers(0, 1 << 40))
    return st.integers(0, 300).flatmap(
        lambda messages: st.builds(
            acks.ack_position, places, st.just(messages), st.just(WHOLE) | st.integers(0, (1 << messages) - 1)
        )
    )


@given(st.lists(positions(), min_size=1, max_size=5), st.booleans(), st.integers(0, (1 << 64) - 1))
def test_op_record_gives_back_what_was_acked(named: list[AckPosition], cumulative: bool, writer: int) -> None:
    op = acks.ack_op_record(SEGMENT, "sub", named, cumulative=cumulative, writer=writer)
    stored = records.decode(Op, records.encode(op), key=KEY)
    assert acks.from_op(KEY, stored) == AckOp(KEY, TxnId(1, 7), writer, cumulative, tuple(named))


@given(st.lists(positions(), max_size=3))
def test_wire_form_gives_back_what_was_acked(named: list[AckPosition]) -> None:
    sent = [
        pb.AckPosition(
            ledger_id=ack.position.ledger_id,
            entry_id=ack.position.entry_id,
            indexes=acks.bitmap_bytes(ack.indexes),
            count=ack.messages,
        )
        for ack in named
    ]
    assert acks.from_wire(sent) == tuple(named)


def test_an_ack_of_more_positions_than_one_record_holds_is_refused() -> None:
    named = [AckPosition(Position(1, entry_id), 1) for entry_id in range(20_000)]
    acks.check_op_size(named[:10_000])
    with pytest.raises(InvalidArgument, match="send several"):
        acks.check_op_size(named)


def test_op_record_reads_as_it_stands() -> None:
    named = [AckPosition(Position(1, 5), 4), AckPosition(Position(1, 6), 10, 0b11_0000_0001)]
    op = acks.ack_op_record(SEGMENT, "sub", named, cumulative=False, writer=0x1F)
    assert records.encode(op) == (
        b'{"v":1,"kind":"ack","segment":"public/default/orders/0000-ffff-0","subscription":"sub",'
        b'"positions":[[1,5,4,""],[1,6,10,"0103"]],"writer":"000000000000001f","messages":7}'
    )


def test_bitmap_of_everything_is_the_whole_entry() -> None:
    assert acks.ack_position(Position(1, 0), 3, 0b111).indexes == WHOLE
    assert acks.ack_position(Position(1, 0), 3, 0).indexes == WHOLE


@pytest.mark.parametrize(
    ("position", "messages", "indexes", "message"),
    [
        (Position(1, 0), 3, 0b1000, "not all of its indexes are below its 3 messages"),
        (Position(1, 0), 0, 0b1, "are below its 0 messages"),
        (Position(1, -1), 3, 0, "no entry at that position"),
    ],
)
def test_impossible_ack_is_refused(position: Position, messages: int, indexes: int, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        acks.ack_position(position, messages, indexes)


@pytest.mark.parametrize(
    "op",
    [
        Op(v=1, kind="write", segment=SEGMENT),
        Op(v=1, kind="ack", segment=SEGMENT, subscription="sub"),
        Op(v=1, kind="ack", segment=SEGMENT, subscription="sub", positions=[(1, 2, 3, "zz")]),
        Op(v=1, kind="ack", segment=SEGMENT, subscription="sub", positions=[(1, 2, 3, "ff")]),
        Op(v=1, kind="ack", segment=SEGMENT, subscription="sub", positions=[(1, 2, 3, "")], writer="w"),
    ],
)
def test_record_that_is_no_ack_is_corrupt_and_named(op: Op) -> None:
    with pytest.raises(DataCorrupt, match="/txn-op/0001-0000000000000007/"):
        acks.from_op(KEY, op)
