"""Which segments of a topic succeed which, key by key. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence

from txnwire.names import SegmentName


def successions(names: Sequence[SegmentName]) -> Iterator[tuple[int, int]]:
    """Returns pairs (older, younger) of one topic's segments, as indexes in `names`: keys of the younger one went to
    the older one before, and to no other in between. ▲ Segment ids count up, and segments active at the same time share
    no key: of two that share one, the one with the lower id was sealed first.

    At most three pairs per segment, however long the history: the ranges that older segments leave are kept in order,
    and each younger segment takes its range from those it overlaps."""
    los: list[int] = []
    his: list[int] = []
    owners: list[int] = []
    for number in sorted(range(len(names)), key=lambda one: names[one].segment_id):
        lo, hi = names[number].lo, names[number].hi
        first, end = bisect_left(his, lo), bisect_right(los, hi)
        yield from ((older, number) for older in dict.fromkeys(owners[first:end]))
        left = [(los[first], lo - 1, owners[first])] if first < end and los[first] < lo else []
        right = [(hi + 1, his[end - 1], owners[end - 1])] if first < end and his[end - 1] > hi else []
        taken = [*left, (lo, hi, number), *right]
        los[first:end] = [one[0] for one in taken]
        his[first:end] = [one[1] for one in taken]
        owners[first:end] = [one[2] for one in taken]
