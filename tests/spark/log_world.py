"""A plain model of topics, their logs and transactions, and a stream of batches that reads them by cuts alone.

The world appends, decides, splits, merges, trims, makes topics; it takes cuts as the brokers and the controller would,
`resolved` anywhere that it may be, and answers reads as a broker would that has followed decisions at least to the cut.
What was committed is known here without any of it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pyspark_txnstore.shared.offsets import EntryRange, ranges
from pyspark_txnstore.shared.options import SourceOptions
from pyspark_txnstore.source.cuts import Cuts
from txnclient import EntryHead, Snapshot
from txnclient.reading.snapshot import SegmentBounds, Span, TopicBounds
from txnwire.errors import DataTrimmed
from txnwire.ids import EARLIEST, Position, TxnId
from txnwire.names import SegmentName, TopicName

TOPICS = tuple(TopicName("t", "n", name) for name in ("one", "two", "three"))


class Entry(NamedTuple):
    segment: str
    position: Position
    txn_id: TxnId | None
    writer: int
    size_bytes: int
    time_ms: int


def rows_in(entry: Entry) -> int:
    return 1 + (entry.position.entry_id * 7 + entry.position.ledger_id) % 4


def topic_of(entry: Entry) -> str:
    return str(SegmentName.from_path(entry.segment).topic)


@dataclass
class Txn:
    txn_id: TxnId
    revision: int = 0
    committed: bool = False
    writers: tuple[int, ...] | None = None
    """Those that count; None: all."""

    def decided(self, revision: int) -> bool:
        return 0 < self.revision <= revision

    def counts(self, writer: int, revision: int) -> bool:
        return self.decided(revision) and self.committed and (self.writers is None or writer in self.writers)


@dataclass
class Segment:
    name: SegmentName
    made: int
    entries: list[Entry] = field(default_factory=list)
    sealed: int = 0
    ledger_id: int = 1
    next_entry: int = 0
    answered: Position = EARLIEST
    """What its owner has answered as `resolved`, at most."""
    trimmed: Position = EARLIEST
    """What is not kept any more: up to here."""

    @property
    def last(self) -> Position:
        return self.entries[-1].position if self.entries else EARLIEST


@dataclass
class Topic:
    segments: dict[int, Segment]
    epoch: int = 1
    next_id: int = 1
    lost_id: int = -1


def is_ancestor(one: SegmentName, of: SegmentName) -> bool:
    """Whether keys of `of` went to `one` before."""
    return one.topic == of.topic and one.segment_id < of.segment_id and one.lo <= of.hi and of.lo <= one.hi


class World:
    """`draw(n)` picks one of n choices."""

    def __init__(self, draw: Callable[[int], int]) -> None:
        self.draw = draw
        self.revision = 1
        self.time_ms = 0
        self.topics: dict[str, Topic] = {}
        self.txns: dict[TxnId, Txn] = {}
        self.gone: list[Segment] = []
        self.make_topic(0)

    # ---- what happens -----------------------------------------------------------------------------------------------

    def step(self) -> None:
        choices = (
            (8, self.append_plain),
            (14, self.append_in_transaction),
            (4, self.begin),
            (4, self.decide),
            (1, self.change_owner),
            (1, self.split),
            (1, self.merge),
            (1, lambda: self.make_topic(self.draw(3))),
        )
        pick = self.draw(sum(weight for weight, _ in choices))
        for weight, happens in choices:
            if pick < weight:
                happens()
                return
            pick -= weight

    def make_topic(self, number: int) -> None:
        name = TOPICS[number]
        if str(name) not in self.topics:
            self.revision += 1
            self.topics[str(name)] = Topic({0: Segment(SegmentName(name, 0, 0xFFFF, 0), self.revision)})

    def segments(self) -> list[Segment]:
        return [segment for topic in self.topics.values() for segment in topic.segments.values()]

    def kept(self) -> list[Entry]:
        return [entry for one in self.segments() for entry in one.entries if entry.position > one.trimmed]

    def entries(self) -> list[Entry]:
        return [entry for segment in (*self.gone, *self.segments()) for entry in segment.entries]

    def _active(self, topic: str | None = None) -> list[Segment]:
        topics = self.topics.values() if topic is None else [self.topics[topic]]
        return [segment for one in topics for segment in one.segments.values() if not segment.sealed]

    def _append(self, txn_id: TxnId | None, writer: int) -> None:
        active = self._active()
        segment = active[self.draw(len(active))]
        self.time_ms += self.draw(3)
        time_ms = max(0, self.time_ms + (1_000 if self.draw(20) == 19 else 0) - self.draw(5))
        position = Position(segment.ledger_id, segment.next_entry)
        segment.next_entry += 1
        size = 1 + self.draw(10)
        segment.entries.append(Entry(segment.name.path, position, txn_id, writer, size, time_ms))

    def append_plain(self) -> None:
        self._append(None, 0)

    def _open(self) -> list[Txn]:
        return [txn for txn in self.txns.values() if not txn.revision]

    def append_in_transaction(self) -> None:
        if opened := self._open():
            self._append(opened[self.draw(len(opened))].txn_id, self.draw(2))
        else:
            self.begin()

    def begin(self) -> None:
        if len(self._open()) < 5:
            txn = Txn(TxnId(self.draw(2), len(self.txns) + 1))
            self.txns[txn.txn_id] = txn

    def decide(self) -> None:
        if opened := self._open():
            txn = opened[self.draw(len(opened))]
            self.revision += 1
            txn.revision = self.revision
            txn.committed = self.draw(4) != 3
            txn.writers = (None, None, (0,), (1,), ())[self.draw(5)]

    def change_owner(self) -> None:
        segments = self.segments()
        segment = segments[self.draw(len(segments))]
        if not segment.sealed:
            segment.ledger_id += 1
            segment.next_entry = 0

    def split(self) -> None:
        active = self._active()
        parent = active[self.draw(len(active))]
        lo, hi = parent.name.lo, parent.name.hi
        if lo < hi and len(active) < 6:
            middle = (lo + hi) // 2
            self._replace([parent], [(lo, middle), (middle + 1, hi)])

    def merge(self) -> None:
        topics = list(self.topics)
        active = sorted(self._active(topics[self.draw(len(topics))]), key=lambda one: one.name.lo)
        if len(active) > 1:
            at = self.draw(len(active) - 1)
            self._replace(active[at : at + 2], [(active[at].name.lo, active[at + 1].name.hi)])

    def _replace(self, parents: list[Segment], children: list[tuple[int, int]]) -> None:
        name = parents[0].name.topic
        topic = self.topics[str(name)]
        self.revision += 1
        topic.epoch += 1
        for parent in parents:
            parent.sealed = self.revision
        for lo, hi in children:
            child = SegmentName(name, lo, hi, topic.next_id)
            topic.segments[topic.next_id] = Segment(child, self.revision)
            topic.next_id += 1

    def _first_open(self, segment: Segment, revision: int) -> int:
        """The index of the first entry of a transaction that is not decided by then; the number of entries if none."""
        for index, entry in enumerate(segment.entries):
            if entry.txn_id is not None and not self.txns[entry.txn_id].decided(revision):
                return index
        return len(segment.entries)

    def trim(self, through: Callable[[str], Position], may_go: Callable[[str], bool]) -> None:
        """Retention takes entries at random, at most up to there, and never an open transaction's nor what follows it;
        and out of the layout go those that are sealed, have none left, and may."""
        for topic in self.topics.values():
            for segment in list(topic.segments.values()):
                upto = through(segment.name.path)
                decided = segment.entries[: self._first_open(segment, self.revision)]
                most = [entry for entry in decided if entry.position <= upto]
                if count := (len(most) if self.draw(3) == 2 else self.draw(len(most) + 1)):
                    segment.trimmed = max(segment.trimmed, most[count - 1].position)
                has_parents = any(is_ancestor(other.name, segment.name) for other in topic.segments.values())
                none_left = segment.sealed and segment.last <= segment.trimmed
                if none_left and not has_parents and may_go(segment.name.path) and self.draw(2):
                    del topic.segments[segment.name.segment_id]
                    topic.epoch += 1
                    self.revision += 1
                    self.gone.append(segment)
                    if segment.entries:
                        topic.lost_id = max(topic.lost_id, segment.name.segment_id)

    # ---- cuts and reads ---------------------------------------------------------------------------------------------

    def cut(self, of: Collection[str]) -> Snapshot:
        """▲ `resolved` is asked before R is read, and the ends behind it: what is decided between is pending."""
        asked = {segment.name.path: self._resolved(segment) for segment in self.segments()}
        for _ in range(self.draw(4)):
            self.append_in_transaction()
        revision = self.revision
        stood = {name: (one.epoch, one.lost_id, list(one.segments.values())) for name, one in self.topics.items()}
        sealed = {segment.name.path: bool(segment.sealed) for segment in self.segments()}
        for _ in range(self.draw(6)):
            (self.append_in_transaction, self.append_plain, self.decide)[self.draw(3)]()
        topics: dict[str, TopicBounds] = {}
        named: dict[TxnId, dict[int, None]] = {}
        for name, (epoch, lost_id, segments) in stood.items():
            if name not in of:
                continue
            bounds: dict[str, SegmentBounds] = {}
            for segment in segments:
                path = segment.name.path
                end = max(segment.last, asked[path])
                bounds[path] = SegmentBounds(asked[path], end, sealed[path])
                for entry in segment.entries:
                    if entry.txn_id is not None and asked[path] < entry.position <= end:
                        named.setdefault(entry.txn_id, {})[entry.writer] = None
            topics[name] = TopicBounds(epoch, bounds, lost_id)
        pending: list[TxnId] = []
        aborted: list[TxnId] = []
        losers: list[tuple[TxnId, int]] = []
        counted: dict[TxnId, tuple[int, ...]] = {}
        for txn_id, writers in sorted(named.items()):
            txn = self.txns[txn_id]
            if not txn.decided(revision):
                pending.append(txn_id)
            elif not txn.committed:
                aborted.append(txn_id)
            elif txn.writers is not None:
                lost = [(txn_id, writer) for writer in sorted(writers) if writer not in txn.writers]
                if self.draw(2):
                    losers += lost
                else:
                    counted[txn_id] = txn.writers
        return Snapshot(revision, topics, tuple(pending), tuple(aborted), tuple(losers), counted)

    def _resolved(self, segment: Segment) -> Position:
        """The read position, or a little before: what the owner answered was so a moment ago."""
        most = self._first_open(segment, self.revision)
        index = max(0, most - (0, 0, 0, 1, 3)[self.draw(5)])
        at = max(segment.entries[index - 1].position if index else EARLIEST, segment.trimmed)
        segment.answered = max(segment.answered, at)
        return at

    def is_aborted(self, entry: Entry, revision: int) -> bool:
        txn = None if entry.txn_id is None else self.txns[entry.txn_id]
        return txn is not None and txn.decided(revision) and not txn.counts(entry.writer, revision)

    def owner_hides(self, segment: Segment, entry: Entry) -> bool:
        """▲ What was decided of what it has called resolved it knows; the rest it may know or not, for a cut tells."""
        return (entry.position <= segment.answered or self.draw(2) == 1) and self.is_aborted(entry, self.revision)

    def segment(self, path: str) -> Segment:
        return next(one for one in (*self.segments(), *self.gone) if one.name.path == path)

    def heads(self, part: EntryRange, revision: int, *, skip: bool) -> Iterator[EntryHead]:
        """As `scan_entries` tells them, by an owner that has followed decisions up to the revision at least."""
        segment = self.segment(part.segment)
        if not skip and part.after < segment.trimmed:
            raise DataTrimmed(f"{part}, trimmed to {segment.trimmed}")
        followed = revision + self.draw(self.revision - revision + 1)
        for entry in segment.entries:
            if max(part.after, segment.trimmed) < entry.position <= part.end:
                yield EntryHead(
                    entry.position,
                    entry.txn_id,
                    entry.writer,
                    rows_in(entry),
                    entry.size_bytes,
                    entry.time_ms,
                    self.is_aborted(entry, followed),
                    None,
                )

    def read(self, start: Snapshot | None, end: Snapshot, parts: Sequence[EntryRange] | None = None) -> list[Entry]:
        """What a batch shows, in no order."""
        span = Span(start, end)
        shown: list[Entry] = []
        for part in ranges(start, end) if parts is None else parts:
            segment = self.segment(part.segment)
            if span.continues(part.topic) and part.after < segment.trimmed:
                raise DataTrimmed(f"{part}, trimmed to {segment.trimmed}")
            for entry in segment.entries:
                if not max(part.after, segment.trimmed) < entry.position <= part.end:
                    continue
                if not self.owner_hides(segment, entry) and span.shows(
                    part.segment, entry.position, entry.txn_id, entry.writer
                ):
                    shown.append(entry)
        return shown

    def held_by(self, cut: Snapshot) -> list[Entry]:
        """What was committed at it, of its topics, and the plain entries up to its ends."""
        found: list[Entry] = []
        for entry in self.entries():
            if topic_of(entry) not in cut.topics:
                continue
            bounds = cut.bounds(entry.segment)
            if entry.txn_id is not None:
                if self.txns[entry.txn_id].counts(entry.writer, cut.revision):
                    found.append(entry)
            elif bounds is None:
                if any(entry.segment == segment.name.path for segment in self.gone):
                    found.append(entry)
            elif entry.position <= bounds.end:
                found.append(entry)
        return found


class WorldCuts(Cuts):
    """The source's own, of a world in the place of a cluster. `asked`: how many outcomes."""

    def __init__(self, world: World) -> None:
        super().__init__(
            SourceOptions.parse({"service.url": "txn://world:1", "topicsPattern": ".*"}, use="stream read")
        )
        self.world = world
        self.asked = 0

    @property
    def client(self) -> Any:
        return self

    def outcomes(self, txn_ids: Iterable[TxnId]) -> dict[TxnId, str]:
        found = {}
        for txn_id in txn_ids:
            self.asked += 1
            txn = self.world.txns[txn_id]
            found[txn_id] = "OPEN" if not txn.revision else "COMMITTED" if txn.committed else "ABORTED"
        return found

    def scan_entries(
        self, segment: str, *, after: Position, end: Position, min_revision: int, trimmed: str, page_entries: int
    ) -> Iterator[list[EntryHead]]:
        """In pages of three, whatever is asked for."""
        part = EntryRange(str(SegmentName.from_path(segment).topic), segment, after, end)
        heads = list(self.world.heads(part, min_revision, skip=trimmed == "skip"))
        yield from (heads[at : at + 3] for at in range(0, len(heads), 3))
