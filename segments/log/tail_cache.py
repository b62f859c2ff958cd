"""The newest entries of a segment in memory, so that readers at the tail never touch the disk. Pure."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from txnwire.ids import Position, TxnId
from txnwire.proto import txn_pb2 as pb


class ChunkKey(NamedTuple):
    """Of a chunked value: what its pieces, of which there are `pieces`, have in common."""

    producer: str
    incarnation: int
    chunk_id: int
    pieces: int


def chunk_key(metadata: pb.EntryMetadata) -> ChunkKey | None:
    """None where the entry is no piece of a chunked value."""
    if not metadata.chunk_count:
        return None
    return ChunkKey(metadata.producer, metadata.incarnation, metadata.chunk_id, metadata.chunk_count)


class LogEntry(NamedTuple):
    """One stored entry with what dispatch decides by. `writer` 0: not of a named transaction. `chunk`: of a piece."""

    position: Position
    data: bytes
    messages: int
    txn_id: TxnId | None
    writer: int
    chunk: ChunkKey | None = None


class TailCache:
    """Entries in log order, the oldest dropped beyond `max_bytes`."""

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
        """From now on; what is too much goes at once."""
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
