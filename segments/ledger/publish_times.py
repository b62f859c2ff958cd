"""What is known of the publish times in a segment's ledgers, so that a start by time reads little. Pure.

Publish times are the producers' and come in no order. What is kept is how new the newest of the first entries of a
ledger is: that only rises, so it may be bisected. Of the open ledger it is noted at every append, of closed ones it
stands in the ledger list; where it does not (an older version, or a broker that died), whoever reads the entries notes
it here.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import Final, NamedTuple

from txnstore.records import LedgerInfo
from txnwire.ids import Position

STEP: Final = 256
"""Entries of the open ledger between two of its marks."""


class Known(NamedTuple):
    """None of the first `entries` entries of a ledger was published behind `newest_ms`."""

    entries: int
    newest_ms: int


class PublishTimes:
    """Of one segment."""

    def __init__(self) -> None:
        self._known: dict[int, Known] = {}
        self._open_id = 0
        self._marks: list[int] = []
        """▲ How new the newest is of the first `STEP`, 2 * `STEP`, … entries of the open ledger: sorted, whatever
        producers' clocks say. Of the stamps themselves a bisection would pass over messages that are asked for."""

    def appended(self, position: Position, publish_time_ms: int) -> None:
        """Also of what is not synced yet: a bound that is too high hides nothing."""
        if position.ledger_id != self._open_id:
            self._open_id, self._marks = position.ledger_id, []
        known = self._known.get(position.ledger_id, Known(0, 0))
        if position.entry_id != known.entries:
            return  # not all of them were noted
        self._known[position.ledger_id] = known = Known(known.entries + 1, max(known.newest_ms, publish_time_ms))
        if known.entries % STEP == 0:
            self._marks.append(known.newest_ms)

    def scanned(self, ledger_id: int, known: Known) -> None:
        """The first entries of a ledger were read."""
        if known.entries > self._known.get(ledger_id, Known(0, 0)).entries:
            self._known[ledger_id] = known

    def listed(self, kept: Iterable[LedgerInfo]) -> None:
        """Take up what the ledger list says; forget what is not kept."""
        known, self._known = self._known, {}
        for info in kept:
            if info.closed_length is not None and info.newest_ms is not None:
                self._known[info.ledger_id] = Known(info.closed_length, info.newest_ms)
            elif (found := known.get(info.ledger_id)) is not None:
                # Appended and not stored in the end is what failed.
                entries = found.entries if info.closed_length is None else min(found.entries, info.closed_length)
                self._known[info.ledger_id] = found._replace(entries=entries)

    def newest_ms(self, ledger_id: int, entries: int) -> int | None:
        """A bound of the publish times of so many first entries; None where it is not known."""
        known = self._known.get(ledger_id)
        return None if known is None or known.entries < entries else known.newest_ms

    def older(self, ledger_id: int, timestamp_ms: int) -> Known:
        """How many of a ledger's first entries are known to be older than `timestamp_ms`."""
        known = self._known.get(ledger_id, Known(0, 0))
        if known.newest_ms < timestamp_ms:
            return known
        if ledger_id != self._open_id:
            return Known(0, 0)
        steps = bisect_left(self._marks, timestamp_ms)
        return Known(steps * STEP, self._marks[steps - 1] if steps else 0)
