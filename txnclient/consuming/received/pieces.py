"""Assembles large values from the entries that carry their pieces (scenario A7). Pure.

A producer sends the pieces of a value in order to one segment, within one transaction, one value after the other;
other producers' entries may lie between them. A value is handed out as one message when its last piece has come, so
after the messages before that piece. Its id and position are those of its first piece; its ack acks all pieces.

In a stream or a reader, a piece that does not follow its predecessor belongs to a value whose beginning this consumer
does not get: it started later, or only the end is unacked. If a producer begins another value, the value before it was
given up: its transaction was aborted, or a seal cut it in two and the producer sent all of it again to a child segment.
Such pieces are skipped, as are incomplete values at the end of a sealed segment. A queue's pieces come in any order,
all of a value to the same consumer.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Any

from txnclient.consuming.received.message import ReceivedEntry
from txnclient.serializers import Serializer
from txnwire.block import BinaryColumn, Block
from txnwire.entry import Piece
from txnwire.errors import DataCorrupt, Overloaded
from txnwire.ids import Position
from txnwire.protocol import MAX_CHUNKED_BYTES, MIB

MAX_INCOMPLETE_BYTES = 512 * MIB
"""Limit of all incomplete values of one segment; several producers' pieces may interleave."""

_Key = tuple[str, int, int]


class LargeEntry(ReceivedEntry):
    """One message whose value came in several entries."""

    __slots__ = ("_pieces", "_positions", "_total_bytes")

    def __init__(self, pieces: list[ReceivedEntry], total_bytes: int) -> None:
        first = pieces[0]
        self._pieces = pieces
        self._positions = tuple(piece.position for piece in pieces)
        self._total_bytes = total_bytes
        self._block = None
        self.segment = first.segment
        self.holder = first.holder
        self.epoch = first.epoch
        self.late = 0
        self.places: list[tuple[int, int]] = []
        self.under = first.under
        self.position = first.position
        self.raw = first.raw
        self.redelivery_count = max(piece.redelivery_count for piece in pieces)
        self.serializer: Serializer[Any] | None = first.serializer
        self.metadata = first.metadata
        self.count = 1

    @property
    def stored_bytes(self) -> int:
        return self._total_bytes

    @property
    def positions(self) -> tuple[Position, ...]:
        return self._positions

    @property
    def block(self) -> Block:
        """The joined block, built at the first call, which drops the pieces."""
        if self._block is None:
            blocks = [piece.block for piece in self._pieces]
            value = b"".join([block.value(0) for block in blocks])
            if len(value) != self._total_bytes:
                raise DataCorrupt(
                    f"the {len(blocks)} pieces of the value at {self.segment}@{self.position} hold {len(value)} bytes, "
                    f"their entries promise {self._total_bytes}"
                )
            first = blocks[0]
            column = BinaryColumn(memoryview(array("i", (0, len(value)))), value, None)
            self._block = Block(1, column, first.key_column, first.property_column, first.event_time_column)
            self._pieces = []
            self.raw = b""
        return self._block


class _ArrivingValue:
    __slots__ = ("bytes", "chunk_id", "found", "pieces")

    def __init__(self, chunk_id: int, pieces: int) -> None:
        self.chunk_id = chunk_id
        self.pieces = pieces
        self.found: dict[int, ReceivedEntry] = {}
        self.bytes = 0


class Pieces:
    """Collects the incomplete values of one segment. `in_order`: whether pieces come in the order they were sent."""

    def __init__(self, *, in_order: bool) -> None:
        self._in_order = in_order
        self._values: dict[_Key, _ArrivingValue] = {}
        self._bytes = 0
        self.passed: list[Position] = []
        """Positions of pieces that will never be complete; the acking side takes and clears them."""

    def __len__(self) -> int:
        """The number of incomplete values."""
        return len(self._values)

    def __iter__(self) -> Iterator[Position]:
        """The first known position of each incomplete value."""
        for value in self._values.values():
            yield min(entry.position for entry in value.found.values())

    def add(self, entry: ReceivedEntry, piece: Piece) -> LargeEntry | None:
        """Take in one piece; returns the value if it is complete now. Raises `DataCorrupt`, `Overloaded`."""
        _check(entry, piece)
        key = self._key(entry, piece)
        value = self._values.get(key)
        if self._in_order:
            if value is not None and (value.chunk_id != piece.chunk_id or len(value.found) != piece.number):
                self._give_up(key)
                value = None
            if value is None and piece.number:
                self.passed.append(entry.position)
                return None
        if value is None:
            value = self._values[key] = _ArrivingValue(piece.chunk_id, piece.pieces)
        elif not self._in_order and value.pieces != piece.pieces:
            # ▲ Brokers look at each piece by itself. Counted on, another one would be looked up that has not come.
            raise DataCorrupt(
                f"piece {piece.number} says that its value has {piece.pieces} pieces, the ones before it that it has "
                f"{value.pieces}: not a piece that a producer sends"
            )
        earlier = value.found.get(piece.number)
        if earlier is None:
            value.bytes += len(entry.raw)
            self._bytes += len(entry.raw)
        value.found[piece.number] = entry
        if len(value.found) == piece.pieces:
            self._remove(key)
            return LargeEntry([value.found[number] for number in range(piece.pieces)], piece.total_bytes)
        if self._bytes > MAX_INCOMPLETE_BYTES:
            raise Overloaded(
                f"{len(self._values)} large values between each other's pieces take {self._bytes} bytes here, at most "
                f"{MAX_INCOMPLETE_BYTES} are kept: send fewer at once to one segment"
            )
        return None

    def _key(self, entry: ReceivedEntry, piece: Piece) -> _Key:
        metadata = entry.metadata
        return metadata.producer, metadata.incarnation, -1 if self._in_order else piece.chunk_id

    def _remove(self, key: _Key) -> _ArrivingValue:
        value = self._values.pop(key)
        self._bytes -= value.bytes
        return value

    def _give_up(self, key: _Key) -> None:
        self.passed.extend(entry.position for entry in self._remove(key).found.values())

    def ended(self) -> None:
        """No more pieces will come: skip the incomplete values."""
        for key in list(self._values):
            self._give_up(key)

    def take_all(self) -> list[Position]:
        """Give up all incomplete values; returns the positions of their pieces, which come again elsewhere."""
        positions = [entry.position for value in self._values.values() for entry in value.found.values()]
        self.clear()
        return positions

    def clear(self) -> None:
        """Drop all pieces, which come again."""
        self._values.clear()
        self._bytes = 0


def _check(entry: ReceivedEntry, piece: Piece) -> None:
    if entry.count != 1 or not 0 <= piece.number < piece.pieces or piece.total_bytes > MAX_CHUNKED_BYTES:
        raise DataCorrupt(
            f"piece {piece.number} of {piece.pieces} of a value of {piece.total_bytes} bytes, in an entry of "
            f"{entry.count} messages: not a piece that a producer sends"
        )
