"""Finds an earlier end for a batch under a limit: a cut at the same revision (DESIGN §10).

    target ──► nearest(start, target, max_bytes=…): what is to be scanned ──► add, done: heads of entries
           ──► nearest(start, target, max_bytes=…): start ≤ found ≤ target

The walk goes from `start` over all segments by publish time, each segment only after its ancestors, and stops where the
shown entries reach the limit. Only whole transactions are shown: one that the walk has met in part is *pending* in the
found cut, though it has committed, and `resolved` lies before its first entries. ▲ So it is in this batch or a later
one, whole. Whether it has more entries is known only once every head up to the target's ends is known, in all segments,
even those that the walk has not begun. Until the walk meets a transaction it needs no more heads than the limit.

Aborted transactions and losing writers of the target stay in the found cut, which must leave them out, too. No I/O.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Final, NamedTuple

from pyspark_txnstore.shared.offsets import EntryRange, Head, before, ranges
from pyspark_txnstore.source.segment_heads import HeldHead, SegmentHeads, Txn, rows_of
from pyspark_txnstore.source.walk import Walk, WalkLimits, known_from
from txnclient import Snapshot
from txnclient.reading.snapshot import Span
from txnwire.errors import InvalidArgument
from txnwire.ids import Position, TxnId
from txnwire.names import SegmentName

MAX_HELD_BACK: Final = 5_000
"""Transactions that an end may cut through; beyond that a smaller batch is preferred, since the offset names each one.
"""


WIDE_GAP: Final = 1_000
"""Gap in entries between two that are read again: a smaller one is read with them."""

MAX_STRETCHES: Final = 4
"""Stretches per segment that are read again separately."""


class HeadScan(NamedTuple):
    """A scan to make: the first `heads` or some more heads of `part`, or all if there are fewer; None: all."""

    part: EntryRange
    heads: int | None


class Backlog:
    """Holds the heads scanned so far, each once; forgets those that no batch from the newest start can show."""

    def __init__(self) -> None:
        self._start: Snapshot | None = None
        self._segments: dict[str, SegmentHeads] = {}
        self._txns: dict[TxnId, Txn] = {}
        self._shown_out: list[TxnId] = []
        """Transactions of which everything known has been shown."""
        self._looked_back = False
        """Parts of which only pending entries are known."""

    def __len__(self) -> int:
        """Number of known heads."""
        return sum(map(len, self._segments.values()))

    @property
    def transactions(self) -> int:
        """Number of transactions with known heads."""
        return len(self._txns)

    def missing(self, start: Snapshot | None, target: Snapshot) -> list[EntryRange]:
        """Returns what must be scanned before `limit` can run from `start` to `target`. Forgets what lies before
        `start`. Raises `InvalidArgument` if `start` does not precede `target`.

        Trimmed entries of a topic that `start` knows are lost; of another topic the kept ones are scanned. ▲ Heads
        scanned to look back are scanned again: without a transaction's shown part its rest could be made pending.
        """
        if self._looked_back:
            self._forget()
        if not (found := self._missing(start, target)):
            self._forget_shown()
        return found

    def _missing(self, start: Snapshot | None, target: Snapshot) -> list[EntryRange]:
        Span(start, target)
        self._stand_at(start, target)
        self._start = start
        found: list[EntryRange] = []
        for topic, bounds in target.topics.items():
            for path, one in bounds.segments.items():
                through = self._segments[path].known_through
                if through < one.end:
                    found.append(EntryRange(topic, path, through, one.end))
        return found

    def add(self, part: EntryRange, heads: Iterable[Head]) -> None:
        """Adds some heads of `part`, in order: one page of the scan. Known ones are ignored.

        ▲ The scanning owner must have followed decisions up to the target's revision. An entry once known as a losing
        writer's must stay so: if it later counted for its transaction, it would make pending what has been shown."""
        known = self._segments[part.segment]
        for head in heads:
            if not known.known_through < head.position <= part.end:
                continue
            known.known_through = head.position
            if head.aborted:
                continue
            txn = None
            if head.txn_id is not None:
                txn = self._txns.get(head.txn_id)
                if txn is None:
                    txn = self._txns[head.txn_id] = Txn(head.txn_id)
                txn.entries += 1
                txn.has_pieces |= head.piece is not None
                txn.size_bytes += head.size_bytes
                txn.rows += rows_of(head)
            known.append(head, txn)

    def done(self, part: EntryRange) -> None:
        """All heads of `part` have been added."""
        known = self._segments[part.segment]
        known.known_through = max(known.known_through, part.end)

    def limit(
        self,
        start: Snapshot | None,
        target: Snapshot,
        *,
        max_bytes: int | None = None,
        max_entries: int | None = None,
        max_rows: int | None = None,
        max_held_back: int = MAX_HELD_BACK,
    ) -> Snapshot:
        """Returns an end between `start` and `target` up to which at most so many stored bytes, entries and rows are
        shown, or a single transaction or entry that exceeds them; the target itself if all fits.

        Each call gets nearer to the target, so finitely many reach it. Raises `InvalidArgument` if scans are `missing`.
        """
        limits = WalkLimits(max_bytes, max_entries, max_rows)
        if limits.are_none:
            return target
        if missing := self.missing(start, target):
            raise InvalidArgument(f"heads of {len(missing)} segments are not known, the first of them {missing[0]}")
        return Walk(self._segments, start, target).end(limits, max_held_back)

    def nearest(
        self,
        start: Snapshot | None,
        target: Snapshot,
        *,
        max_bytes: int | None = None,
        max_entries: int | None = None,
        max_rows: int | None = None,
    ) -> Snapshot | list[HeadScan]:
        """Like `limit`, but asks for no more heads once the limits are reached; or returns what to scan before the next
        call. So the first batch of a long history without transactions begins at once. With transactions it needs every
        head up to the target's ends."""
        missing = self.missing(start, target)
        if not missing:
            return self.limit(start, target, max_bytes=max_bytes, max_entries=max_entries, max_rows=max_rows)
        found = Walk(self._segments, start, target).so_far(WalkLimits(max_bytes, max_entries, max_rows))
        if isinstance(found, Snapshot):
            return found
        if found is None:
            return [HeadScan(part, None) for part in missing]
        wanted = frozenset(found)
        # As many as are known: so there are few rounds, whatever the limit.
        return [HeadScan(part, 1 + len(self._segments[part.segment])) for part in missing if part.segment in wanted]

    def shows(self, start: Snapshot | None, target: Snapshot, entries: int) -> bool | list[HeadScan]:
        """Whether a batch from `start` to `target` shows so many entries; or what to scan before the next call."""
        missing = self.missing(start, target)
        if Walk(self._segments, start, target).shown() >= entries:
            return True
        return [HeadScan(part, entries) for part in missing] if missing else False

    def ranges(self, start: Snapshot | None, end: Snapshot) -> list[EntryRange]:
        """Returns what the batch from `start` to `end` reads. Before the start's ends these are, if known, only the
        surroundings of transactions decided since. So a long open transaction does not make every batch read again all
        that was written since. Aborted entries at the edge of a range are not read."""
        whole = ranges(start, end)
        if start is None or start != self._start:
            return whole
        self._pass_to(start)
        return [narrower for part in whole for narrower in self._narrowed(part, start, end)]

    def unknown_before(self, start: Snapshot, end: Snapshot) -> list[EntryRange]:
        """Ranges to scan before the start's ends; only entries pending at `start` have to be added. ▲ Heads of
        later segments stay: under a limit they would be scanned again for each batch."""
        found = []
        for part in self._missing(start, end):
            bounds = start.bounds(part.segment)
            if bounds is not None and part.after < bounds.end:
                found.append(replace(part, end=bounds.end))
        self._looked_back |= bool(found)
        self._forget_shown()
        return found

    def known_before(self, end: Snapshot, besides: Container[TxnId]) -> list[EntryRange]:
        """Ranges before the start's ends with entries that may be shown up to `end`. They belong to transactions whose
        heads were scanned long before: for `hide`."""
        found: list[EntryRange] = []
        for path, known in self._segments.items():
            positions = [one.position for one in _again(known, end) if one.txn.txn_id not in besides]
            topic = str(SegmentName.from_path(path).topic)
            found += [EntryRange(topic, path, before(first), last) for first, last in _stretches(positions)]
        return found

    def hide(self, part: EntryRange, heads: Iterable[Head]) -> None:
        """Forgets entries of `part`, scanned again, that are now known to have aborted."""
        known = self._segments[part.segment]
        gone = {head.position for head in heads if head.aborted}
        self._drop([(one.txn, one.size_bytes, one.rows) for one in known.held if one.position in gone], shown=False)
        known.held = [one for one in known.held if one.position not in gone]

    def _narrowed(self, part: EntryRange, start: Snapshot, end: Snapshot) -> list[EntryRange]:
        bounds, known = start.bounds(part.segment), self._segments.get(part.segment)
        if bounds is None or known is None or known.known_through < bounds.end:
            return [part]
        again = _again(known, end) if part.after < bounds.end else []
        if any(one.txn.has_pieces for one in again):
            # ▲ The pieces of a large value are read together: some may stand before the start's end, some behind it.
            return [replace(part, after=before(again[0].position))]
        stretches = _stretches([one.position for one in again])
        found = [replace(part, after=before(first), end=last) for first, last in stretches]
        fresh = known.fresh(part.end)
        if known.known_through < part.end:
            found.append(replace(part, after=max(part.after, bounds.end)))
        elif fresh:
            # Heads leave out aborted entries. ▲ Those in between stay: pieces of one value may be on both sides.
            first, last = known.position(fresh[0]), known.position(fresh[-1])
            found.append(replace(part, after=before(first), end=last))
        return found

    def _stand_at(self, start: Snapshot | None, target: Snapshot) -> None:
        """Forgets what no batch from `start` on can show, and everything if less is known than needed."""
        for path in [path for path in self._segments if path not in target.segments]:
            self._drop(self._segments.pop(path).pass_to(_BEHIND_ALL, ()), shown=False)
        needed = {path: known_from(start, path) for path in target.segments}
        if self._is_behind(start) or any(self._segments[path].known_from > needed[path] for path in self._segments):
            self._forget()
        for path, begin in needed.items():
            known = self._segments.setdefault(path, SegmentHeads(begin))
            known.known_from = begin
            known.known_through = max(known.known_through, begin)
        if start is not None:
            self._pass_to(start)

    def _is_behind(self, start: Snapshot | None) -> bool:
        """Whether the start has gone back, as when a batch is planned again after the next one. ▲ Its formerly pending
        transactions have been forgotten, even if `resolved` is the same."""
        stood = self._start
        if stood is None or start is None:
            return stood is not None
        if not stood.precedes(start):
            return True
        ends = {path: one.end for path, one in stood.segments.items()}
        is_there = all(ends.get(path) == one.end for path, one in start.segments.items())
        return is_there and any(not stood.is_pending(txn_id) for txn_id in start.pending)

    def _forget(self) -> None:
        self._segments.clear()
        self._txns.clear()
        self._shown_out.clear()
        self._looked_back = False

    def _forget_shown(self) -> None:
        for txn_id in self._shown_out:
            if (txn := self._txns.get(txn_id)) is not None and not txn.entries:
                del self._txns[txn_id]
        self._shown_out.clear()

    def _pass_to(self, start: Snapshot) -> None:
        pending = frozenset(start.pending)
        for path, known in self._segments.items():
            if (bounds := start.bounds(path)) is not None:
                self._drop(known.pass_to(bounds.end, pending), shown=True)

    def _drop(self, entries: Iterable[tuple[Txn, int, int]], *, shown: bool) -> None:
        for txn, size_bytes, rows in entries:
            txn.is_shown |= shown
            txn.entries -= 1
            txn.size_bytes -= size_bytes
            txn.rows -= rows
            if txn.entries:
                continue
            if shown:
                # ▲ Kept until all heads are known: a segment not yet scanned may hold more of it.
                self._shown_out.append(txn.txn_id)
            else:
                self._txns.pop(txn.txn_id, None)


def _again(known: SegmentHeads, end: Snapshot) -> list[HeldHead]:
    """Entries held before the start's end that may be shown up to `end`."""
    aborted = frozenset(end.aborted)
    return [one for one in known.held if not end.is_pending(one.txn.txn_id) and one.txn.txn_id not in aborted]


def _stretches(positions: Sequence[Position]) -> list[tuple[Position, Position]]:
    """First and last of each group of neighbours: few groups, the widest apart, because each is a task of its own."""
    gaps = [
        (-(after.entry_id - one.entry_id if one.ledger_id == after.ledger_id else WIDE_GAP), index)
        for index, (one, after) in enumerate(pairwise(positions), 1)
    ]
    wide = [index for gap, index in sorted(gaps) if -gap >= WIDE_GAP][: MAX_STRETCHES - 1]
    edges = [0, *sorted(wide), len(positions)]
    return [(positions[first], positions[end - 1]) for first, end in pairwise(edges) if first < end]


_BEHIND_ALL: Final = Position(2**62, 0)
