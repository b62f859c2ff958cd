"""Which entries a reader between two snapshots shows: what was committed at one and not yet at the other.

    from old to new  =  entries behind the old ends, up to the new ones, that count in the new snapshot
                     +  entries in (old resolved, old end] of transactions pending in the old snapshot that do

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
    """What lies between `start` and `end`; either may be absent: everything before, everything after."""

    def __init__(self, start: Snapshot | None, end: Snapshot | None) -> None:
        """Raises `InvalidArgument` where `start` does not precede `end`."""
        self.start = start
        self.end = end
        if start is not None and end is not None and (obstacle := start.obstacle(end)) is not None:
            raise InvalidArgument(obstacle)

    @property
    def revision(self) -> int:
        """Decisions up to here must be followed before anything is read."""
        return max(one.revision for one in (self.start, self.end) if one is not None)

    @property
    def store(self) -> str:
        """Whose snapshots they are; empty where neither tells."""
        return next((one.store for one in (self.end, self.start) if one is not None and one.store), "")

    def ends(self, topics: Sequence[str]) -> Mapping[str, Position]:
        """Paths of the segments to be read, in the order of `topics`, each with its last position; none without an end.

        Raises `InvalidArgument` for a topic that is not in it."""
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
        """Of the newest layout that either of them has seen."""
        return max(
            (one.topics[topic].epoch for one in (self.start, self.end) if one and topic in one.topics), default=0
        )

    def lost(self, topic: str, kept: Callable[[str], bool], lost_id: int) -> str | None:
        """A segment that is wholly gone from the topic, though something of it belongs to the span; None if there is
        none. Only segments that retention has emptied go, the last of them `lost_id`, and those never used. ▲ What lies
        between two snapshots is read whole or refused; what lies before one is read as far as it is kept, unless
        nothing is. Of a segment that the end tells of, the end says how far it went; of one that had gone by then,
        whether it had held anything (`precedes`)."""
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

    def continues(self, topic: str) -> bool:
        """Whether `start` tells all that was read of the topic so far. ▲ Then whatever `start` does not hold of it came
        later and is read whole or refused, also of segments that `start` found empty, or that came into being since."""
        return self.start is not None and topic in self.start.topics

    def after(self, segment: str) -> Position:
        """The position behind which reading begins: `EARLIEST` where there is no start, or it lacks the segment, which
        came into being later."""
        bounds = None if self.start is None else self.start.bounds(segment)
        if self.start is None or bounds is None:
            return EARLIEST
        return bounds.resolved if self.start.pending else bounds.end

    def shows(self, segment: str, position: Position, txn_id: TxnId | None, writer: int) -> bool:
        """Whether an entry that was read belongs to the span. Aborted ones that no snapshot names are left out by the
        broker that was read from."""
        if self.start is not None and not self._behind(self.start, segment, position, txn_id):
            return False
        return self.end is None or txn_id is None or self.end.counts(txn_id, writer)

    @staticmethod
    def _behind(start: Snapshot, segment: str, position: Position, txn_id: TxnId | None) -> bool:
        bounds = start.bounds(segment)
        if bounds is None or position > bounds.end:
            return True
        # ▲ What was pending in the old snapshot and has committed since lies before its ends: else it would be in
        # neither of the two reads. It has nothing at or below `resolved`.
        return position > bounds.resolved and txn_id is not None and start.is_pending(txn_id)
