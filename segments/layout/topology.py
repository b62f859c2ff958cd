"""The segment DAG of one topic (DESIGN §8; PIP-471, "Scalable topics"). Pure.

The active leaves of the DAG tile the hash space 0000–ffff exactly, at every layout epoch. A split seals one parent and
creates two children; a merge seals two adjacent parents and creates one child. Ids count up and are never reused, so a
parent's id is always below its children's and the graph cannot have a cycle.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any, Final

from msgspec.structs import replace

from txnstore.records import SegmentEntry, TopicRecord
from txnwire.errors import DataCorrupt, InvalidArgument
from txnwire.ids import HASH_SPACE
from txnwire.names import SegmentName, TopicName

ACTIVE: Final = "ACTIVE"
SEALED: Final = "SEALED"

MAX_SEGMENTS_AT_CREATION = 256


class Topology:
    """Represents one layout of one topic, immutable and valid: the constructor checks all rules of the DAG.

    Attributes: `topic`, `record` (the etcd record), `segments` (id → entry, in id order), `active` (the active entries
    in hash order), `life` (the create revision of the etcd record, which tells topics of one name apart; 0 if not
    given).
    """

    def __init__(self, topic: TopicName, record: TopicRecord, *, life: int = 0) -> None:
        """Raises `DataCorrupt` that names the topic and the rule that `record` breaks."""
        self.topic = topic
        self.record = record
        self.life = life
        self.segments: dict[int, SegmentEntry] = {entry.id: entry for entry in sorted(record.segments, key=_by_id)}
        self.active: tuple[SegmentEntry, ...] = tuple(
            sorted((entry for entry in record.segments if entry.state == ACTIVE), key=_by_range)
        )
        if (flaw := _find_flaw(record, self.segments, self.active)) is not None:
            raise DataCorrupt(f"/topic/{topic.path} at layout epoch {record.epoch}: {flaw}")
        self._starts = [entry.lo for entry in self.active]

    @property
    def epoch(self) -> int:
        return self.record.epoch

    @property
    def deleting(self) -> bool:
        """Whether the topic is being deleted: only the processes that delete it still use it."""
        return self.record.deleting_ms != 0

    def is_going(self, segment_id: int) -> bool:
        """Whether a segment is being erased: with its topic, or pruned alone because nothing of it is left."""
        return self.deleting or segment_id in self.record.pruning

    @property
    def policies(self) -> Mapping[str, Any]:
        return self.record.policies

    @cached_property
    def paths(self) -> dict[int, str]:
        """Segment id → path (`tenant/namespace/name/0000-7fff-3`), in id order."""
        return {
            entry.id: SegmentName(self.topic, entry.lo, entry.hi, entry.id).path for entry in self.segments.values()
        }

    @cached_property
    def active_paths(self) -> tuple[str, ...]:
        """Paths of the active segments, in hash order."""
        return tuple(self.paths[entry.id] for entry in self.active)

    def lookup(self, key_hash: int) -> SegmentEntry:
        """The active segment whose range holds the 16-bit `key_hash`. Raises `InvalidArgument` outside 0–0xffff."""
        if not 0 <= key_hash < HASH_SPACE:
            raise InvalidArgument(f"key hash {key_hash} is not in 0..{HASH_SPACE - 1}")
        return self.active[bisect_right(self._starts, key_hash) - 1]

    def entry(self, segment_id: int) -> SegmentEntry:
        """Raises `InvalidArgument` for an id this layout does not have."""
        entry = self.segments.get(segment_id)
        if entry is None:
            raise InvalidArgument(f"{self.topic} has no segment {segment_id} at layout epoch {self.epoch}")
        return entry

    def is_of_earlier_life(self, segment_id: int) -> bool:
        """Whether the segment belonged to a deleted topic of this name: ids are never reused."""
        return segment_id < self.record.first_segment_id

    def is_pruned(self, segment_id: int) -> bool:
        """Whether it was a segment of this topic or, if the record does not tell, of an earlier one of this name."""
        unused = segment_id >= self.record.next_segment_id or segment_id in self.segments
        return not unused and not self.is_of_earlier_life(segment_id)

    def check_has(self, path: str) -> None:
        """Raises `InvalidArgument` if the segment is not in this layout; the message says where it belonged."""
        named = SegmentName.from_path(path)
        segment_id = named.segment_id
        if self.paths.get(segment_id) == path:
            return
        if named.topic != self.topic:
            found = f"belongs to {named.topic}"
        elif self.is_of_earlier_life(segment_id):
            found = "belonged to an earlier topic of this name, which was deleted"
        elif self.is_pruned(segment_id):
            earlier = ", or belonged to a deleted topic of this name" * (self.record.first_segment_id < 0)
            found = f"was drained, emptied and pruned{earlier}"
        else:
            found = "never was there"
        raise InvalidArgument(
            f"cannot start at a message of {named}: {self.topic} has no such segment, it {found}; start by time, or at "
            "'earliest'"
        )

    def ancestors(self, segment_id: int) -> tuple[int, ...]:
        """Ids of all ancestors of `segment_id`, in id order: each comes after its own ancestors."""
        return self._reach(segment_id, "parents")

    def descendants(self, segment_id: int) -> tuple[int, ...]:
        """Ids of all descendants of `segment_id`, in id order."""
        return self._reach(segment_id, "children")

    def _reach(self, segment_id: int, edges: str) -> tuple[int, ...]:
        found: dict[int, None] = {}
        frontier: list[int] = list(getattr(self.entry(segment_id), edges))
        while frontier:
            reached = frontier.pop()
            if reached not in found:
                found[reached] = None
                frontier.extend(getattr(self.segments[reached], edges))
        return tuple(sorted(found))

    def split(self, segment_id: int, *, at: int | None = None) -> Topology:
        """The layout in which `segment_id` is sealed and two children tile its range, the upper one from hash `at`
        (default: the middle). Raises `InvalidArgument` if it is not active or `at` leaves a child empty."""
        parent = self._active_entry(segment_id, "split")
        middle = (parent.lo + parent.hi + 1) // 2 if at is None else at
        if not parent.lo < middle <= parent.hi:
            raise InvalidArgument(
                f"cannot split {self.paths[segment_id]} at {middle:#06x}: expected a hash in "
                f"{parent.lo + 1:#06x}..{parent.hi:#06x}, so that both children hold something"
            )
        return self._replace([parent], [(parent.lo, middle - 1), (middle, parent.hi)])

    def merge(self, segment_a: int, segment_b: int) -> Topology:
        """The layout in which two adjacent active segments are sealed and one child holds both their ranges.
        Raises `InvalidArgument` if one is not active or they are not neighbours."""
        lower, upper = sorted(
            (self._active_entry(segment_a, "merge"), self._active_entry(segment_b, "merge")), key=_by_range
        )
        if lower.hi + 1 != upper.lo:
            raise InvalidArgument(
                f"cannot merge {self.paths[segment_a]} and {self.paths[segment_b]}: their hash ranges are not adjacent"
            )
        return self._replace([lower, upper], [(lower.lo, upper.hi)])

    def _active_entry(self, segment_id: int, intent: str) -> SegmentEntry:
        entry = self.entry(segment_id)
        if entry.state != ACTIVE:
            heirs = " and ".join(self.paths[child] for child in entry.children if child in self.paths)
            raise InvalidArgument(
                f"cannot {intent} {self.paths[segment_id]}: it is {entry.state}, not {ACTIVE}"
                + (f"; {heirs} came of it" if heirs else "")
            )
        return entry

    def _replace(self, parents: Sequence[SegmentEntry], ranges: Sequence[tuple[int, int]]) -> Topology:
        first = self.record.next_segment_id
        children = [
            _active(first + offset, lo, hi, [parent.id for parent in parents]) for offset, (lo, hi) in enumerate(ranges)
        ]
        child_ids = [child.id for child in children]
        sealed = {
            p.id: SegmentEntry(id=p.id, lo=p.lo, hi=p.hi, state=SEALED, parents=p.parents, children=child_ids)
            for p in parents
        }
        segments = [sealed.get(entry.id, entry) for entry in self.segments.values()] + children
        next_id = first + len(children)
        record = replace(self.record, epoch=self.epoch + 1, next_segment_id=next_id, segments=segments)
        return Topology(self.topic, record, life=self.life)

    def prune(self, segment_id: int) -> Topology:
        """The layout without a sealed segment that has no parents left. The epoch stays: producers and consumers need
        not react. Raises `InvalidArgument` for any other segment."""
        entry = self.entry(segment_id)
        if entry.state != SEALED or entry.parents:
            raise InvalidArgument(
                f"cannot prune {self.paths[segment_id]}: it is {entry.state}, with parents {entry.parents}"
            )
        left = [
            replace(one, parents=[parent for parent in one.parents if parent != segment_id])
            for one in self.segments.values()
            if one.id != segment_id
        ]
        return Topology(self.topic, replace(self.record, segments=left), life=self.life)


def create_record(
    segments: int, *, policies: Mapping[str, Any], created_ms: int, first_segment_id: int = 0
) -> TopicRecord:
    """The first layout of a topic: `segments` active ones whose widths differ by at most one hash, with ids from
    `first_segment_id`.

    Raises `InvalidArgument` outside 1..`MAX_SEGMENTS_AT_CREATION`.
    """
    if not 1 <= segments <= MAX_SEGMENTS_AT_CREATION:
        raise InvalidArgument(f"{segments} segments: expected 1 to {MAX_SEGMENTS_AT_CREATION}")
    bounds = [index * HASH_SPACE // segments for index in range(segments + 1)]
    return TopicRecord(
        epoch=1,
        next_segment_id=first_segment_id + segments,
        segments=[
            _active(first_segment_id + index, bounds[index], bounds[index + 1] - 1, []) for index in range(segments)
        ],
        policies=dict(policies),
        created_ms=created_ms,
        created_segments=segments,
        first_segment_id=first_segment_id,
        lost_id=first_segment_id - 1,  # segments of a deleted topic of this name
    )


def _active(segment_id: int, lo: int, hi: int, parents: list[int]) -> SegmentEntry:
    return SegmentEntry(id=segment_id, lo=lo, hi=hi, state=ACTIVE, parents=parents, children=[])


def _by_id(entry: SegmentEntry) -> int:
    return entry.id


def _by_range(entry: SegmentEntry) -> tuple[int, int]:
    return entry.lo, entry.hi


def _find_flaw(record: TopicRecord, segments: Mapping[int, SegmentEntry], active: Sequence[SegmentEntry]) -> str | None:
    """The rule that a layout breaks, or None."""
    if len(segments) != len(record.segments):
        return "two segments have one id"
    for entry in segments.values():
        if (flaw := _find_entry_flaw(entry, record.next_segment_id, segments)) is not None:
            return f"segment {entry.id}: {flaw}"
    if (gap := _find_gap(active, 0, HASH_SPACE - 1)) is not None:
        return f"the active segments do not tile the hash space: {gap}"
    return None


def _find_entry_flaw(entry: SegmentEntry, next_id: int, segments: Mapping[int, SegmentEntry]) -> str | None:
    if not 0 <= entry.id < next_id:
        return f"its id is not below next_segment_id {next_id}"
    if not 0 <= entry.lo <= entry.hi < HASH_SPACE:
        return f"{entry.lo}..{entry.hi} is no hash range"
    if entry.state not in (ACTIVE, SEALED):
        return f"unknown state {entry.state!r}"
    if (entry.state == SEALED) != bool(entry.children):
        return f"it is {entry.state} with children {entry.children}"
    for other in entry.parents:
        if other >= entry.id or other not in segments or entry.id not in segments[other].children:
            return f"its parent {other} does not know it"
    for other in entry.children:
        if other <= entry.id or other not in segments or entry.id not in segments[other].parents:
            return f"its child {other} does not know it"
    children = sorted((segments[other] for other in entry.children), key=_by_range)
    if children and (gap := _find_gap(children, entry.lo, entry.hi)) is not None:
        return f"its children do not hold its range: {gap}"
    return None


def _find_gap(entries: Sequence[SegmentEntry], lo: int, hi: int) -> str | None:
    """Where `entries`, in hash order, leave a gap in `lo`..`hi` or overlap; None if they tile it."""
    if not entries or entries[0].lo > lo or entries[-1].hi < hi:
        return f"{lo:04x}-{hi:04x} is not held whole"
    for lower, upper in pairwise(entries):
        if lower.hi + 1 != upper.lo:
            return f"between {lower.lo:04x}-{lower.hi:04x} and {upper.lo:04x}-{upper.hi:04x}"
    return None
