"""What a subscription's record says of its start, where the start names a message of each segment."""

from __future__ import annotations

import pytest

from segments.layout.subscription_records import POSITIONS, start_record
from segments.layout.topology import Topology, create_record
from txnwire.bounds import MAX_ID
from txnwire.errors import InvalidArgument
from txnwire.names import TopicName
from txnwire.proto import txn_pb2 as pb

TOPIC = TopicName("public", "nyc", "flights")


def split_twice() -> Topology:
    """0 → 2, 3; 2 → 4, 5; beside 1, which is whole."""
    return Topology(TOPIC, create_record(2, policies={}, created_ms=0)).split(0).split(2)


def named(path: str, ledger_id: int = 1, entry_id: int = 0, index: int = 0) -> pb.SegmentStart:
    return pb.SegmentStart(segment=path, ledger_id=ledger_id, entry_id=entry_id, index=index)


def test_what_lies_before_a_named_segment_is_passed_unless_it_is_named_itself() -> None:
    topology = split_twice()
    paths = topology.paths
    start = pb.Start(segment="positions", starts=[named(paths[4], 7, 3, 2), named(paths[2], 5, 9)])
    assert start_record(start, topology) == {
        "kind": POSITIONS,
        "segments": {paths[4]: [7, 3, 2], paths[2]: [5, 9, 0]},
        "ancestors": [0],
    }
    deepest = pb.Start(segment="positions", starts=[named(paths[4], 7, 3)])
    assert start_record(deepest, topology)["ancestors"] == [0, 2]


def test_a_segment_that_is_pruned_hides_none_of_those_behind_it() -> None:
    """▲ All the others would be read from the earliest again."""
    before = split_twice()
    topology, paths = before.prune(0), before.paths
    starts = [named(paths[0]), named(paths[1], 4, 2), named(paths[0]), named(paths[3], 6, 1)]
    assert start_record(pb.Start(segment="positions", starts=starts), topology) == {
        "kind": POSITIONS,
        "segments": {paths[1]: [4, 2, 0], paths[3]: [6, 1, 0]},
    }


@pytest.mark.parametrize(
    "wrong",
    [
        named(f"{TOPIC.path}/8000-ffff-1", entry_id=-1),
        named(f"{TOPIC.path}/8000-ffff-1", entry_id=MAX_ID + 1),
        named(f"{TOPIC.path}/8000-ffff-1", ledger_id=MAX_ID + 1),
        named(f"{TOPIC.path}/0000-ffff-9"),
        named("public/nyc/trains/8000-ffff-1"),
    ],
)
def test_a_place_where_nothing_can_be_is_refused(wrong: pb.SegmentStart) -> None:
    topology = split_twice()
    starts = [named(topology.paths[1], MAX_ID, MAX_ID), wrong]
    with pytest.raises(InvalidArgument):
        start_record(pb.Start(segment="positions", starts=starts), topology)
