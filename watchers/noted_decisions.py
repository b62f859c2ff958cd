"""The decisions applied in a segment since a cut began there, for the question which of its transactions were decided
after a revision (DESIGN §10, the third step of a cut). Pure.

A buffer forgets a transaction once its decision is applied and cleaned up; a cut at R, asked for a moment later, must
still name those that were decided after R. So from the first question of a cut on they are noted, for a while.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from txnwire.ids import Position, TxnId

MOST_NOTED: Final = 50_000
"""Beyond it the oldest are forgotten: a cut that would need them is refused and begins again."""


class NotedDecisions:
    """Of transactions with entries. `known_above`: every decision after this revision that was applied is noted."""

    def __init__(self, known_above: int, *, most: int = MOST_NOTED) -> None:
        self.known_above = known_above
        self._most = most
        self._noted: deque[tuple[int, TxnId, Position]] = deque()

    def __len__(self) -> int:
        return len(self._noted)

    def note(self, revision: int, txn_id: TxnId, first: Position) -> None:
        """A decision was applied; `first`: of the transaction's entries. Not always in the order of revisions: one may
        have waited for an operation in flight."""
        self._noted.append((revision, txn_id, first))
        if len(self._noted) > self._most:
            forgotten, _, _ = self._noted.popleft()
            self.known_above = max(self.known_above, forgotten)

    def copy(self) -> list[tuple[int, TxnId, Position]]:
        """The revision of each, its transaction, and the first of that one's entries."""
        return list(self._noted)
