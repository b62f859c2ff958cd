"""Ledgers by length, for tests of what walks positions."""

from __future__ import annotations

from txnwire.ids import Position


class LedgerLengths:
    """`lengths`: ledger id → entries. The last one is open: it has a place behind its last entry."""

    def __init__(self, lengths: dict[int, int]) -> None:
        self.lengths = lengths

    def next_after(self, position: Position) -> Position:
        ledger_id, entry_id = position
        last = max(self.lengths)
        if ledger_id in self.lengths and (ledger_id == last or entry_id + 1 < self.lengths[ledger_id]):
            return Position(ledger_id, entry_id + 1)
        for later in sorted(self.lengths):
            if later > ledger_id and (self.lengths[later] or later == last):
                return Position(later, 0)
        return Position(ledger_id, entry_id + 1)

    def positions(self) -> list[Position]:
        return [Position(one, entry) for one in sorted(self.lengths) for entry in range(self.lengths[one])]
