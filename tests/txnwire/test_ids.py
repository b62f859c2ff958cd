"""Transaction ids, positions, message ids and the routing hash (DESIGN §3)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.txnwire import strategies
from txnwire.errors import InvalidArgument
from txnwire.ids import EARLIEST, MAX_COUNTER, MAX_TCID, MessageId, Position, TxnId, hash_key, hash_keys


@given(strategies.txn_ids)
def test_a_transaction_id_survives_text_and_wire(txn_id: TxnId) -> None:
    assert TxnId.parse(str(txn_id)) == txn_id
    assert TxnId.from_bits(txn_id.most_bits, txn_id.least_bits) == txn_id
    assert txn_id.most_bits < 2**64
    assert txn_id.least_bits < 2**64


@given(strategies.txn_ids, strategies.txn_ids)
def test_ids_sort_as_their_texts_do(a: TxnId, b: TxnId) -> None:
    assert (a < b) == (str(a) < str(b))


def test_the_design_s_example_is_written_as_there() -> None:
    assert str(TxnId(3, 1234)) == "0003-00000000000004d2"
    assert TxnId(3, 1234).most_bits == 3 << 48
    assert str(TxnId(MAX_TCID, MAX_COUNTER)) == "ffff-ffffffffffffffff"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "3-1234",
        "0003-00000000000004D2",
        "0003_00000000000004d2",
        " 0003-00000000000004d2",
        "0003-00000000000004d2\n",
        "0003-00000000000004d22",
        "0003-0000000000000000",
        "٠٠٠٣-00000000000004d2",
        None,
        b"0003-00000000000004d2",
    ],
)
def test_a_malformed_transaction_id_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match=r"^transaction id"):
        TxnId.parse(text)


@pytest.mark.parametrize(("most", "least"), [(0, 0), (3 << 48, 0), (1, 1), ((3 << 48) + 1, 5), (1 << 47, 1)])
def test_bits_that_were_never_given_out_are_refused(most: int, least: int) -> None:
    with pytest.raises(InvalidArgument, match="never given out"):
        TxnId.from_bits(most, least)


@given(strategies.positions)
def test_a_position_survives_text(position: Position) -> None:
    assert Position.parse(str(position)) == position


def test_the_earliest_position_is_before_every_entry() -> None:
    assert Position(1, 0) > EARLIEST
    assert Position(1, 9) < Position(2, -1) < Position(2, 0) < Position(2, 10)


@pytest.mark.parametrize(
    "text", ["", "1", "1:", ":1", "1:2:3", "-1:2", "1:-2", "01:2", "1:02", "1:2\n", "9" * 30 + ":1", None]
)
def test_a_malformed_position_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match=r"^position"):
        Position.parse(text)


@given(strategies.message_ids)
def test_a_message_id_survives_text(message_id: MessageId) -> None:
    assert MessageId.parse(str(message_id)) == message_id


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "^message id"),
        ("a/b/c/0000-ffff-1", "^message id"),
        ("a/b/c/0000-ffff-1@1:2:", "^message id"),
        ("a/b/c/0000-ffff-1@1:2:-1", "^message id"),
        ("a/b/c/0000-ffff-1@1:2:٣", "^message id"),
        ("a/b/c/0000-ffff-1@1:2", "^position '1'"),
        ("a/b/c/0000-ffff@1:2:3", "descriptor"),
        ("a/b/c@1:2:3", "expected segment://tenant/namespace/name/<lo>-<hi>-<id>"),
        (None, "^message id"),
    ],
)
def test_a_malformed_message_id_is_refused_naming_the_part(text: str, named: str) -> None:
    with pytest.raises(InvalidArgument, match=named):
        MessageId.parse(text)


@pytest.mark.parametrize("parse", [TxnId.parse, Position.parse, MessageId.parse])
@given(text=st.text(max_size=40))
def test_no_text_whatever_gives_another_error(parse: Callable[[str], object], text: str) -> None:
    try:
        parsed = parse(text)
    except InvalidArgument:
        return
    assert str(parsed) == text


@given(st.binary(max_size=200))
def test_the_routing_hash_stays_in_its_space(key: bytes) -> None:
    assert 0 <= hash_key(key) <= 0xFFFF


@given(st.lists(st.binary(max_size=20)))
def test_many_routing_hashes_are_those_of_each(keys: list[bytes]) -> None:
    assert hash_keys(keys) == [hash_key(key) for key in keys]


def test_the_routing_hash_never_changes() -> None:
    """Stored data is routed by it: the low 16 bits of xxh3_64, as published vectors have it (empty input)."""
    assert hash_key(b"") == 0x2D06800538D394C2 & 0xFFFF
