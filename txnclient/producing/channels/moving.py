"""Routes a producer's messages while segments are split and merged. Pure.

Source: DESIGN §8 ("Clients hold a layout stream"). A segment is *leaving* when the layout no longer shows it as active
and the producer has unanswered entries there: its owner must say which of them it holds.

▲ Until then new messages of its range queue behind the entries in doubt, which keeps order per key; and nothing is
written to a segment that came from it (S11). A producer asks only parents with unanswered entries of its own: with the
others everything is settled, and a segment that it never wrote to holds none of its entries.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from txnclient.connection.topic_layout import ACTIVE, SegmentInfo, TopicLayout
from txnwire.ids import hash_key, hash_keys

Group = tuple[SegmentInfo | None, list[int] | None]
"""A segment, None for messages without a key; and the indexes of the messages, None for all of them."""


class Routes:
    """Routes one producer's messages by its topic's layout. `leaving` is in the order of segment ids: parents first."""

    def __init__(self, layout: TopicLayout) -> None:
        self.layout = layout
        self._life = layout.life
        self.leaving: dict[int, SegmentInfo] = {}
        self.version = 0
        """Rises whenever routes may change."""

    def follow(self, layout: TopicLayout, used: Iterable[SegmentInfo]) -> None:
        """Follow a newer layout; `used`: the segments that the producer has a channel to. Those no longer active are
        leaving."""
        if layout.epoch != self.layout.epoch or layout.active != self.layout.active:
            self.version += 1
        self.layout = layout
        self._life = self._life or layout.life
        for segment in sorted(used, key=_by_id):
            if not self.is_active(segment):
                self.leaving.setdefault(segment.segment_id, segment)

    def is_another(self, layout: TopicLayout) -> bool:
        """Whether the layout belongs to a new topic of the name: none of these segments or their descendants exist."""
        return layout.is_another(self._life)

    def is_active(self, segment: SegmentInfo) -> bool:
        known = self.layout.segments.get(segment.segment_id)
        return known is not None and known.path == segment.path and known.state == ACTIVE

    def is_gone(self, segment: SegmentInfo) -> bool:
        """Whether the segment has left the layout."""
        known = self.layout.segments.get(segment.segment_id)
        return known is None or known.path != segment.path

    def left(self, segment: SegmentInfo) -> None:
        """The segment has left: no entry is in doubt there."""
        del self.leaving[segment.segment_id]
        self.version += 1

    def segment_of_hash(self, key_hash: int) -> SegmentInfo:
        """The segment for a hash: ▲ a leaving one with entries in doubt in its range, else the active one."""
        if self.leaving:
            for segment in self.leaving.values():
                if segment.range[0] <= key_hash <= segment.range[1]:
                    return segment
        return self.layout.segment_of_hash(key_hash)

    def held_back(self, segment: SegmentInfo) -> bool:
        """▲ S11: whether an ancestor has still to answer; until then nothing may be written to it."""
        if not self.leaving:
            return False
        frontier = list(segment.parents)
        reached: dict[int, None] = {}
        while frontier:
            parent = frontier.pop()
            if parent in self.leaving:
                return True
            known = self.layout.segments.get(parent)
            if known is not None and parent not in reached:
                reached[parent] = None
                frontier.extend(known.parents)
        return False

    def groups(self, keys: Sequence[bytes | None] | None) -> list[Group]:
        """Messages grouped by segment, in the order of their first message; those without a key stay together."""
        if keys is None:
            return [(None, None)]
        active = self.layout.active
        if len(active) == 1 and not self.leaving and None not in keys:
            return [(active[0], None)]
        if self.leaving or None in keys:
            found = self._groups_one_by_one(keys)
        else:
            indexes: list[list[int]] = [[] for _ in active]
            add = [one.append for one in indexes]
            for index, number in enumerate(self.layout.numbers_of_hashes(hash_keys(keys))):  # type: ignore[arg-type]
                add[number](index)
            taken = [number for number, one in enumerate(indexes) if one]
            found = {number: (active[number], indexes[number]) for number in sorted(taken, key=lambda n: indexes[n][0])}
        groups = list(found.values())
        return [(groups[0][0], None)] if len(groups) == 1 else list(groups)

    def _groups_one_by_one(self, keys: Sequence[bytes | None]) -> dict[int, tuple[SegmentInfo | None, list[int]]]:
        found: dict[int, tuple[SegmentInfo | None, list[int]]] = {}
        for index, key in enumerate(keys):
            segment = None if key is None else self.segment_of_hash(hash_key(key))
            number = -1 if segment is None else segment.segment_id
            group = found.get(number)
            if group is None:
                group = found[number] = (segment, [])
            group[1].append(index)
        return found


def _by_id(segment: SegmentInfo) -> int:
    return segment.segment_id
