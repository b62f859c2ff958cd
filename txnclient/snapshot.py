"""Which entries a reader between two snapshots shows: what was committed at one and not yet at the other.

    from old to new  =  entries behind the old ends, up to the new ones, that count in the new snapshot
                     +  entries in (old resolved, old end] of transactions pending in the old snapshot that do

Without an old one it is everything up to the new ends. The offsets of a Spark stream are such pairs (DESIGN §10). Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from txnwire.errors import InvalidArgument
from txnwire.ids import EARLIEST, Position, TxnId
from txnwire.snapshot import SegmentBounds, Snapshot, TopicBounds

__all__ = ["SegmentBounds", "Snapshot", "Span", "TopicBounds"]


class Span:
    """What lies between `start` and `end`; either may be absent: everything before, everything after."""

    def __init__(self, start: Snapshot | None, end: Snapshot | None) -> None:
        """Raises `InvalidArgument` where `end` is older than `start`, or lacks a segment of it."""
        self.start = start
        self.end = end
        if start is not None and end is not None:
            _check_order(start, end)

    @property
    def revision(self) -> int:
        """Decisions up to here must be followed before anything is read."""
        return max(one.revision for one in (self.start, self.end) if one is not None)

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


def _check_order(start: Snapshot, end: Snapshot) -> None:
    if start.revision > end.revision:
        raise InvalidArgument(f"the start, at revision {start.revision}, is newer than the end, at {end.revision}")
    for topic in end.topics:
        for path, old in start.topics[topic].segments.items() if topic in start.topics else ():
            new = end.bounds(path)
            if new is None:
                raise InvalidArgument(f"{path} is in the snapshot to start from and not in the one to end at")
            if new.end < old.end:
                raise InvalidArgument(
                    f"{path} ends at {new.end} in the later snapshot, at {old.end} in the earlier one"
                )
