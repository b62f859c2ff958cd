"""Counts the messages of a segment's ledgers without reading them, as far as that can be known. Pure.

A ledger is cut into blocks of 256 entries. The class keeps the sum of each block, the sum of each closed ledger (from
the ledger list), and the count of each entry in the few blocks that were lately counted in part. It counts appends of
this process as they come. A range is the sum of its blocks, or the ledger's sum minus the blocks outside the range:
it takes the way with fewer blocks to read. So the lag of a subscription costs at most one block of each of two ledgers,
if the brokers that wrote them have closed them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from txnstore.records import LedgerInfo
from txnwire.ids import Position

STEP: Final = 256
"""Entries of a block."""
BLOCKS_KEPT: Final = 16
"""Blocks that keep the message count of each entry: at most 32 KB per segment."""


class CountedRange(NamedTuple):
    """Entries `first` to `end` - 1 of a ledger with `length` confirmed entries. `closed`: it never has more."""

    ledger_id: int
    first: int
    end: int
    length: int
    closed: bool


class _PartOfBlock(NamedTuple):
    """Entries `low` to `high` - 1 of a block, counted from its first."""

    block: int
    low: int
    high: int


class MessageCounts:
    """Message counts of one segment."""

    def __init__(self) -> None:
        self._totals: dict[int, int] = {}
        """Messages of closed ledgers."""
        self._sums: dict[int, dict[int, int]] = {}
        """Messages of blocks of `STEP` entries, by ledger; for the open one also of unconfirmed blocks."""
        self._recent: dict[tuple[int, int], tuple[int, ...]] = {}
        """Messages of each entry of blocks that were read, the latest asked for last."""
        self._open_id = 0
        self._appended = 0
        self._open_total = 0
        self._tail: list[int] = []
        """Messages of each entry of the open ledger's last block."""

    def appended(self, position: Position, messages: int) -> None:
        """Record an append, even before its sync: nothing is counted beyond what is confirmed."""
        if position.ledger_id != self._open_id:
            self._open_id, self._appended, self._open_total, self._tail = position.ledger_id, 0, 0, []
        if position.entry_id != self._appended:
            return  # earlier entries were not recorded
        self._appended += 1
        self._open_total += messages
        self._tail.append(messages)
        if len(self._tail) == STEP:
            self._sums.setdefault(self._open_id, {})[position.entry_id // STEP] = sum(self._tail)
            self._tail = []

    def total(self, ledger_id: int, entries: int) -> int | None:
        """Messages of the first `entries` entries of the open ledger, which is being closed; None if not known."""
        if not entries:
            return 0
        return self._open_total if (ledger_id, entries) == (self._open_id, self._appended) else None

    def listed(self, kept: Iterable[LedgerInfo]) -> None:
        """Apply the ledger list; forget ledgers that are not in it."""
        lengths = {info.ledger_id: info.closed_length for info in kept}
        told = {info.ledger_id: 0 if info.closed_length == 0 else info.messages for info in kept}
        self._totals = {
            ledger_id: total
            for ledger_id, total in told.items()
            if total is not None and lengths[ledger_id] is not None
        }
        sums, self._sums = self._sums, {}
        for ledger_id, found in sums.items():
            if ledger_id in lengths:
                length = lengths[ledger_id]
                # ▲ An append that failed was counted, but is not in the ledger.
                self._sums[ledger_id] = {
                    block: messages
                    for block, messages in found.items()
                    if length is None or block * STEP + STEP <= length
                }
        self._recent = {key: counts for key, counts in self._recent.items() if key[0] in lengths}

    def blocks_to_read(self, among: CountedRange) -> list[int]:
        """The blocks to pass to `note` before `messages` can answer for this range, in order."""
        ways = self._ways(among)
        return min(([part.block for part in parts if self._of(among, part) is None] for parts in ways), key=len)

    def messages(self, among: CountedRange) -> int | None:
        """The messages of a range; None if there are blocks to be read."""
        inside, *outside = self._ways(among)
        direct = self._sum(among, inside)
        if direct is not None or not outside:
            return direct
        others = self._sum(among, outside[0])
        return None if others is None else self._totals[among.ledger_id] - others

    def messages_of(self, among: CountedRange, block: int, bits: int) -> int | None:
        """The messages of those entries of a block of the range's ledger that `bits` names, counted from the block's
        first; None if the block has to be read."""
        entries = min(STEP, among.length - block * STEP)
        if bits == (1 << entries) - 1 and (found := self._of(among, _PartOfBlock(block, 0, entries))) is not None:
            return found
        counts = self._counts(among.ledger_id, block, entries)
        return None if counts is None else sum(count for at, count in enumerate(counts) if bits >> at & 1)

    def note(self, ledger_id: int, block: int, counts: Sequence[int]) -> None:
        """The messages of each confirmed entry of a block, as they were read."""
        if len(counts) == STEP:
            self._sums.setdefault(ledger_id, {})[block] = sum(counts)
        self._recent.pop((ledger_id, block), None)
        self._recent[ledger_id, block] = tuple(counts)
        while len(self._recent) > BLOCKS_KEPT:
            del self._recent[next(iter(self._recent))]

    def _ways(self, among: CountedRange) -> list[list[_PartOfBlock]]:
        ways = [list(_parts(among, among.first, among.end))]
        if among.closed and among.ledger_id in self._totals:
            ways.append([*_parts(among, 0, among.first), *_parts(among, among.end, among.length)])
        return ways

    def _sum(self, among: CountedRange, parts: Iterable[_PartOfBlock]) -> int | None:
        total = 0
        for part in parts:
            if (found := self._of(among, part)) is None:
                return None
            total += found
        return total

    def _of(self, among: CountedRange, part: _PartOfBlock) -> int | None:
        # ▲ Only for a block whose entries are all confirmed: otherwise its sum counts entries that may still fail.
        full = part.low == 0 and part.high == STEP
        if full and (found := self._sums.get(among.ledger_id, {}).get(part.block)) is not None:
            return found
        counts = self._counts(among.ledger_id, part.block, part.high)
        return None if counts is None else sum(counts[part.low : part.high])

    def _counts(self, ledger_id: int, block: int, least: int) -> Sequence[int] | None:
        read = self._recent.get((ledger_id, block), ())
        if len(read) >= least:
            self._recent[ledger_id, block] = self._recent.pop((ledger_id, block))
            return read
        in_tail = ledger_id == self._open_id and block == self._appended // STEP and len(self._tail) >= least
        return self._tail if in_tail else None


def _parts(among: CountedRange, first: int, end: int) -> Iterator[_PartOfBlock]:
    for block in range(first // STEP, -(-end // STEP)):
        low = block * STEP
        part = _PartOfBlock(block, max(first, low) - low, min(end, low + STEP, among.length) - low)
        if part.low < part.high:
            yield part
