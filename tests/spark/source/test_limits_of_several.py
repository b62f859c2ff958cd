"""Nearer ends over several segments, topics and transactions at once, of which each counts."""

from __future__ import annotations

from pyspark_txnstore.source.limits import Backlog
from tests.spark.source.test_limits_cases import (
    ELSEWHERE,
    ONE,
    PARENT,
    THREE,
    TWO,
    Log,
    at,
    cut,
    filled,
    heads,
    limited,
)
from txnclient import Snapshot
from txnclient.reading.snapshot import SegmentBounds

CHILD = "t/n/other/0000-7fff-1"
LOGS: dict[str, Log] = {PARENT: [ONE], ELSEWHERE: [None, ONE, ONE]}


def test_what_was_pending_in_a_later_segment_comes_first_and_within_the_limit() -> None:
    start = cut({PARENT: 1, ELSEWHERE: 1}, pending=(ONE,))
    target = cut({PARENT: 3, ELSEWHERE: 1}, revision=60)
    found = limited({PARENT: [None] * 4, ELSEWHERE: [ONE, ONE]}, target, start=start, entries=1)
    assert (found.segments[PARENT].end, found.pending) == (at(1), ())
    again = limited({PARENT: [None] * 4, ELSEWHERE: [ONE, ONE]}, target, start=start, entries=3)
    assert again.segments[PARENT].end == at(2)


def test_entries_of_all_segments_make_a_batch() -> None:
    target = cut({PARENT: 1, ELSEWHERE: 1})
    known = filled(Backlog(), None, target, {PARENT: heads([None, ONE]), ELSEWHERE: heads([ONE, None])})
    assert [known.shows(None, target, entries) for entries in (4, 5)] == [True, False]
    start = cut({PARENT: 0, ELSEWHERE: 1}, pending=(ONE,))
    later = cut({PARENT: 1, ELSEWHERE: 1}, revision=60)
    known = filled(Backlog(), start, later, {PARENT: heads([ONE, ONE]), ELSEWHERE: heads([ONE, ONE])})
    assert [known.shows(start, later, entries) for entries in (4, 5)] == [True, False]


def test_of_several_that_were_pending_the_rest_is_met_where_it_stands() -> None:
    start = cut({PARENT: 1}, pending=(ONE, TWO))
    target = cut({PARENT: 4}, revision=60)
    ends = [
        limited({PARENT: [ONE, TWO, ONE, TWO, None]}, target, start=start, entries=entries) for entries in (1, 2, 4, 5)
    ]
    assert [(one.segments[PARENT].end, one.pending) for one in ends] == [
        (at(2), (TWO,)),
        (at(2), (TWO,)),
        (at(3), ()),
        (at(4), ()),
    ]


def test_in_each_topic_children_begin_behind_their_parents() -> None:
    target = cut({PARENT: 0, ELSEWHERE: 3, CHILD: 0})
    early, late = heads([None]), heads([None] * 4, time_ms=1_000)
    known = filled(Backlog(), None, target, {PARENT: early, ELSEWHERE: late, CHILD: early})
    ends = [known.limit(None, target, max_entries=entries).segments for entries in (2, 4, 5)]
    assert [[one[path].end.entry_id for path in (PARENT, ELSEWHERE, CHILD)] for one in ends] == [
        [0, 0, -1],
        [0, 2, -1],
        [0, 3, -1],
    ]


def test_an_end_in_a_segment_of_which_more_is_to_come_is_not_the_targets() -> None:
    """Though all that is known of it is met, and nothing has come in the first one."""
    start = cut({PARENT: 3, ELSEWHERE: 3})
    target = cut({PARENT: 3, ELSEWHERE: 9}, revision=60)
    known = Backlog()
    (part,) = known.missing(start, target)
    known.add(part, heads([None] * 5))
    found = known.nearest(start, target, max_bytes=1)
    assert isinstance(found, Snapshot)
    assert found.segments[ELSEWHERE].end == at(4)


def test_each_that_waits_stays_pending_and_what_is_resolved_lies_before_the_first_of_them() -> None:
    start = cut({PARENT: 3}, pending=(ONE, TWO, THREE))
    target = cut({PARENT: 3}, revision=60)
    found = limited({PARENT: [ONE, TWO, THREE, TWO]}, target, start=start, entries=1)
    assert found.pending == (TWO, THREE)
    assert found.segments[PARENT] == SegmentBounds(at(0), at(3))


def test_those_that_are_whole_are_cut_through_no_more() -> None:
    log: Log = [ONE, ONE, TWO, TWO, THREE, THREE, None]
    target = cut({PARENT: 6})
    assert limited({PARENT: log}, target, entries=100, held_back=1) == target


def test_of_what_went_unread_neither_bytes_nor_rows_count() -> None:
    before, after = cut({PARENT: 0, ELSEWHERE: 2}), cut({ELSEWHERE: 2}, revision=60)
    logs = {path: [one._replace(messages=2) for one in heads(log)] for path, log in LOGS.items()}
    known = filled(Backlog(), None, before, logs)
    assert known.limit(None, after, max_bytes=30, max_rows=6) == after
    for fewer in ({"max_bytes": 29}, {"max_rows": 5}):
        assert known.limit(None, after, **fewer).segments[ELSEWHERE].end == at(0)
