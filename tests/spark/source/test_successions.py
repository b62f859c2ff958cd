"""Which segments follow which, over layouts made by splits and merges."""

from __future__ import annotations

import random

import pytest

from pyspark_txnstore.source.successions import successions
from txnwire.names import SegmentName, TopicName

TOPIC = TopicName("t", "n", "name")


def layouts(chance: random.Random, changes: int) -> list[SegmentName]:
    """Of a topic that was split and merged so often, all of its segments, in any order."""
    active = [SegmentName(TOPIC, 0, 0xFFFF, 0)]
    made = list(active)
    for _ in range(changes):
        active.sort(key=lambda one: one.lo)
        at = chance.randrange(len(active))
        if len(active) > 1 and chance.random() < 0.4:
            at = min(at, len(active) - 2)
            parents, ranges = active[at : at + 2], [(active[at].lo, active[at + 1].hi)]
        elif active[at].lo < active[at].hi:
            middle = (active[at].lo + active[at].hi) // 2
            parents, ranges = [active[at]], [(active[at].lo, middle), (middle + 1, active[at].hi)]
        else:
            continue
        children = [SegmentName(TOPIC, lo, hi, len(made) + number) for number, (lo, hi) in enumerate(ranges)]
        active = [one for one in active if one not in parents] + children
        made += children
    chance.shuffle(made)
    return made


def came_before(one: SegmentName, other: SegmentName) -> bool:
    return one.segment_id < other.segment_id and one.lo <= other.hi and other.lo <= one.hi


@pytest.mark.parametrize("seed", range(20))
def test_whoever_shares_keys_is_behind_all_that_had_them(seed: int) -> None:
    """Also where some are missing, for they have nothing to be read."""
    chance = random.Random(seed)
    names = layouts(chance, 30)
    names = names[: chance.randrange(1, len(names) + 1)]
    behind: dict[int, set[int]] = {number: set() for number in range(len(names))}
    found = sorted(successions(names), key=lambda pair: names[pair[1]].segment_id)
    for older, younger in found:
        assert came_before(names[older], names[younger])
        behind[younger] |= {older} | behind[older]
    for number, younger in enumerate(names):
        assert {other for other, older in enumerate(names) if came_before(older, younger)} <= behind[number]


def test_there_are_a_few_for_each_segment_whatever_the_history() -> None:
    names = layouts(random.Random(7), 2_000)
    assert len(names) > 2_000
    assert sum(1 for _ in successions(names)) <= 3 * len(names)
