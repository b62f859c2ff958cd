"""Nearer ends, case by case: what `tests/spark/source/test_limits.py` proves of all, here in numbers, with the
counterexamples that led to the rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from pyspark_txnstore.source.limits import Backlog
from txnclient import EntryHead, Snapshot
from txnclient.reading.entries import PieceHead
from txnclient.reading.snapshot import SegmentBounds, Span, TopicBounds
from txnwire.errors import InvalidArgument
from txnwire.ids import EARLIEST, Position, TxnId

ONE, TWO, THREE, FOUR = (TxnId(1, counter) for counter in (1, 2, 3, 4))
TOPIC, OTHER = "topic://t/n/name", "topic://t/n/other"
PARENT, LEFT, RIGHT = "t/n/name/0000-ffff-0", "t/n/name/0000-7fff-1", "t/n/name/8000-ffff-2"
ELSEWHERE = "t/n/other/0000-ffff-0"

Log = Sequence[TxnId | None]


def at(entry: int) -> Position:
    return Position(1, entry)


def heads(log: Log, *, size: int = 10, first: int = 0, time_ms: int = 0) -> list[EntryHead]:
    """One each, one after the other in time."""
    return [EntryHead(at(n), txn, 0, 1, size, time_ms + n, False, None) for n, txn in enumerate(log) if n >= first]


def cut(ends: dict[str, int], *, revision: int = 50, pending: tuple[TxnId, ...] = (), **more: object) -> Snapshot:
    """Resolved to the ends where nothing is pending, else not at all."""
    topics: dict[str, TopicBounds] = {}
    for path, end in ends.items():
        topic = f"topic://{path.rpartition('/')[0]}"
        bounds = SegmentBounds(EARLIEST if pending else at(end), at(end), path == PARENT and LEFT in ends)
        topics[topic] = TopicBounds(1, {**topics.get(topic, TopicBounds(1, {})).segments, path: bounds})
    return replace(Snapshot(revision, topics, pending), **more)  # type: ignore[arg-type]


def filled(backlog: Backlog, start: Snapshot | None, target: Snapshot, logs: dict[str, list[EntryHead]]) -> Backlog:
    for part in backlog.missing(start, target):
        backlog.add(part, logs.get(part.segment, []))
        backlog.done(part)
    return backlog


def limited(
    logs: dict[str, Log], target: Snapshot, *, start: Snapshot | None = None, entries: int, held_back: int = 100
) -> Snapshot:
    known = filled(Backlog(), start, target, {path: heads(log) for path, log in logs.items()})
    return known.limit(start, target, max_entries=entries, max_held_back=held_back)


@pytest.mark.parametrize(
    ("log", "entries", "end", "resolved", "pending"),
    [
        ([None, None, None], 2, 1, 1, ()),
        ([None, None, None], 3, 2, 2, ()),
        ([ONE, ONE, None], 1, 1, 1, ()),  # more than the limit by itself: whole all the same
        ([ONE, None, ONE, None], 1, 1, -1, (ONE,)),  # cut through: it waits, what is behind it does not
        ([None, ONE, TWO, ONE, TWO], 3, 3, 1, (TWO,)),
        ([ONE, TWO, ONE, TWO, None], 2, 2, 0, (TWO,)),
        ([ONE, TWO, THREE, ONE, TWO, THREE], 1, 3, 0, (TWO, THREE)),
        ([None, ONE, TWO], 1, 0, 0, ()),  # nothing is opened behind the last that is shown
    ],
)
def test_the_end_is_behind_the_last_that_fits(
    log: Log, entries: int, end: int, resolved: int, pending: tuple[TxnId, ...]
) -> None:
    target = cut({PARENT: len(log) - 1})
    found = limited({PARENT: log}, target, entries=entries)
    assert found.bounds(PARENT) == SegmentBounds(at(resolved), at(end))
    assert found.pending == pending
    assert found.revision == target.revision


def test_bytes_are_as_stored() -> None:
    target = cut({PARENT: 2})
    known = filled(Backlog(), None, target, {PARENT: heads([None, ONE, ONE], size=10)})
    assert known.limit(None, target, max_bytes=29).segments[PARENT].end == at(0)
    assert known.limit(None, target, max_bytes=30) == target
    assert known.limit(None, target) == target


def test_rows_are_messages_and_a_large_value_is_one() -> None:
    target = cut({PARENT: 4})
    some = [one._replace(messages=3) for one in heads([None, None, None, ONE, ONE])]
    pieces = [one._replace(piece=PieceHead("p", 1, 1, n, 2)) for n, one in enumerate(some[3:])]
    known = filled(Backlog(), None, target, {PARENT: [*some[:3], *pieces]})
    ends = {rows: known.limit(None, target, max_rows=rows).segments[PARENT].end for rows in (2, 3, 8, 9, 10)}
    assert ends == {2: at(0), 3: at(0), 8: at(1), 9: at(2), 10: at(4)}


def nearest(
    known: Backlog, start: Snapshot | None, target: Snapshot, logs: dict[str, list[EntryHead]], *, entries: int
) -> tuple[Snapshot, int]:
    """As the source finds it, by pages of ten heads; and how many heads were scanned."""
    scanned = 0
    while True:
        found = known.nearest(start, target, max_entries=entries)
        if isinstance(found, Snapshot):
            return found, scanned
        for part, least in found:
            of_part = [head for head in logs[part.segment] if part.after < head.position <= part.end]
            most = len(of_part) if least is None else -(-least // 10) * 10
            known.add(part, of_part[:most])
            scanned += len(of_part[:most])
            if most >= len(of_part):
                known.done(part)


def test_a_limit_scans_no_more_of_a_long_history_than_it_needs() -> None:
    """▲ And finds the end that it finds when all is known."""
    logs = {PARENT: heads([None] * 5_000), ELSEWHERE: heads([None] * 5_000)}
    start, target = cut({PARENT: -1, ELSEWHERE: -1}), cut({PARENT: 4_999, ELSEWHERE: 4_999}, revision=60)
    whole = filled(Backlog(), start, target, logs)
    for entries in (1, 7, 100):
        found, scanned = nearest(Backlog(), start, target, logs, entries=entries)
        assert found == whole.limit(start, target, max_entries=entries)
        assert scanned <= 4 * entries + 40
    known, at_ = Backlog(), start
    for _ in range(10):
        at_, _ = nearest(known, at_, target, logs, entries=100)
        assert len(known) <= 500
    assert at_.segments[PARENT].end.entry_id + at_.segments[ELSEWHERE].end.entry_id == 998


def test_a_transaction_is_shown_only_once_it_is_known_to_be_whole() -> None:
    """▲ ONE ends far behind what the limit needs. What stands before it is shown at once, the rest needs the scan."""
    logs = {PARENT: heads([None, None, ONE, TWO, *[None] * 3_000, ONE])}
    start, target = cut({PARENT: -1}), cut({PARENT: 3_004}, revision=60)
    known = Backlog()
    first, scanned = nearest(known, start, target, logs, entries=2)
    assert (first.segments[PARENT].end, first.pending, scanned) == (at(1), (), 10)
    second, _ = nearest(known, first, target, logs, entries=2)
    assert second == known.limit(first, target, max_entries=2)
    assert (second.segments[PARENT].end, second.pending) == (at(4), (ONE,))
    assert Span(first, second).shows(PARENT, at(3), TWO, 0)


def test_what_was_pending_at_the_start_and_has_been_decided_needs_all_heads() -> None:
    """▲ Its other entries may stand anywhere, also before the start's end in a segment that is not scanned."""
    logs = {PARENT: heads([ONE, *[None] * 3_000]), ELSEWHERE: heads([None, ONE])}
    start = cut({PARENT: 0, ELSEWHERE: 1}, pending=(ONE,))
    open_, decided = (cut({PARENT: 3_000, ELSEWHERE: 1}, revision=60, pending=pending) for pending in ((ONE,), ()))
    found, scanned = nearest(Backlog(), start, open_, logs, entries=5)
    assert found.pending == (ONE,)
    assert found.segments[PARENT] == SegmentBounds(EARLIEST, at(5))
    assert scanned < 50
    found, scanned = nearest(Backlog(), start, decided, logs, entries=5)
    assert scanned == 3_003
    assert Span(start, found).shows(PARENT, at(0), ONE, 0) == Span(start, found).shows(ELSEWHERE, at(1), ONE, 0)


def test_of_a_topic_that_joins_everything_is_scanned() -> None:
    """Where what is kept of it begins is not known before."""
    logs = {PARENT: heads([None] * 100), ELSEWHERE: heads([None] * 100, first=50, time_ms=900)}
    start, target = cut({PARENT: -1}), cut({PARENT: 99, ELSEWHERE: 99}, revision=60)
    found, scanned = nearest(Backlog(), start, target, logs, entries=5)
    assert scanned == 150
    assert found.segments[ELSEWHERE].end == at(49)


def test_a_child_waits_for_all_of_its_parent_though_only_some_of_that_is_known() -> None:
    logs = {PARENT: heads([None] * 100, time_ms=1_000), LEFT: heads([None] * 50), RIGHT: heads([None] * 50)}
    start = cut({PARENT: -1})
    target = cut({PARENT: 99, LEFT: 49, RIGHT: 49}, revision=60)
    found, scanned = nearest(Backlog(), start, target, logs, entries=20)
    assert [found.segments[path].end for path in (PARENT, LEFT, RIGHT)] == [at(19), EARLIEST, EARLIEST]
    assert not found.segments[PARENT].sealed
    assert scanned < 50


def test_what_is_pending_or_aborted_at_the_target_takes_nothing() -> None:
    log: Log = [ONE, TWO, None, ONE, TWO, None, None]
    target = cut({PARENT: 6}, pending=(ONE,), aborted=(TWO,))
    found = limited({PARENT: log}, target, entries=2)
    assert found.segments[PARENT].end == at(5)
    assert (found.pending, found.aborted) == ((ONE,), (TWO,))


def test_entries_known_to_be_aborted_are_not_kept() -> None:
    target = cut({PARENT: 3})
    logs = {PARENT: [one._replace(aborted=one.txn_id is ONE) for one in heads([ONE, None, ONE, None])]}
    known = filled(Backlog(), None, target, logs)
    assert len(known) == 2
    assert known.limit(None, target, max_entries=1).segments[PARENT] == SegmentBounds(at(1), at(1))


def test_a_transaction_whose_rest_is_in_a_segment_not_begun_is_pending() -> None:
    """Committed by the target; yet to take it now would be to take a part."""
    logs: dict[str, Log] = {PARENT: [ONE, None], LEFT: [None, ONE], RIGHT: []}
    target = cut({PARENT: 1, LEFT: 1, RIGHT: -1})
    found = limited(logs, target, entries=1)
    assert found.segments[PARENT] == SegmentBounds(at(-1), at(1), sealed=True)
    assert found.segments[LEFT].end == at(-1)
    assert found.pending == (ONE,)


def test_children_begin_behind_their_parents_whatever_the_clocks_say() -> None:
    target = cut({PARENT: 3, LEFT: 0, RIGHT: 0, ELSEWHERE: 0})
    early, late = heads([None], time_ms=0), heads([None] * 4, time_ms=1_000)
    known = filled(Backlog(), None, target, {PARENT: late, LEFT: early, RIGHT: early, ELSEWHERE: early})
    found = known.limit(None, target, max_entries=4)
    assert [found.segments[path].end.entry_id for path in (ELSEWHERE, PARENT, LEFT, RIGHT)] == [0, 2, -1, -1]
    assert not found.segments[PARENT].sealed, "it goes on behind this end"
    assert known.limit(None, target, max_entries=5).segments[PARENT].sealed


def test_what_was_pending_and_is_whole_comes_before_what_is_new_and_within_the_limit() -> None:
    start = cut({PARENT: 5}, pending=(ONE, TWO, THREE))
    target = cut({PARENT: 7}, revision=60, pending=(THREE,))
    logs: dict[str, Log] = {PARENT: [ONE, TWO, THREE, ONE, TWO, THREE, None, None]}
    found = limited(logs, target, start=start, entries=2)
    assert found.segments[PARENT] == start.segments[PARENT], "the ends stay where they are"
    assert found.pending == (TWO, THREE)
    assert limited(logs, target, start=start, entries=3).pending == (TWO, THREE)
    assert limited(logs, target, start=start, entries=1) == found, "the first of them in any case"
    again = limited(logs, target, start=found, entries=3)
    assert (again.segments[PARENT].end, again.pending) == (at(6), (THREE,))


def test_few_are_cut_through_at_once() -> None:
    """Each is named in the offset."""
    txns = [TxnId(1, counter) for counter in range(1, 101)]
    logs: dict[str, Log] = {PARENT: [None, *txns, None, *txns]}
    target = cut({PARENT: 201})
    assert limited(logs, target, entries=50, held_back=1_000).segments[PARENT].end == at(125)
    assert limited(logs, target, entries=50, held_back=10).segments[PARENT].end == at(0)


def test_what_is_shown_is_forgotten() -> None:
    logs = {PARENT: heads([ONE, TWO, ONE, None, TWO, None, None]), ELSEWHERE: heads([TWO, None])}
    target = cut({PARENT: 6, ELSEWHERE: 1})
    known = filled(Backlog(), None, target, logs)
    assert (len(known), known.transactions) == (9, 2)
    found = known.limit(None, target, max_entries=3)
    assert found.pending == (TWO,)
    assert known.missing(found, target) == []
    assert known.transactions == 1
    assert known.missing(target, target) == []
    assert (len(known), known.transactions) == (0, 0)


def test_each_entry_is_scanned_once() -> None:
    known, first, second = Backlog(), cut({PARENT: 3}), cut({PARENT: 6}, revision=60)
    filled(known, None, first, {PARENT: heads([None] * 4)})
    [part] = known.missing(None, second)
    assert (part.after, part.end) == (at(3), at(6))
    known.add(part, heads([None] * 6))
    [part] = known.missing(None, second)
    assert (part.after, part.end) == (at(5), at(6)), "a scan that broke off goes on where it was"
    with pytest.raises(InvalidArgument, match="heads of 1 segments are not known"):
        known.limit(None, second, max_entries=1)
    known.add(part, heads([None] * 7))
    assert len(known) == 7
    assert known.limit(None, first, max_entries=100) == first, "what is known behind an older target is no matter"


def test_a_start_that_has_gone_back_is_scanned_anew() -> None:
    first, second = cut({PARENT: 3}), cut({PARENT: 6}, revision=60)
    known = filled(Backlog(), first, second, {PARENT: heads([None] * 7)})
    [part] = known.missing(cut({PARENT: 1}), second)
    assert (part.after, part.end) == (at(1), at(6))


def test_a_segment_that_was_not_begun_is_lost_when_it_is_trimmed() -> None:
    """▲ Of a topic that the stream knows. Were its end set before what is kept, the next batch would begin there."""
    start = cut({PARENT: 1})
    target = cut({PARENT: 1, LEFT: 9, RIGHT: 0}, revision=60)
    known = filled(Backlog(), start, target, {LEFT: heads([None] * 10, first=3, time_ms=50), RIGHT: heads([None])})
    found = known.limit(start, target, max_entries=1)
    assert found.segments[LEFT].end == EARLIEST
    assert Span(found, target).after(LEFT) == EARLIEST


def test_what_had_been_trimmed_when_a_stream_began_is_no_loss_later() -> None:
    target = cut({PARENT: 1, ELSEWHERE: 9})
    known = filled(
        Backlog(), None, target, {PARENT: heads([None] * 2), ELSEWHERE: heads([None] * 10, first=3, time_ms=9)}
    )
    found = known.limit(None, target, max_entries=1)
    assert found.segments[ELSEWHERE].end == at(2)


def test_the_rest_of_a_sealed_segment_is_missed_when_it_is_gone() -> None:
    """▲ `sealed` says that the end is the last: of a nearer end it must not, or the rest would be lost in silence."""
    target = cut({PARENT: 4, LEFT: 0, RIGHT: 0})
    found = limited({PARENT: [None] * 5, LEFT: [None], RIGHT: [None]}, target, entries=2)
    kept = {path: one for path, one in target.topics[TOPIC].segments.items() if path != PARENT}
    later = replace(target, topics={TOPIC: TopicBounds(2, kept, lost_id=0)}, revision=70)
    assert target.precedes(later)
    assert not found.precedes(later)


def test_what_was_shown_before_its_other_topic_joined_is_not_made_pending() -> None:
    """ONE was committed and shown when only one topic was read; FOUR keeps that topic's `resolved` low. Were ONE
    pending now, for its rest stands in the other topic, its first part would be shown once more."""
    start = cut({PARENT: 2}, pending=(FOUR,))
    target = cut({PARENT: 2, ELSEWHERE: 3}, revision=60, pending=(FOUR,))
    logs: dict[str, Log] = {PARENT: [FOUR, ONE, None], ELSEWHERE: [ONE, None, TWO, ONE]}
    found = limited(logs, target, start=start, entries=1)
    assert found.pending == (FOUR,)
    assert found.segments[ELSEWHERE].end == at(0)
    assert not Span(found, target).shows(PARENT, at(1), ONE, 0)


def test_a_transaction_long_open_does_not_have_all_since_read_again() -> None:
    log: Log = [ONE, TWO, *[None] * 4_000, THREE, None, THREE, None]
    start = cut({PARENT: 4_004}, pending=(ONE, TWO, THREE))
    logs: dict[str, list[EntryHead]] = {PARENT: heads([*log, None])}

    def read(pending: tuple[TxnId, ...], **more: object) -> list[tuple[int, int]]:
        target = cut({PARENT: 4_006}, revision=60, pending=pending, **more)
        known = filled(Backlog(), start, target, logs)
        known.limit(start, target, max_entries=100)
        return [(one.after.entry_id, one.end.entry_id) for one in known.ranges(start, target)]

    assert read((ONE, TWO)) == [(4_001, 4_004), (4_004, 4_006)]
    assert read((ONE,)) == [(0, 1), (4_001, 4_004), (4_004, 4_006)]
    assert read((ONE, TWO, THREE)) == [(4_004, 4_006)]
    assert read((ONE, TWO), aborted=(THREE,)) == [(4_004, 4_006)]


def test_what_is_aborted_is_not_read_where_a_range_begins_or_ends_with_it() -> None:
    def read(log: str, *, target: int, known: int) -> list[tuple[int, int]]:
        """`log`: `x` for an aborted entry."""
        found = [head._replace(aborted=log[n] == "x") for n, head in enumerate(heads([None] * known))]
        start, end = cut({PARENT: 2}), cut({PARENT: target}, revision=60)
        backlog = filled(Backlog(), start, cut({PARENT: known - 1}, revision=60), {PARENT: found})
        backlog.limit(start, cut({PARENT: known - 1}, revision=60), max_entries=100)
        return [(one.after.entry_id, one.end.entry_id) for one in backlog.ranges(start, end)]

    assert read("...xx.x.xxx", target=10, known=11) == [(4, 7)]
    assert read("...xx.x.xxx", target=6, known=11) == [(4, 5)]
    assert read("...xxxxxxxx", target=10, known=11) == [], "nothing at all"
    assert read("...xx", target=10, known=5) == [(2, 10)], "what is not known is read"


def test_a_large_value_over_the_end_of_a_start_is_read_in_one() -> None:
    pieces = [head._replace(piece=PieceHead("p", 1, 7, n, 2)) for n, head in enumerate(heads([ONE, ONE]))]
    log = [*heads([None] * 3), pieces[0]._replace(position=at(3)), pieces[1]._replace(position=at(5_000))]
    start, target = cut({PARENT: 4}, pending=(ONE,)), cut({PARENT: 5_000}, revision=60)
    known = filled(Backlog(), start, target, {PARENT: log})
    assert [(one.after, one.end) for one in known.ranges(start, target)] == [(at(2), at(5_000))]


def test_what_is_not_known_is_read_whole() -> None:
    """A batch of before the last start that was asked for, and one whose heads were never scanned."""
    start, target = cut({PARENT: 3}, pending=(ONE,)), cut({PARENT: 6}, revision=60)
    known = filled(Backlog(), start, target, {PARENT: heads([None, ONE, None, None, None, None, None])})
    known.limit(start, target, max_entries=100)
    assert [one.after for one in known.ranges(start, target)] == [at(0), at(3)]
    assert known.ranges(None, target) == Backlog().ranges(None, target)
    assert [one.after for one in Backlog().ranges(start, target)] == [EARLIEST]


def test_what_is_read_again_makes_few_tasks() -> None:
    txns = [TxnId(1, counter) for counter in range(1, 21)]
    spread = {PARENT: [EntryHead(at(n * 2_000 + n * n), txn, 0, 1, 1, 0, False, None) for n, txn in enumerate(txns)]}
    start, target = cut({PARENT: 50_000}, pending=tuple(txns)), cut({PARENT: 50_000}, revision=60)
    known = filled(Backlog(), start, target, spread)
    found = known.ranges(start, target)
    assert len(found) == 4
    assert [found[0].after, found[-1].end] == [at(-1), at(19 * 2_000 + 19 * 19)]
    assert [one.after.entry_id for one in found[1:]] == [n * 2_000 + n * n - 1 for n in (17, 18, 19)], "widest apart"


def test_a_large_value_of_what_was_shown_in_part_is_not_parted() -> None:
    """As above, but the rest of ONE in the topic that joins is a value in three pieces."""
    start = cut({PARENT: 2}, pending=(FOUR,))
    target = cut({PARENT: 2, ELSEWHERE: 5}, revision=60, pending=(FOUR,))
    rest = heads([None, ONE, None, ONE, ONE, None])
    pieces = {1: 0, 3: 1, 4: 2}
    rest = [
        head._replace(piece=PieceHead("p", 1, 7, pieces[n], 3)) if n in pieces else head for n, head in enumerate(rest)
    ]
    known = filled(Backlog(), start, target, {PARENT: heads([FOUR, ONE, None]), ELSEWHERE: rest})
    ends = [known.limit(start, target, max_entries=most).segments[ELSEWHERE].end for most in range(1, 7)]
    assert ends == [at(0), at(0), at(0), at(0), at(4), at(5)]
    assert known.limit(start, target, max_entries=5).pending == (FOUR,)


def test_what_was_resolved_at_the_start_stays_so() -> None:
    """As above with nothing pending, so that only the new entries are scanned: an owner that says less is resolved than
    the start's end must not bring ONE's first part back."""
    start = cut({PARENT: 2})
    target = cut({PARENT: 2, ELSEWHERE: 3}, revision=60)
    low = target.topics[TOPIC]._replace(segments={PARENT: SegmentBounds(at(0), at(2))})
    target = replace(target, topics={**target.topics, TOPIC: low})
    found = limited({ELSEWHERE: [ONE, None, TWO, ONE]}, target, start=start, entries=1)
    assert found.pending == (ONE,)
    assert found.segments[PARENT].resolved == at(2)
    assert not Span(found, target).shows(PARENT, at(1), ONE, 0)


def test_a_batch_of_before_the_newest_start_is_read_whole() -> None:
    """Run again, when what it showed is forgotten."""
    start, target = cut({PARENT: 3}, pending=(ONE,)), cut({PARENT: 4}, revision=60)
    known = filled(Backlog(), start, target, {PARENT: heads([None, ONE, None, None, None])})
    known.limit(start, target, max_entries=100)
    assert known.missing(target, target) == []
    assert known.ranges(start, target) == Backlog().ranges(start, target)


def test_what_went_unread_with_its_segment_leaves_the_rest_whole() -> None:
    """Passed over, where data may be lost."""
    before, after = cut({PARENT: 1, ELSEWHERE: 2}), cut({ELSEWHERE: 2}, revision=60)
    known = filled(Backlog(), None, before, {PARENT: heads([ONE, None]), ELSEWHERE: heads([ONE, None, ONE])})
    known.limit(None, before, max_entries=1)
    assert known.limit(None, after, max_entries=1).pending == (ONE,)


def test_looking_back_forgets_nothing_of_what_came_later() -> None:
    """▲ Or a limited stream would scan younger segments again for each batch."""
    logs = {PARENT: heads([ONE, None]), LEFT: heads([None] * 50)}
    start = cut({PARENT: 1}, pending=(ONE,))
    target = cut({PARENT: 1, LEFT: 49}, revision=60)
    known = filled(Backlog(), start, target, logs)

    assert known.unknown_before(start, target) == []
    assert len(known) == 1 + 50
    (part,) = Backlog().unknown_before(start, target)
    assert (part.segment, part.after, part.end) == (PARENT, EARLIEST, at(1))


def test_a_batch_that_is_planned_again_after_the_next_one_reads_the_same() -> None:
    """▲ What it showed of ONE is forgotten by then, and FOUR keeps `resolved` where it was."""
    logs = {PARENT: heads([FOUR, ONE, None, None])}
    start = cut({PARENT: 2}, pending=(FOUR, ONE))
    for end in (cut({PARENT: 3}, revision=60, pending=(FOUR,)), cut({PARENT: 2}, pending=(FOUR,))):
        known = filled(Backlog(), start, end, logs)
        planned = known.ranges(start, end)
        assert planned[0].after == at(0)
        filled(known, end, replace(end, revision=70), logs)
        filled(known, start, end, logs)
        assert known.ranges(start, end) == planned


def test_what_was_shown_is_known_as_that_until_all_heads_are_known() -> None:
    """As of a topic that joins: also where the scan of the one after the other breaks off, or begins with a batch that
    looks back."""
    start = cut({PARENT: 2}, pending=(FOUR,))
    target = cut({PARENT: 2, ELSEWHERE: 3}, revision=60, pending=(FOUR,))
    logs = {PARENT: heads([FOUR, ONE, None]), ELSEWHERE: heads([ONE, None, TWO, ONE])}
    broken_off, looked_back = Backlog(), Backlog()
    broken_off.add(broken_off.missing(start, target)[0], logs[PARENT])
    (part,) = looked_back.unknown_before(start, replace(target, pending=()))
    looked_back.add(part, logs[PARENT][:1])
    looked_back.done(part)
    for known in (broken_off, looked_back):
        filled(known, start, target, logs)
        assert known.limit(start, target, max_entries=1).pending == (FOUR,)
        assert known.missing(target, target) == []
        assert known.transactions == 1, "FOUR alone"


@pytest.mark.parametrize(
    ("log", "most", "pending"),
    [
        ([], 0, ()),
        ([None, None, None], 3, ()),
        ([None, ONE, ONE], 3, ()),
        ([None, ONE, ONE], 1, (ONE,)),
        ([ONE, TWO, ONE], 2, (TWO,)),
    ],
)
def test_a_batch_shows_so_many_entries(log: Log, most: int, pending: tuple[TxnId, ...]) -> None:
    target = cut({PARENT: len(log) - 1}, pending=pending)
    known = filled(Backlog(), None, target, {PARENT: heads(log)})
    assert [known.shows(None, target, entries) for entries in (most, most + 1)] == [True, False]


def test_what_has_committed_since_counts_wherever_it_stands() -> None:
    """Two entries before the start's end, whose transaction was open there, and one behind it."""
    start = cut({PARENT: 2}, pending=(ONE,))
    target = cut({PARENT: 3}, revision=60)
    known = filled(Backlog(), start, target, {PARENT: heads([ONE, None, ONE, None])})
    assert [known.shows(start, target, entries) for entries in (3, 4)] == [True, False]


def test_to_count_a_few_entries_a_few_are_scanned() -> None:
    logs = {PARENT: heads([None] * 5_000), ELSEWHERE: heads([None] * 5_000)}
    start, target = cut({PARENT: -1, ELSEWHERE: -1}), cut({PARENT: 4_999, ELSEWHERE: 4_999}, revision=60)
    known = Backlog()
    found = known.shows(start, target, 20)
    assert not isinstance(found, bool)
    assert [scan.heads for scan in found] == [20, 20]
    for part, _ in found[:1]:
        known.add(part, logs[part.segment][:20])
    assert known.shows(start, target, 20) is True
