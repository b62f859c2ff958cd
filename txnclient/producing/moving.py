"""Where a producer's messages go while segments are split and merged. Pure.

Source: DESIGN §8 ("Clients hold a layout stream"). A segment that the layout does not show as active any more, and to
which the producer has written what is not answered yet, is *leaving*: its owner has to say what of that it holds.

▲ Until then whatever belongs into its range queues behind what is in doubt there, so that order per key is kept also
against what is sent meanwhile; and nothing is written to a segment that has come from it (S11). A producer asks only
parents to which it has written something unanswered: with the others everything is settled, and a segment that it never
wrote to can hold nothing of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from txnclient.connection.topic_layout import ACTIVE, SegmentInfo, TopicLayout
from txnwire.ids import hash_key, hash_keys

Group = tuple[SegmentInfo | None, list[int] | None]
"""A segment, None for messages without a key; and the indexes of the messages, None where it is all of them."""


class Routes:
    """One producer's view of its topic. `leaving` in the order of segment ids, so a parent comes before its
    children."""

    def __init__(self, layout: TopicLayout) -> None:
        self.layout = layout
        self._life = layout.life
        self.leaving: dict[int, SegmentInfo] = {}
        self.version = 0
        """Rises whenever a message may go elsewhere than before."""

    def follow(self, layout: TopicLayout, used: Iterable[SegmentInfo]) -> None:
        """A newer layout; `used`: the segments the producer has a channel to. Those of them that are not active any
        more are leaving."""
        if layout.epoch != self.layout.epoch or layout.active != self.layout.active:
            self.version += 1
        self.layout = layout
        self._life = self._life or layout.life
        for segment in sorted(used, key=_by_id):
            if not self.is_active(segment):
                self.leaving.setdefault(segment.segment_id, segment)

    def is_another(self, layout: TopicLayout) -> bool:
        """Whether it is of another topic of the name, made since: none of these segments, nor what came of them, is
        there any more."""
        return layout.is_another(self._life)

    def is_active(self, segment: SegmentInfo) -> bool:
        known = self.layout.segments.get(segment.segment_id)
        return known is not None and known.path == segment.path and known.state == ACTIVE

    def is_gone(self, segment: SegmentInfo) -> bool:
        """Whether the layout does not know it any more: nobody can say what it held."""
        known = self.layout.segments.get(segment.segment_id)
        return known is None or known.path != segment.path

    def left(self, segment: SegmentInfo) -> None:
        """Nothing is in doubt there any more."""
        del self.leaving[segment.segment_id]
        self.version += 1

    def segment_of_hash(self, key_hash: int) -> SegmentInfo:
        """Where a message goes now: ▲ behind what is in doubt in its range, else to the active segment."""
        if self.leaving:
            for segment in self.leaving.values():
                if segment.range[0] <= key_hash <= segment.range[1]:
                    return segment
        return self.layout.segment_of_hash(key_hash)

    def held_back(self, segment: SegmentInfo) -> bool:
        """▲ S11: whether something it has come from has still to answer. Nothing may be written to it before."""
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
        """Messages by where they go, in the order of the first of each; those without a key stay together."""
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
