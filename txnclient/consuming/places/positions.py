"""Where a subscription or a reader stands in its topics: kept as text, and a place to begin at."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from txnclient.connection.deadlines import Deadline
from txnclient.connection.session import Session
from txnclient.connection.topic_layout import SegmentInfo, TopicLayout, topic_of_segment
from txnwire.bounds import MAX_ID
from txnwire.errors import InvalidArgument
from txnwire.ids import Position
from txnwire.names import SegmentName, TopicName
from txnwire.proto import txn_pb2 as pb

VERSION = 1
MAX_INDEX = 0xFFFF_FFFF
BY_POSITIONS = "positions"
"""Instead of a segment's path in a start by positions. ▲ A controller that does not know `starts` must refuse the
start: it would begin at the earliest."""


@dataclass(frozen=True, slots=True)
class NextMessage:
    """The first message of a segment that is still to come: message `index` of the entry at `position`, which need not
    be there yet."""

    position: Position
    index: int = 0


@dataclass(frozen=True, slots=True)
class TopicPositions:
    """`life` tells topics of one name apart, 0: not known. `epoch`: of the layout that has the segments. `segments`: by
    path. What came of a named segment by splits and merges, and is not named, begins at its beginning; what a named one
    came from is left out."""

    life: int
    epoch: int
    segments: Mapping[str, NextMessage]


@dataclass(frozen=True, slots=True)
class Positions:
    """By topic (`topic://…`), where to go on in each of its segments. `to_json` gives a little text to be kept,
    `from_json` reads it back, here or elsewhere."""

    topics: Mapping[str, TopicPositions]

    def to_json(self) -> str:
        topics = {
            topic: {
                "life": one.life,
                "epoch": one.epoch,
                "segments": {path: [*at.position, at.index] for path, at in one.segments.items()},
            }
            for topic, one in self.topics.items()
        }
        return json.dumps({"v": VERSION, "topics": topics}, separators=(",", ":"))

    @staticmethod
    def from_json(text: str | bytes) -> Positions:
        """Raises `InvalidArgument` for anything that `to_json` does not make."""
        try:
            found = json.loads(text)
            if found["v"] != VERSION:
                raise InvalidArgument(f"positions of version {found['v']}: this client reads version {VERSION}")
            topics = {str(TopicName.parse(topic)): topic_positions(one) for topic, one in found["topics"].items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InvalidArgument(f"these are no positions as to_json gives them: {error!r}") from error
        for topic, one in topics.items():
            for path in one.segments:
                if topic_of_segment(path) != topic:
                    raise InvalidArgument(f"positions of {topic} name segment {path}, which belongs to another topic")
        return Positions(topics)


def topic_positions(found: Mapping[str, Any]) -> TopicPositions:
    """From decoded JSON. Raises `ValueError`, `KeyError`, `TypeError`, `InvalidArgument`."""
    segments: dict[str, NextMessage] = {}
    for path, (ledger_id, entry_id, index) in found["segments"].items():
        if any(type(number) is not int or not 0 <= number <= MAX_ID for number in (ledger_id, entry_id)):
            raise ValueError(f"segment {path} at {ledger_id}:{entry_id}: expected whole numbers")
        if type(index) is not int or not 0 <= index <= MAX_INDEX:
            raise ValueError(f"segment {path}, message {index}: expected a whole number")
        segments[SegmentName.from_path(path).path] = NextMessage(Position(ledger_id, entry_id), index)
    for name in ("life", "epoch"):
        if type(found[name]) is not int or found[name] < 0:
            raise ValueError(f"{name} {found[name]!r}: expected a whole number")
    return TopicPositions(found["life"], found["epoch"], segments)


def check_topics(positions: Positions, topics: Sequence[str]) -> None:
    """Raises `InvalidArgument` for positions of a topic that is not among `topics`, or of none."""
    if strange := [topic for topic in positions.topics if topic not in topics]:
        raise InvalidArgument(f"the positions belong to {strange[0]}, not to {', '.join(topics)}: name that topic, too")
    if not any(one.segments for one in positions.topics.values()):
        raise InvalidArgument("the positions name no segment: start at 'earliest' or 'latest'")


async def layout_with(session: Session, topic: str, positions: Positions, deadline: Deadline) -> TopicLayout:
    """The topic's layout, with the segments that the positions name. ▲ In an older one than theirs a named segment
    would seem gone, and what it came from would begin at the earliest.

    Raises `InvalidArgument` for positions of a deleted topic of the name, `TopicNotFound`, `Timeout`."""
    found = positions.topics.get(topic)
    while True:
        layout = await session.directory.layout(topic, deadline)
        if found is None:
            return layout
        if layout.is_another(found.life) or layout.epoch >= found.epoch:
            _check_life(found, layout)
            return layout
        await session.directory.wait_change(deadline.remaining())
        if deadline.passed:
            raise deadline.expired(f"waiting for layout {found.epoch} of {topic}, which the positions belong to")


def _check_life(found: TopicPositions, layout: TopicLayout) -> None:
    """▲ Raises `InvalidArgument` for positions of a deleted topic of the name: none of its segments is there, so
    everything would begin at the earliest."""
    gone = [path for path in found.segments if layout.segment_by_path(path) is None]
    if layout.is_another(found.life) or (0 in (found.life, layout.life) and gone):
        raise InvalidArgument(
            f"the positions belong to an earlier topic {layout.topic}, which was deleted and created again: start by "
            "time, or at 'earliest'"
        )


def start_in(found: TopicPositions | None, layout: TopicLayout, segment: SegmentInfo) -> pb.Start:
    """Where these positions begin in one segment: at the named message; behind all of it, which is a start at a message
    of a segment that came from it; or at the earliest."""
    if found is None:
        return pb.Start(earliest=True)
    named = segment.path if segment.path in found.segments else _named_descendant(found, layout, segment)
    if named is None:
        return pb.Start(earliest=True)
    return start_at(named, found.segments[named])


def start_at(path: str, at: NextMessage) -> pb.Start:
    return pb.Start(segment=path, ledger_id=at.position.ledger_id, entry_id=at.position.entry_id, index=at.index)


def start_of_topic(found: TopicPositions | None) -> pb.Start:
    """The start of a new subscription of one topic."""
    if found is None or not found.segments:
        return pb.Start(earliest=True)
    starts = [
        pb.SegmentStart(segment=path, ledger_id=at.position.ledger_id, entry_id=at.position.entry_id, index=at.index)
        for path, at in found.segments.items()
    ]
    return pb.Start(segment=BY_POSITIONS, starts=starts)


def _named_descendant(found: TopicPositions, layout: TopicLayout, segment: SegmentInfo) -> str | None:
    for other in _descendants(layout, segment):
        if other.path in found.segments:
            return other.path
    return None


def _descendants(layout: TopicLayout, segment: SegmentInfo) -> Iterable[SegmentInfo]:
    frontier, seen = list(segment.children), dict[int, None]()
    while frontier:
        reached = frontier.pop()
        if reached in layout.segments and reached not in seen:
            seen[reached] = None
            frontier.extend(layout.segments[reached].children)
            yield layout.segments[reached]
