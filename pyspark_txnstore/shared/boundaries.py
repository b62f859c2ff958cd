"""Turns a read's begin or end, given as a time or positions, into a cut.

    ByTime       topic → milliseconds since the epoch       what was published before it lies before
    ByPosition   topic → segment → its first position       what stands before it lies before

`drawn_back` moves the ends of a base (a cut taken now, or the given end) back to the boundary. ▲ Like every cut, it
holds whole transactions: one with entries on both sides of the boundary, in any segments, is *pending* in the cut,
though it may have committed. So a read that ends there shows nothing of it, one that begins there shows it whole, and
two that meet there show everything once. Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final, Literal

from pyspark_txnstore.shared.offsets import Head, before
from txnclient.reading.snapshot import SegmentBounds, Snapshot
from txnwire.errors import DataTrimmed, InvalidArgument
from txnwire.ids import Position, TxnId
from txnwire.names import SegmentName, TopicName

LONGEST_TRANSACTION_MS: Final = 70 * 60_000
"""▲ How far around a boundary entries are searched for transactions on both sides of it: an hour, the default maximum
timeout of a coordinator, and ten minutes for the clocks of producers."""

_LATEST_MS: Final = 253_402_300_800_000
"""The year 10000."""
_MILLISECONDS: Final = re.compile(r"[0-9]{1,18}")

Place = Position | Literal["earliest", "latest"]


@dataclass(frozen=True)
class ByTime:
    """`everywhere`: for each topic that is read; else `topics` names all of them."""

    everywhere: int | None = None
    topics: Mapping[str, int] | None = None

    def of(self, topic: str) -> int:
        """Raises `InvalidArgument` if it names none."""
        if self.everywhere is not None:
            return self.everywhere
        times = self.topics or {}
        if topic not in times:
            raise InvalidArgument(f"no time is named for {topic}: name one for each topic that is read")
        return times[topic]

    def check(self, read: Collection[str]) -> None:
        """Raises `InvalidArgument` if it names a topic that is not read."""
        _check_topics(self.topics or {}, read)

    def is_behind(self, other: ByTime) -> bool:
        """Whether at least one topic can have nothing between the two."""
        topics = {*(self.topics or {}), *(other.topics or {})} or {""}
        for topic in topics:
            mine, theirs = ((one.everywhere or (one.topics or {}).get(topic)) for one in (self, other))
            if mine is not None and theirs is not None and mine > theirs:
                return True
        return False


@dataclass(frozen=True)
class ByPosition:
    """By topic and by segment (`0000-7fff-1`): the first position after the boundary, or `earliest`, or `latest`."""

    topics: Mapping[str, Mapping[str, Place]]

    def of(self, segment: str) -> Place:
        """The place in a segment, by its path. Raises `InvalidArgument` if there is none."""
        name = SegmentName.from_path(segment)
        places = self.topics.get(str(name.topic))
        place = None if places is None else places.get(name.descriptor)
        if place is None:
            raise InvalidArgument(
                f"no position is named for segment {name.descriptor} of {name.topic}: name one for each of its "
                "segments, or 'earliest' or 'latest'; txnctl topics describe lists them"
            )
        return place

    def check(self, base: Snapshot, *, may_be_lost: bool) -> None:
        """Raises `InvalidArgument` for a topic that is not read and a segment that the topic does not have.
        `may_be_lost`: retention may have taken the segment."""
        _check_topics(self.topics, base.topics)
        for topic, places in self.topics.items():
            bounds = base.topics[topic]
            there = {SegmentName.from_path(path).descriptor for path in bounds.segments}
            for descriptor in places:
                lost = int(descriptor.rpartition("-")[2]) <= bounds.lost_id
                if descriptor not in there and not (lost and may_be_lost):
                    gone = " any more: retention has taken all of it" if lost else ""
                    raise InvalidArgument(
                        f"{descriptor} is no segment of {topic}{gone}; there are: {', '.join(sorted(there))}"
                    )


Boundary = ByTime | ByPosition


def _check_topics(named: Iterable[str], read: Collection[str]) -> None:
    for topic in named:
        if topic not in read:
            raise InvalidArgument(f"{topic} is named, and not read: read are {', '.join(sorted(read))}")


# ---- parsing --------------------------------------------------------------------------------------------------------


def parse_time(text: str) -> int:
    """Parses milliseconds since the Unix epoch, or an ISO 8601 time with its zone. Raises `InvalidArgument`."""
    if _MILLISECONDS.fullmatch(text):
        return _time_ms(int(text), text)
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidArgument(
            f"{text!r:.80}: expected milliseconds since 1970, or a time as 2026-11-20T21:00:00Z"
        ) from None
    if time.tzinfo is None:
        raise InvalidArgument(f"{text!r} has no time zone: append Z for UTC, or +01:00")
    # ▲ Rounded up: messages have whole milliseconds, and those of one lie before any later time within it.
    return _time_ms(-((datetime(1970, 1, 1, tzinfo=UTC) - time) // timedelta(milliseconds=1)), text)


def _time_ms(time_ms: int, text: str) -> int:
    if not 0 < time_ms < _LATEST_MS:
        raise InvalidArgument(f"{text!r}: expected a time between 1970 and the year 10000, in milliseconds")
    return time_ms


def parse_times(text: str) -> ByTime:
    """`{"topic://…": 1795500000000}`. Raises `InvalidArgument`."""
    found: dict[str, int] = {}
    for topic, value in _object(text, "topic: time").items():
        if isinstance(value, dict):
            raise InvalidArgument(f"{topic} has times by segment: expected one for the topic, its segments come and go")
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise InvalidArgument(f"{topic}: {value!r:.80} is no time")
        found[str(TopicName.parse(topic))] = parse_time(str(value))
    return ByTime(topics=found)


def is_by_position(text: str) -> bool:
    """Whether the JSON names positions by topic and is no cut."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(document, dict) and any(isinstance(key, str) and key.startswith("topic:") for key in document)


def parse_positions(text: str) -> ByPosition:
    """`{"topic://…": {"0000-7fff-1": "12:0", "8000-ffff-2": "latest"}}`. Raises `InvalidArgument`."""
    found: dict[str, dict[str, Place]] = {}
    for name, places in _object(text, "topic: {segment: position}").items():
        topic = TopicName.parse(name)
        if not isinstance(places, dict) or not places:
            raise InvalidArgument(f'{topic}: expected {{"0000-7fff-1": "12:0", …}}, found {places!r:.80}')
        found[str(topic)] = {_descriptor(topic, one): _place(one, place) for one, place in places.items()}
    return ByPosition(found)


def _object(text: str, expected: str) -> dict[str, object]:
    document = json.loads(text)
    if not isinstance(document, dict) or not document:
        raise InvalidArgument(f"expected a JSON object {{{expected}}}, found {text:.80}")
    return document


def _descriptor(topic: TopicName, text: str) -> str:
    """Returns the descriptor of a segment, given as that or as the whole path."""
    name = SegmentName.from_path(text if "/" in text else f"{topic.path}/{text}")
    if name.topic != topic:
        raise InvalidArgument(f"{text} is no segment of {topic}")
    return name.descriptor


def _place(segment: str, value: object) -> Place:
    if value == "earliest" or value == "latest":
        return "earliest" if value == "earliest" else "latest"
    if not isinstance(value, str):
        raise InvalidArgument(
            f"{segment}: expected a position such as \"12:0\", 'earliest' or 'latest', not {value!r:.80}"
        )
    position = Position.parse(value)
    if position.entry_id < 0:
        raise InvalidArgument(f"{segment}: {value} is before the first entry of its ledger: name the entry to begin at")
    return position


# ---- cuts -----------------------------------------------------------------------------------------------------------


def behind(place: Place, bounds: SegmentBounds, first: Position | None, segment: str, *, may_be_lost: bool) -> Position:
    """Returns the last position before a place. `first`: the segment's first kept entry at or before the end; None:
    none is.

    ▲ Refuses a place behind the end: entries appended before it later would belong to no read. Raises `DataTrimmed` for
    a place that is not kept any more; `InvalidArgument`."""
    if place == "latest":
        return bounds.end
    kept = bounds.end if first is None else before(first)
    if place == "earliest":
        return kept
    at = before(place)
    if at > bounds.end:
        raise InvalidArgument(
            f"position {place} is after the end of {segment}, {bounds.end}: name one that was stored, the next one "
            f"({Position(bounds.end.ledger_id, bounds.end.entry_id + 1)}), or 'latest'"
        )
    if at < kept and not may_be_lost:
        raise DataTrimmed(
            f"position {place} of {segment} is not kept any more, the first one is {first or 'still to come'}: name "
            "that or 'earliest', or, to continue without the lost messages, set failOnDataLoss to false"
        )
    return max(at, kept)


class Crossing:
    """Finds transactions on both sides of a boundary, from the heads on each side."""

    def __init__(self, base: Snapshot) -> None:
        self._base = base
        self._behind: dict[TxnId, None] = {}
        self._first: dict[str, Position] = {}
        self._crossing: dict[TxnId, None] = {}

    @property
    def may_be(self) -> bool:
        """Whether there can be any, judged by what lies behind."""
        return bool(self._behind)

    def add_behind(self, heads: Iterable[Head]) -> None:
        """▲ Add all of them before the first head that lies before the boundary, which is compared with them."""
        for head in heads:
            if head.txn_id is not None and not head.aborted and not self._base.is_pending(head.txn_id):
                self._behind[head.txn_id] = None

    def add_before(self, segment: str, heads: Iterable[Head]) -> None:
        """Adds heads of a segment, in order."""
        for head in heads:
            if head.txn_id in self._behind and not head.aborted:
                assert head.txn_id is not None
                self._crossing[head.txn_id] = None
                self._first.setdefault(segment, head.position)

    def drawn_back(self, ends: Mapping[str, Position]) -> Snapshot:
        """Returns the base with other ends, at or before its own. ▲ No pending entry lies at or below a `resolved`."""
        base = self._base
        topics = {}
        for topic, bounds in base.topics.items():
            segments = {}
            for path, one in bounds.segments.items():
                end, first = ends[path], self._first.get(path)
                resolved = min(one.resolved, end) if first is None else min(one.resolved, end, before(first))
                segments[path] = SegmentBounds(resolved, end, one.sealed and end == one.end)
            topics[topic] = bounds._replace(segments=segments)
        return replace(base, topics=topics, pending=tuple(sorted({*base.pending, *self._crossing})))


def window(times_ms: Collection[int]) -> tuple[int, int]:
    """The time range in which transactions that cross a boundary of these times can have entries; 0: from the
    beginning."""
    return max(0, min(times_ms) - LONGEST_TRANSACTION_MS), max(times_ms) + LONGEST_TRANSACTION_MS


def begins_before_all(ends: Mapping[str, Position], first: Mapping[str, Position]) -> bool:
    """Whether nothing that is kept lies before a boundary."""
    return all(path not in first or end < first[path] for path, end in ends.items())
