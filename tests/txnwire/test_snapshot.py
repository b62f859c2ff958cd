"""A snapshot as JSON: stable, checked, and the same again."""

from __future__ import annotations

import json
from typing import Any

import pytest

from txnwire.errors import InvalidArgument
from txnwire.ids import Position, TxnId
from txnwire.snapshot import SegmentBounds, Snapshot, TopicBounds

TOPIC, PATH = "topic://t/n/name", "t/n/name/0000-ffff-0"
ONE, TWO, THREE = (TxnId(3, counter) for counter in (1, 2, 3))
SNAPSHOT = Snapshot(
    revision=77,
    topics={TOPIC: TopicBounds(4, {PATH: SegmentBounds(Position(1, 4), Position(2, 9))})},
    pending=(ONE,),
    aborted=(TWO,),
    losers=((THREE, 5),),
    counted={THREE: (1, 2)},
)
TEXT = (
    '{"v":1,"revision":77,"topics":{"topic://t/n/name":{"epoch":4,"segments":{"t/n/name/0000-ffff-0":'
    '{"resolved":"1:4","end":"2:9"}}}},"pending":["0003-0000000000000001"],"aborted":["0003-0000000000000002"],'
    '"losers":[["0003-0000000000000003","0000000000000005"]],'
    '"counted":{"0003-0000000000000003":["0000000000000001","0000000000000002"]}}'
)


def test_the_json_is_stable() -> None:
    """Offsets of streams and files of users hold it: a change of it needs another "v"."""
    assert SNAPSHOT.to_json() == TEXT
    assert Snapshot.from_json(TEXT) == SNAPSHOT
    assert Snapshot.from_json(TEXT.encode()) == SNAPSHOT


def test_fields_of_a_later_writer_are_passed_over() -> None:
    assert Snapshot.from_json(json.dumps(json.loads(TEXT) | {"note": "hello"})) == SNAPSHOT


def test_what_counts() -> None:
    assert not SNAPSHOT.counts(ONE, 0)
    assert not SNAPSHOT.counts(TWO, 0)
    assert not SNAPSHOT.counts(THREE, 5)
    assert not SNAPSHOT.counts(THREE, 3)
    assert SNAPSHOT.counts(THREE, 1)
    assert SNAPSHOT.counts(TxnId(3, 9), 0)
    assert SNAPSHOT.bounds("t/n/name/0000-ffff-1") is None


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"v": 2}, '"v":1'),
        ({"revision": 0}, "revision"),
        ({"revision": True}, "revision"),
        ({"topics": {"name": {"epoch": 1, "segments": {}}}}, "topic"),
        (
            {"topics": {TOPIC: {"epoch": 1, "segments": {"t/n/other/0000-ffff-0": {"resolved": "1:1", "end": "1:1"}}}}},
            "no segment",
        ),
        ({"topics": {TOPIC: {"epoch": 1, "segments": {PATH: {"resolved": "1:5", "end": "1:1"}}}}}, "behind its end"),
        ({"topics": {TOPIC: {"epoch": 1, "segments": {PATH: {"resolved": "x", "end": "1:1"}}}}}, "position"),
        ({"topics": []}, "AttributeError"),
        ({"pending": ["nonsense"]}, "nonsense"),
        ({"losers": [["0003-0000000000000003"]]}, "ValueError"),
    ],
)
def test_what_is_no_snapshot_is_refused_with_a_reason(change: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InvalidArgument, match=complaint):
        Snapshot.from_json(json.dumps(json.loads(TEXT) | change))


@pytest.mark.parametrize("text", ["", "[]", "nothing", "{}", '{"v":1,"revision":5}', "\x00"])
def test_what_is_not_even_the_shape_of_one_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match="not a snapshot"):
        Snapshot.from_json(text)
