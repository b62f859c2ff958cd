"""Cursors: mark-delete, blocks, bounds, and what of them is written (DESIGN §4 `/cursor`, §6)."""

from __future__ import annotations

import sys

import pytest

from segments.subscription.cursors.cursor import BLOCK_ENTRIES, MARK, Cursor
from segments.subscription.cursors.partial_acks import stored_bytes
from tests.segments.ledger_lengths import LedgerLengths
from tests.segments.subscription.cursors.cursors import Stored, at, whole
from txnwire.errors import DataCorrupt, Overloaded
from txnwire.ids import EARLIEST
from watchers.acks import WHOLE, AckPosition, LeftOut


def part(entry_id: int, indexes: int, messages: int = 4) -> AckPosition:
    return AckPosition(at(entry_id), messages, indexes)


def test_acks_in_order_move_the_mark_and_need_no_block(cursor: Cursor) -> None:
    for entry_id in range(10):
        assert cursor.ack(whole(entry_id))
    assert cursor.ack(whole(0, 4))
    assert cursor.mark_delete == at(0, 4)
    assert cursor.statistics().blocks == 0


def test_acks_out_of_order_close_the_gap_over_the_end_of_a_ledger(cursor: Cursor) -> None:
    for entry_id in (9, 8, 6, 5, 4, 3, 2, 1):
        assert cursor.ack(whole(entry_id))
    assert cursor.ack(whole(0, 4))
    assert (cursor.mark_delete, cursor.acked(at(8)), cursor.acked(at(7))) == (EARLIEST, WHOLE, 0)
    cursor.ack(whole(0))
    assert cursor.mark_delete == at(6)
    cursor.ack(whole(7))
    assert cursor.mark_delete == at(0, 4)
    assert cursor.statistics().blocks == 0


def test_p8_part_of_an_entry_counts_by_index(cursor: Cursor) -> None:
    assert cursor.ack(part(0, 0b0101))
    assert not cursor.ack(part(0, 0b0100))
    assert (cursor.acked(at(0)), cursor.mark_delete) == (0b0101, EARLIEST)
    assert cursor.ack(part(0, 0b1010))
    assert (cursor.acked(at(0)), cursor.mark_delete) == (WHOLE, at(0))
    assert cursor.statistics().partial == 0


def test_p2_cumulative_ack_lower_equal_higher(cursor: Cursor) -> None:
    assert cursor.ack_cumulative(whole(5))
    assert not cursor.ack_cumulative(whole(5))
    assert not cursor.ack_cumulative(whole(3))
    assert cursor.mark_delete == at(5)
    assert cursor.ack_cumulative(whole(2, 4))
    assert cursor.mark_delete == at(2, 4)


def test_p2_cumulative_ack_passes_what_is_acked_behind_it(cursor: Cursor) -> None:
    for entry_id in (2, 6, 7):
        cursor.ack(whole(entry_id))
    cursor.ack_cumulative(whole(5))
    assert cursor.mark_delete == at(7)


def test_p8_cumulative_ack_of_part_of_its_last_entry(cursor: Cursor) -> None:
    assert cursor.ack_cumulative(part(3, 0b0011))
    assert (cursor.mark_delete, cursor.acked(at(3))) == (at(2), 0b0011)
    assert cursor.ack_cumulative(part(3, 0b1111 - 0b1000))
    assert not cursor.ack_cumulative(part(3, 0b0001))
    assert cursor.acked(at(3)) == 0b0111
    assert cursor.ack_cumulative(part(3, 0b1000))
    assert cursor.mark_delete == at(3)


def test_p8_cumulative_ack_up_to_messages_that_are_acked_already_changes_what_is_before(cursor: Cursor) -> None:
    cursor.ack(part(3, 0b0011))
    assert cursor.ack_cumulative(part(3, 0b0001)), "what is not told as a change is not written"
    assert cursor.mark_delete == at(2)
    assert not cursor.ack_cumulative(part(3, 0b0001))


def test_cumulative_ack_of_part_of_a_ledgers_first_entry(cursor: Cursor) -> None:
    cursor.ack_cumulative(AckPosition(at(0, 4), 4, 0b1))
    assert cursor.acked(at(9)) == WHOLE
    assert cursor.acked(at(0, 4)) == 0b1
    cursor.ack(whole(0, 4))
    assert cursor.mark_delete == at(0, 4)


def test_next_unacked_skips_what_is_acked(cursor: Cursor) -> None:
    for entry_id in (0, 2, 3, 9):
        cursor.ack(whole(entry_id))
    cursor.ack(whole(0, 4))
    assert cursor.next_unacked(EARLIEST) == at(1)
    assert cursor.next_unacked(at(2)) == at(4)
    assert cursor.next_unacked(at(9)) == at(1, 4)


def test_seek_is_the_one_way_back(cursor: Cursor) -> None:
    cursor.ack_cumulative(whole(5))
    cursor.ack(whole(8))
    cursor.seek(at(2))
    assert (cursor.mark_delete, cursor.acked(at(8)), cursor.acked(at(3))) == (at(2), 0, 0)


def test_a_seek_is_written_also_where_nothing_has_changed_since_the_last_write(
    cursor: Cursor, ledgers: LedgerLengths
) -> None:
    stored = Stored()
    cursor.ack_cumulative(whole(5))
    assert cursor.statistics().dirty == 1
    stored.flush(cursor)
    assert (cursor.dirty, cursor.statistics().dirty) == (False, 0)
    cursor.seek(at(2))
    assert (cursor.dirty, cursor.statistics().dirty) == (True, 1)
    assert stored.flush(cursor) == [MARK]
    assert stored.load(ledgers).mark_delete == at(2)


# ---- bounds


def test_ack_past_the_bound_is_refused_and_changes_nothing(ledgers: LedgerLengths) -> None:
    cursor = Cursor(ledgers, EARLIEST, max_blocks=1, max_partial=1)
    cursor.ack(whole(5))
    with pytest.raises(Overloaded, match="blocks of 4096 positions after the first unacked entry, 1:0"):
        cursor.ack(whole(7, 4))
    assert cursor.acked(at(7, 4)) == 0
    cursor.ack(part(4, 1))
    with pytest.raises(Overloaded, match="acked in part"):
        cursor.ack(part(3, 1))
    assert cursor.acked(at(3)) == 0
    cursor.ack(whole(4))
    cursor.ack(part(3, 1))


def test_p8_what_is_acked_whole_takes_no_room_of_those_acked_in_part(ledgers: LedgerLengths) -> None:
    """Message by message, cumulatively or around what is pending: else a subscription would be refused such acks one
    day, for good."""
    cursor = Cursor(ledgers, EARLIEST, max_partial=2)
    for entry_id, finish in (
        (1, lambda: (cursor.ack(part(1, 0b1110)), cursor.ack(whole(2)))),
        (3, lambda: cursor.ack_around(whole(4), LeftOut(at(0), {(1, 0): 0b1}, []))),
        (5, lambda: cursor.ack_cumulative(whole(6))),
    ):
        cursor.ack(part(entry_id, 0b0001))
        cursor.ack(part(entry_id + 1, 0b0001))
        with pytest.raises(Overloaded, match="2 entries"):
            cursor.ack(part(9, 0b0001))
        finish()
    assert cursor.ack(part(9, 0b0001))


def test_p8_entries_acked_in_part_take_room_by_their_size_until_they_are_acked_whole(ledgers: LedgerLengths) -> None:
    """Few large ones take what many small ones do; and held by a transaction as well, no more."""
    cursor = Cursor(ledgers, EARLIEST, partial_bytes=2 * stored_bytes(10_000))
    for entry_id in range(1, 8, 2):
        pair = [AckPosition(at(one), 10_000, 0b1) for one in (entry_id, entry_id + 1)]
        for ack in pair:
            cursor.hold(ack)
            cursor.ack(ack, held=True)
        with pytest.raises(Overloaded, match="acked in part"):
            cursor.ack(part(9, 0b0001))
        for ack in pair:
            cursor.unhold(ack)
            cursor.ack(whole(ack.position.entry_id))
    assert cursor.ack(part(9, 0b0001))


def test_what_is_acked_around_others_is_stored_over_blocks_and_ledgers() -> None:
    ledgers, stored = LedgerLengths({1: BLOCK_ENTRIES + 5, 2: 0, 3: 7}), Stored()
    cursor = Cursor(ledgers, EARLIEST)
    cursor.ack(part(3, 0b0001))
    kept = LeftOut(at(1), {(1, 0): 0b10, (1, 1): 0b1, (3, 0): 0b1}, [part(2, 0b0110), part(4, 0b0001)])
    assert cursor.ack_around(part(5, 0b0011)._replace(position=at(5, 3)), kept)
    assert not cursor.ack_around(whole(4, 3), kept)
    stored.flush(cursor)
    for found in (cursor, stored.load(ledgers)):
        left = {place: found.acked(place) for place in ledgers.positions() if found.acked(place) != WHOLE}
        assert left == {
            at(0): 0,
            at(1): 0,
            at(2): 0b1001,
            at(4): 0b1110,
            at(BLOCK_ENTRIES): 0,
            at(0, 3): 0,
            at(5, 3): 0b0011,
            at(6, 3): 0,
        }
    cursor.ack_cumulative(whole(2))
    cursor.ack(whole(4))
    cursor.ack(whole(BLOCK_ENTRIES))
    assert cursor.mark_delete == at(BLOCK_ENTRIES + 4)


def test_acks_around_others_are_refused_if_any_of_them_has_no_room(ledgers: LedgerLengths) -> None:
    cursor = Cursor(ledgers, EARLIEST, max_partial=1)
    cursor.ack(part(2, 0b0001))
    kept = LeftOut(at(1), {(1, 0): 0b10}, [part(2, 0b1000), part(4, 0b1000)])
    with pytest.raises(Overloaded, match="acked in part"):
        cursor.ack_around(whole(6), kept)
    assert [cursor.acked(at(entry_id)) for entry_id in range(1, 7)] == [0, 0b0001, 0, 0, 0, 0]


def test_first_unacked_entry_can_be_acked_whatever_the_bound(ledgers: LedgerLengths) -> None:
    """Otherwise a full cursor would stay full for ever."""
    cursor = Cursor(ledgers, at(9), max_blocks=1, max_partial=1)
    cursor.ack(whole(BLOCK_ENTRIES, 4))
    cursor.ack(AckPosition(at(BLOCK_ENTRIES + 1, 4), 4, 1))
    assert cursor.ack(AckPosition(at(0, 4), 4, 0b1))
    assert cursor.ack(AckPosition(at(0, 4), 4, 0b1110))
    assert cursor.ack(whole(1, 4))
    cursor.hold(whole(2, 4))
    assert cursor.ack_cumulative(whole(BLOCK_ENTRIES - 1, 4))
    assert cursor.mark_delete == at(BLOCK_ENTRIES, 4)


def test_held_ack_has_its_room(ledgers: LedgerLengths) -> None:
    cursor = Cursor(ledgers, EARLIEST, max_blocks=1, max_partial=1)
    promised = AckPosition(at(5000, 4), 4, 0b1)
    cursor.hold(promised)
    with pytest.raises(Overloaded):
        cursor.ack(whole(5))
    with pytest.raises(Overloaded):
        cursor.hold(whole(6))
    with pytest.raises(Overloaded):
        cursor.ack(AckPosition(at(5001, 4), 4, 0b1))
    assert cursor.ack(promised, held=True)
    cursor.unhold(promised)
    assert cursor.acked(at(5000, 4)) == 0b1


def test_hold_that_is_let_go_leaves_nothing(cursor: Cursor) -> None:
    cursor.hold(whole(5000, 4))
    assert not cursor.dirty
    cursor.unhold(whole(5000, 4))
    assert (cursor.statistics().blocks, cursor.dirty) == (0, False)


# ---- persistence


def test_p8_everything_survives_a_restart(cursor: Cursor, ledgers: LedgerLengths) -> None:
    stored = Stored()
    cursor.ack_cumulative(whole(1))
    cursor.ack(whole(5))
    cursor.ack(part(7, 0b0110))
    cursor.ack(whole(4097, 4))
    assert stored.flush(cursor) == [MARK, "1-0", "4-1"]
    assert not cursor.dirty
    loaded = stored.load(ledgers)
    assert not loaded.dirty
    assert loaded.mark_delete == at(1)
    assert [loaded.acked(at(entry_id)) for entry_id in range(2, 9)] == [0, 0, 0, WHOLE, 0, 0b0110, 0]
    assert loaded.acked(at(4097, 4)) == WHOLE


def test_records_read_as_they_stand(cursor: Cursor) -> None:
    cursor.ack_cumulative(whole(1))
    cursor.ack(whole(5))
    cursor.ack(part(7, 0b0110))
    mark, block = cursor.block_writes()
    assert mark.value == b'{"v":1,"position":[1,1],"seeks":0}'
    assert block.value == b'{"v":1,"ledger_id":1,"first_entry":0,"acked":"20","partial":[[7,4,"06"]]}'


@pytest.mark.parametrize(
    ("block", "value", "message"),
    [
        (MARK, b"{", "sub/mark"),
        (MARK, b'{"v":2,"position":[1,1]}', "version 2"),
        ("1-0", b'{"v":1,"ledger_id":1,"first_entry":0,"acked":"zz"}', "sub/1-0"),
        ("1-0", b'{"v":1,"ledger_id":1,"first_entry":4096,"acked":"","partial":[[3,4,"01"]]}', "sub/1-0"),
    ],
)
def test_corrupt_record_is_named(ledgers: LedgerLengths, block: str, value: bytes, message: str) -> None:
    stored = Stored()
    stored.put(block, value)
    with pytest.raises(DataCorrupt, match=message):
        stored.load(ledgers)


# ---- records of a bounded size


def paged(ledgers: LedgerLengths, stored: Stored | None = None, *, entries: int = 1) -> Cursor:
    """So many entries acked in part in one record."""
    found = [] if stored is None else list(stored.records.values())
    return Cursor.load(ledgers, EARLIEST, found, record_bytes=entries * stored_bytes(4))


def test_what_a_block_has_no_room_for_goes_to_pages_and_comes_back(ledgers: LedgerLengths) -> None:
    cursor, stored = paged(ledgers), Stored()
    for entry_id in (3, 5, 7):
        cursor.ack(part(entry_id, 0b0001))
    assert stored.flush(cursor) == ["1-0", "1-0-1", "1-0-2"]
    cursor = paged(ledgers, stored)
    assert not cursor.dirty
    assert [cursor.acked(at(entry_id)) for entry_id in (3, 5, 7)] == [1, 1, 1]
    cursor.ack(part(5, 0b1110))
    assert stored.flush(cursor) == ["1-0", "1-0-1"]
    assert sorted(stored.records) == ["1-0", "1-0-2"]
    cursor.ack_cumulative(whole(9))
    assert sorted(stored.flush(cursor)) == ["1-0", "1-0-2", "mark"]
    assert sorted(stored.records) == ["mark"]


def test_a_whole_ack_is_stored_before_the_page_without_its_part(ledgers: LedgerLengths) -> None:
    """▲ A crash between the two would lose what had been stored of it."""
    cursor = paged(ledgers, entries=2)
    for entry_id in (3, 4, 5, 6):
        cursor.ack(part(entry_id, 0b0001))
    Stored().flush(cursor)
    cursor.ack(part(5, 0b1110))
    cursor.ack(part(6, 0b0010))
    assert [write.block for write in cursor.block_writes()] == ["1-0", "1-0-1"]


def test_a_record_larger_than_they_are_now_is_cut_and_the_part_is_stored_before_the_rest(
    ledgers: LedgerLengths,
) -> None:
    """▲ As an earlier version has stored it."""
    cursor, stored = paged(ledgers, entries=3), Stored()
    for entry_id in (3, 5, 7):
        cursor.ack(part(entry_id, 0b0001))
    assert stored.flush(cursor) == ["1-0"]
    cursor = paged(ledgers, stored)
    cursor.ack(part(3, 0b0010))
    assert stored.flush(cursor) == ["1-0-1", "1-0-2", "1-0"]
    assert [paged(ledgers, stored).acked(at(entry_id)) for entry_id in (3, 5, 7)] == [3, 1, 1]


def test_a_part_cut_into_a_page_that_is_stored_already_is_stored_before_the_rest(ledgers: LedgerLengths) -> None:
    """▲ The page is read behind the record: what that has left there must still go first."""
    cursor, stored = paged(ledgers, entries=2), Stored()
    for entry_id in (3, 5, 7):
        cursor.ack(part(entry_id, 0b0001))
    assert stored.flush(cursor) == ["1-0", "1-0-1"]
    cursor = paged(ledgers, stored)
    cursor.ack(part(3, 0b0010))
    assert stored.flush(cursor) == ["1-0-1", "1-0"]
    assert [paged(ledgers, stored).acked(at(entry_id)) for entry_id in (3, 5, 7)] == [3, 1, 1]


def test_the_room_that_an_entry_leaves_in_its_record_is_filled_by_the_next(ledgers: LedgerLengths) -> None:
    """Otherwise each goes to a page of its own in the end."""
    cursor, stored = paged(ledgers, entries=2), Stored()
    for entry_id in (3, 5, 7, 9):
        cursor.ack(part(entry_id, 0b0001))
        cursor.ack(part(entry_id, 0b1110))
    cursor.ack(part(8, 0b0001))
    assert stored.flush(cursor) == ["1-0"]


def test_parts_left_in_pages_of_entries_that_are_acked_whole_by_now_are_forgotten(ledgers: LedgerLengths) -> None:
    """The crash came before the pages were deleted: they would count twice, and take room for ever."""
    cursor, stored = paged(ledgers), Stored()
    for entry_id in (3, 5, 7):
        cursor.ack(part(entry_id, 0b0001))
    stored.flush(cursor)
    for entry_id in (5, 7):
        cursor.ack(part(entry_id, 0b1110))
    block = cursor.block_writes()[0]
    assert (block.block, block.value is None) == ("1-0", False)
    stored.put(block.block, block.value or b"")
    assert sorted(stored.records) == ["1-0", "1-0-1", "1-0-2"]
    assert paged(ledgers, stored).statistics().partial == 1


def test_a_page_that_is_filled_again_before_it_is_deleted_is_rewritten(ledgers: LedgerLengths) -> None:
    cursor, stored = paged(ledgers), Stored()
    for entry_id in (3, 5):
        cursor.ack(part(entry_id, 0b0001))
    stored.flush(cursor)
    cursor.ack(part(5, 0b1110))
    cursor.ack(part(7, 0b0001))
    assert stored.flush(cursor) == ["1-0", "1-0-1"]
    again = paged(ledgers, stored)
    assert [again.acked(at(entry_id)) for entry_id in (3, 5, 7)] == [1, WHOLE, 1]


def test_a_page_that_was_emptied_is_the_first_to_be_filled_again(ledgers: LedgerLengths) -> None:
    """▲ A record that grew past the store's limit would be refused for ever, and all later acks with it."""
    cursor, stored = paged(ledgers), Stored()
    for entry_id in (1, 3, 5, 7):
        cursor.ack(part(entry_id, 0b0001))
    stored.flush(cursor)
    cursor.ack(part(3, 0b1110))
    stored.flush(cursor)
    assert sorted(stored.records) == ["1-0", "1-0-2", "1-0-3"]
    cursor.ack(part(9, 0b0001))
    assert stored.flush(cursor) == ["1-0-1"]
    cursor.ack(part(11, 0b0001))
    assert stored.flush(cursor) == ["1-0-4"]
    again = paged(ledgers, stored)
    assert [again.acked(at(entry_id)) for entry_id in (1, 5, 7, 9, 11)] == [1] * 5
    assert again.acked(at(3)) == WHOLE


def test_an_ack_in_order_does_not_look_at_every_block_behind_it() -> None:
    """An ack of 10 000 positions before 256 blocks would keep the loop busy for more than a second."""
    blocks = 200
    cursor = Cursor(LedgerLengths({1: blocks * BLOCK_ENTRIES}), EARLIEST, max_blocks=blocks)
    for number in range(blocks):
        cursor.ack(whole(number * BLOCK_ENTRIES + 1))
    for entry_id in range(3, 100, 2):
        cursor.ack(whole(entry_id))
    assert cursor.statistics().blocks == blocks
    calls = 0

    def count(*_: object) -> None:
        nonlocal calls
        calls += 1

    sys.setprofile(count)
    try:
        for entry_id in range(0, 100, 2):
            cursor.ack(whole(entry_id))
    finally:
        sys.setprofile(None)
    assert cursor.mark_delete == at(99)
    assert calls < 50 * blocks
