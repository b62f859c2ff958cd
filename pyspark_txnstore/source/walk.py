"""Walks from a start towards a target, entry by entry, as far as a batch may go (`pyspark_txnstore.source.limits`).

    what is whole before the start's ends already  ──►  the entries behind them, by publish time

Every prefix of this walk makes a cut: its ends are the last entries met, and transactions met in part are pending. A
longer prefix shows more, a whole transaction at a time. Pure.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from pyspark_txnstore.shared.offsets import before
from pyspark_txnstore.source.segment_heads import SegmentHeads, Txn
from pyspark_txnstore.source.successions import successions
from txnclient import Snapshot
from txnclient.reading.snapshot import SegmentBounds, TopicBounds
from txnwire.ids import EARLIEST, Position, TxnId
from txnwire.names import SegmentName


def known_from(start: Snapshot | None, path: str) -> Position:
    """All that is needed of a segment stands behind it. ▲ Every entry of a transaction pending at the start is needed:
    only with all is it whole, and none may come to lie at or below the next `resolved`."""
    bounds = None if start is None else start.bounds(path)
    if start is None or bounds is None:
        return EARLIEST
    return bounds.resolved if start.pending else bounds.end


class ShownSoFar(NamedTuple):
    """How much a batch shows."""

    size_bytes: int
    entries: int
    rows: int

    def plus(self, heads: SegmentHeads, index: int) -> ShownSoFar:
        """Returns the sum with one more entry."""
        return ShownSoFar(self.size_bytes + heads.size_bytes(index), self.entries + 1, self.rows + heads.rows(index))


_NOTHING: Final = ShownSoFar(0, 0, 0)


class WalkLimits:
    """The unused rest of the limits; None: no limit."""

    def __init__(self, max_bytes: int | None, max_entries: int | None, max_rows: int | None = None) -> None:
        self._left = [max_bytes, max_entries, max_rows]

    @property
    def are_none(self) -> bool:
        return all(left is None for left in self._left)

    def add(self, shown: ShownSoFar) -> bool:
        """Counts what else is shown. Returns whether all of it is within the limits."""
        self._left = [None if left is None else left - more for left, more in zip(self._left, shown, strict=True)]
        return not self.exceeded

    @property
    def exceeded(self) -> bool:
        return any(left is not None and left < 0 for left in self._left)


class _WalkedSegment:
    """One segment on the walk. `fresh`: its entries still to meet; `met`: how many of them have been met."""

    __slots__ = ("ahead_of", "blocked", "fresh", "heads", "is_known", "met", "name", "path", "time_ms")

    def __init__(self, path: str, heads: SegmentHeads, end: Position) -> None:
        self.path = path
        self.is_known = heads.known_through >= end
        self.name = SegmentName.from_path(path)
        self.heads = heads
        self.fresh = heads.fresh(end)
        self.met = 0
        self.time_ms = 0
        self.blocked = 0
        self.ahead_of: list[int] = []

    @property
    def is_done(self) -> bool:
        """▲ False if there may be more than is known: its children wait for all of it."""
        return self.is_known and self.met == len(self.fresh)

    @property
    def is_starved(self) -> bool:
        """Whether it continues but its next heads are unknown."""
        return not self.is_known and self.met == len(self.fresh)

    def next_time_ms(self) -> int:
        """Time of the next entry. Clocks of producers differ: an entry waits for those before it."""
        self.time_ms = max(self.time_ms, self.heads.publish_time_ms(self.fresh[self.met]))
        return self.time_ms


class Walk:
    """`segments`: what is known of the target's segments, by path: up to its ends for `end`, any part for `so_far`."""

    def __init__(self, segments: Mapping[str, SegmentHeads], start: Snapshot | None, target: Snapshot) -> None:
        self._start = start
        self._target = target
        self._hidden = frozenset((*target.pending, *target.aborted))
        """Entries that no cut up to the target shows, whether met or not."""
        self._segments = [_WalkedSegment(path, segments[path], one.end) for path, one in target.segments.items()]
        self._surplus = self._behind_target()
        self._held = self._ahead_of_start()
        self._ready = [txn for txn, ahead in self._held.items() if not ahead]

    # ---- what is met ------------------------------------------------------------------------------------------------

    def _behind_target(self) -> dict[Txn, ShownSoFar]:
        """Known entries behind the target's ends, from another target."""
        surplus: dict[Txn, ShownSoFar] = {}
        for segment in self._segments:
            for index in segment.heads.all_fresh()[len(segment.fresh) :]:
                if (txn := segment.heads.txn(index)) is not None:
                    surplus[txn] = surplus.get(txn, _NOTHING).plus(segment.heads, index)
        return surplus

    def _ahead_of_start(self) -> dict[Txn, int]:
        """Transactions pending at the start and decided now: how many of their entries are still to be met."""
        ahead: dict[Txn, int] = {}
        for segment in self._segments:
            for one in segment.heads.held:
                if one.txn.txn_id not in self._hidden:
                    ahead[one.txn] = ahead.get(one.txn, self.entries(one.txn)) - 1
        return ahead

    def is_hidden(self, txn: Txn) -> bool:
        return txn.txn_id in self._hidden

    def entries(self, txn: Txn) -> int:
        return txn.entries - self._surplus.get(txn, _NOTHING).entries

    def total(self, txn: Txn) -> ShownSoFar:
        over = self._surplus.get(txn, _NOTHING)
        return ShownSoFar(txn.size_bytes - over.size_bytes, txn.entries - over.entries, txn.rows - over.rows)

    def shown(self) -> int:
        """How many known entries the target shows: ▲ all that is committed there lies up to its ends."""
        count = 0
        for segment in self._segments:
            txns = [segment.heads.txn(index) for index in segment.fresh]
            txns += [one.txn for one in segment.heads.held]
            count += sum(txn is None or not self.is_hidden(txn) for txn in txns)
        return count

    # ---- the walk ---------------------------------------------------------------------------------------------------

    def end(self, within: WalkLimits, max_held_back: int) -> Snapshot:
        """The farthest prefix within the limits, or the nearest that shows anything if even that exceeds them."""
        for number, txn in enumerate(self._ready):
            if not within.add(self.total(txn)) and number:
                return self._cut(number, [])
            if within.exceeded:
                return self._cut(number + 1, [])
        return self._walk(within, max_held_back)

    def _walk(self, within: WalkLimits, max_held_back: int) -> Snapshot:
        tally = _Tally(self, {txn: left for txn, left in self._held.items() if left})
        steps: list[int] = []
        best: int | None = 0 if self._ready else None
        grown = False
        queue = self._begin()
        while queue:
            _, number = heapq.heappop(queue)
            segment = self._segments[number]
            index = segment.fresh[segment.met]
            segment.met += 1
            steps.append(number)
            self._go_on(number, queue)
            shown = tally.meet(segment.heads, index)
            if shown is not None:
                within.add(shown)
                grown = True
            if grown and not tally.uncut:
                if best is None or not within.exceeded:
                    best = len(steps)
                grown = False
            if best is not None and (within.exceeded or tally.open > max_held_back):
                break
        else:
            return self._target
        return self._cut(len(self._ready), steps[:best])

    # ---- the walk, where not all is known ---------------------------------------------------------------------------

    def so_far(self, within: WalkLimits) -> Snapshot | list[str] | None:
        """Like `end`, from the heads known so far; or the segments whose further heads it needs; or None: all of them.

        ▲ Stops before the first entry of a transaction that may be shown: only all heads tell whether it is whole. For
        the same reason none of the start's pending transactions may be decided, and the start must have all topics:
        only a scan tells where the kept part of another topic begins."""
        if self._start is None or self._target.topics.keys() - self._start.topics.keys():
            return None
        if not self._hidden.issuperset(self._start.pending):
            return None
        steps: list[int] = []
        best = 0
        queue = self._begin()
        while not (starved := self._starved()) and queue:
            _, number = heapq.heappop(queue)
            segment = self._segments[number]
            index = segment.fresh[segment.met]
            txn = segment.heads.txn(index)
            if txn is not None and txn.txn_id not in self._hidden:
                return self._cut(0, steps[:best]) if best else None
            segment.met += 1
            steps.append(number)
            self._go_on(number, queue)
            if txn is not None:
                continue
            if not within.add(_NOTHING.plus(segment.heads, index)):
                return self._cut(0, steps[: best or len(steps)])
            best = len(steps)
        return starved or None

    def _starved(self) -> list[str]:
        return [segment.path for segment in self._segments if segment.is_starved and not segment.blocked]

    def _begin(self) -> list[tuple[int, int]]:
        """The segments that the walk may enter at once, with the time of their first entry."""
        waiting = [number for number, segment in enumerate(self._segments) if not segment.is_done]
        by_topic: dict[object, list[int]] = {}
        for number in waiting:
            by_topic.setdefault(self._segments[number].name.topic, []).append(number)
        for numbers in by_topic.values():
            for older, younger in successions([self._segments[number].name for number in numbers]):
                self._segments[numbers[older]].ahead_of.append(numbers[younger])
                self._segments[numbers[younger]].blocked += 1
        queue: list[tuple[int, int]] = []
        for number in waiting:
            if not self._segments[number].blocked:
                self._queue(number, queue)
        return queue

    def _queue(self, number: int, queue: list[tuple[int, int]]) -> None:
        if not self._segments[number].is_starved:
            heapq.heappush(queue, (self._segments[number].next_time_ms(), number))

    def _go_on(self, number: int, queue: list[tuple[int, int]]) -> None:
        """▲ Enters a segment only after all its ancestors: batches keep the order of a key."""
        segment = self._segments[number]
        if not segment.is_done:
            self._queue(number, queue)
            return
        for younger in segment.ahead_of:
            self._segments[younger].blocked -= 1
            if not self._segments[younger].blocked:
                self._queue(younger, queue)

    # ---- the cut ----------------------------------------------------------------------------------------------------

    def _cut(self, released: int, steps: list[int]) -> Snapshot:
        """Makes the cut after the first so many ready entries and these steps."""
        is_all = released == len(self._ready) and len(steps) == sum(len(segment.fresh) for segment in self._segments)
        if is_all and all(segment.is_known for segment in self._segments):
            return self._target
        met = [0] * len(self._segments)
        left = {txn: ahead for txn, ahead in self._held.items() if ahead}
        for number in steps:
            segment = self._segments[number]
            txn = segment.heads.txn(segment.fresh[met[number]])
            met[number] += 1
            if txn is not None and not txn.is_shown and txn.txn_id not in self._hidden:
                left[txn] = left.get(txn, self.entries(txn)) - 1
        partial = {txn.txn_id: None for txn in self._ready[released:]}
        partial.update((txn.txn_id, None) for txn, ahead in left.items() if ahead)
        bounds = {
            segment.path: self._bounds(segment, count, partial)
            for segment, count in zip(self._segments, met, strict=True)
        }
        topics = {
            topic: TopicBounds(one.epoch, {path: bounds[path] for path in one.segments}, one.lost_id)
            for topic, one in self._target.topics.items()
        }
        return replace(self._target, topics=topics, pending=tuple(sorted({*self._target.pending, *partial})))

    def _bounds(self, segment: _WalkedSegment, met: int, partial: Mapping[TxnId, None]) -> SegmentBounds:
        target = self._target.segments[segment.path]
        end = target.end if segment.is_known and met == len(segment.fresh) else self._end(segment, met)
        # ▲ No transaction pending at the start, decided by the target or not, has an entry at or below the known part.
        # Nor has any other that is pending now: with an entry before the start's ends it would have been pending there.
        resolved = max(min(target.resolved, end), min(known_from(self._start, segment.path), end))
        first = self._first_of(segment, met, partial)
        if first is not None:
            resolved = min(resolved, before(first))
        return SegmentBounds(resolved, end, target.sealed and end == target.end)

    def _end(self, segment: _WalkedSegment, met: int) -> Position:
        if met:
            return segment.heads.position(segment.fresh[met - 1])
        bounds = None if self._start is None else self._start.bounds(segment.path)
        if bounds is not None:
            return bounds.end
        if self._start is not None and str(segment.name.topic) in self._start.topics:
            return EARLIEST  # ▲ a newer segment: what is trimmed of it is lost, and must be detected
        # Messages trimmed already are not read, and their absence later must not be taken for a loss.
        return before(segment.heads.position(segment.fresh[0]))

    def _first_of(self, segment: _WalkedSegment, met: int, partial: Mapping[TxnId, None]) -> Position | None:
        for one in segment.heads.held:
            if one.txn.txn_id in partial:
                return one.position
        for index in segment.fresh[:met]:
            txn = segment.heads.txn(index)
            if txn is not None and txn.txn_id in partial:
                return segment.heads.position(index)
        return None


class _Tally:
    """Counts the met entries of each transaction. `open`: those that would be pending now; `uncut`: those that can be
    neither pending nor split, so that no end may be here."""

    def __init__(self, walk: Walk, ahead: dict[Txn, int]) -> None:
        self._walk = walk
        self._ahead = ahead
        self.open = len(ahead)
        self.uncut = 0

    def meet(self, heads: SegmentHeads, index: int) -> ShownSoFar | None:
        """Adds one more entry; returns the entries that it makes visible."""
        txn = heads.txn(index)
        if txn is None or (txn.is_shown and not txn.has_pieces):
            return _NOTHING.plus(heads, index)
        if self._walk.is_hidden(txn):
            return None
        left = self._ahead.get(txn)
        if left is None:
            left = self._walk.entries(txn)
            self._count(txn, 1)
        self._ahead[txn] = left - 1
        if left > 1:
            return None
        self._count(txn, -1)
        return self._walk.total(txn)

    def _count(self, txn: Txn, change: int) -> None:
        if txn.is_shown:
            self.uncut += change
        else:
            self.open += change
