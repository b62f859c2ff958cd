"""Heads of the entries of one segment that a batch may yet show, kept small: some fifty bytes each. Pure."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Container, Iterator
from typing import Final, NamedTuple

from pyspark_txnstore.shared.offsets import Head
from txnwire.ids import Position, TxnId

_COMPACTED_FROM: Final = 4_096


class Txn:
    """The known part of a transaction: its entries that may be shown, and their stored bytes.

    `is_shown`: some of it has been shown, in topics that were read before others.
    ▲ It never becomes pending again, or the shown part would be repeated. So each remaining entry is shown on its own,
    unless the transaction `has_pieces` of large values, which no end may split."""

    __slots__ = ("entries", "has_pieces", "is_shown", "rows", "size_bytes", "txn_id")

    def __init__(self, txn_id: TxnId) -> None:
        self.txn_id = txn_id
        self.is_shown = False
        self.has_pieces = False
        self.entries = 0
        self.size_bytes = 0
        self.rows = 0


class HeldHead(NamedTuple):
    """An entry before the start's end whose transaction was pending there."""

    position: Position
    txn: Txn
    size_bytes: int
    rows: int


def rows_of(head: Head) -> int:
    """Number of its rows shown. A large value is one row, counted with its last piece."""
    return head.messages if head.piece is None else int(head.piece.number + 1 >= head.piece.pieces)


class SegmentHeads:
    """The known heads of one segment, without aborted ones: all of (known_from, known_through] that a batch from the
    newest start on may show. Entries before the start's end are `held`, the others are in columns."""

    def __init__(self, known_from: Position) -> None:
        self.known_from = known_from
        self.known_through = known_from
        self.held: list[HeldHead] = []
        self._ledger_ids = array("q")
        self._entry_ids = array("q")
        self._sizes = array("q")
        self._rows = array("q")
        self._times = array("q")
        self._txns: list[Txn | None] = []
        self._first = 0

    def append(self, head: Head, txn: Txn | None) -> None:
        self._ledger_ids.append(head.position.ledger_id)
        self._entry_ids.append(head.position.entry_id)
        self._sizes.append(head.size_bytes)
        self._rows.append(rows_of(head))
        self._times.append(head.publish_time_ms)
        self._txns.append(txn)

    def fresh(self, through: Position) -> range:
        """Indexes of the entries after the start's end, up to `through`, in order."""
        return range(self._first, self._index_behind(through))

    def all_fresh(self) -> range:
        return range(self._first, len(self._txns))

    def position(self, index: int) -> Position:
        return Position(self._ledger_ids[index], self._entry_ids[index])

    def size_bytes(self, index: int) -> int:
        return self._sizes[index]

    def rows(self, index: int) -> int:
        return self._rows[index]

    def publish_time_ms(self, index: int) -> int:
        return self._times[index]

    def txn(self, index: int) -> Txn | None:
        return self._txns[index]

    def _index_behind(self, position: Position) -> int:
        return bisect_right(range(len(self._txns)), position, lo=self._first, key=self.position)

    def pass_to(self, end: Position, pending: Container[TxnId]) -> Iterator[tuple[Txn, int, int]]:
        """Moves the start to `end`, with `pending`. Forgets the entries that it holds, with bytes and rows."""
        kept: list[HeldHead] = []
        for one in self.held:
            if one.txn.txn_id in pending:
                kept.append(one)
            else:
                yield one.txn, one.size_bytes, one.rows
        behind = self._index_behind(end)
        for index in range(self._first, behind):
            if (txn := self._txns[index]) is None:
                continue
            if txn.txn_id in pending:
                kept.append(HeldHead(self.position(index), txn, self._sizes[index], self._rows[index]))
            else:
                yield txn, self._sizes[index], self._rows[index]
        self.held = kept
        self._first = behind
        if behind > _COMPACTED_FROM and behind * 2 > len(self._txns):
            for column in (self._ledger_ids, self._entry_ids, self._sizes, self._rows, self._times):
                del column[:behind]
            del self._txns[:behind]
            self._first = 0

    def __len__(self) -> int:
        return len(self.held) + len(self._txns) - self._first
