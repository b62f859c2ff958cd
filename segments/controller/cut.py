"""A snapshot cut over the segments of some topics, as a pure core (DESIGN §10).

    topic records ──► every owner's read position: *resolved* ──► R and the layouts at R, by one linearizable read
        ──► every owner, once it has followed decisions to R: *end*, and the transactions behind *resolved*
        ──► one final read at one revision: those transactions' headers, the topic records, the owners, the horizon

A layout change meanwhile is harmless: a segment made after R holds nothing committed at R. One made between the first
question and R is asked before R is read again, unless no broker has owned it so far.

Everything up to the ends, minus pending, minus aborted, is exactly what was committed at R. Each step is sent only when
the one before it is fully answered; `segments.controller.snapshots` sends them. Source: DESIGN §10, after Chandy and
Lamport, with the metadata store's revision in place of their markers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeVar

from segments.layout.topology import SEALED, Topology
from txnstore import keys, records
from txnstore.records import GcHorizon, Header, TopicRecord
from txnstore.store import KeyValue
from txnwire.errors import TopicNotFound
from txnwire.ids import EARLIEST, Position, TxnId
from txnwire.names import TopicName
from txnwire.snapshot import SegmentBounds, Snapshot, TopicBounds
from txnwire.turns import Steps, in_steps
from watchers.outcomes import Decision

T = TypeVar("T", TxnId, tuple[TxnId, int])

TOPICS_AT_ONCE: Final = 200
"""Topic records decoded in one turn."""


class Resolved(NamedTuple):
    """A segment's first answer, from its owner under `epoch`: everything up to `position` is decided."""

    epoch: int
    position: Position


class Tail(NamedTuple):
    """A segment's second answer. ▲ Given only once decisions are followed to R and no transaction decided by then has
    an operation in flight there: it could still append an entry behind `end` that the cut counts as committed.

    `undecided`: transactions with entries in (resolved, end] not known to be decided at or before R. `aborted`:
    transactions with entries there aborted at or before R; with a writer, only that writer's entries do not count."""

    epoch: int
    end: Position
    undecided: tuple[TxnId, ...] = ()
    aborted: tuple[tuple[TxnId, int | None], ...] = ()


class StartOver(NamedTuple):
    """A topic, an owner or a header changed while the cut was taken: take it again from the first step."""

    reason: str


class Layout(NamedTuple):
    """One topic as found by the first step. A topic deleted and made again has another `created`."""

    created: int
    topology: Topology

    @property
    def paths(self) -> Mapping[str, int]:
        """Segment path → id, without segments that are being pruned: they are empty, and no broker serves them."""
        topology = self.topology
        return {path: number for number, path in topology.paths.items() if not topology.is_going(number)}


@dataclass(frozen=True, slots=True)
class Layouts:
    """Holds the topics to cut, by name, in order. `settled`: segments that need no question, with their ends: those of
    `settled_in`, and those that no broker has owned so far."""

    topics: Mapping[TopicName, Layout]
    settled: Mapping[str, Position] = field(default_factory=dict)

    @property
    def segments(self) -> tuple[str, ...]:
        """Paths of all segments to ask, sealed ones too: they hold older entries."""
        return tuple(path for layout in self.topics.values() for path in layout.paths if path not in self.settled)

    def knowing(self, settled: Mapping[str, Position]) -> Layouts:
        """These layouts with more settled segments: those of `settled` that are in them."""
        paths = (path for layout in self.topics.values() for path in layout.paths)
        known = {path: settled[path] for path in paths if path in settled}
        return Layouts(self.topics, {**self.settled, **known})

    def unanswered(self, resolved: Mapping[str, Resolved]) -> tuple[str, ...]:
        """Segments whose owners have not answered so far."""
        return tuple(path for path in self.segments if path not in resolved)


def never_owned(paths: Sequence[str], ledgers: Sequence[KeyValue | None]) -> dict[str, Position]:
    """The `paths` that no broker had owned at the revision at which `ledgers`, their `/ledger` records, were read.

    ▲ An owner lists a ledger before it does anything else. So the segment was empty at that revision, without an op of
    any transaction committed by then."""
    return {path: EARLIEST for path, record in zip(paths, ledgers, strict=True) if record is None}


def settled_in(snapshot: Snapshot) -> dict[str, Position]:
    """Segments that no later cut has to ask, with their ends: sealed, and everything decided.

    ▲ Sealed in the topic's record, which is final: a seal only in the segment's own record may be undone.

    Such a segment gets no more entries and has no open transaction, so its bounds never change: a cut's cost does not
    grow with a topic's history.
    """
    return {path: one.end for path, one in snapshot.segments.items() if one.sealed and one.resolved == one.end}


def topic_keys(topics: Sequence[TopicName]) -> list[bytes]:
    return [keys.topic(topic.path) for topic in topics]


def read_layouts(topics: Sequence[TopicName], found: Sequence[KeyValue | None]) -> Layouts:
    """The layouts in the records under `topic_keys`. Raises `TopicNotFound`, `DataCorrupt`."""
    layouts: dict[TopicName, Layout] = {}
    for topic, record in zip(topics, found, strict=True):
        if record is None:
            raise TopicNotFound(f"{topic} does not exist: create it first, or take the snapshot without it")
        topology = Topology(topic, records.decode(TopicRecord, record.value, key=record.key))
        if topology.deleting:
            raise TopicNotFound(f"{topic} is being deleted")
        layouts[topic] = Layout(record.create_revision, topology)
    return Layouts(layouts)


class Cut:
    """Plans the last read of a cut, and makes the snapshot from it. `resolved` and `tails` by segment path.

    Both work in steps: a quarter of a million transactions may be open, and a cut may have ten thousand topics."""

    def __init__(
        self, layouts: Layouts, resolved: Mapping[str, Resolved], revision: int, tails: Mapping[str, Tail]
    ) -> None:
        self._layouts = layouts
        self._resolved = resolved
        self._revision = revision
        self._tails = tails
        self._paths = layouts.segments
        self._named: list[TxnId] = []

    def final_keys(self) -> Steps[list[bytes]]:
        """▲ Read them together, at one revision, after every answer: only this shows that each owner was the owner the
        whole time."""
        undecided: dict[TxnId, None] = {}
        for tail in self._tails.values():
            for named in in_steps(tail.undecided):
                undecided |= dict.fromkeys(named)
                yield
        self._named = yield from _in_order(undecided, _tcid)
        wanted = [*topic_keys(list(self._layouts.topics)), *map(keys.owner, self._paths), keys.GC_HORIZON]
        for part in in_steps(self._named):
            wanted += map(keys.txn, part)
            yield
        return wanted

    def conclude(self, found: Sequence[KeyValue | None]) -> Steps[Snapshot | StartOver]:
        """The snapshot, from the records under `final_keys`, or why to start over. Raises `DataCorrupt`."""
        topics, owners = len(self._layouts.topics), len(self._paths)
        moved = yield from self._topic_gone(found[:topics])
        moved = moved or (yield from self._owner_moved(found[topics : topics + owners]))
        headers = found[topics + owners + 1 :]
        moved = moved or self._collected(headers, found[topics + owners])
        return moved or (yield from self._snapshot(headers))

    def _topic_gone(self, found: Sequence[KeyValue | None]) -> Steps[StartOver | None]:
        for part in in_steps(zip(self._layouts.topics.items(), found, strict=True), TOPICS_AT_ONCE):
            for (topic, layout), record in part:
                if record is None or record.create_revision != layout.created:
                    return StartOver(f"{topic} was deleted meanwhile")
                now = records.decode(TopicRecord, record.value, key=record.key)
                if now.deleting_ms:
                    return StartOver(f"{topic} is being deleted")  # its owners may have erased entries already
            yield
        return None

    def _owner_moved(self, found: Sequence[KeyValue | None]) -> Steps[StartOver | None]:
        # ▲ A former owner unaware of its successor answers with an end that the successor has passed.
        for part in in_steps(zip(self._paths, found, strict=True)):
            for path, record in part:
                epoch = 0 if record is None else record.create_revision
                answered = (self._resolved[path].epoch, self._tails[path].epoch)
                if answered != (epoch, epoch):
                    return StartOver(
                        f"{path} changed its owner: ownership epochs {answered[0]}, {answered[1]}, {epoch}"
                    )
                if self._tails[path].end < self._resolved[path].position:
                    return StartOver(f"{path} ended at {self._tails[path].end}, before what it had resolved")
            yield
        return None

    def _collected(self, headers: Sequence[KeyValue | None], horizon: KeyValue | None) -> StartOver | None:
        """▲ An absent header tells no decision: the transaction was decided before R or after it."""
        if None not in headers:
            return None
        raised = 0 if horizon is None else records.decode(GcHorizon, horizon.value, key=horizon.key).revision
        txn_id = self._named[headers.index(None)]
        return StartOver(f"{txn_id} was collected meanwhile (horizon {raised}, cut at {self._revision})")

    def _snapshot(self, headers: Sequence[KeyValue | None]) -> Steps[Snapshot]:
        pending: list[TxnId] = []
        aborted: dict[tuple[TxnId, int | None], None] = {}
        for tail in self._tails.values():
            for noted in in_steps(tail.aborted):
                aborted |= dict.fromkeys(noted)
                yield
        counted: dict[TxnId, tuple[int, ...]] = {}
        for part in in_steps(zip(self._named, headers, strict=True)):
            for txn_id, record in part:
                decision = None if record is None else self._decided_by_then(txn_id, record)
                if decision is None:
                    pending.append(txn_id)
                elif not decision.committed:
                    aborted[txn_id, None] = None
                elif decision.writers is not None:
                    counted[txn_id] = tuple(sorted(decision.writers))
            yield
        whole: list[TxnId] = []
        losers: list[tuple[TxnId, int]] = []
        for some in in_steps(aborted):
            whole += (txn_id for txn_id, writer in some if writer is None)
            losers += ((txn_id, writer) for txn_id, writer in some if writer is not None)
            yield
        topics: dict[str, TopicBounds] = {}
        for layouts in in_steps(self._layouts.topics.items(), TOPICS_AT_ONCE):
            topics |= {str(topic): self._bounds(layout) for topic, layout in layouts}
            yield
        return Snapshot(
            revision=self._revision,
            topics=topics,
            pending=tuple(pending),
            aborted=tuple((yield from _in_order(whole, _tcid))),
            losers=tuple((yield from _in_order(losers, lambda loser: loser[0].tcid))),
            counted=counted,
        )

    def _decided_by_then(self, txn_id: TxnId, record: KeyValue) -> Decision | None:
        """The decision, if it was made at or before R: the cut checks the header instead of trusting the owner."""
        if record.version == 1 or record.mod_revision > self._revision:
            return None
        header = records.decode(Header, record.value, key=record.key)
        return Decision.from_header(txn_id, header, record.mod_revision)

    def _bounds(self, layout: Layout) -> TopicBounds:
        bounds: dict[str, SegmentBounds] = {}
        for path, segment_id in layout.paths.items():
            sealed = layout.topology.segments[segment_id].state == SEALED
            if (end := self._layouts.settled.get(path)) is not None:
                bounds[path] = SegmentBounds(end, end, sealed=sealed)
            else:
                bounds[path] = SegmentBounds(self._resolved[path].position, self._tails[path].end, sealed=sealed)
        return TopicBounds(layout.topology.epoch, bounds, layout.topology.record.lost_id)


def _tcid(txn_id: TxnId) -> int:
    return txn_id.tcid


def _in_order(items: Iterable[T], tcid: Callable[[T], int]) -> Steps[list[T]]:
    """Sort one coordinator id after the other: each has a bounded number of open transactions."""
    found: dict[int, list[T]] = {}
    for part in in_steps(items):
        for item in part:
            found.setdefault(tcid(item), []).append(item)
        yield
    in_order: list[T] = []
    for _, of_one in sorted(found.items()):
        in_order += sorted(of_one)
        yield
    return in_order
