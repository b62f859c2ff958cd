"""Decides which entries a reader between two snapshots shows: committed at the new one, not yet at the old one.

    from old to new  =  entries after the old ends, up to the new ones, that count in the new snapshot
                     +  entries in (old resolved, old end] of transactions pending in the old snapshot that count too

Without an old one it is everything up to the new ends. The offsets of a Spark stream are such pairs (DESIGN §10). Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from txnwire.errors import InvalidArgument
from txnwire.ids import EARLIEST, Position, TxnId
from txnwire.names import SegmentName
from txnwire.snapshot import SegmentBounds, Snapshot, TopicBounds

__all__ = ["SegmentBounds", "Snapshot", "Span", "TopicBounds"]


class Span:
    """The range between snapshots `start` and `end`. Without a start it has no lower bound, without an end no upper."""

    def __init__(self, start: Snapshot | None, end: Snapshot | None) -> None:
        """Raises `InvalidArgument` if `start` does not precede `end`."""
        self.start = start
        self.end = end
        if start is not None and end is not None and (obstacle := start.obstacle(end)) is not None:
            raise InvalidArgument(obstacle)

    @property
    def revision(self) -> int:
        """The revision up to which a broker must follow decisions before reading."""
        return max(one.revision for one in (self.start, self.end) if one is not None)

    @property
    def store(self) -> str:
        """The store that the snapshots belong to; empty if neither names it."""
        return next((one.store for one in (self.end, self.start) if one is not None and one.store), "")

    def ends(self, topics: Sequence[str]) -> Mapping[str, Position]:
        """Paths of the segments to read, in the order of `topics`, each with its last position; empty without an end.

        Raises `InvalidArgument` for a topic that is not in the end."""
        if self.end is None:
            return {}
        found: dict[str, Position] = {}
        for topic in topics:
            bounds = self.end.topics.get(topic)
            if bounds is None:
                named = ", ".join(sorted(self.end.topics))
                raise InvalidArgument(f"{topic} is not in the snapshot at revision {self.end.revision}, of {named}")
            found.update((path, one.end) for path, one in bounds.segments.items())
        return found

    def epoch(self, topic: str) -> int:
        """The epoch of the newest layout that either snapshot has seen."""
        return max(
            (one.topics[topic].epoch for one in (self.start, self.end) if one and topic in one.topics), default=0
        )

    def lost(self, topic: str, kept: Callable[[str], bool], lost_id: int) -> str | None:
        """A segment that has left the topic although part of it belongs to the span, or None. Only segments that were
        never used or that retention has emptied leave; `lost_id` is the highest emptied one. ▲ A range between two
        snapshots is read whole or refused; before any snapshot, what is kept is read, unless nothing is. The end gives
        the extent of a segment it lists; for one gone by then, whether it had held anything (`precedes`)."""
        if self.start is not None and topic in self.start.topics and (self.end is None or topic not in self.end.topics):
            before = self.start.topics[topic].segments
            for path, old in before.items():
                complete = old.sealed and old.resolved == old.end
                if not kept(path) and not complete and SegmentName.from_path(path).segment_id <= lost_id:
                    return path
            if lost_id > max((SegmentName.from_path(path).segment_id for path in before), default=-1):
                return f"segment {lost_id} of {topic}, which came and went since,"
        if self.end is not None and topic in self.end.topics:
            bounds = self.end.topics[topic].segments
            gone = [path for path, one in bounds.items() if not kept(path) and self.after(path) < one.end]
            if gone and (self.start is not None or not any(kept(path) for path in bounds)):
                return gone[0]
        return None

    def of_former_topic(self, topic: str, epoch: int, has_lost: Callable[[str], bool]) -> str | None:
        """A segment of the span that was of a deleted topic of this name, if the layout of `epoch` shows one.
        `has_lost`: whether a segment is gone from it for good. ▲ An older layout of the same topic has lost no segment
        of a later one: the topic may never reach the span's epoch, so a wait might never end."""
        cuts = [cut.topics[topic] for cut in (self.start, self.end) if cut is not None and topic in cut.topics]
        return next((path for one in cuts if one.epoch > epoch for path in one.segments if has_lost(path)), None)

    def continues(self, topic: str) -> bool:
        """Whether `start` covers everything read of the topic so far. ▲ Then everything outside `start` came later and
        is read whole or refused, also in segments that `start` found empty or that were created since."""
        return self.start is not None and topic in self.start.topics

    def after(self, segment: str) -> Position:
        """The position after which reading begins: `EARLIEST` without a start, or for a segment created after it."""
        bounds = None if self.start is None else self.start.bounds(segment)
        if self.start is None or bounds is None:
            return EARLIEST
        return bounds.resolved if self.start.pending else bounds.end

    def shows(self, segment: str, position: Position, txn_id: TxnId | None, writer: int) -> bool:
        """Whether an entry belongs to the span. The broker has already left out aborted entries that no snapshot
        names."""
        if self.start is not None and not self._behind(self.start, segment, position, txn_id):
            return False
        return self.end is None or txn_id is None or self.end.counts(txn_id, writer)

    @staticmethod
    def _behind(start: Snapshot, segment: str, position: Position, txn_id: TxnId | None) -> bool:
        bounds = start.bounds(segment)
        if bounds is None or position > bounds.end:
            return True
        # ▲ Entries pending in the old snapshot and committed since lie before its ends: without this rule neither of
        # the two reads would show them. Their transactions have no entry at or below `resolved`.
        return position > bounds.resolved and txn_id is not None and start.is_pending(txn_id)
