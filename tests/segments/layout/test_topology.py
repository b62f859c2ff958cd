"""The segment DAG: whatever is done to a topic, its active segments tile 0000-ffff exactly."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from segments.layout.topology import ACTIVE, MAX_SEGMENTS_AT_CREATION, SEALED, Topology, create_record
from txnstore.records import TopicRecord, decode, encode
from txnwire.errors import DataCorrupt, InvalidArgument
from txnwire.ids import HASH_SPACE
from txnwire.names import SegmentName, TopicName

TOPIC = TopicName("public", "nyc", "flights")


def created(segments: int) -> Topology:
    return Topology(TOPIC, create_record(segments, policies={}, created_ms=1))


def assert_tiles(topology: Topology) -> None:
    """Independent of the module's own check: every hash is held by exactly one active segment."""
    edge = 0
    for entry in sorted((e for e in topology.segments.values() if e.state == ACTIVE), key=lambda e: e.lo):
        assert entry.lo == edge
        edge = entry.hi + 1
    assert edge == HASH_SPACE


@pytest.mark.parametrize("segments", range(1, 65))
def test_a_new_topic_tiles_the_hash_space_evenly(segments: int) -> None:
    topology = created(segments)
    assert_tiles(topology)
    widths = [entry.hi - entry.lo + 1 for entry in topology.active]
    assert len(widths) == segments
    assert max(widths) - min(widths) <= 1
    assert [entry.id for entry in topology.active] == list(range(segments))


@pytest.mark.parametrize("segments", [-1, 0, MAX_SEGMENTS_AT_CREATION + 1])
def test_an_impossible_number_of_segments_is_refused(segments: int) -> None:
    with pytest.raises(InvalidArgument, match="expected 1 to"):
        create_record(segments, policies={}, created_ms=1)


@pytest.mark.parametrize("segments", [1, MAX_SEGMENTS_AT_CREATION])
def test_a_topic_may_begin_with_the_fewest_and_with_the_most_segments(segments: int) -> None:
    assert len(create_record(segments, policies={}, created_ms=1).segments) == segments


def test_paths_are_segment_names_of_the_topic() -> None:
    topology = created(3)
    assert topology.active_paths == (
        "public/nyc/flights/0000-5554-0",
        "public/nyc/flights/5555-aaa9-1",
        "public/nyc/flights/aaaa-ffff-2",
    )
    assert [SegmentName.from_path(path).segment_id for path in topology.active_paths] == [0, 1, 2]


def test_an_odd_range_is_split_into_a_smaller_and_a_larger_half() -> None:
    topology = created(1).split(0, at=3)
    assert [(one.lo, one.hi) for one in topology.split(1).active] == [(0, 0), (1, 2), (3, 0xFFFF)]


@given(segments=st.integers(1, 64), key_hash=st.integers(0, HASH_SPACE - 1))
def test_lookup_finds_the_segment_that_holds_a_hash(segments: int, key_hash: int) -> None:
    entry = created(segments).lookup(key_hash)
    assert entry.lo <= key_hash <= entry.hi


@pytest.mark.parametrize("key_hash", [-1, HASH_SPACE])
def test_lookup_refuses_what_is_no_hash(key_hash: int) -> None:
    with pytest.raises(InvalidArgument, match="key hash"):
        created(2).lookup(key_hash)


@settings(max_examples=60, deadline=None)
@given(segments=st.integers(1, 8), data=st.data())
def test_s6_any_sequence_of_splits_and_merges_tiles_exactly(segments: int, data: st.DataObject) -> None:
    topology = created(segments)
    for _ in range(data.draw(st.integers(0, 40))):
        before = topology
        index = data.draw(st.integers(0, len(topology.active) - 1))
        entry = topology.active[index]
        if data.draw(st.booleans()) and entry.lo < entry.hi:
            at = data.draw(st.none() | st.integers(entry.lo + 1, entry.hi))
            topology = topology.split(entry.id, at=at)
            parents = [entry.id]
        elif index + 1 < len(topology.active):
            parents = [entry.id, topology.active[index + 1].id]
            topology = topology.merge(*parents)
        else:
            continue
        assert_tiles(topology)
        assert topology.epoch == before.epoch + 1
        assert all(topology.segments[parent].state == SEALED for parent in parents)
        children = [e for e in topology.segments.values() if e.id >= before.record.next_segment_id]
        assert all(sorted(child.parents) == sorted(parents) for child in children)
        assert {e.id: e for e in before.segments.values() if e.id not in parents}.items() <= topology.segments.items()
    for entry in topology.active:
        ancestors = topology.ancestors(entry.id)
        assert list(ancestors) == sorted(ancestors)
        assert all(ancestor < entry.id and entry.id in topology.descendants(ancestor) for ancestor in ancestors)
    stored = decode(TopicRecord, encode(topology.record), key=b"/topic/x")
    assert Topology(TOPIC, stored).segments == topology.segments


def test_ancestors_and_descendants_cross_splits_and_merges() -> None:
    topology = created(1).split(0).split(1).merge(4, 2)  # 0 → 1, 2; 1 → 3, 4; 4 and 2 → 5
    assert topology.ancestors(5) == (0, 1, 2, 4)
    assert topology.ancestors(3) == (0, 1)
    assert topology.descendants(1) == (3, 4, 5)
    assert [entry.id for entry in topology.active] == [3, 5]


@pytest.mark.parametrize(
    ("act", "complaint"),
    [
        (lambda t: t.split(9), "has no segment 9"),
        (lambda t: t.split(0, at=0), "both children"),
        (lambda t: t.split(0, at=0x8000), "both children"),
        (lambda t: t.split(0).split(0), "it is SEALED"),
        (lambda t: t.merge(0, 0), "not adjacent"),
        (lambda t: t.split(1).merge(0, 3), "not adjacent"),
        (lambda t: t.merge(0, 1).merge(0, 1), "it is SEALED"),
    ],
)
def test_an_illegal_change_of_layout_says_why(act: Any, complaint: str) -> None:
    with pytest.raises(InvalidArgument, match=complaint):
        act(created(2))


def test_a_segment_of_one_hash_cannot_be_split() -> None:
    topology = created(1)
    for _ in range(16):
        topology = topology.split(topology.active[0].id)
    assert topology.active[0].lo == topology.active[0].hi == 0
    with pytest.raises(InvalidArgument, match="both children"):
        topology.split(topology.active[0].id)


def _broken(**changes: Any) -> TopicRecord:
    record = created(2).split(0).record  # 0 sealed; 1, 2, 3 active
    segments = [
        msgspec.structs.replace(entry, **changes[f"s{entry.id}"]) if f"s{entry.id}" in changes else entry
        for entry in record.segments
        if f"s{entry.id}" not in changes or changes[f"s{entry.id}"] is not None
    ]
    return msgspec.structs.replace(record, segments=segments, **changes.get("record", {}))


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"s1": None}, "do not tile"),
        ({"s0": None, "s1": None, "s2": None, "s3": None}, "do not tile"),
        ({"s1": {"lo": 0x7FFF}}, "do not tile"),
        ({"s1": {"hi": 0xFFFE}}, "do not tile"),
        ({"s1": {"id": 2}}, "two segments have one id"),
        ({"record": {"next_segment_id": 3}}, "not below next_segment_id"),
        ({"s1": {"lo": 5, "hi": 4}}, "no hash range"),
        ({"s1": {"state": "GONE"}}, "unknown state"),
        ({"s1": {"state": SEALED}}, "with children"),
        ({"s0": {"state": ACTIVE}}, "with children"),
        ({"s2": {"parents": []}}, "its child 2 does not know it"),
        ({"s3": {"parents": []}}, "its child 3 does not know it"),
        ({"s2": {"parents": [0, 1]}}, "its parent 1 does not know it"),
        ({"s0": {"children": [2]}, "s3": {"parents": []}}, "do not hold its range"),
    ],
)
def test_a_record_that_breaks_a_rule_of_the_dag_is_refused(changes: dict[str, Any], complaint: str) -> None:
    Topology(TOPIC, _broken())
    with pytest.raises(DataCorrupt, match=complaint) as caught:
        Topology(TOPIC, _broken(**changes))
    assert "/topic/public/nyc/flights" in str(caught.value)


def test_an_id_counts_as_pruned_only_if_this_topic_has_used_it() -> None:
    """A read from an old snapshot is told that its data went, or that it never was there."""
    record = create_record(1, policies={}, created_ms=1, first_segment_id=7)
    topology = Topology(TOPIC, record).split(7).prune(7)  # 7 → 8, 9
    assert [segment_id for segment_id in range(5, 12) if topology.is_pruned(segment_id)] == [7]
    assert [segment_id for segment_id in range(5, 12) if topology.is_of_earlier_life(segment_id)] == [5, 6]


def test_the_parents_of_a_merge_are_pruned_in_any_order() -> None:
    merged = created(2).merge(0, 1)  # 0, 1 → 2
    for first, second in ((0, 1), (1, 0)):
        half = merged.prune(first)
        assert half.segments[2].parents == [second]
        assert list(half.prune(second).segments) == [2]


def test_a_segment_is_going_with_its_topic_or_alone() -> None:
    record = created(1).split(0).record
    for changed, going in (
        ({}, []),
        ({"pruning": [0]}, [0]),
        ({"deleting_ms": 1}, [0, 1, 2]),
    ):
        topology = Topology(TOPIC, msgspec.structs.replace(record, **changed))
        assert [segment_id for segment_id in topology.segments if topology.is_going(segment_id)] == going
