"""Computes what a stream subscription owes its consumers while they seek, rewind, join, leave and ack, and while it or
its topic is deleted and made again under its name. Pure: a log over all lives of one process, and its conclusions.

Seeks, and joins that make the subscription, are numbered in one order; a received message has the number of the last
one begun by then. Its ack counts, at any time and from any consumer, if no later seek was answered: acks of messages
received before a seek are void. A seek without an answer may still take effect, at any time until the topic is
replaced; so a value is due only if it is due by all possible seeks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from simulation.judges.history import Place

EARLIEST, LATEST, TIME, MESSAGE = "earliest", "latest", "time", "message"


@dataclass(slots=True)
class Point:
    """Where a seek goes, or where a newly made subscription begins (`joins`)."""

    number: int
    kind: str = EARLIEST
    time_ms: int = 0
    place: Place | None = None
    joins: bool = False
    answered: bool = False

    def owes(self, value: str, place: Place, published_ms: int, sent_behind: int) -> bool:
        """Whether the value comes from there on. `sent_behind`: the last seek answered when it was sent."""
        if self.kind == TIME:
            return published_ms >= self.time_ms
        if self.kind == LATEST:
            return self.answered and sent_behind >= self.number
        if self.kind == MESSAGE and self.place is not None:
            # It is unknown here whether this segment came from one with a lower number.
            return place[0] > self.place[0] or (place[0] == self.place[0] and place >= self.place)
        return True

    def passes(self, place: Place, received: int | None) -> bool:
        """Whether the value surely does not come any more. `received`: the number when it first was."""
        if self.kind == LATEST:
            return received is not None and received < self.number
        if self.kind == MESSAGE and self.place is not None:
            return place[0] == self.place[0] and place < self.place
        return False


@dataclass(slots=True)
class AckedWithin:
    """An ack in a transaction; `number` as of the message. `answered`: whether the ack was."""

    txn_id: str
    value: str
    number: int
    answered: bool = False


@dataclass(slots=True)
class SeekLog:
    """What was done over all lives of the process. Only for the topic's present life, except `foreign`."""

    life: int = 0
    """The present life of the topic."""
    ready: bool = False
    """Whether the topic exists, as far as known, and its deletion was not requested."""
    begun: int = 0
    """The last seek, or join that makes the subscription."""
    answered: int = 0
    points: list[Point] = field(default_factory=list)
    """Seeks that may count: the last answered one, and those without an answer."""
    joined: bool = False
    unsubscribing: bool = False
    guest_joins: bool = False
    """Whether another consumer's join that would make the subscription may be under way."""
    sent: dict[str, int] = field(default_factory=dict)
    """Values → `answered` when they were sent."""
    stored: dict[str, None] = field(default_factory=dict)
    """Values sent outside of transactions whose sends were answered."""
    sent_within: dict[str, str] = field(default_factory=dict)
    """Values sent in transactions, with those, whose sends were answered."""
    received: dict[str, int] = field(default_factory=dict)
    """Values → `begun` when they were received first."""
    acked: dict[str, int] = field(default_factory=dict)
    """Values that were, or may have been, acked outside of transactions → the highest number of such a receipt."""
    within: list[AckedWithin] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)
    """Ids of messages of former lives of the topic."""
    ids: list[str] = field(default_factory=list)
    """Some of those received."""
    breaches: list[str] = field(default_factory=list)
    seeks: int = 0
    lives: int = 0
    """Lives of the subscription, over all lives of the topic."""
    refused: int = 0
    """Number of refused foreign positions."""
    late: int = 0
    """Number of acks of messages received before a seek."""
    again: list[str] = field(default_factory=list)
    """Values that came at the end, before the last seek."""
    left: list[tuple[str, Place, str]] = field(default_factory=list)
    """(key, place, value) that came behind it."""
    visible: list[tuple[str, Place, str]] = field(default_factory=list)
    published_ms: dict[str, int] = field(default_factory=dict)
    """Publish times of the visible values."""
    outcomes: dict[str, str] = field(default_factory=dict)
    ended: bool = False
    """Whether the final read was completed."""

    # ---- lives ----

    def next_topic(self) -> None:
        """Nothing of the former topic remains, and no late request can reach this one: its segments are others."""
        self.foreign = [*self.foreign, *self.ids[-6:]][-24:]
        self.life += 1
        self.ids, self.points, self.within = [], [], []
        self.sent, self.stored, self.sent_within, self.received, self.acked = {}, {}, {}, {}, {}
        self.joined = self.unsubscribing = self.guest_joins = False

    def unsubscribed(self) -> None:
        """The subscription is gone. A seek from its time may land late, in the next one of the name."""
        self.joined = self.unsubscribing = False
        self.points = [point for point in self.points if not point.joins and not point.answered]
        if self.guest_joins:
            self.points.append(Point(self._next(), joins=True))

    def _next(self) -> int:
        self.begun += 1
        return self.begun

    def begins(self, kind: str, *, time_ms: int = 0, place: Place | None = None, joins: bool = False) -> Point:
        """Called before the request is sent."""
        point = Point(self._next(), kind, time_ms, place, joins)
        self.points.append(point)
        return point

    def has_begun(self, point: Point) -> None:
        """Called when it was answered."""
        point.answered = True
        self.answered = point.number
        if point.joins:
            self.lives += 1
            self.joined = True
        else:
            self.seeks += 1
            self.points = [one for one in self.points if one is point or not (one.answered or one.joins)]

    def value(self, number: int) -> str:
        return f"{self.life}-{number}"

    def came(self, value: str) -> None:
        """Called when it was received."""
        if not value.startswith(f"{self.life}-"):
            self.breaches.append(f"sought: {value} of a deleted topic came in topic {self.life} of its name")
        self.received.setdefault(value, self.begun)

    def acks(self, values: Mapping[str, int]) -> None:
        """Acks, with their numbers, outside of transactions."""
        for value, number in values.items():
            self.acked[value] = max(number, self.acked.get(value, 0))

    # ---- what must be true ----

    def findings(self) -> Iterator[str]:
        yield from self.breaches
        if not self.ended:
            return
        yield from (f"sought: at the end, {text}" for text in out_of_order(self.left))
        left, visible = [value for *_, value in self.left], {value: place for _, place, value in self.visible}
        for value in dict.fromkeys(left):
            if left.count(value) > 1:
                yield f"sought: {value} came {left.count(value)} times at the end"
        yield from (f"sought: {value} did not come at the end" for value in visible if value not in left)
        yield from (f"sought: {value} came at the end and is not visible" for value in left if value not in visible)
        committed = [value for value, txn_id in self.sent_within.items() if self._committed(txn_id)]
        yield from (
            f"sought: {value} was stored and is not visible"
            for value in (*self.stored, *committed)
            if value not in visible
        )
        came = dict.fromkeys(self.again)
        yield from (f"sought: {value} is of a deleted topic" for value in visible if value not in self.sent)
        yield from self._missing(visible, came)
        yield from self._too_many(visible, came)

    def _committed(self, txn_id: str) -> bool:
        return self.outcomes.get(txn_id) == "COMMITTED"

    @property
    def is_certain(self) -> bool:
        """Whether it is known which seek was the last one."""
        return len(self.points) == 1 and self.points[0].answered

    @property
    def _counts_from(self) -> int:
        """Acks of messages received under a lower number are void."""
        return max((point.number for point in self.points if point.answered), default=0)

    def _missing(self, visible: Mapping[str, Place], came: Mapping[str, None]) -> Iterator[str]:
        acked = {value for value, number in self.acked.items() if number >= self._counts_from}
        for one in self.within:
            if one.number >= self._counts_from and self.outcomes.get(one.txn_id) != "ABORTED":
                acked.add(one.value)
        for value, place in visible.items():
            told = (value, place, self.published_ms[value], self.sent.get(value, 0))
            if value not in acked and value not in came and all(point.owes(*told) for point in self.points):
                yield f"sought: {value} at {place} was not acked since the seek and did not come"

    def _too_many(self, visible: Mapping[str, Place], came: Iterable[str]) -> Iterator[str]:
        if not self.is_certain:
            return
        (point,) = self.points
        held = {
            one.value: one.txn_id
            for one in self.within
            if one.answered and one.number >= point.number and self._committed(one.txn_id)
        }
        for value in came:
            if value in held:
                yield f"sought: {value} came although {held[value]} had committed its ack since the seek"
            if value in visible and point.passes(visible[value], self.received.get(value)):
                yield f"sought: {value} at {visible[value]} came, which lies before what was sought"


def out_of_order(seen: Sequence[tuple[str, Place, str]]) -> Iterator[str]:
    """For (key, place, value) in the order of receipt: values that came after a later one of their key."""
    highest: dict[str, Place] = {}
    for key, place, value in seen:
        if key in highest and place < highest[key]:
            yield f"{value} of {key} at {place} came behind {highest[key]}"
        highest[key] = max(highest.get(key, place), place)
