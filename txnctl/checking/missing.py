"""Finds what ledgers lack in the data folder, and what follows from it. Pure.

A folder that is older than etcd, or has lost files, lacks acknowledged entries. This module reports:

- *How much is missing*, ledger by ledger: against the lengths in `/ledger`, and in an open ledger against the watermark
  and the aborted records, which name existing entries. Entries behind those leave no trace.
- *Transactions that lost a part, or may have*, as far as etcd still has their headers: those that were decided after
  the folder's mark was written last, and those with more operations in a damaged segment than it has entries of them.
  They are aborted everywhere, so that no reader gets the other parts.
- *What cannot be known*: where a transaction had written if its header was collected.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from segments.ledger.ledger_evidence import lies_beyond
from segments.log.ledgers.retention import kept_ledgers
from txnctl.checking.picture import Picture
from txnctl.checking.rewound import OnDisk
from txnstore import keys
from txnstore.records import COMMITTED, CursorBlock, LedgerInfo, LedgerRecord
from txnwire.ids import EARLIEST, Position, TxnId


class Shortfall(NamedTuple):
    """A ledger that has fewer entries than etcd knows of. `exact`: there were exactly so many; otherwise at least.
    `present`: whether its file exists."""

    segment: str
    ledger_id: int
    expected: int
    found: int
    exact: bool
    present: bool

    def __str__(self) -> str:
        told = "" if self.exact else "at least "
        there = f"{self.found} are there" if self.present else "its file is not there"
        return (
            f"{self.segment}: ledger {self.ledger_id} had {told}{self.expected} entries, {there}: "
            f"{told}{self.expected - self.found} that were acknowledged are missing"
        )


def system_positions(picture: Picture, segment: str) -> Iterator[Position]:
    """Positions of entries that certainly were in the segment."""
    if (mark := picture.watermarks.get(segment)) is not None:
        yield Position(*mark.position)
    for (where, _, _), record in picture.aborted.items():
        if where == segment and record.max_position is not None:
            yield Position(*record.max_position)


def shortfalls(
    picture: Picture, segment: str, on_disk: Mapping[int, OnDisk], *, trimmed_since: bool
) -> list[Shortfall]:
    """`on_disk`: every ledger whose file exists. `trimmed_since`: etcd is older than the folder, so ledgers missing
    before the first file were trimmed meanwhile."""
    record = picture.ledgers.get(segment, LedgerRecord(ledgers=[]))
    told: dict[int, int] = {}
    for position in system_positions(picture, segment):
        told[position.ledger_id] = max(told.get(position.ledger_id, 0), position.entry_id + 1)
    first_there = min(on_disk, default=None)
    found = []
    for info in kept_ledgers(record):
        there = on_disk.get(info.ledger_id)
        if there is None and trimmed_since and (first_there is None or info.ledger_id < first_there):
            continue
        exact = info.closed_length is not None
        if there is not None and there.damaged:
            continue
        counted = 0 if there is None else there.counted
        expected = max(info.closed_length or 0, told.get(info.ledger_id, 0), counted)
        entries = 0 if there is None else there.entries
        lost = there is None and not exact and record.made == info.ledger_id
        if expected > entries or lost:
            found.append(Shortfall(segment, info.ledger_id, expected, entries, exact, there is not None))
    return found


def shortened(record: LedgerRecord, short: Iterable[Shortfall], *, now_ms: int) -> LedgerRecord:
    """The list with the remaining lengths. ▲ Call it only after the lost entries have been dropped everywhere."""
    left = {one.ledger_id: one.found for one in short}

    def shorten(info: LedgerInfo) -> LedgerInfo:
        if info.ledger_id not in left:
            return info
        length = left[info.ledger_id]
        size = info.bytes * length // info.closed_length if info.closed_length else 0
        return msgspec.structs.replace(info, closed_length=length, bytes=size, closed_ms=info.closed_ms or now_ms)

    return msgspec.structs.replace(record, ledgers=[shorten(info) for info in record.ledgers])


def within(position: Position, ledgers: Sequence[LedgerInfo]) -> Position:
    """`position`, or the last remaining entry before it."""
    if lies_beyond(position, ledgers) is None:
        return position
    ends = [Position(info.ledger_id, info.closed_length - 1) for info in ledgers if info.closed_length]
    return max((end for end in ends if end <= position), default=EARLIEST)


def block_within(block: CursorBlock, length: int) -> CursorBlock | None:
    """A block of acks reduced to the first `length` entries of its ledger; None if nothing remains."""
    kept = max(length - block.first_entry, 0)
    bits = int.from_bytes(bytes.fromhex(block.acked), "little") & ((1 << kept) - 1)
    partial = [one for one in block.partial if one[0] < length]
    if not bits and not partial:
        return None
    acked = bits.to_bytes((bits.bit_length() + 7) // 8, "little").hex()
    return msgspec.structs.replace(block, acked=acked, partial=partial)


class Torn(NamedTuple):
    """`dropped`: committed transactions that lost a part, or may have, and why. `unsure`: collected ones that may have
    lost a part; some of their entries remain."""

    dropped: dict[TxnId, str]
    unsure: tuple[TxnId, ...]


def torn(
    picture: Picture,
    short: Iterable[Shortfall],
    left: Mapping[tuple[TxnId, str], int],
    *,
    folder_revision: int,
) -> Torn:
    """`left`: remaining entries of each transaction in each segment; `folder_revision`: etcd's revision when the
    folder's mark was last written: what was decided before that had been stored."""
    damaged = {one.segment: None for one in short}
    dropped = {
        txn_id: "decided after the folder's mark"
        for txn_id, header in picture.headers.items()
        if header.state == COMMITTED and picture.header_revisions.get(txn_id, 0) > folder_revision
    }
    for (txn_id, segment, subscription), ops in picture.ops.items():
        header = picture.headers.get(txn_id)
        written = subscription is None and segment in damaged and header is not None and header.state == COMMITTED
        if written and left.get((txn_id, segment), 0) < ops:
            dropped[txn_id] = f"{left.get((txn_id, segment), 0)} of {ops} entries are left in {segment}"
    unsure = dict.fromkeys(
        txn_id
        for txn_id, _ in left
        if txn_id not in picture.headers and _decided_since(picture, txn_id, folder_revision)
    )
    return Torn(dropped, tuple(unsure))


def _decided_since(picture: Picture, txn_id: TxnId, revision: int) -> bool:
    """Whether it may have committed after `revision`, as far as its outcome block shows."""
    outcomes = picture.outcomes.get((txn_id.tcid, txn_id.counter // keys.OUTCOMES_PER_BLOCK))
    if outcomes is None:
        return False  # collected more than a week ago
    return outcomes.state_of(txn_id.counter) == COMMITTED and outcomes.mod_revision > revision
