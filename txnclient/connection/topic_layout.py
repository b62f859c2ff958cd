"""A topic's segments as a client sees them: the public description, and the routing table for messages.

Source: DESIGN §3 ("Routing") and §8. Pure.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise

from txnwire.errors import ServiceError, TopicNotFound
from txnwire.ids import HASH_SPACE
from txnwire.names import SEGMENT_SCHEME, TOPIC_SCHEME, SegmentName
from txnwire.proto import txn_pb2 as pb

ACTIVE = "ACTIVE"


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """One node of a topic's DAG of segments."""

    segment_id: int
    name: str
    """`segment://tenant/namespace/topic/<lo>-<hi>-<id>`"""
    path: str
    """The name without its scheme, as in a MessageId and in etcd keys."""
    state: str
    """`"ACTIVE"` or `"SEALED"`"""
    range: tuple[int, int]
    """Inclusive bounds of the 16-bit key hashes it holds."""
    parents: tuple[int, ...]
    children: tuple[int, ...]
    owner: str
    """Id of the broker that serves it, empty while none does."""
    owner_address: str


@dataclass(frozen=True, slots=True)
class TopicLayout:
    """The DAG of a topic at one layout epoch."""

    topic: str
    epoch: int
    segments: dict[int, SegmentInfo]
    revision: tuple[int, int]
    """The metadata store's revisions at which the segments were written and their owners read. ▲ A lower one never
    replaces a higher one: segments missing in an old layout would be taken for gone."""
    lost_id: int
    """No segment with a higher id that is missing in `segments` ever held anything; -1: no missing segment did."""
    life: int
    """A number that differs between topics of the same name; 0: unknown."""
    active: tuple[SegmentInfo, ...] = field(repr=False)
    """The leaves in the order of their ranges; together they tile 0000-ffff."""
    _bounds: tuple[int, ...] = field(repr=False)
    _by_path: dict[str, SegmentInfo] = field(repr=False)

    @staticmethod
    def from_wire(layout: pb.Layout) -> TopicLayout:
        """Decode a layout. Raises `TopicNotFound` if it says that the topic does not exist."""
        if not layout.exists:
            raise TopicNotFound(f"topic {layout.topic!r} does not exist: create it first")
        segments = {s.segment_id: _segment_info(s) for s in layout.segments}
        active = tuple(sorted((s for s in segments.values() if s.state == ACTIVE), key=lambda s: s.range))
        return TopicLayout(
            topic=layout.topic,
            epoch=layout.epoch,
            segments=segments,
            revision=revision_of(layout),
            lost_id=layout.lost_segment_id if layout.HasField("lost_segment_id") else -1,
            life=layout.life,
            active=active,
            _bounds=tuple(s.range[0] for s in active),
            _by_path={s.path: s for s in segments.values()},
        )

    def segment_of_hash(self, key_hash: int) -> SegmentInfo:
        """The active segment that holds a 16-bit key hash."""
        segment = self.active[bisect_right(self._bounds, key_hash) - 1]
        if not segment.range[0] <= key_hash <= segment.range[1]:
            raise ServiceError(f"layout {self.epoch} of {self.topic} has no active segment for hash {key_hash:04x}")
        return segment

    def numbers_of_hashes(self, hashes: Sequence[int]) -> list[int]:
        """For each hash the index of its segment in `active`, which must have no gap."""
        table = _numbers(self._bounds)
        return [table[key_hash] for key_hash in hashes]

    def is_another(self, life: int) -> bool:
        """Whether it belongs to another topic of the name than the one of this `life`."""
        return 0 not in (life, self.life) and life != self.life

    def segment_by_path(self, path: str) -> SegmentInfo | None:
        return self._by_path.get(path)

    def has_lost(self, path: str) -> bool:
        """Whether the segment is gone for good: retention took all of it, or it was of a deleted topic of this name."""
        return path not in self._by_path and SegmentName.from_path(path).segment_id <= self.lost_id


@lru_cache(maxsize=64)
def _numbers(bounds: tuple[int, ...]) -> array[int]:
    """The index of the segment for each 16-bit hash."""
    table = array("H")
    for number, (low, above) in enumerate(pairwise((*bounds, HASH_SPACE))):
        table.extend(array("H", (number,)) * (above - low))
    return table


def _segment_info(segment: pb.Segment) -> SegmentInfo:
    return SegmentInfo(
        segment_id=segment.segment_id,
        name=SEGMENT_SCHEME + segment.path,
        path=segment.path,
        state=segment.state,
        range=(segment.lo, segment.hi),
        parents=tuple(segment.parents),
        children=tuple(segment.children),
        owner=segment.owner,
        owner_address=segment.owner_address,
    )


def revision_of(layout: pb.Layout) -> tuple[int, int]:
    return layout.topic_revision, layout.revision


def topic_of_segment(path: str) -> str:
    """`topic://…` of a segment's path."""
    return TOPIC_SCHEME + path.rpartition("/")[0]
