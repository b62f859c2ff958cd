"""A queue's entries of open transactions, set aside until their decision. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from operator import itemgetter

from txnwire.ids import Position, TxnId

Interval = tuple[Position, Position]
"""First and last position, of one ledger."""


class SetAside:
    """Keeps intervals of positions by transaction. `entries`, `intervals`: how many of each."""

    def __init__(self) -> None:
        self._of: dict[TxnId, list[Interval]] = {}
        self._index: list[Interval] | None = None
        self.intervals = self.entries = 0

    def __len__(self) -> int:
        """The number of transactions."""
        return len(self._of)

    def transactions(self) -> list[TxnId]:
        return list(self._of)

    def put(self, txn_id: TxnId, position: Position) -> None:
        self.entries += 1
        self._index = None
        intervals = self._of.setdefault(txn_id, [])
        if intervals and _follows(position, intervals[-1][1]):
            intervals[-1] = (intervals[-1][0], position)
        else:
            intervals.append((position, position))
            self.intervals += 1

    def take(self, txn_id: TxnId) -> list[Interval]:
        """The transaction's entries, which are no longer set aside."""
        intervals = self._of.pop(txn_id, None)
        if intervals is None:
            return []
        self._index = None
        self.intervals -= len(intervals)
        self.entries -= sum(last.entry_id - first.entry_id + 1 for first, last in intervals)
        return intervals

    def contains(self, position: Position) -> bool:
        """Builds its index on demand: only late acks ask."""
        if self._index is None:
            self._index = sorted(interval for found in self._of.values() for interval in found)
        at = bisect_right(self._index, position, key=itemgetter(0)) - 1
        return at >= 0 and position <= self._index[at][1]


def intervals_of(positions: Iterable[Position]) -> Iterator[Interval]:
    """Sorted positions as intervals."""
    first = last = None
    for position in positions:
        if last is not None and first is not None and not _follows(position, last):
            yield first, last
            first = None
        first = position if first is None else first
        last = position
    if first is not None and last is not None:
        yield first, last


def _follows(position: Position, last: Position) -> bool:
    return position.ledger_id == last.ledger_id and position.entry_id == last.entry_id + 1
