"""The positions of a log: which entries exist, how many lie between two of them, which comes next. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Final

from segments.log.ledgers.message_counts import CountedRange
from txnstore.records import LedgerInfo
from txnwire.ids import EARLIEST, Position

OPEN: Final = -1
"""The length of a ledger that is still written."""


class LogPositions:
    """Knows the kept ledgers of a segment by their lengths. `floor`: the position before the first one kept."""

    def __init__(self) -> None:
        self._ids: list[int] = []
        self._lengths: dict[int, int] = {}
        self._before: list[int] = [0]
        """For each kept ledger: the number of entries in the kept ledgers before it."""
        self.floor = EARLIEST

    def listed(self, kept: Sequence[LedgerInfo], trimmed_below: tuple[int, int] | None) -> None:
        """The ledger list was read or rewritten."""
        self._ids = [info.ledger_id for info in kept]
        self._lengths = {info.ledger_id: OPEN if info.closed_length is None else info.closed_length for info in kept}
        self._before = list(accumulate((self._lengths[one] for one in self._ids[:-1]), initial=0))
        if trimmed_below is not None:
            self.floor = Position(trimmed_below[0], trimmed_below[1] - 1)

    def closed(self, ledger_id: int, entries: int) -> None:
        """The open ledger was closed, and the list is not rewritten yet."""
        self._lengths[ledger_id] = entries

    def length(self, ledger_id: int) -> int | None:
        """Entries of a kept ledger, `OPEN` for the open one; None if it is not kept."""
        return self._lengths.get(ledger_id)

    def next_after(self, position: Position, *, sealed: bool) -> Position:
        """The position after `position`: that of an existing entry, or of the next append. From a trimmed position it
        leads to the first kept one."""
        ledger_id, entry_id = position = max(position, self.floor)
        length = self._lengths.get(ledger_id)
        if length is not None and (length < 0 or entry_id + 1 < length):
            return Position(ledger_id, entry_id + 1)
        for index in range(bisect_right(self._ids, ledger_id), len(self._ids)):
            if self._lengths[self._ids[index]] != 0:
                return Position(self._ids[index], 0)
        if sealed or not self._ids or (entry_id < 0 and ledger_id > self._ids[-1]):
            # ▲ The last case: `position` lies before the start of a ledger that is not listed yet, as the log rolls.
            # Return its first position: a caller that repeats this meanwhile must not skip that ledger.
            return Position(ledger_id, entry_id + 1)
        return Position(max(self._ids[-1], ledger_id) + 1, 0)

    def nth(self, index: int) -> Position | None:
        """The position of the entry with `index` entries before it; None if all kept ledgers are closed before it."""
        at = max(0, bisect_right(self._before, index) - 1)
        while at < len(self._ids):
            length = self._lengths[self._ids[at]]
            if length < 0 or index - self._before[at] < length:
                return Position(self._ids[at], index - self._before[at])
            at += 1
        return None

    def ranges(self, after: Position, last: Position) -> Iterator[CountedRange]:
        """The kept entries in (after, last], by ledger. The list must not change meanwhile."""
        after = max(after, self.floor)
        for at in range(bisect_left(self._ids, after.ledger_id), bisect_right(self._ids, last.ledger_id)):
            ledger_id, length = self._ids[at], self._lengths[self._ids[at]]
            closed = length != OPEN
            known = length if closed else last.entry_id + 1
            first = after.entry_id + 1 if ledger_id == after.ledger_id else 0
            end = min(known, last.entry_id + 1) if ledger_id == last.ledger_id else known
            if first < end:
                yield CountedRange(ledger_id, first, end, known, closed)

    def rank(self, position: Position) -> int:
        """The number of kept entries at or below `position`."""
        at = bisect_left(self._ids, position.ledger_id)
        if at < len(self._ids):
            return self._before[at] + (position.entry_id + 1 if self._ids[at] == position.ledger_id else 0)
        return self._before[-1] + self._lengths[self._ids[-1]] if self._ids else 0
