"""Keeps the newest entries of a segment in memory, so that readers at the tail never touch the disk. Pure."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from txnwire.ids import Position, TxnId
from txnwire.proto import txn_pb2 as pb


class LargeValueKey(NamedTuple):
    """Identifies a chunked value: the fields that all its pieces, `pieces` in number, share."""

    producer: str
    incarnation: int
    chunk_id: int
    pieces: int


def large_value_key(metadata: pb.EntryMetadata) -> LargeValueKey | None:
    """The key of an entry's chunked value, None if the entry is no piece."""
    if not metadata.chunk_count:
        return None
    return LargeValueKey(metadata.producer, metadata.incarnation, metadata.chunk_id, metadata.chunk_count)


class LogEntry(NamedTuple):
    """One stored entry with the fields that dispatch uses. `writer` 0: no named transaction. `large_value`: of a piece.
    `deliver_at_ms`: when queues deliver it first, on the broker's wall clock; 0: at once."""

    position: Position
    data: bytes
    messages: int
    txn_id: TxnId | None
    writer: int
    large_value: LargeValueKey | None = None
    deliver_at_ms: int = 0


class TailCache:
    """Keeps entries in log order, and drops the oldest beyond `max_bytes`."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._entries: dict[Position, LogEntry] = {}
        self._order: deque[LogEntry] = deque()
        self._bytes = 0

    @property
    def bytes(self) -> int:
        return self._bytes

    def __len__(self) -> int:
        return len(self._order)

    def add(self, entry: LogEntry) -> None:
        self._entries[entry.position] = entry
        self._order.append(entry)
        self._bytes += len(entry.data)
        self._trim()

    def resize(self, max_bytes: int) -> None:
        """Set a new bound, and drop the excess at once."""
        self._max_bytes = max_bytes
        self._trim()

    def _trim(self) -> None:
        while self._bytes > self._max_bytes:
            oldest = self._order.popleft()
            del self._entries[oldest.position]
            self._bytes -= len(oldest.data)

    def get(self, position: Position) -> LogEntry | None:
        return self._entries.get(position)

    def clear(self) -> None:
        self._entries.clear()
        self._order.clear()
        self._bytes = 0
