"""Notes the decisions applied in a segment while a cut is under way, to tell which transactions were decided after its
revision (DESIGN §10, the third step of a cut). Pure.

A buffer forgets a transaction once its decision is applied and cleaned up; a cut at R, asked for a moment later, must
still name those decided after R. So decisions are noted for a while, from a cut's first request on.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from txnwire.ids import Position, TxnId

MOST_NOTED: Final = 50_000
"""Beyond it the oldest are forgotten: a cut that needs them is refused and begins again."""


class NotedDecisions:
    """Decisions on transactions with entries. `known_above`: every decision applied after this revision is noted."""

    def __init__(self, known_above: int, *, most: int = MOST_NOTED) -> None:
        self.known_above = known_above
        self._most = most
        self._noted: deque[tuple[int, TxnId, Position]] = deque()

    def __len__(self) -> int:
        return len(self._noted)

    def note(self, revision: int, txn_id: TxnId, first: Position) -> None:
        """Note an applied decision; `first`: the transaction's first entry. Revisions may come out of order: a decision
        may have waited for an operation in flight."""
        self._noted.append((revision, txn_id, first))
        if len(self._noted) > self._most:
            forgotten, _, _ = self._noted.popleft()
            self.known_above = max(self.known_above, forgotten)

    def copy(self) -> list[tuple[int, TxnId, Position]]:
        """The revision, the transaction and its first entry, of each decision."""
        return list(self._noted)
