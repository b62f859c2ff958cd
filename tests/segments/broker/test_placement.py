"""Placement: balanced, sticky, few moves, blind to order, and one goal for all who carry out parts of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segments.broker.placement import place

Rows = list[list[str]]


def row(topic: int, segments: int) -> list[str]:
    return [f"t/n/{topic}/0000-ffff-{number}" for number in range(segments)]


ROWS = st.lists(st.integers(0, 9), max_size=8).map(lambda sizes: [row(topic, n) for topic, n in enumerate(sizes)])
BROKERS = st.lists(st.sampled_from([f"b{number}" for number in range(6)]), min_size=1, unique=True)


@st.composite
def worlds(draw: st.DrawFn) -> tuple[Rows, dict[str, str], list[str]]:
    """Some segments are owned, some of them by brokers that are gone."""
    rows, brokers = draw(ROWS), draw(BROKERS)
    owner = st.sampled_from([*brokers, *brokers, *brokers, "gone", ""])
    owners = {segment: name for one in rows for segment in one if (name := draw(owner))}
    return rows, owners, brokers


def counts(placed: Mapping[str, str], brokers: list[str]) -> list[int]:
    found = Counter(placed.values())
    return sorted(found[broker] for broker in brokers)


def fewest_moves(rows: Rows, owners: Mapping[str, str], brokers: list[str]) -> int:
    """How many of the segments that live brokers own must move for counts to differ by one at most."""
    held = Counter(owner for owner in owners.values() if owner in brokers)
    share, larger = divmod(sum(len(one) for one in rows), len(brokers))
    above = sorted((held[broker] - share for broker in brokers if held[broker] > share), reverse=True)
    return sum(above) - min(larger, len(above))


@given(worlds())
def test_every_segment_has_a_live_broker_counts_differ_by_one_and_as_few_move_as_can(
    world: tuple[Rows, dict[str, str], list[str]],
) -> None:
    rows, owners, brokers = world
    placed = place(rows, owners, brokers)
    assert sorted(placed) == sorted(segment for one in rows for segment in one)
    found = counts(placed, brokers)
    assert sum(found) == len(placed)
    assert found[-1] - found[0] <= 1
    moved = [one for one, owner in owners.items() if owner in brokers and placed[one] != owner]
    assert len(moved) == fewest_moves(rows, owners, brokers)


@given(worlds(), st.randoms(use_true_random=False))
def test_the_order_in_which_a_broker_has_heard_of_things_counts_for_nothing(world, random) -> None:  # type: ignore[no-untyped-def]
    rows, owners, brokers = world
    shuffled = [random.sample(part, len(part)) for part in (rows, list(owners.items()), brokers)]
    assert place(shuffled[0], dict(shuffled[1]), shuffled[2]) == place(rows, owners, brokers)


@given(worlds(), st.data())
def test_whatever_part_of_it_is_carried_out_the_rest_stays_as_it_was(
    world: tuple[Rows, dict[str, str], list[str]], data: st.DataObject
) -> None:
    """Brokers hear of each other's claims at different times: none of them may change its mind by what it hears."""
    rows, owners, brokers = world
    placed = place(rows, owners, brokers)
    now = dict(owners)
    for segment, broker in placed.items():
        step = data.draw(st.sampled_from(["not yet", "released", "done"]), label=segment)
        if owners.get(segment) != broker and step == "released":
            now.pop(segment, None)
        elif step == "done":
            now[segment] = broker
    assert place(rows, now, brokers) == placed


@pytest.mark.parametrize(("segments", "brokers"), [(4, 2), (3, 3), (16, 3), (64, 5), (1, 4)])
def test_the_segments_of_one_topic_lie_apart_where_nothing_is_owned_yet(segments: int, brokers: int) -> None:
    names = [f"broker-{number}" for number in range(brokers)]
    placed = place([row(topic, segments) for topic in range(10)], {}, names)
    for topic in range(10):
        of_topic = counts({one: placed[one] for one in row(topic, segments)}, names)
        assert of_topic[-1] - of_topic[0] <= 3


def test_a_dead_brokers_segments_move_and_no_others() -> None:
    rows = [row(topic, 5) for topic in range(6)]
    before = place(rows, {}, ["a", "b", "c"])
    after = place(rows, before, ["a", "c"])
    assert all(after[segment] == owner for segment, owner in before.items() if owner != "b")
    assert counts(after, ["a", "c"]) == [15, 15]


def test_without_brokers_nobody_has_anything() -> None:
    assert place([row(0, 3)], {}, []) == {}
    assert place([], {}, ["a"]) == {}
