"""Checks a segment's ledger files against what etcd knows of them, before the segment is served. Pure.

A data folder that is missing, or older than etcd, has less than was acked.
▲ Never take that for the end of a segment: readers would see parts of transactions, and lose the rest for ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from segments.ledger.ledger import Recovered
from txnstore.records import LedgerInfo
from txnwire.errors import DataCorrupt
from txnwire.ids import Position

REPAIR: Final = (
    "is the data folder older than etcd, or another one? Put the right files back; if they are lost, stop all "
    "processes and run `txnctl check --repair`, which says what is missing and drops it"
)


def expect_made(segment: str, ledger_id: int, found: Recovered, made: int | None) -> None:
    """`made`: the ledger whose file certainly exists, by `/ledger`. Raises `DataCorrupt` if it is not there."""
    if not found.present and made == ledger_id:
        raise DataCorrupt(f"{segment}: the file of ledger {ledger_id} was made and is not there: {REPAIR}")


def expect_whole(segment: str, info: LedgerInfo, found: Recovered | None) -> None:
    """Raises `DataCorrupt` if a closed ledger has fewer entries than it was closed with."""
    entries = 0 if found is None else found.entries
    if entries < (info.closed_length or 0):
        raise DataCorrupt(
            f"{segment}: ledger {info.ledger_id} was closed with {info.closed_length} entries, and {entries} are "
            f"there: {REPAIR}"
        )


def lies_beyond(position: Position, ledgers: Sequence[LedgerInfo]) -> str | None:
    """Why the ledgers never held an entry at `position`; None if they hold it, or held it before a trim. Also None in
    a ledger that is not closed, whose length is unknown."""
    last = ledgers[-1].ledger_id if ledgers else 0
    if position.entry_id < 0:
        return None
    for info in ledgers:
        if info.ledger_id == position.ledger_id:
            length = info.closed_length
            short = length is not None and position.entry_id >= length
            return f"ledger {info.ledger_id} ends after {length} entries" if short else None
    return f"the last ledger is {last}" if ledgers and position.ledger_id > last else None


def expect_within(segment: str, what: str, position: Position, ledgers: Sequence[LedgerInfo]) -> None:
    """Raises `DataCorrupt` if `what`, a record in etcd, names an entry that the ledgers do not have."""
    why = lies_beyond(position, ledgers)
    if why is not None:
        raise DataCorrupt(f"{segment}: {what} is at {position.ledger_id}:{position.entry_id}, but {why}: {REPAIR}")
