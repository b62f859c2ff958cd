"""Takes cuts at a time or at positions from the service (`pyspark_txnstore.shared.boundaries` defines them).

Each segment's owner is asked once where a time lies, and finds it as for a consumer that begins there. Around the
boundary, for as long as a transaction may be open, the heads of all segments are scanned for transactions on both
sides.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark_txnstore.shared.boundaries import Boundary, ByPosition, ByTime, Crossing, begins_before_all, behind, window
from pyspark_txnstore.shared.offsets import before
from txnclient.reading.snapshot import Snapshot
from txnwire.errors import InvalidArgument
from txnwire.ids import EARLIEST, Position

if TYPE_CHECKING:
    from pyspark_txnstore.shared.options import SourceOptions
    from pyspark_txnstore.source.cuts import Cuts


class BoundaryCuts:
    """Takes cuts at or before one `base`. `first`: the first entry kept of each segment that has one."""

    def __init__(self, cuts: Cuts, options: SourceOptions, base: Snapshot, first: Mapping[str, Position]) -> None:
        self._cuts = cuts
        self._options = options
        self._base = base
        self._first = first

    def at(self, boundary: Boundary) -> Snapshot:
        """Raises `InvalidArgument` for a boundary that names unknown topics or segments, `DataTrimmed`."""
        crossing = Crossing(self._base)
        if not self._base.segments:
            return crossing.drawn_back({})
        if isinstance(boundary, ByTime):
            boundary.check(self._base.topics)
            times = {topic: boundary.of(topic) for topic in self._base.topics}
            ends = self._ends_by_time(times)
            since_ms, until_ms = window(list(times.values()))
            has_any = True
        else:
            ends = self._ends_by_position(boundary)
            behind_it = self._times_behind(ends)
            has_any = bool(behind_it)
            since_ms, until_ms = window(list(behind_it.values())) if has_any else (0, 0)
            if any(path not in behind_it and not one.sealed for path, one in self._base.segments.items()):
                # ▲ Entries before an end may be as new as the end itself, and their transactions may go on anywhere
                # behind it.
                until_ms = 0
        # Uncommitted, an entry stands for itself. An empty side has no part of a transaction.
        if has_any and not self._options.uncommitted and not begins_before_all(ends, self._first):
            self._scan(crossing, ends, since_ms, until_ms)
        return crossing.drawn_back(ends)

    def _ends_by_time(self, times: Mapping[str, int]) -> dict[str, Position]:
        ends: dict[str, Position] = {}
        for topic, time_ms in times.items():
            for path, asked in self._positions(topic, time_ms).items():
                one = self._base.segments[path]
                kept = one.end if path not in self._first else before(self._first[path])
                at = self._found(path, time_ms) if asked is None else asked
                ends[path] = max(kept, min(at, one.end))
        return ends

    def _positions(self, topic: str, time_ms: int) -> dict[str, Position | None]:
        """Positions of the base's segments of a topic."""
        asked = self._cuts.client.positions_before(topic, time_ms)
        return {path: asked.get(path) for path in self._base.topics[topic].segments}

    def _found(self, path: str, time_ms: int) -> Position:
        """The answer of an older owner, which does not report the position."""
        at = EARLIEST
        pages = self._cuts.heads(path, EARLIEST, self._base.segments[path].end, 0, trimmed="skip")
        try:
            for page in pages:
                for head in page:
                    if head.publish_time_ms >= time_ms:
                        return at
                    at = head.position
        finally:
            pages.close()
        return at

    def _ends_by_position(self, boundary: ByPosition) -> dict[str, Position]:
        may_be_lost = not self._options.fail_on_data_loss
        boundary.check(self._base, may_be_lost=may_be_lost)
        return {
            path: behind(boundary.of(path), one, self._first.get(path), path, may_be_lost=may_be_lost)
            for path, one in self._base.segments.items()
        }

    def _times_behind(self, ends: Mapping[str, Position]) -> dict[str, int]:
        """Publish time of the first entry behind a boundary, for each segment that has one."""
        times: dict[str, int] = {}
        for path, end in ends.items():
            head = self._cuts.first_head(path, end, self._base.segments[path].end, 0)
            if head is not None:
                times[path] = head.publish_time_ms
        return times

    def _scan(self, crossing: Crossing, ends: Mapping[str, Position], since_ms: int, until_ms: int) -> None:
        """`since_ms` 0: from the beginning on; `until_ms` 0: up to the base's ends."""
        revision = self._base.revision
        for path, until in self._window_edge(until_ms).items():
            most = self._base.segments[path].end
            for page in self._cuts.heads(
                path, ends[path], most if until is None else min(until, most), revision, trimmed="skip"
            ):
                crossing.add_behind(page)
        if not crossing.may_be:
            return
        for path, since in self._window_edge(since_ms).items():
            for page in self._cuts.heads(path, since or EARLIEST, ends[path], revision, trimmed="skip"):
                crossing.add_before(path, page)

    def _window_edge(self, time_ms: int) -> dict[str, Position | None]:
        """None if not given: up to the last entry."""
        if not time_ms:
            return dict.fromkeys(self._base.segments)
        return {path: at for topic in self._base.topics for path, at in self._positions(topic, time_ms).items()}


def bounded(cuts: Cuts, options: SourceOptions, base: Snapshot) -> tuple[Snapshot | None, Snapshot]:
    """Returns the cuts of a batch read; `base`: its end, or the cut taken now if a boundary gives the end.

    Raises `InvalidArgument`, also if nothing can lie between them; `DataTrimmed`."""
    start = cuts.narrowed(options.start) if isinstance(options.start, Snapshot) else None
    of_start = None if options.start == "latest" or isinstance(options.start, Snapshot) else options.start
    of_end = None if isinstance(options.end, Snapshot) else options.end
    if of_start is None and of_end is None:
        return start, base
    boundaries = BoundaryCuts(cuts, options, base, cuts.first_kept(base))
    end = base if of_end is None else boundaries.at(of_end)
    if of_start is not None:
        start = boundaries.at(of_start)
    # ▲ Otherwise what lies between the two would look like lost data.
    for path, one in end.segments.items():
        at = None if start is None else start.bounds(path)
        if at is not None and at.end > one.end:
            raise InvalidArgument(f"the read begins after {at.end} of {path}, and is to end at {one.end} already")
    return start, end
