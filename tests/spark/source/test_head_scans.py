"""Which heads are asked for before an end is found, and no more of them than it takes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pyspark_txnstore.shared.offsets import EntryRange
from pyspark_txnstore.source.limits import Backlog, HeadScan
from tests.spark.source.test_limits_cases import (
    ELSEWHERE,
    FOUR,
    LEFT,
    ONE,
    OTHER,
    PARENT,
    RIGHT,
    TOPIC,
    at,
    cut,
    filled,
    heads,
)
from txnclient.reading.snapshot import SegmentBounds
from txnwire.ids import EARLIEST

START = cut({PARENT: 3, ELSEWHERE: 3})
TARGET = cut({PARENT: 9, ELSEWHERE: 9}, revision=60)
MISSING = [EntryRange(TOPIC, PARENT, at(3), at(9)), EntryRange(OTHER, ELSEWHERE, at(3), at(9))]


def test_all_that_is_missing_is_asked_for_at_once() -> None:
    """Each round of questions is a wait for the slowest owner."""
    whole = [HeadScan(EntryRange(one.topic, one.segment, EARLIEST, one.end), None) for one in MISSING]
    assert Backlog().nearest(None, TARGET, max_entries=1) == whole
    assert Backlog().nearest(START, TARGET, max_entries=1) == [HeadScan(part, 1) for part in MISSING]
    assert Backlog().shows(START, TARGET, 5) == [HeadScan(part, 5) for part in MISSING]


def test_as_many_heads_are_asked_for_as_are_known_and_only_where_the_walk_needs_them() -> None:
    known = Backlog()
    known.missing(START, TARGET)
    known.add(MISSING[0], heads([None] * 7))
    known.add(MISSING[1], heads([None] * 5))
    more = [EntryRange(TOPIC, PARENT, at(6), at(9)), EntryRange(OTHER, ELSEWHERE, at(4), at(9))]
    assert known.nearest(START, TARGET, max_entries=20) == [HeadScan(more[1], 2)]
    known.add(more[1], heads([None] * 9))
    assert known.nearest(START, TARGET, max_entries=20) == [HeadScan(more[0], 4)]


def test_of_children_nothing_is_asked_for_until_their_parent_is_known() -> None:
    target = cut({PARENT: 9, LEFT: 3, RIGHT: 3}, revision=60)
    known = Backlog()
    parent, left, right = known.missing(cut({PARENT: 3}), target)
    assert known.nearest(cut({PARENT: 3}), target, max_entries=20) == [HeadScan(parent, 1)]
    known.done(parent)
    assert known.nearest(cut({PARENT: 3}), target, max_entries=20) == [HeadScan(left, 1), HeadScan(right, 1)]


def test_a_segment_that_is_gone_from_the_target_is_forgotten_with_all_others_that_are() -> None:
    known, before = Backlog(), cut({PARENT: 3, LEFT: 3, RIGHT: 3, ELSEWHERE: 3})
    for part in known.missing(None, before):
        known.add(part, heads([None] * 4))
    assert len(known) == 16
    after = cut({ELSEWHERE: 3}, revision=60)
    assert known.missing(None, after) == []
    assert len(known) == 4


@pytest.mark.parametrize("order", [(PARENT, ELSEWHERE), (ELSEWHERE, PARENT)])
def test_a_start_that_needs_more_of_any_segment_is_scanned_anew(order: tuple[str, str]) -> None:
    """▲ A transaction that was pending at it has entries from there on: only with all of them is it whole."""
    target = cut(dict.fromkeys(order, 6), revision=60)
    logs = {path: heads([None] * 7) for path in order}
    known = filled(Backlog(), cut(dict.fromkeys(order, 3)), target, logs)
    start = cut(dict.fromkeys(order, 4), pending=(ONE,))
    topics = {
        topic: bounds._replace(
            segments={path: SegmentBounds(at(1 if path == PARENT else 4), at(4)) for path in bounds.segments}
        )
        for topic, bounds in start.topics.items()
    }
    missing = known.missing(replace(start, topics=topics), target)
    assert {part.segment: part.after for part in missing} == {PARENT: at(1), ELSEWHERE: at(4)}


def test_a_start_that_has_gone_back_to_what_was_pending_is_scanned_anew() -> None:
    """▲ Its ends are the same, and what it had pending and was shown since is forgotten."""
    logs = {PARENT: heads([FOUR, ONE, None, None]), ELSEWHERE: heads([None] * 4)}
    ends = {PARENT: 2, ELSEWHERE: 2}
    stood, back = cut(ends, pending=(FOUR,)), cut(ends, pending=(FOUR, ONE))
    target = cut({PARENT: 3, ELSEWHERE: 3}, revision=60, pending=(FOUR,))
    known = filled(Backlog(), stood, target, logs)
    assert known.missing(stood, target) == []
    assert [part.after for part in known.missing(back, target)] == [EARLIEST, EARLIEST]
    known = filled(Backlog(), stood, target, logs)
    on = cut({PARENT: 2, ELSEWHERE: 3}, revision=55, pending=(FOUR, ONE))
    assert known.missing(on, target) == [], "it has gone on in another segment"


def test_entries_behind_an_older_target_count_for_none_of_its_transactions() -> None:
    """▲ Of a writer that does not count, sent when the transaction had committed: it would never be whole."""
    log = heads([ONE, None, ONE, ONE])
    known = filled(Backlog(), None, cut({PARENT: 3, ELSEWHERE: 3}, revision=60), {PARENT: log, ELSEWHERE: log})
    older = cut({PARENT: 1, ELSEWHERE: 1})
    found = known.limit(None, older, max_entries=2)
    assert found.pending == ()
    assert sorted(one.end for one in found.segments.values()) == [at(0), at(0)]
    assert known.limit(None, older, max_entries=4) == older
