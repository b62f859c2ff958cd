"""Remembers publish times of a segment's ledgers, so that a start by time reads little. Pure.

Producers set publish times, in no order. This keeps the newest publish time among the first n entries of a ledger: it
only rises with n, so it can be bisected. For the open ledger every append updates it; for closed ones the ledger list
holds it. If the list does not (an older version, or a broker that died), a reader of the entries records it here.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import Final, NamedTuple

from txnstore.records import LedgerInfo
from txnwire.ids import Position

STEP: Final = 256
"""Entries of the open ledger between two marks."""


class Known(NamedTuple):
    """None of the first `entries` entries of a ledger was published after `newest_ms`."""

    entries: int
    newest_ms: int


class PublishTimes:
    """Keeps bounds of the publish times of one segment."""

    def __init__(self) -> None:
        self._known: dict[int, Known] = {}
        self._open_id = 0
        self._marks: list[int] = []
        """▲ The newest publish time of the first `STEP`, 2 * `STEP`, … entries of the open ledger: sorted, whatever
        producers' clocks say. A bisection over the stamps themselves would skip requested messages."""

    def appended(self, position: Position, publish_time_ms: int) -> None:
        """Record an append, even before its sync: a bound that is too high hides nothing."""
        if position.ledger_id != self._open_id:
            self._open_id, self._marks = position.ledger_id, []
        known = self._known.get(position.ledger_id, Known(0, 0))
        if position.entry_id != known.entries:
            return  # earlier entries were not recorded
        self._known[position.ledger_id] = known = Known(known.entries + 1, max(known.newest_ms, publish_time_ms))
        if known.entries % STEP == 0:
            self._marks.append(known.newest_ms)

    def scanned(self, ledger_id: int, known: Known) -> None:
        """Record a bound found by reading the first entries of a ledger."""
        if known.entries > self._known.get(ledger_id, Known(0, 0)).entries:
            self._known[ledger_id] = known

    def listed(self, kept: Iterable[LedgerInfo]) -> None:
        """Apply the ledger list; forget ledgers that are not in it."""
        known, self._known = self._known, {}
        for info in kept:
            if info.closed_length is not None and info.newest_ms is not None:
                self._known[info.ledger_id] = Known(info.closed_length, info.newest_ms)
            elif (found := known.get(info.ledger_id)) is not None:
                # An append that failed was counted, but is not in the ledger.
                entries = found.entries if info.closed_length is None else min(found.entries, info.closed_length)
                self._known[info.ledger_id] = found._replace(entries=entries)

    def newest_ms(self, ledger_id: int, entries: int) -> int | None:
        """An upper bound of the publish times of the first `entries` entries; None if unknown."""
        known = self._known.get(ledger_id)
        return None if known is None or known.entries < entries else known.newest_ms

    def older(self, ledger_id: int, timestamp_ms: int) -> Known:
        """How many of a ledger's first entries are certainly older than `timestamp_ms`."""
        known = self._known.get(ledger_id, Known(0, 0))
        if known.newest_ms < timestamp_ms:
            return known
        if ledger_id != self._open_id:
            return Known(0, 0)
        steps = bisect_left(self._marks, timestamp_ms)
        return Known(steps * STEP, self._marks[steps - 1] if steps else 0)
