"""The columnar block: what is put in comes out, in Arrow's layout, and no damage gives anything but a named error."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.txnwire import strategies
from txnwire.block import Block, Columns, OutgoingMessage, decode_block, encode_block
from txnwire.errors import DataCorrupt, InvalidArgument, MessageTooLarge
from txnwire.protocol import MAX_VALUE_BYTES

batches = st.lists(strategies.messages, min_size=1, max_size=20)
FULL = [
    OutgoingMessage(b"first", b"k1", {"a": "1", "ü": "zwei"}, 1_700_000_000_000),
    OutgoingMessage(b"", None, None, None),
    OutgoingMessage(b"third", b"", {}, -5),
]


def as_messages(block: Block) -> list[OutgoingMessage]:
    return [
        OutgoingMessage(block.value(i), block.key(i), block.properties(i) or None, block.event_time_ms(i))
        for i in range(len(block))
    ]


def read_without_surprise(data: bytes) -> bool:
    """Every access succeeds, or the block as a whole was refused with its part named."""
    try:
        block = decode_block(data)
    except DataCorrupt as error:
        return error.message.startswith("block")
    as_messages(block)
    return len(block.values()) == len(block.keys()) == len(block)


@given(batches)
def test_what_is_put_in_comes_out(batch: list[OutgoingMessage]) -> None:
    block = decode_block(encode_block(batch))
    assert as_messages(block) == [message._replace(properties=message.properties or None) for message in batch]
    assert block.values() == [message.value for message in batch]
    assert block.keys() == [message.key for message in batch]


@given(batches, st.data())
def test_columns_of_some_messages_are_those_messages(batch: list[OutgoingMessage], data: st.DataObject) -> None:
    columns = Columns.of(batch)
    block = decode_block(encode_block(columns))
    assert as_messages(decode_block(encode_block(block.columns()))) == as_messages(block)
    first, end = sorted(data.draw(st.tuples(*[st.integers(0, len(batch))] * 2)))
    if first < end:
        assert as_messages(decode_block(encode_block(columns.part(first, end)))) == as_messages(block)[first:end]
        picked = list(range(end - 1, first - 1, -1))
        found = as_messages(decode_block(encode_block(columns.select(picked))))
        assert found == [as_messages(block)[index] for index in picked]


def test_columns_nobody_fills_are_absent() -> None:
    block = decode_block(encode_block([OutgoingMessage(b"v", properties={})]))
    assert (block.key_column, block.property_column, block.event_time_column) == (None, None, None)
    assert (block.key(0), block.properties(0), block.event_time_ms(0)) == (None, {}, None)


def test_no_key_is_told_from_an_empty_one() -> None:
    block = decode_block(encode_block([OutgoingMessage(b"", b""), OutgoingMessage(b"", None)]))
    assert block.keys() == [b"", None]


def test_buffers_have_arrow_s_layout() -> None:
    block = decode_block(encode_block(FULL))
    assert block.value_column.offsets.format == "i"
    assert block.value_column.offsets.tolist() == [0, 5, 5, 10]
    assert block.value_column.data == b"firstthird"
    assert block.key_column is not None
    assert block.key_column.validity is not None
    assert bytes(block.key_column.validity) == bytes([0b101])
    assert block.event_time_column is not None
    assert block.event_time_column.times.tolist() == [1_700_000_000_000, 0, -5]
    assert block.property_column is not None
    assert block.property_column.offsets.tolist() == [0, 2, 2, 2]
    assert block.property_column.keys.data == "aü".encode()


def test_validity_bitmaps_are_least_significant_bit_first() -> None:
    batch = [OutgoingMessage(b"", b"k" if i in (0, 9, 10) else None) for i in range(11)]
    block = decode_block(encode_block(batch))
    assert block.key_column is not None
    assert block.key_column.validity is not None
    assert bytes(block.key_column.validity) == bytes([0b0000_0001, 0b0000_0110])


def test_buffers_start_at_multiples_of_eight() -> None:
    assert all(len(encode_block([OutgoingMessage(b"x" * n, b"y" * n)])) % 8 == 0 for n in range(9))


@pytest.mark.parametrize("index", [-1, 3, 1000])
def test_an_index_outside_is_an_index_error(index: int) -> None:
    block = decode_block(encode_block(FULL))
    for read in (block.value, block.key, block.properties, block.event_time_ms):
        with pytest.raises(IndexError, match="of a block of 3"):
            read(index)


@pytest.mark.parametrize(
    "message",
    [
        OutgoingMessage("text"),  # type: ignore[arg-type]
        OutgoingMessage(None),  # type: ignore[arg-type]
        OutgoingMessage(b"", "text"),  # type: ignore[arg-type]
        OutgoingMessage(b"", None, {"a": 1}),  # type: ignore[dict-item]
        OutgoingMessage(b"", None, {"a": "\ud800"}),
        OutgoingMessage(b"", None, None, 2**63),
        OutgoingMessage(b"", None, None, "now"),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_be_encoded_is_refused(message: OutgoingMessage) -> None:
    with pytest.raises(InvalidArgument, match="cannot be encoded"):
        encode_block([message])


def test_a_value_over_the_limit_is_refused_and_one_at_the_limit_is_not() -> None:
    assert decode_block(encode_block([OutgoingMessage(bytes(MAX_VALUE_BYTES))])).value(0) == bytes(MAX_VALUE_BYTES)
    with pytest.raises(MessageTooLarge, match="send it in chunks"):
        encode_block([OutgoingMessage(bytes(MAX_VALUE_BYTES + 1))])


def test_a_block_over_the_limit_is_refused() -> None:
    with pytest.raises(MessageTooLarge):
        encode_block([OutgoingMessage(bytes(MAX_VALUE_BYTES))] * 7)


@given(batches, st.data())
def test_a_truncated_block_is_named_corrupt(batch: list[OutgoingMessage], data: st.DataObject) -> None:
    block = encode_block(batch)
    length = data.draw(st.integers(0, len(block) - 1))
    with pytest.raises(DataCorrupt, match="block"):
        decode_block(block[:length])


@given(batches, st.data())
def test_any_changed_bytes_read_without_surprise_or_are_named_corrupt(
    batch: list[OutgoingMessage], data: st.DataObject
) -> None:
    """A checksum stands before this in an entry; but a broken producer can checksum nonsense."""
    block = bytearray(encode_block(batch))
    for _ in range(data.draw(st.integers(1, 4))):
        block[data.draw(st.integers(0, len(block) - 1))] = data.draw(st.integers(0, 255))
    assert read_without_surprise(bytes(block))


@given(st.binary(max_size=300))
def test_random_bytes_are_named_corrupt_or_read_without_surprise(data: bytes) -> None:
    assert read_without_surprise(data)


def patched(block: bytes, at: int, form: str, value: int) -> bytes:
    return block[:at] + struct.pack(form, value) + block[at + struct.calcsize(form) :]


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (lambda b: b[:31], "block head: 31 bytes"),
        (lambda b: patched(b, 0, "<B", 2), "block version 2"),
        (lambda b: patched(b, 1, "<B", 0x80), "block head: columns 0x80"),
        (lambda b: patched(b, 2, "<H", 1), "block head"),
        (lambda b: patched(b, 4, "<I", 0), "0 messages"),
        (lambda b: patched(b, 4, "<I", 2**32 - 1), "block value offsets: cut off"),
        (lambda b: patched(b, 8, "<I", 2**32 - 1), "block value offsets: they do not rise from 0 to"),
        (lambda b: patched(b, 32, "<i", 1), "block value offsets"),
        (lambda b: patched(b, 36, "<i", -1), "block value offsets"),
        (lambda b: patched(b, 36, "<i", 2**31 - 1), "block value offsets"),
        (lambda b: b + bytes(8), "its head promises"),
        (lambda b: b.replace("ü".encode(), b"\xff\xff"), "block property key data: not UTF-8"),
        (lambda b: b.replace(b"1zwei", b"1zwe\xff"), "block property value data: not UTF-8"),
    ],
)
def test_the_damaged_part_is_named(damage: Callable[[bytes], bytes], named: str) -> None:
    with pytest.raises(DataCorrupt, match=named):
        decode_block(damage(encode_block(FULL)))


def test_a_character_cut_in_two_is_not_text_although_the_whole_data_is() -> None:
    """Offsets that split a UTF-8 character pass a check of the data as a whole; an access would fail later."""
    block = encode_block([OutgoingMessage(b"", None, {"aü": "v", "b": "v"})])
    at = block.index(struct.pack("<iii", 0, 3, 4))
    with pytest.raises(DataCorrupt, match="not UTF-8"):
        decode_block(patched(block, at + 4, "<i", 2))


def test_the_error_is_the_one_asked_for() -> None:
    with pytest.raises(InvalidArgument, match="block head"):
        decode_block(b"", error=InvalidArgument)
