"""Computes what a batch reads from cut to cut, partition by partition (DESIGN §10). No I/O.

    encode_offset(cut) ◄──► decode_offset(offset)       a stream's offsets
    settle(start, end, aborted)                         transactions aborted between two cuts stop holding others back
    ranges(start, end)                                  what one batch reads, by segment
    split(ranges, heads, min_partitions)                the same in more parts
    pyspark_txnstore.source.limits                             a nearer end, where a batch is to be smaller

A range says what to *read*; `Span(start, end).shows` decides what is *shown* of it.
▲ A batch shows the transactions that its end has and its start has not, and a cut has each whole or not at all: so
exactly one batch shows it.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from pyspark_txnstore.shared.offset_codec import Isolation, Offset, check_isolation, decode_offset, encode_offset
from txnclient import Snapshot
from txnclient.reading.snapshot import SegmentBounds, Span
from txnwire.ids import EARLIEST, Position, TxnId
from txnwire.names import SegmentName

__all__ = [
    "EntryRange",
    "Head",
    "Isolation",
    "Offset",
    "PieceName",
    "adds",
    "beginning",
    "check_isolation",
    "decode_offset",
    "encode_offset",
    "is_laid_out_anew",
    "may_have_committed",
    "ranges",
    "settle",
    "split",
    "topics_left",
]


class PieceName(Protocol):
    """Piece `number` (from 0) of `pieces` of a large value; the first three fields identify the value."""

    @property
    def producer(self) -> str: ...
    @property
    def incarnation(self) -> int: ...
    @property
    def chunk_id(self) -> int: ...
    @property
    def number(self) -> int: ...
    @property
    def pieces(self) -> int: ...


class Head(Protocol):
    """The fields used of an entry's head; `txnclient.reading.entries.EntryHead` is one. `aborted`: known to be, for
    good."""

    @property
    def position(self) -> Position: ...
    @property
    def txn_id(self) -> TxnId | None: ...
    @property
    def messages(self) -> int: ...
    @property
    def size_bytes(self) -> int: ...
    @property
    def publish_time_ms(self) -> int: ...
    @property
    def aborted(self) -> bool: ...
    @property
    def piece(self) -> PieceName | None: ...


@dataclass(frozen=True, slots=True)
class EntryRange:
    """The range that one partition reads: (after, end] of a segment, named by its path."""

    topic: str
    segment: str
    after: Position
    end: Position


def ranges(start: Snapshot | None, end: Snapshot) -> list[EntryRange]:
    """Returns what lies between two cuts, in the order of `end`'s topics, each by segment id, so parents first.

    A segment or topic that `start` does not know was created later and is read from its beginning. Raises
    `InvalidArgument` if `start` does not precede `end`.
    """
    Span(start, end)
    again = bool(may_have_committed(start, end))
    found: list[EntryRange] = []
    for topic, bounds in end.topics.items():
        for path in sorted(bounds.segments, key=_by_id):
            after = _after(start, path, again=again)
            if after < bounds.segments[path].end:
                found.append(EntryRange(topic, path, after, bounds.segments[path].end))
    return found


def _by_id(path: str) -> tuple[int, str]:
    return SegmentName.from_path(path).segment_id, path


def may_have_committed(start: Snapshot | None, end: Snapshot) -> list[TxnId]:
    """▲ Transactions that may be shown now though their entries stand before `start`'s ends: pending then, not pending
    now, and not known to have aborted. The batch reads again from `resolved` on: all their entries lie behind it."""
    if start is None:
        return []
    aborted = frozenset(end.aborted)
    return [txn_id for txn_id in start.pending if not end.is_pending(txn_id) and txn_id not in aborted]


def settle(start: Snapshot, end: Snapshot, aborted: Collection[TxnId]) -> tuple[Snapshot, Snapshot] | None:
    """Returns the two cuts if all that was pending at `start` and is not at `end` has aborted (`aborted`): `end` names
    it, and `start` moves on as far as nothing before its ends may be shown by any cut up to `end`. Returns None
    otherwise, or if the cuts are so already.

    ▲ Retention may delete entries of a transaction that was open at a batch's end and aborted later: they are no loss,
    but a read from `resolved` on would report one.

    A transaction still pending at `end` has no entry at or below the `resolved` of either cut; a segment that is gone
    has no open transaction."""
    decided = [txn_id for txn_id in start.pending if not end.is_pending(txn_id)]
    if not set(decided) <= {*end.aborted, *aborted}:
        return None
    topics = {}
    for topic, bounds in start.topics.items():
        segments = {}
        for path, one in bounds.segments.items():
            new = end.bounds(path)
            resolved = one.end if new is None else min(max(one.resolved, new.resolved), one.end)
            segments[path] = one._replace(resolved=resolved)
        topics[topic] = bounds._replace(segments=segments)
    still = tuple(txn_id for txn_id in start.pending if end.is_pending(txn_id))
    settled = replace(start, topics=topics, pending=still)
    if settled == start:
        return None
    return settled, replace(end, aborted=tuple(sorted({*end.aborted, *decided})))


def _after(start: Snapshot | None, path: str, *, again: bool) -> Position:
    bounds = None if start is None else start.bounds(path)
    if bounds is None:
        return EARLIEST
    return bounds.resolved if again else bounds.end


def beginning(cut: Snapshot, first: Mapping[str, Position]) -> Snapshot:
    """Returns an empty cut at which a stream can begin, so that its first batch, too, is read whole or refused.
    `first`: the first entry kept of each segment that has one at or before the end of `cut`.

    ▲ Entries of transactions open at `cut` lie behind it, too, or have been trimmed."""
    topics = {}
    for topic, bounds in cut.topics.items():
        segments = {}
        for path, one in bounds.segments.items():
            at = before(first[path]) if path in first and first[path] <= one.end else one.end
            segments[path] = SegmentBounds(at, at, one.sealed and at == one.end)
        topics[topic] = bounds._replace(segments=segments)
    return replace(cut, topics=topics, pending=(), aborted=(), losers=(), counted={})


def before(position: Position) -> Position:
    """The place right before an entry: nothing is stored between the two."""
    return Position(position.ledger_id, position.entry_id - 1)


def adds(start: Snapshot | None, end: Snapshot) -> bool:
    """Whether a query or job at `start` must continue to `end`.

    True also for a mere layout change: when retention takes a segment sealed behind `start`, the next cut must show
    that nothing was lost."""
    if start is None:
        return any(one.end > EARLIEST for one in end.segments.values())
    return end.adds_to(start) or is_laid_out_anew(start, end)


def is_laid_out_anew(start: Snapshot, end: Snapshot) -> bool:
    """Whether a topic in both has another layout."""
    return any(
        topic in start.topics and start.topics[topic].epoch != bounds.epoch for topic, bounds in end.topics.items()
    )


def topics_left(start: Snapshot | None, end: Snapshot) -> list[str]:
    """Topics of `start` that `end` does not have: deleted since, or no longer requested. What `start` did not hold of
    them, and parts of their pending transactions, will never be read."""
    return [] if start is None else [topic for topic in start.topics if topic not in end.topics]


def split(parts: Sequence[EntryRange], heads: Mapping[str, Sequence[Head]], min_partitions: int) -> list[EntryRange]:
    """Splits the ranges into at least `min_partitions` parts of about equal size, as far as there are entries.

    `heads`: the known heads of each segment, in order; a range without any stays whole. ▲ The pieces of a large value
    stay together: a reader of some of them would show nothing.
    """
    cuts = [_Cuts(part, heads.get(part.segment, ())) for part in parts]
    shares = [(-float(one.total), index, 1) for index, one in enumerate(cuts) if one.most > 1]
    heapq.heapify(shares)
    counts = [1] * len(cuts)
    missing = min_partitions - len(cuts)
    while missing > 0 and shares:
        _, index, count = heapq.heappop(shares)
        counts[index] = count + 1
        missing -= 1
        if count + 1 < cuts[index].most:
            heapq.heappush(shares, (-cuts[index].total / (count + 1), index, count + 1))
    return [part for one, count in zip(cuts, counts, strict=True) for part in one.into(count)]


class _Cuts:
    """Chooses where a range may be split: behind entries that are not inside a large value, and not behind the last.

    `sizes`: the bytes up to each of `ends`."""

    def __init__(self, part: EntryRange, heads: Sequence[Head]) -> None:
        self.part = part
        self.total = 0
        self.ends: list[Position] = []
        self.sizes: list[int] = []
        inside = heads[bisect_right(heads, part.after, key=_position) : bisect_right(heads, part.end, key=_position)]
        begun: dict[tuple[str, int], None] = {}
        for head in inside:
            self.total += head.size_bytes
            if head.piece is not None:
                # A producer that begins another large value has given up the one before it.
                key = (head.piece.producer, head.piece.incarnation)
                begun[key] = None
                if head.piece.number + 1 >= head.piece.pieces:
                    del begun[key]
            if not begun:
                self.ends.append(head.position)
                self.sizes.append(self.total)
        if self.ends and self.ends[-1] == inside[-1].position:
            del self.ends[-1], self.sizes[-1]

    @property
    def most(self) -> int:
        return len(self.ends) + 1

    def into(self, count: int) -> list[EntryRange]:
        """Splits into at most `most` parts, none of them empty."""
        found, after, at = [], self.part.after, 0
        for number in range(1, count):
            # Near its share of the bytes, and so that an end is left for each of the parts to come.
            wanted = bisect_left(self.sizes, self.total * number / count, lo=at)
            at = min(wanted, len(self.ends) - (count - number))
            found.append(replace(self.part, after=after, end=self.ends[at]))
            after = self.ends[at]
            at += 1
        return [*found, replace(self.part, after=after)]


def _position(head: Head) -> Position:
    return head.position
