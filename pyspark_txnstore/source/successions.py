"""Which segments of a topic follow which, key by key. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence

from txnwire.names import SegmentName


def successions(names: Sequence[SegmentName]) -> Iterator[tuple[int, int]]:
    """(older, younger), by their places in `names`, of one topic: keys of the younger one went to the older one before,
    and to none of the others in between. ▲ Ids of a topic's segments count up, and those that are active at one time
    share no key: of two that do the one with the lower id had been sealed.

    At most three for each segment, however long the topic's history is: the ranges that its segments leave to younger
    ones are kept in order, and each younger one takes its range from those it overlaps."""
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
