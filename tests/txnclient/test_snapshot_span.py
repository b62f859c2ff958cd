"""What is read between two snapshots, case by case; that both reads together are the later snapshot is proved by the
model in `tests/segments/test_cut_model.py`."""

from __future__ import annotations

import pytest

from txnclient.snapshot import Span
from txnwire.errors import InvalidArgument
from txnwire.ids import EARLIEST, Position, TxnId
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
        (snapshot(4, 10, revision=50, more={CHILD: SegmentBounds(at(0), at(0))}), NEW, "not in the one to end at"),
    ],
)
def test_the_end_must_not_be_older_than_the_start(start: Snapshot, end: Snapshot, complaint: str) -> None:
    with pytest.raises(InvalidArgument, match=complaint):
        Span(start, end)
