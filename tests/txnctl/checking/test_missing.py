"""C12: what a data folder lacks, and what follows from it, decided from tables: several ledgers, several segments."""

from __future__ import annotations

import pytest

from txnctl.checking.missing import Shortfall, block_within, shortened, shortfalls, system_positions, torn, within
from txnctl.checking.picture import Picture
from txnctl.checking.rewound import OnDisk
from txnstore.records import (
    ABORTED,
    COMMITTED,
    OPEN,
    AbortedRecord,
    CursorBlock,
    Header,
    LedgerInfo,
    LedgerRecord,
    Watermark,
)
from txnstore.writes.collection_transitions import Collectable, read_outcomes
from txnwire.ids import EARLIEST, Position, TxnId

ONE, TWO = "public/nyc/flights/0000-7fff-0", "public/nyc/flights/8000-ffff-1"


def closed(ledger_id: int, length: int, **more: int) -> LedgerInfo:
    return LedgerInfo(ledger_id=ledger_id, closed_length=length, **more)


def there(entries: int, *, counted: int = 0) -> OnDisk:
    return OnDisk(entries, 100, counted)


DAMAGED = OnDisk(0, 0, damaged=True)


def picture(
    *ledgers: LedgerInfo,
    made: int | None = None,
    watermark: tuple[int, int] | None = None,
    aborted: dict[int, tuple[int, int] | None] | None = None,
    elsewhere: dict[int, tuple[int, int] | None] | None = None,
) -> Picture:
    """`aborted`: positions of aborted records in ONE, by transaction; `elsewhere`: in TWO."""
    records = {(ONE, TxnId(1, n), None): AbortedRecord(max_position=at) for n, at in (aborted or {}).items()}
    records |= {(TWO, TxnId(1, n), None): AbortedRecord(max_position=at) for n, at in (elsewhere or {}).items()}
    return Picture(
        ledgers={ONE: LedgerRecord(ledgers=list(ledgers), made=made)},
        watermarks={} if watermark is None else {ONE: Watermark(position=watermark)},
        aborted=records,
    )


def found(seen: Picture, on_disk: dict[int, OnDisk], *, trimmed_since: bool = False) -> list[tuple[int, int, int]]:
    """(ledger, expected, found) of what is missing in ONE."""
    short = shortfalls(seen, ONE, on_disk, trimmed_since=trimmed_since)
    assert all(one.segment == ONE and one.present == (one.ledger_id in on_disk) for one in short)
    return [(one.ledger_id, one.expected, one.found) for one in short]


def test_c12_each_of_several_ledgers_is_compared_with_its_own_length() -> None:
    seen = picture(closed(1, 4), closed(2, 3), closed(3, 5), closed(4, 2))
    assert found(seen, {1: there(4), 2: there(1), 4: there(1)}) == [(2, 3, 1), (3, 5, 0), (4, 2, 1)]
    assert [one.exact for one in shortfalls(seen, ONE, {}, trimmed_since=False)] == [True] * 4
    assert found(seen, {1: there(9), 2: there(3), 3: there(5), 4: there(2)}) == []
    assert found(picture(closed(1, 0)), {}) == [], "an empty one may have had no file"
    assert shortfalls(Picture(), ONE, {1: there(1)}, trimmed_since=False) == [], "no list: nothing is known"


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (picture(LedgerInfo(ledger_id=3), watermark=(3, 4)), [(3, 5, 2)]),
        (picture(LedgerInfo(ledger_id=3), watermark=(3, 2)), [(3, 3, 2)]),
        (picture(LedgerInfo(ledger_id=3), watermark=(3, 1)), []),
        (picture(LedgerInfo(ledger_id=3), watermark=(2, 9)), []),
        (picture(LedgerInfo(ledger_id=3), aborted={1: (3, 6), 2: (3, 2), 3: None}), [(3, 7, 2)]),
        (picture(LedgerInfo(ledger_id=3), aborted={1: (3, 2), 2: (3, 6)}, watermark=(3, 3)), [(3, 7, 2)]),
        (picture(LedgerInfo(ledger_id=3), elsewhere={1: (3, 6)}), []),
        (picture(LedgerInfo(ledger_id=3)), []),
    ],
)
def test_c12_what_an_open_ledger_had_is_told_by_the_highest_position_of_its_own_segment(
    seen: Picture, expected: list[tuple[int, int, int]]
) -> None:
    assert found(seen, {3: there(2)}) == expected
    assert [one.exact for one in shortfalls(seen, ONE, {3: there(2)}, trimmed_since=False)] == [False] * len(expected)


def test_c12_positions_are_those_of_one_segment() -> None:
    seen = picture(watermark=(1, 1), aborted={1: (1, 2), 2: None}, elsewhere={3: (9, 9)})
    assert list(system_positions(seen, ONE)) == [Position(1, 1), Position(1, 2)]
    assert list(system_positions(seen, TWO)) == [Position(9, 9)]


def test_c12_a_count_of_an_earlier_owner_tells_of_what_was_there() -> None:
    assert found(picture(LedgerInfo(ledger_id=1)), {1: there(2, counted=3)}) == [(1, 3, 2)]
    assert found(picture(LedgerInfo(ledger_id=1)), {1: there(3, counted=3)}) == []


def test_c12_an_open_ledger_without_a_file_lacks_something_only_if_it_surely_was_made() -> None:
    ledgers = (closed(1, 1), LedgerInfo(ledger_id=2))
    assert found(picture(*ledgers, made=2), {1: there(1)}) == [(2, 0, 0)]
    assert found(picture(*ledgers, made=1), {1: there(1)}) == []
    assert found(picture(*ledgers), {1: there(1)}) == []
    assert found(picture(closed(1, 1), closed(2, 0), made=2), {1: there(1)}) == [], "closed and empty: trimmed or not"


def test_c12_only_ledgers_before_the_first_file_may_have_been_trimmed_since() -> None:
    seen = picture(closed(1, 1), closed(2, 1), closed(3, 1), closed(4, 2), closed(5, 1))
    on_disk = {3: there(1), 5: there(0)}
    assert found(seen, on_disk, trimmed_since=True) == [(4, 2, 0), (5, 1, 0)]
    assert found(seen, on_disk) == [(1, 1, 0), (2, 1, 0), (4, 2, 0), (5, 1, 0)]
    assert found(seen, {}, trimmed_since=True) == []
    assert found(seen, {1: there(1)}, trimmed_since=True) == [(n, (1, 2)[n == 4], 0) for n in (2, 3, 4, 5)]


def test_c12_what_is_damaged_is_no_shortfall_and_hides_none_behind_it() -> None:
    seen = picture(closed(1, 2), LedgerInfo(ledger_id=2), closed(3, 2), watermark=(2, 5))
    assert found(seen, {1: there(2), 2: DAMAGED, 3: there(1)}) == [(3, 2, 1)]


def test_c12_a_shortened_list_changes_the_short_ledgers_alone() -> None:
    before = LedgerRecord(
        ledgers=[
            closed(1, 10, bytes=1000, closed_ms=5),
            closed(2, 10, bytes=1000, closed_ms=6),
            closed(3, 0, bytes=0, closed_ms=7),
            LedgerInfo(ledger_id=4, bytes=50),
        ],
        sealed=(4, 1),
        made=4,
    )
    short = [
        Shortfall(ONE, 2, 10, 3, exact=True, present=True),
        Shortfall(ONE, 4, 2, 0, exact=False, present=False),
        Shortfall(ONE, 3, 1, 0, exact=True, present=False),
    ]
    after = shortened(before, short, now_ms=99)
    assert after.ledgers == [
        before.ledgers[0],
        closed(2, 3, bytes=300, closed_ms=6),
        closed(3, 0, bytes=0, closed_ms=7),
        closed(4, 0, bytes=0, closed_ms=99),
    ]
    assert (after.sealed, after.made) == ((4, 1), 4)


@pytest.mark.parametrize(
    ("position", "expected"),
    [
        ((1, 1), (1, 1)),
        ((1, 2), (1, 1)),
        ((2, 0), (1, 1)),
        ((2, 7), (1, 1)),
        ((3, 3), (3, 2)),
        ((3, 2), (3, 2)),
        ((4, 8), (4, 8)),
        ((5, 0), (3, 2)),
        ((0, 0), (0, 0)),
        (EARLIEST, EARLIEST),
    ],
)
def test_c12_a_position_behind_the_end_becomes_the_last_one_that_is_left(
    position: tuple[int, int], expected: tuple[int, int]
) -> None:
    """Ledger 2 is empty by now, 4 is damaged and stays as it is; what was trimmed before 1 is as it was."""
    ledgers = [closed(1, 2), closed(2, 0), closed(3, 3), LedgerInfo(ledger_id=4)]
    assert within(Position(*position), ledgers) == Position(*expected)


def test_c12_where_nothing_is_left_a_position_is_before_everything() -> None:
    assert within(Position(1, 5), [closed(1, 0)]) == EARLIEST
    assert within(Position(2, 5), [closed(2, 0), closed(3, 4)]) == EARLIEST, "what comes behind it is not acked"


@pytest.mark.parametrize(
    ("length", "acked", "partial"),
    [
        (30, "ff01ff", [(9, 2, "01"), (20, 2, "01")]),
        (21, "ff01", [(9, 2, "01"), (20, 2, "01")]),  # through entry 20: bits 0 to 12 of the block
        (20, "ff01", [(9, 2, "01")]),
        (12, "0f", [(9, 2, "01")]),
        (9, "01", []),
        (10, "03", [(9, 2, "01")]),
        (8, None, []),
        (0, None, []),
    ],
)
def test_c12_of_a_block_of_acks_what_is_left_of_its_ledger_stays(
    length: int, acked: str | None, partial: list[tuple[int, int, str]]
) -> None:
    """Bits 0 to 8 and 16 to 23 of a block from entry 8 on."""
    block = CursorBlock(ledger_id=1, first_entry=8, acked="ff01ff", partial=[(9, 2, "01"), (20, 2, "01")])
    left = block_within(block, length)
    if acked is None:
        assert left is None
    elif length == 30:
        assert left is not None
        assert (left.acked, left.partial) == ("ff013f", partial), "22 bits are left of 24"
    else:
        assert left == CursorBlock(ledger_id=1, first_entry=8, acked=acked, partial=partial)


def test_c12_a_block_with_acks_of_parts_alone_or_whole_ones_alone_stays() -> None:
    parts = CursorBlock(ledger_id=1, first_entry=0, acked="", partial=[(2, 2, "01"), (3, 2, "01")])
    assert block_within(parts, 3) == CursorBlock(ledger_id=1, first_entry=0, acked="", partial=[(2, 2, "01")])
    assert block_within(parts, 2) is None
    whole = CursorBlock(ledger_id=1, first_entry=0, acked="80")
    assert block_within(whole, 8) == whole
    assert block_within(whole, 7) is None


BEFORE, MARK, BEHIND = 10, 20, 21


def header(state: str) -> Header:
    return Header(state=state, timeout_ms=1, created_ms=1)


def torn_in(
    states: dict[int, tuple[str, int]],
    *,
    ops: dict[tuple[int, str, str | None], int] | None = None,
    left: dict[tuple[int, str], int] | None = None,
    short: tuple[str, ...] = (ONE,),
) -> dict[int, str]:
    """`states`: header and its revision by transaction."""
    seen = Picture(
        headers={TxnId(1, n): header(state) for n, (state, _) in states.items()},
        header_revisions={TxnId(1, n): revision for n, (_, revision) in states.items()},
        ops={(TxnId(1, n), segment, name): count for (n, segment, name), count in (ops or {}).items()},
    )
    some = [Shortfall(segment, 1, 2, 1, exact=True, present=True) for segment in short]
    remaining = {(TxnId(1, n), segment): count for (n, segment), count in (left or {}).items()}
    result = torn(seen, some, remaining, folder_revision=MARK)
    assert result.unsure == ()
    return {txn_id.counter: why for txn_id, why in result.dropped.items()}


def test_c12_of_what_has_headers_what_was_committed_behind_the_mark_is_dropped() -> None:
    states = {
        1: (COMMITTED, BEFORE),
        2: (COMMITTED, MARK),
        3: (COMMITTED, BEHIND),
        4: (ABORTED, BEHIND),
        5: (OPEN, BEHIND),
    }
    assert torn_in(states) == {3: "decided after the folder's mark"}


def test_c12_what_has_fewer_entries_than_operations_in_a_damaged_segment_is_dropped() -> None:
    states = dict.fromkeys(range(1, 7), (COMMITTED, BEFORE)) | {7: (OPEN, BEFORE), 8: (ABORTED, BEFORE)}
    ops: dict[tuple[int, str, str | None], int] = {
        (1, ONE, None): 2,
        (2, ONE, None): 2,
        (3, TWO, None): 2,  # nothing is missing there: an operation may stand without its entry
        (4, ONE, "job"): 2,  # acks have no entries
        (5, ONE, None): 1,
        (6, ONE, None): 2,
        (6, TWO, None): 1,
        (7, ONE, None): 2,
        (8, ONE, None): 2,
        (9, ONE, None): 2,  # without a header
    }
    left = {(1, ONE): 1, (2, ONE): 2, (6, ONE): 2, (6, TWO): 0, (3, ONE): 5}
    assert torn_in(states, ops=ops, left=left) == {
        1: f"1 of 2 entries are left in {ONE}",
        5: f"0 of 1 entries are left in {ONE}",
    }


def test_c12_a_transaction_over_two_damaged_segments_is_dropped_for_either() -> None:
    states = dict.fromkeys((1, 2, 3), (COMMITTED, BEFORE))
    ops: dict[tuple[int, str, str | None], int] = {(n, segment, None): 1 for n in (1, 2, 3) for segment in (ONE, TWO)}
    left = {(1, ONE): 1, (2, TWO): 1, (3, ONE): 1, (3, TWO): 1}
    expected = {1: f"0 of 1 entries are left in {TWO}", 2: f"0 of 1 entries are left in {ONE}"}
    assert torn_in(states, ops=ops, left=left, short=(ONE, TWO)) == expected
    assert list(torn_in(states, ops=ops, left=left, short=(TWO, ONE))) == [1, 2]
    assert list(torn_in(states, ops=ops, left=left, short=(TWO,))) == [1]


def test_c12_of_what_was_collected_what_may_have_committed_behind_the_mark_is_named() -> None:
    """1 and 2 were collected as committed, 3 as aborted, in a block that was written behind the mark; 4097 in one that
    was written before; of 8193 nothing tells; 5 has its header."""
    younger, older = (
        read_outcomes(1, block, None).with_finals([Collectable(n, n % 4096 != 3, 1) for n in numbers], touched_ms=1)
        for block, numbers in ((0, (1, 2, 3, 5)), (1, (4097,)))
    )
    left = {(TxnId(1, n), segment): 1 for n in (1, 2, 3, 5, 4097, 8193) for segment in (ONE, TWO)}
    short = [Shortfall(ONE, 1, 2, 1, exact=True, present=True)]

    def unsure(revision: int) -> tuple[TxnId, ...]:
        blocks = {(1, 0): younger._replace(mod_revision=revision), (1, 1): older._replace(mod_revision=BEFORE)}
        seen = Picture(headers={TxnId(1, 5): header(COMMITTED)}, outcomes=blocks)
        return torn(seen, short, left, folder_revision=MARK).unsure

    assert unsure(BEHIND) == (TxnId(1, 1), TxnId(1, 2))
    assert unsure(MARK) == ()


@pytest.mark.parametrize(
    ("exact", "present", "told"),
    [
        (True, True, "had 5 entries, 2 are there: 3 that were acknowledged are missing"),
        (False, True, "had at least 5 entries, 2 are there: at least 3 that were acknowledged are missing"),
        (True, False, "had 5 entries, its file is not there: 3 that were acknowledged are missing"),
    ],
)
def test_c12_what_a_ledger_lacks_is_told_with_what_it_had_and_has(exact: bool, present: bool, told: str) -> None:
    assert str(Shortfall("t/n/x/0000-ffff-0", 7, 5, 2, exact, present)) == f"t/n/x/0000-ffff-0: ledger 7 {told}"
