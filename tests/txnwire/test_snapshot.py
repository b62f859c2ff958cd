"""A snapshot as JSON: stable, checked, and the same again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from txnwire.errors import InvalidArgument
from txnwire.ids import EARLIEST, Position, TxnId
from txnwire.snapshot import AT_ONCE, SegmentBounds, Snapshot, TopicBounds, read_in_steps, written_in_steps
from txnwire.turns import turns_divided_by

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


def test_each_writer_of_a_transaction_that_does_not_count_is_kept() -> None:
    losers = ((TWO, 0), (TWO, 5), (THREE, 5), (THREE, 7))
    each = replace(SNAPSHOT, losers=losers)
    assert Snapshot.from_json(each.to_json()).losers == losers
    assert [each.counts(TWO, writer) for writer in (0, 5)] == [False, False]


def test_a_large_one_is_written_and_read_in_steps_and_is_the_same_text() -> None:
    """Dies if the parts of a list or an object are put together wrongly, or if one of them is worked on in one go."""
    paths = {str(number): f"t/n/topic-{number:02d}/0000-ffff-{number}" for number in range(10)}
    bounds = SegmentBounds(Position(1, 4), Position(2, 9), sealed=True)
    ids = tuple(TxnId(3, counter) for counter in range(1, 11))
    large = Snapshot(
        revision=77,
        topics={
            f"topic://t/n/topic-{int(n):02d}": TopicBounds(4, {path: bounds}, lost_id=2) for n, path in paths.items()
        },
        pending=ids,
        aborted=ids,
        losers=tuple((txn_id, 5) for txn_id in ids),
        counted=dict.fromkeys(ids, (1, 2)),
        store="a1",
    )
    whole = large.to_json()
    assert json.dumps(json.loads(whole), separators=(",", ":")) == whole
    with turns_divided_by(AT_ONCE // 4):  # four transactions at once; two topics, one that lists writers
        assert sum(1 for _ in written_in_steps(large)) == 5 + 3 + 3 + 3 + 10
        assert sum(1 for _ in read_in_steps(whole)) == 5 + 3 + 3 + 3 + 10
        assert large.to_json() == whole
        assert Snapshot.from_json(whole) == large


PATHS = [f"t/n/{name}/{bounds}" for name in ("left", "right") for bounds in ("0000-7fff-0", "8000-ffff-3")]


def several(ends: Mapping[str, int], *, pending: tuple[TxnId, ...] = (ONE, TWO), lost_id: int = -1) -> Snapshot:
    """Two topics of two segments each."""
    topics = {}
    for name in ("left", "right"):
        mine = {path: SegmentBounds(Position(1, 1), Position(1, ends[path])) for path in PATHS if f"/{name}/" in path}
        topics[f"topic://t/n/{name}"] = TopicBounds(4, mine, lost_id)
    return Snapshot(7, topics, pending, counted={ONE: (1, 2, 3), TWO: (4,)})


def test_every_segment_and_every_writer_comes_back() -> None:
    one = several(dict.fromkeys(PATHS, 5))
    again = Snapshot.from_json(one.to_json())
    assert again == one
    assert list(again.segments) == PATHS
    assert [again.bounds(path) for path in PATHS] == [SegmentBounds(Position(1, 1), Position(1, 5))] * 4
    assert again.counts(THREE, 1)
    assert again.counted == {ONE: (1, 2, 3), TWO: (4,)}


@pytest.mark.parametrize("path", PATHS)
def test_every_segment_of_every_topic_is_compared(path: str) -> None:
    ends = dict.fromkeys(PATHS, 5)
    one = several(ends)
    assert not one.precedes(several(ends | {path: 4}))
    assert one.precedes(several(ends | {path: 6}))
    assert several(ends | {path: 6}).adds_to(one)
    assert not several(ends | {path: 4}).adds_to(one)


def test_a_lost_segment_with_a_lower_id_than_one_that_stood_is_no_obstacle() -> None:
    one = several(dict.fromkeys(PATHS, 5))
    assert one.precedes(several(dict.fromkeys(PATHS, 5), lost_id=3))
    assert not one.precedes(several(dict.fromkeys(PATHS, 5), lost_id=4))


@pytest.mark.parametrize("decided", [ONE, TWO])
def test_each_that_was_pending_adds_once_it_is_decided(decided: TxnId) -> None:
    ends = dict.fromkeys(PATHS, 5)
    left = tuple(txn_id for txn_id in (ONE, TWO) if txn_id != decided)
    assert several(ends, pending=left).adds_to(several(ends))
    assert not several(ends).adds_to(several(ends))


def test_fields_of_a_later_writer_are_passed_over() -> None:
    assert Snapshot.from_json(json.dumps(json.loads(TEXT) | {"note": "hello"})) == SNAPSHOT


def test_e8_a_snapshot_says_of_which_store_it_is_and_none_of_another_is_compared_with_it() -> None:
    """▲ After a repair revisions come again, and what was committed before may be aborted."""
    one, other = (replace(SNAPSHOT, revision=revision, store=store) for revision, store in ((77, "a1"), (99, "b2")))
    assert one.to_json().startswith('{"v":1,"revision":77,"store":"a1","topics":')
    assert Snapshot.from_json(one.to_json()) == one
    assert "restored from a backup" in str(one.obstacle(other))
    assert one.precedes(replace(one, revision=99))
    assert SNAPSHOT.precedes(other), "one of an earlier version does not tell"


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
        ({"topics": {TOPIC: {"epoch": 1, "segments": {PATH: {"resolved": "1:5", "end": "1:1"}}}}}, "after its end"),
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


def stands(end: int, *, revision: int, sealed: bool = False, resolved: int | None = None, epoch: int = 4) -> Snapshot:
    bounds = SegmentBounds(Position(1, end if resolved is None else resolved), Position(1, end), sealed)
    return Snapshot(revision, {TOPIC: TopicBounds(epoch, {PATH: bounds})}, (ONE,) if resolved is not None else ())


def test_that_a_segment_was_sealed_is_said_only_where_it_was() -> None:
    text = stands(3, revision=7, sealed=True).to_json()
    assert '{"resolved":"1:3","end":"1:3","sealed":true}' in text
    assert Snapshot.from_json(text) == stands(3, revision=7, sealed=True)
    assert "sealed" not in TEXT


def test_which_of_two_precedes_the_other() -> None:
    """Messages outside transactions move the ends and not the revision; two that were taken at once may cross."""
    first, second = stands(3, revision=7), stands(5, revision=7)
    assert first.precedes(first)
    assert first.precedes(second)
    assert not second.precedes(first)
    crossing = stands(2, revision=8)
    assert not first.precedes(crossing)
    assert not crossing.precedes(first)
    assert first.precedes(Snapshot(9, {}))
    assert not first.precedes(stands(9, revision=9, epoch=3)), "made again under its name"


def test_a_segment_may_be_missing_in_the_later_one_only_if_nothing_was_left_to_read() -> None:
    gone = Snapshot.from_json(Snapshot(9, {TOPIC: TopicBounds(5, {}, lost_id=0)}).to_json())
    assert stands(3, revision=7, sealed=True).precedes(gone)
    assert not stands(3, revision=7).precedes(gone), "what came after it there is gone"
    assert not stands(3, revision=7, sealed=True, resolved=1).precedes(gone), "what was pending there is gone"


def test_a_segment_that_never_held_anything_may_be_missing_in_the_later_one() -> None:
    """Made by a split, split again and pruned, all between two snapshots: a read between the two was refused."""
    path = "t/n/name/0000-7fff-3"
    then = Snapshot(7, {TOPIC: TopicBounds(4, {path: SegmentBounds(EARLIEST, EARLIEST)}, lost_id=1)})
    assert then.precedes(Snapshot(9, {TOPIC: TopicBounds(5, {}, lost_id=2)}))
    assert not then.precedes(Snapshot(9, {TOPIC: TopicBounds(5, {}, lost_id=3)})), "used, and trimmed since"
    still = {path: SegmentBounds(Position(1, 3), Position(1, 3), True)}
    assert then.precedes(Snapshot(9, {TOPIC: TopicBounds(5, still, lost_id=2)}))
    assert not then.precedes(Snapshot(9, {TOPIC: TopicBounds(5, still, lost_id=4)})), "a child came, and was trimmed"


def test_whether_a_later_one_adds_anything() -> None:
    first = stands(3, revision=7)
    assert not stands(3, revision=9, sealed=True).adds_to(first)
    assert stands(4, revision=7).adds_to(first)
    child = {
        PATH: SegmentBounds(Position(1, 3), Position(1, 3), True),
        "t/n/name/0000-7fff-1": SegmentBounds(*[EARLIEST] * 2),
    }
    assert not Snapshot(9, {TOPIC: TopicBounds(5, child)}).adds_to(first), "an empty child adds nothing"
    child["t/n/name/0000-7fff-1"] = SegmentBounds(EARLIEST, Position(1, 0))
    assert Snapshot(9, {TOPIC: TopicBounds(5, child)}).adds_to(first), "a message in a child that has come since"
    other = {"t/n/other/0000-ffff-4": SegmentBounds(Position(1, 0), Position(1, 0))}
    both = dict(first.topics) | {"topic://t/n/other": TopicBounds(1, other)}
    assert Snapshot(9, both).adds_to(first), "a message in a topic that the earlier one is not of"
    open_then = stands(3, revision=7, resolved=1)
    assert not stands(3, revision=9, resolved=1).adds_to(open_then)
    assert stands(3, revision=9).adds_to(open_then), "what was pending has been decided"
