"""Which of a consumer's segments are paused. Pure.

It outlives feeds, connections and assignments: a segment that comes back is paused as it was. What comes of a paused
segment by a split or merge is paused, too: the application has asked for a pause of those keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from txnclient.connection.topic_layout import SegmentInfo, TopicLayout, topic_of_segment
from txnwire.errors import InvalidArgument
from txnwire.names import SEGMENT_SCHEME, SegmentName


class PausedSegments:
    """Either these segments are paused, or all but these."""

    def __init__(self, topics: Callable[[], Sequence[str]]) -> None:
        self._topics = topics
        self._all = False
        self._named: dict[str, None] = {}
        """Paths of the paused segments; if all are paused, of the exceptions."""
        self._known: dict[str, None] = {}
        """Segments that the consumer has had, or that a call has named: a decision about them by name still holds."""

    def pause(self, segments: Iterable[str] | None) -> None:
        """Raises `InvalidArgument` for what is no segment of the topics; nothing has changed then."""
        self._set(segments, paused=True)

    def resume(self, segments: Iterable[str] | None) -> None:
        """As `pause`. ▲ If it resumes one segment, the others stay paused, also after `pause()` of all."""
        self._set(segments, paused=False)

    def is_paused(self, path: str) -> bool:
        return (path in self._named) != self._all

    def comes(self, path: str, layout: TopicLayout | None) -> None:
        """A segment comes to the consumer: one that is new takes after its parents, paused if any of them is, and they
        after theirs, which need not have been here.

        ▲ No-op before the layout has the segment: the assignment may come first, and the parents would not be known.
        Call it again when the layout is there: a segment is not attached earlier."""
        segment = None if layout is None else layout.segment_by_path(path)
        if layout is None or segment is None:
            return
        come, frontier = {segment.segment_id: segment}, [segment]
        while frontier:
            for parent in frontier.pop().parents:
                if parent in layout.segments and parent not in come:
                    come[parent] = layout.segments[parent]
                    frontier.append(layout.segments[parent])
        for segment_id in sorted(come):  # parents first
            self._takes_after(come[segment_id])

    def _takes_after(self, segment: SegmentInfo) -> None:
        path = segment.path
        if path in self._known:
            return
        self._known[path] = None
        if path in self._named or not segment.parents:
            return
        ids = {SegmentName.from_path(one).segment_id: one for one in self._named if _same_topic(one, path)}
        named = [parent in ids for parent in segment.parents]
        if all(named) if self._all else any(named):
            self._named[path] = None

    def _set(self, segments: Iterable[str] | None, *, paused: bool) -> None:
        if segments is None:
            self._all, self._named = paused, {}
            return
        for path in self._paths(segments):
            self._known[path] = None  # it is what was asked of it, whatever comes of its parents
            if paused != self._all:
                self._named[path] = None
            else:
                self._named.pop(path, None)

    def _paths(self, segments: Iterable[str]) -> list[str]:
        if isinstance(segments, str):
            segments = (segments,)
        paths = []
        for one in segments:
            if not isinstance(one, str):
                raise InvalidArgument(f"a segment is named by its path, as consumer.segments has it, not {one!r}")
            path = SegmentName.from_path(one.removeprefix(SEGMENT_SCHEME)).path
            if topic_of_segment(path) not in (topics := self._topics()):
                raise InvalidArgument(f"segment {path} belongs to none of {', '.join(topics)}")
            paths.append(path)
        return paths


def _same_topic(path: str, other: str) -> bool:
    return path.rpartition("/")[0] == other.rpartition("/")[0]
