"""What is read between two snapshots, case by case; that both reads together are the later snapshot is proved by the
model in `tests/segments/controller/test_cut_model.py`."""

from __future__ import annotations

from dataclasses import replace

import pytest

from txnclient.reading.snapshot import Span
from txnwire.errors import InvalidArgument
from txnwire.ids import EARLIEST, Position, TxnId
from txnwire.names import SegmentName
from txnwire.snapshot import SegmentBounds, Snapshot, TopicBounds

TOPIC, PATH, CHILD = "topic://t/n/name", "t/n/name/0000-ffff-0", "t/n/name/0000-7fff-1"
ONE, TWO, THREE = (TxnId(3, counter) for counter in (1, 2, 3))


def at(entry: int) -> Position:
    return Position(1, entry)


def snapshot(
    resolved: int,
    end: int,
    *,
    revision: int,
    pending: tuple[TxnId, ...] = (),
    aborted: tuple[TxnId, ...] = (),
    more: dict[str, SegmentBounds] | None = None,
) -> Snapshot:
    segments = {PATH: SegmentBounds(at(resolved), at(end))} | (more or {})
    return Snapshot(revision, {TOPIC: TopicBounds(1, segments)}, pending, aborted)


OLD = snapshot(4, 10, revision=50, pending=(ONE, TWO))
NEW = snapshot(12, 20, revision=60, pending=(TWO,), aborted=(THREE,))


@pytest.mark.parametrize(
    ("entry", "txn_id", "shown"),
    [
        (3, ONE, False),  # at or below resolved: it cannot be
        (4, ONE, False),
        (5, None, False),  # was in the old snapshot
        (5, THREE, False),
        (5, ONE, True),  # pending then, committed since
        (10, ONE, True),
        (10, TWO, False),  # pending in both
        (11, None, True),
        (11, ONE, True),
        (11, TWO, False),
        (13, THREE, False),
        (20, ONE, True),
    ],
)
def test_from_old_to_new(entry: int, txn_id: TxnId | None, shown: bool) -> None:
    assert Span(OLD, NEW).shows(PATH, at(entry), txn_id, 0) is shown


def test_reading_begins_where_something_may_have_committed_since() -> None:
    assert Span(OLD, NEW).after(PATH) == at(4)
    assert Span(snapshot(4, 10, revision=50), NEW).after(PATH) == at(10), "nothing was pending"
    assert Span(None, NEW).after(PATH) == EARLIEST
    assert Span(OLD, NEW).after(CHILD) == EARLIEST, "a segment made since is read from its beginning"
    assert Span(OLD, NEW).revision == Span(None, NEW).revision == 60


def test_from_a_snapshot_on_without_an_end() -> None:
    span = Span(OLD, None)
    assert span.ends([TOPIC]) == {}
    assert span.shows(PATH, at(7), TWO, 0)
    assert not span.shows(PATH, at(7), None, 0)
    assert span.shows(PATH, at(11), TWO, 0)


def test_ends_are_those_of_the_topics_asked_for() -> None:
    assert Span(None, NEW).ends([TOPIC]) == {PATH: at(20)}
    with pytest.raises(InvalidArgument, match="topic://t/n/other is not in the snapshot at revision 60"):
        Span(None, NEW).ends(["topic://t/n/other"])


@pytest.mark.parametrize(
    ("start", "end", "complaint"),
    [
        (NEW, OLD, "newer"),
        (snapshot(4, 21, revision=60), NEW, "ends at 1:20"),
        (
            snapshot(4, 10, revision=50, more={CHILD: SegmentBounds(at(0), at(0))}),
            replace(NEW, topics={topic: one._replace(lost_id=9) for topic, one in NEW.topics.items()}),
            "not in the one to end at",
        ),
    ],
)
def test_the_end_must_not_be_older_than_the_start(start: Snapshot, end: Snapshot, complaint: str) -> None:
    with pytest.raises(InvalidArgument, match=complaint):
        Span(start, end)


def test_a_span_is_of_the_store_that_either_snapshot_names() -> None:
    named = replace(OLD, store="one")
    for span in (Span(named, None), Span(named, NEW), Span(None, replace(NEW, store="one"))):
        assert span.store == "one"
    assert Span(OLD, NEW).store == ""


EMPTY = SegmentBounds(EARLIEST, EARLIEST)
CHILD_ID = SegmentName.from_path(CHILD).segment_id


@pytest.mark.parametrize(
    ("at_start", "at_end", "lost"),
    [
        (EMPTY, None, None),  # never held anything, split, pruned (its id is above `lost_id`)
        (EMPTY, EMPTY, None),  # the same, pruned behind the end
        (EMPTY, SegmentBounds(at(3), at(3)), CHILD),
        (SegmentBounds(at(3), at(3)), SegmentBounds(at(3), at(3), sealed=True), None),  # nothing came in between
        (SegmentBounds(at(3), at(3)), SegmentBounds(at(5), at(5), sealed=True), CHILD),
        (None, SegmentBounds(at(5), at(5), sealed=True), CHILD),
    ],
)
def test_a_segment_is_lost_where_something_of_it_lies_between(
    at_start: SegmentBounds | None, at_end: SegmentBounds | None, lost: str | None
) -> None:
    old = snapshot(10, 10, revision=50, more={} if at_start is None else {CHILD: at_start})
    new = snapshot(20, 20, revision=60, more={} if at_end is None else {CHILD: at_end})
    assert Span(old, new).lost(TOPIC, lambda path: path == PATH, 9) == lost


@pytest.mark.parametrize(
    ("at_start", "lost_id", "lost"),
    [
        (EMPTY, CHILD_ID, CHILD),
        (EMPTY, CHILD_ID - 1, None),  # never held anything, split, pruned
        (SegmentBounds(at(3), at(3), sealed=True), CHILD_ID, None),
        (EMPTY, CHILD_ID + 1, CHILD),
        (SegmentBounds(at(3), at(3), sealed=True), CHILD_ID + 1, f"segment {CHILD_ID + 1} of "),
    ],
)
def test_without_an_end_the_layout_tells_whether_what_is_gone_held_anything(
    at_start: SegmentBounds, lost_id: int, lost: str | None
) -> None:
    old = snapshot(10, 10, revision=50, more={CHILD: at_start})
    found = Span(old, None).lost(TOPIC, lambda path: path == PATH, lost_id)
    assert found is None if lost is None else found is not None and found.startswith(lost)


@pytest.mark.parametrize("gone", [PATH, CHILD])
def test_either_snapshot_may_have_seen_a_segment_of_a_former_topic_of_the_name(gone: str) -> None:
    def of(epoch: int) -> Snapshot:
        return Snapshot(10 * epoch, {TOPIC: TopicBounds(epoch, {PATH: EMPTY, CHILD: EMPTY})})

    for span in (Span(of(1), of(5)), Span(of(5), None), Span(None, of(5))):
        assert span.of_former_topic(TOPIC, 2, lambda path: path == gone) == gone
        assert span.of_former_topic(TOPIC, 5, lambda path: path == gone) is None, "its layout is known"
