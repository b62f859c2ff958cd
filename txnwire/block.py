"""The columnar block inside an entry: Arrow-layout buffers, built and read in bulk (DESIGN §7, "Entry").

    block = head (32 bytes, little endian) · buffers, each padded with zeros to a multiple of 8 bytes

    head: version u8 | columns u8 | 0 u16 | count u32 | value bytes u32 | key bytes u32 | properties u32 |
          property key bytes u32 | property value bytes u32 | 0 u32
    buffers: value offsets int32 × (count + 1) · value data
             with KEYS:        validity bitmap · offsets int32 × (count + 1) · data
             with PROPERTIES:  map offsets int32 × (count + 1) · key offsets int32 × (properties + 1) · key data ·
                               value offsets int32 × (properties + 1) · value data
             with EVENT_TIMES: validity bitmap · int64 × count, milliseconds

A column that no message fills is absent. Layouts are Arrow's for Binary, Map<Utf8, Utf8> and Int64, bitmaps least
significant bit first, so Spark can wrap them without a loop over messages.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Final, NamedTuple

from txnwire.errors import DataCorrupt, InvalidArgument, MessageTooLarge, TxnError
from txnwire.protocol import BLOCK_VERSION, MAX_BLOCK_BYTES, MAX_VALUE_BYTES

if sys.byteorder != "little":  # Arrow's buffers are little endian; nothing here swaps them
    raise ImportError("txnwire needs a little-endian machine")

_HEAD: Final = struct.Struct("<BBHIIIIIII")
_KEYS: Final = 1
_PROPERTIES: Final = 2
_EVENT_TIMES: Final = 4
_ALL_COLUMNS: Final = _KEYS | _PROPERTIES | _EVENT_TIMES
_PADDING: Final = tuple(bytes(-length % 8) for length in range(8))


class OutgoingMessage(NamedTuple):
    """One message to encode. `event_time_ms`: milliseconds since the Unix epoch, set by the application."""

    value: bytes
    key: bytes | None = None
    properties: Mapping[str, str] | None = None
    event_time_ms: int | None = None


class Columns(NamedTuple):
    """Messages to encode, one column per field; None for a column that no message fills, else one item per message."""

    values: Sequence[bytes]
    keys: Sequence[bytes | None] | None = None
    properties: Sequence[Mapping[str, str] | None] | None = None
    event_times: Sequence[int | None] | None = None

    @staticmethod
    def of(messages: Sequence[OutgoingMessage]) -> Columns:
        values, keys, properties, event_times = zip(*messages, strict=True)
        return Columns(
            values,
            None if keys.count(None) == len(keys) else keys,
            properties if any(properties) else None,
            None if event_times.count(None) == len(event_times) else event_times,
        )

    def select(self, indexes: Sequence[int]) -> Columns:
        """These messages, in this order."""
        return Columns(*(None if column is None else [column[i] for i in indexes] for column in self))  # type: ignore[arg-type]

    def part(self, first: int, end: int) -> Columns:
        """The messages `first` to `end` - 1."""
        return Columns(*(None if column is None else column[first:end] for column in self))  # type: ignore[arg-type]


def encode_block(messages: Columns | Sequence[OutgoingMessage]) -> bytes:
    """The block of these messages.

    Raises `MessageTooLarge` for a value past `MAX_VALUE_BYTES` or a block past `MAX_BLOCK_BYTES`, `InvalidArgument` for
    a wrong type.
    """
    values, keys, properties, event_times = messages if isinstance(messages, Columns) else Columns.of(messages)
    try:
        if max(map(len, values)) > MAX_VALUE_BYTES:
            raise MessageTooLarge(f"a value is over {MAX_VALUE_BYTES} bytes: send it in chunks, within a transaction")
        buffers, value_bytes = _encode_binary(values)
        columns = key_bytes = property_count = property_key_bytes = property_value_bytes = 0
        if keys is not None:
            columns |= _KEYS
            column, key_bytes = _encode_binary([key or b"" for key in keys])
            buffers += [_encode_validity(keys), *column]
        if properties is not None:
            columns |= _PROPERTIES
            column, property_count, property_key_bytes, property_value_bytes = _encode_map(properties)
            buffers += column
        if event_times is not None:
            columns |= _EVENT_TIMES
            buffers += [_encode_validity(event_times), array("q", [time or 0 for time in event_times]).tobytes()]
    except (TypeError, AttributeError, OverflowError, UnicodeEncodeError) as error:
        raise InvalidArgument(f"a message cannot be encoded: {error}") from error
    head = _HEAD.pack(
        BLOCK_VERSION, columns, 0, len(values), value_bytes, key_bytes,
        property_count, property_key_bytes, property_value_bytes, 0,
    )  # fmt: skip
    return _join(head, buffers)


def _join(head: bytes, buffers: list[bytes]) -> bytes:
    parts = [head]
    for buffer in buffers:
        parts.append(buffer)
        parts.append(_PADDING[len(buffer) & 7])
    block = b"".join(parts)
    if len(block) > MAX_BLOCK_BYTES:
        raise MessageTooLarge(f"a batch of {len(block)} bytes is over the {MAX_BLOCK_BYTES} bytes of a block")
    return block


def _encode_binary(items: Sequence[bytes]) -> tuple[list[bytes], int]:
    """Offsets and data of a column of byte strings, and the data's length."""
    data = b"".join(items)
    if len(data) > MAX_BLOCK_BYTES:
        raise MessageTooLarge(f"a column of {len(data)} bytes is over the {MAX_BLOCK_BYTES} bytes of a block")
    return [array("i", accumulate(map(len, items), initial=0)).tobytes(), data], len(data)


def _encode_validity(items: Sequence[object]) -> bytes:
    if None not in items:
        bits = (1 << len(items)) - 1
    else:
        bits = int("".join(["0" if item is None else "1" for item in reversed(items)]), 2)
    return bits.to_bytes((len(items) + 7) // 8, "little")


def _encode_map(maps: Sequence[Mapping[str, str] | None]) -> tuple[list[bytes], int, int, int]:
    """A Map<Utf8, Utf8> column: its buffers, number of pairs, bytes of keys and bytes of values."""
    offsets = array("i", accumulate((len(map_) if map_ else 0 for map_ in maps), initial=0))
    keys, key_bytes = _encode_binary([key.encode() for map_ in maps if map_ for key in map_])
    values, value_bytes = _encode_binary([value.encode() for map_ in maps if map_ for value in map_.values()])
    return [offsets.tobytes(), *keys, *values], offsets[-1], key_bytes, value_bytes


class BinaryColumn(NamedTuple):
    """Arrow's Binary (or Utf8) layout: item i is `data[offsets[i]:offsets[i + 1]]`, None where validity bit i is 0."""

    offsets: memoryview
    data: bytes
    validity: memoryview | None

    def item(self, index: int) -> bytes | None:
        if self.validity is not None and not _valid(self.validity, index):
            return None
        return self.data[self.offsets[index] : self.offsets[index + 1]]


class MapColumn(NamedTuple):
    """Arrow's Map layout: the pairs of item i are `offsets[i]` to `offsets[i + 1]` of `keys` and `values`."""

    offsets: memoryview
    keys: BinaryColumn
    values: BinaryColumn


class TimeColumn(NamedTuple):
    """Arrow's Int64 layout, milliseconds since the Unix epoch."""

    times: memoryview
    validity: memoryview


def _valid(bitmap: memoryview, index: int) -> bool:
    return bool(bitmap[index >> 3] >> (index & 7) & 1)


class Block:
    """The messages of one entry, read in place. A column is None if no message has that field.

    Indexes outside 0 … len - 1 raise `IndexError`, as in any sequence.
    """

    __slots__ = ("_count", "event_time_column", "key_column", "property_column", "value_column")

    def __init__(
        self,
        count: int,
        values: BinaryColumn,
        keys: BinaryColumn | None,
        properties: MapColumn | None,
        event_times: TimeColumn | None,
    ) -> None:
        self._count = count
        self.value_column = values
        self.key_column = keys
        self.property_column = properties
        self.event_time_column = event_times

    def __len__(self) -> int:
        return self._count

    def _check(self, index: int) -> None:
        if not 0 <= index < self._count:
            raise IndexError(f"message {index} of a block of {self._count}")

    def value(self, index: int) -> bytes:
        self._check(index)
        offsets = self.value_column.offsets
        return self.value_column.data[offsets[index] : offsets[index + 1]]

    def values(self) -> list[bytes]:
        """All values in order, in one pass."""
        data = self.value_column.data
        return [data[start:end] for start, end in pairwise(self.value_column.offsets.tolist())]

    def key(self, index: int) -> bytes | None:
        self._check(index)
        return None if self.key_column is None else self.key_column.item(index)

    def keys(self) -> list[bytes | None]:
        """All keys in order, in one pass."""
        column = self.key_column
        return [None] * self._count if column is None else [column.item(index) for index in range(self._count)]

    def properties(self, index: int) -> dict[str, str]:
        """A new dict; empty if the message has none."""
        self._check(index)
        column = self.property_column
        if column is None:
            return {}
        pairs = range(column.offsets[index], column.offsets[index + 1])
        return {_text(column.keys, pair): _text(column.values, pair) for pair in pairs}

    def event_time_ms(self, index: int) -> int | None:
        self._check(index)
        column = self.event_time_column
        if column is None or not _valid(column.validity, index):
            return None
        time: int = column.times[index]
        return time

    def columns(self) -> Columns:
        """The messages as they were before encoding."""
        every = range(self._count)
        return Columns(
            self.values(),
            None if self.key_column is None else self.keys(),
            None if self.property_column is None else [self.properties(index) or None for index in every],
            None if self.event_time_column is None else [self.event_time_ms(index) for index in every],
        )


def _text(column: BinaryColumn, index: int) -> str:
    return str(column.item(index) or b"", "utf-8")


def decode_block(block: bytes, *, error: type[TxnError] = DataCorrupt) -> Block:
    """Read a block and check it whole: afterwards no access to it can fail. Raises `error` that names the part."""
    return _BlockReader(block, error).read()


class _BlockReader:
    """Takes one buffer after the other from a block, checking each."""

    def __init__(self, block: bytes, error: type[TxnError]) -> None:
        self._block = block
        self._view = memoryview(block)
        self._at = _HEAD.size
        self._error = error

    def read(self) -> Block:
        if len(self._block) < _HEAD.size:
            raise self._error(f"block head: {len(self._block)} bytes where {_HEAD.size} were expected")
        version, columns, zero, count, value_bytes, key_bytes, pairs, pair_key_bytes, pair_value_bytes, zero_too = (
            _HEAD.unpack_from(self._block)
        )
        if version != BLOCK_VERSION:
            raise self._error(f"block version {version}: this version of txnstore reads {BLOCK_VERSION}")
        if columns & ~_ALL_COLUMNS or zero or zero_too or count == 0:
            raise self._error(f"block head: columns {columns:#x}, {count} messages or its reserved fields are wrong")
        values = self._binary("value", count, value_bytes)
        keys = properties = event_times = None
        if columns & _KEYS:
            validity = self._take("key validity", (count + 7) // 8)
            keys = self._binary("key", count, key_bytes)._replace(validity=validity)
        if columns & _PROPERTIES:
            properties = self._map(count, pairs, pair_key_bytes, pair_value_bytes)
        if columns & _EVENT_TIMES:
            validity = self._take("event time validity", (count + 7) // 8)
            event_times = TimeColumn(self._take("event times", 8 * count).cast("q"), validity)
        if self._at != len(self._block):
            raise self._error(f"block: {len(self._block)} bytes, its head promises {self._at}")
        return Block(count, values, keys, properties, event_times)

    def _take(self, part: str, length: int) -> memoryview:
        start, self._at = self._at, self._at + length + (-length & 7)
        if self._at > len(self._block):
            raise self._error(f"block {part}: cut off, {self._at} bytes were expected, {len(self._block)} found")
        return self._view[start : start + length]

    def _offsets(self, part: str, count: int, end: int) -> memoryview:
        offsets = self._take(f"{part} offsets", 4 * (count + 1)).cast("i")
        listed = offsets.tolist()
        if listed[0] != 0 or listed[count] != end or listed != sorted(listed):  # the fastest way to look at thousands
            raise self._error(f"block {part} offsets: they do not rise from 0 to {end}")
        return offsets

    def _binary(self, part: str, count: int, length: int) -> BinaryColumn:
        offsets = self._offsets(part, count, length)
        return BinaryColumn(offsets, bytes(self._take(f"{part} data", length)), None)

    def _map(self, count: int, pairs: int, key_bytes: int, value_bytes: int) -> MapColumn:
        offsets = self._offsets("property map", count, pairs)
        column = MapColumn(
            offsets, self._binary("property key", pairs, key_bytes), self._binary("property value", pairs, value_bytes)
        )
        for part, texts in (("key", column.keys), ("value", column.values)):
            self._check_utf8(part, texts)
        return column

    def _check_utf8(self, part: str, texts: BinaryColumn) -> None:
        """Check that each text is UTF-8; data that is all ASCII, the usual case, needs no further check."""
        if texts.data.isascii():
            return
        try:
            for start, end in pairwise(texts.offsets.tolist()):
                str(texts.data[start:end], "utf-8")
        except UnicodeDecodeError as error:
            raise self._error(f"block property {part} data: not UTF-8: {error}") from error
