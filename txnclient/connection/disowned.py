"""Detects from refusals of named owners that a server's view of the cluster is stale. Pure.

One refusal proves nothing: a segment changes hands, and the news of its new owner comes a moment later. Refusals in a
row over a longer time show a server that has lost its store and names former owners.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

TIMES: Final = 3
SPAN_S: Final = 5.0
"""Half of the usual lease."""
PAUSE_S: Final = 5.0
"""Refusals further apart than that are not in a row."""
MOST: Final = 1000
"""Most segments whose refusals are kept."""


@dataclass(slots=True)
class _RefusalsInARow:
    address: str
    first_at: float
    last_at: float
    count: int = 1


class Disowned:
    """Counts `NotOwner` refusals by named owners, per segment."""

    def __init__(self) -> None:
        self._rows: dict[str, _RefusalsInARow] = {}
        self.astray = False
        """Until `clear`."""

    def refused(self, segment: str, address: str, now: float) -> None:
        row = self._rows.pop(segment, None)
        if row is None or row.address != address or now - row.last_at > PAUSE_S:
            row = _RefusalsInARow(address, now, now)
        else:
            row.count += 1
            row.last_at = now
        self._rows[segment] = row
        if len(self._rows) > MOST:
            del self._rows[next(iter(self._rows))]
        if row.count >= TIMES and now - row.first_at >= SPAN_S:
            self.astray = True

    def clear(self) -> None:
        self._rows.clear()
        self.astray = False
