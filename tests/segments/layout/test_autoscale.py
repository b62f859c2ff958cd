"""When segments split and merge by themselves, and when a load is worth publishing (PIP-483): tables and properties."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from segments.layout.autoscale import (
    DEFAULTS,
    Merge,
    SegmentLoad,
    Split,
    Thresholds,
    Watched,
    decide,
    observe,
    parse_thresholds,
)
from segments.layout.topology import Topology, create_record
from segments.owner.load_samples import LoadMeter, Stored
from txnstore.records import LayoutChange
from txnwire.errors import InvalidArgument
from txnwire.names import TopicName

TOPIC = TopicName("t", "n", "orders")
IDLE, WARM, COLD = SegmentLoad(0, 0), SegmentLoad(5_000, 20_000_000), SegmentLoad(999, 4_999_999)
HOT = SegmentLoad(10_001, 0)
LONG_AGO = -1_000_000.0

FROM_ONE = Thresholds(min_segments=1)


def topic(segments: int) -> Topology:
    return Topology(TOPIC, create_record(segments, policies={}, created_ms=0))


def after(topology: Topology, loads: dict[int, SegmentLoad], thresholds: Thresholds = FROM_ONE) -> Split | Merge | None:
    """What is decided where nothing has changed for long."""
    long_ago = observe(None, topology, loads, thresholds, LONG_AGO)
    return decide(observe(long_ago, topology, loads, thresholds, 0.0), topology, loads, thresholds, 0.0)


@pytest.mark.parametrize(
    ("loads", "expected"),
    [
        ({0: HOT, 1: WARM, 2: WARM}, 0),
        ({0: HOT, 1: SegmentLoad(10_002, 0), 2: WARM}, 1),  # the hottest
        ({0: WARM, 1: SegmentLoad(10_002, 0), 2: HOT}, 1),  # wherever it stands
        ({0: HOT, 1: WARM, 2: SegmentLoad(0, 60_000_000)}, 2),  # bytes count too
        ({0: SegmentLoad(10_000, 50_000_000), 1: WARM, 2: WARM}, None),  # above, not at
        ({2: HOT}, 2),  # of the others nothing is known
        ({}, None),
    ],
)
def test_the_segment_furthest_above_a_threshold_is_split(loads: dict[int, SegmentLoad], expected: int | None) -> None:
    decision = after(topic(3), loads)
    assert (decision.segment if isinstance(decision, Split) else decision) == expected


@pytest.mark.parametrize(
    ("loads", "expected"),
    [
        ({0: IDLE, 1: COLD, 2: IDLE, 3: IDLE}, (2, 3)),  # the coldest pair
        ({0: COLD, 1: WARM, 2: COLD, 3: WARM}, None),  # not adjacent
        ({0: WARM, 1: COLD, 2: COLD, 3: WARM}, (1, 2)),
        ({0: IDLE, 1: SegmentLoad(1_000, 0), 2: WARM, 3: WARM}, None),  # at the threshold is not below
        ({0: IDLE, 1: SegmentLoad(0, 5_000_000), 2: WARM, 3: WARM}, None),
        ({0: IDLE, 2: IDLE, 3: WARM}, None),  # what is not known is not cold
        ({0: IDLE, 1: IDLE, 2: WARM, 3: HOT}, 3),  # a hot one first
    ],
)
def test_the_coldest_neighbours_are_merged(
    loads: dict[int, SegmentLoad], expected: tuple[int, int] | int | None
) -> None:
    decision = after(topic(4), loads)
    if isinstance(decision, Merge):
        assert (decision.lower, decision.upper) == expected
    else:
        assert (decision.segment if isinstance(decision, Split) else decision) == expected


def test_the_bounds_of_a_policy_hold() -> None:
    assert after(topic(2), {0: HOT, 1: HOT}, Thresholds(max_segments=2)) is None
    assert after(topic(64), dict.fromkeys(range(64), HOT)) is None
    assert after(topic(2), {0: IDLE, 1: IDLE}, Thresholds(min_segments=2)) is None
    assert after(topic(1), {0: IDLE}) is None


def test_what_a_topic_was_created_with_is_kept_while_it_idles() -> None:
    assert after(topic(4), dict.fromkeys(range(4), IDLE), Thresholds()) is None
    wider = topic(4).split(0)
    idle = {entry.id: IDLE for entry in wider.active}
    assert isinstance(after(wider, idle, Thresholds()), Merge)


def test_hot_at_the_most_segments_nothing_is_merged_to_make_room() -> None:
    assert after(topic(3), {0: IDLE, 1: IDLE, 2: HOT}, Thresholds(max_segments=3)) is None


def test_a_segment_of_one_hash_is_not_split() -> None:
    topology = topic(1)
    while (first := topology.active[0]).lo != first.hi:
        topology = topology.split(first.id)
    assert after(topology, {topology.active[0].id: HOT}) is None


def test_a_change_under_way_or_a_deletion_keeps_everything_as_it_is() -> None:
    for changed in (
        {"changes": [LayoutChange(id="1", kind="split", parents=[1])]},
        {"deleting_ms": 1},
    ):
        assert after(Topology(TOPIC, replace(topic(2).record, **changed)), {0: HOT, 1: WARM}) is None


def test_a_split_waits_a_minute_behind_any_change_a_merge_five() -> None:
    hot, cold = {0: HOT, 1: WARM}, {0: IDLE, 1: IDLE}
    for loads, cooldown_s in ((hot, 60), (cold, 300)):
        topology = topic(2)
        watched = observe(None, topology, loads, FROM_ONE, 100.0)
        for now_s, due in ((100.0, False), (99.9 + cooldown_s, False), (100.0 + cooldown_s, True)):
            watched = observe(watched, topology, loads, FROM_ONE, now_s)
            assert (decide(watched, topology, loads, FROM_ONE, now_s) is not None) == due, (now_s, cooldown_s)


def test_another_change_of_the_layout_begins_the_cooldown_anew() -> None:
    before = observe(None, topic(2), {}, FROM_ONE, 0.0)
    layout = topic(2).split(0)
    watched = observe(before, layout, {1: HOT}, FROM_ONE, 100.0)
    assert decide(watched, layout, {1: HOT}, FROM_ONE, 159.0) is None
    assert decide(watched, layout, {1: HOT}, FROM_ONE, 160.0) is not None


def test_a_pair_must_have_been_cold_all_the_time() -> None:
    topology = topic(2)
    watched = observe(None, topology, {0: IDLE, 1: IDLE}, FROM_ONE, LONG_AGO)
    for now_s, first in ((0.0, IDLE), (290.0, WARM), (300.0, IDLE), (590.0, IDLE)):
        watched = observe(watched, topology, {0: first, 1: IDLE}, FROM_ONE, now_s)
        assert decide(watched, topology, {0: first, 1: IDLE}, FROM_ONE, now_s) is None or now_s == 0.0
    watched = observe(watched, topology, {0: IDLE, 1: IDLE}, FROM_ONE, 600.0)
    assert decide(watched, topology, {0: IDLE, 1: IDLE}, FROM_ONE, 600.0) is not None


@given(data=st.data())
def test_whatever_the_loads_are_the_layout_stays_within_the_bounds_and_calm(data: st.DataObject) -> None:
    """Loads move at random; every decision is carried out. The topology checks that it tiles."""
    thresholds = Thresholds(min_segments=data.draw(st.integers(1, 3)), max_segments=data.draw(st.integers(3, 6)))
    topology, watched, now_s = topic(3), None, 0.0
    changes: list[tuple[float, Split | Merge]] = []
    for _ in range(data.draw(st.integers(0, 60))):
        now_s += data.draw(st.sampled_from([1.0, 30.0, 60.0, 301.0]))
        loads = {
            entry.id: data.draw(st.sampled_from([IDLE, COLD, WARM, HOT]))
            for entry in topology.active
            if data.draw(st.booleans())
        }
        watched = observe(watched, topology, loads, thresholds, now_s)
        decision = decide(watched, topology, loads, thresholds, now_s)
        if isinstance(decision, Split):
            assert loads[decision.segment] == HOT
            topology = topology.split(decision.segment)
        elif isinstance(decision, Merge):
            assert HOT not in loads.values()
            topology = topology.merge(decision.lower, decision.upper)
        if decision is not None:
            changes.append((now_s, decision))
        assert thresholds.min_segments <= len(topology.active) <= thresholds.max_segments
    for (before_s, _), (after_s, later) in pairwise(changes):
        wait_s = thresholds.split_cooldown_s if isinstance(later, Split) else thresholds.merge_cooldown_s
        assert after_s - before_s >= wait_s


@given(st.floats(0, 2_000), st.floats(0, 2_000))
def test_what_was_merged_is_not_split_again_under_the_same_load(first: float, second: float) -> None:
    topology, loads = topic(2), {0: SegmentLoad(first, 0), 1: SegmentLoad(second, 0)}
    decision = after(topology, loads)
    if isinstance(decision, Merge):
        merged = topology.merge(0, 1)
        assert after(merged, {merged.active[0].id: SegmentLoad(first + second, 0)}) is None


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (None, DEFAULTS),
        ("off", None),
        ({}, DEFAULTS),
        ({"max_segments": 8, "merge_messages_per_s": 0}, Thresholds(max_segments=8, merge_messages_per_s=0)),
        ({"split_messages_per_s": 2_000}, Thresholds(split_messages_per_s=2_000)),  # merges at half of it
    ],
)
def test_a_policy_names_what_differs_from_the_defaults(policy: Any, expected: Thresholds | None) -> None:
    assert parse_thresholds(policy) == expected


@pytest.mark.parametrize(
    ("policy", "says"),
    [
        ("on", 'expected "off" or an object'),
        ({"max": 3}, "unknown threshold 'max'"),
        ({"max_segments": 8, "max": 3}, "unknown threshold 'max'"),
        ({"max_segments": "8"}, "expected a positive number, found '8'"),
        ({"max_segments": True}, "expected a positive number"),
        ({"split_messages_per_s": 0}, "expected a positive number"),
        ({"merge_cooldown_s": -1}, "expected zero or a positive number"),
        ({"min_segments": 65}, "min_segments 65 is above max_segments 64"),
        ({"split_messages_per_s": 1_500}, "would be merged into one that is split at once"),
        ({"merge_bytes_per_s": 26_000_000}, "above half of split_bytes_per_s"),
    ],
)
def test_a_policy_that_cannot_be_is_refused(policy: Any, says: str) -> None:
    with pytest.raises(InvalidArgument, match=says):
        parse_thresholds(policy)


def test_who_begins_to_look_takes_the_layout_for_new() -> None:
    assert observe(None, topic(1), {0: IDLE}, FROM_ONE, 7.0) == Watched(1, 7.0, {0: 7.0})


def test_a_load_is_that_of_the_last_minute_and_told_where_it_has_changed_by_a_quarter() -> None:
    meter, told, messages = LoadMeter(), [], 0
    for tick in range(40):
        rate = 1_000 if tick < 10 else 1_200 if tick < 20 else 4_000
        measured = meter.measure(Stored(messages, messages * 100), tick * 10.0)
        messages += rate * 10
        assert (measured is None) == (tick == 0)
        if measured is not None and meter.worth_telling(measured[0]):
            assert measured[1] <= 60.0
            told.append(round(measured[0].messages_per_s))
            meter.told(measured[0])
    assert told == [1_000, 1_667, 2_133, 3_067, 4_000], "steady load is silent, a fifth more is no news, a rise is told"


def test_an_idle_segment_writes_one_zero() -> None:
    meter = LoadMeter()
    meter.measure(Stored(0, 0), 0.0)
    measured = meter.measure(Stored(0, 0), 10.0)
    assert measured == (IDLE, 10.0)
    assert meter.worth_telling(IDLE)
    meter.told(IDLE)
    assert not meter.worth_telling(SegmentLoad(9, 99_999))
    assert meter.worth_telling(SegmentLoad(11, 0))
    assert meter.worth_telling(SegmentLoad(0, 100_001))
