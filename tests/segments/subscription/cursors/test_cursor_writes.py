"""How cursors are written: what has changed, lost compares, blocks that go."""

from __future__ import annotations

from segments.subscription.cursors.cursor import MARK, Cursor
from tests.segments.ledger_lengths import LedgerLengths
from tests.segments.subscription.cursors.cursors import Stored, at, whole
from txnstore import records
from txnstore.records import CursorBlock, CursorMark
from txnwire.ids import EARLIEST
from watchers.acks import WHOLE, AckPosition, LeftOut


def test_only_what_changed_is_written_and_what_is_passed_goes_last(cursor: Cursor) -> None:
    stored = Stored()
    cursor.ack(whole(5))
    cursor.ack(whole(4097, 4))
    assert stored.flush(cursor) == ["1-0", "4-1"]
    cursor.ack(whole(4098, 4))
    assert stored.flush(cursor) == ["4-1"]
    cursor.ack_cumulative(whole(0, 4))
    assert stored.flush(cursor) == [MARK, "1-0"]
    assert sorted(stored.records) == ["4-1", MARK]
    assert stored.flush(cursor) == []


def test_start_counts_only_until_a_mark_is_stored(cursor: Cursor, ledgers: LedgerLengths) -> None:
    stored = Stored()
    assert stored.load(ledgers, at(4)).mark_delete == at(4)
    cursor.ack_cumulative(whole(7))
    cursor.seek(at(2))
    cursor.ack(whole(7))
    assert stored.flush(cursor) == ["1-0", MARK]
    assert stored.load(ledgers, at(4)).mark_delete == at(2)


def test_every_block_that_has_changed_is_told_and_written(cursor: Cursor) -> None:
    stored = Stored()
    far = at(4097, 4)
    for position in (at(5), far):
        cursor.ack(AckPosition(position, 4, 0b0001))
    assert (cursor.statistics().partial, cursor.statistics().dirty) == (2, 2)
    assert stored.flush(cursor) == ["1-0", "4-1"]
    cursor.ack(AckPosition(far, 4, 0b0010))
    assert (cursor.dirty, cursor.statistics().dirty) == (True, 1)
    assert stored.flush(cursor) == ["4-1"]


def test_change_during_a_write_is_written_next(cursor: Cursor) -> None:
    stored = Stored()
    cursor.ack(whole(5))
    cursor.ack_cumulative(whole(0))
    writes = cursor.block_writes()
    cursor.ack(whole(6))
    cursor.ack_cumulative(whole(1))
    stored.revision = 1
    for write in writes:
        assert write.value is not None
        stored.put(write.block, write.value)
    cursor.written(writes, {write.block: 1 for write in writes})
    assert cursor.dirty
    assert stored.flush(cursor) == [MARK, "1-0"]


def test_block_passed_while_its_first_write_is_under_way_is_deleted_afterwards(cursor: Cursor) -> None:
    stored = Stored()
    cursor.ack(whole(5))
    writes = cursor.block_writes()
    cursor.ack_cumulative(whole(9))
    stored.revision = 1
    stored.put("1-0", writes[0].value or b"")
    cursor.written(writes, {"1-0": 1})
    assert stored.flush(cursor) == [MARK, "1-0"]
    assert list(stored.records) == [MARK]


def test_block_that_comes_back_while_it_is_being_deleted_is_created_anew(ledgers: LedgerLengths) -> None:
    cursor, stored = Cursor(ledgers, EARLIEST), Stored()
    cursor.ack(whole(5))
    stored.flush(cursor)
    cursor.ack_cumulative(whole(6))
    writes = cursor.block_writes()
    assert [write.value is None for write in writes] == [False, True]
    cursor.ack(whole(8))
    stored.revision += 1
    stored.put(MARK, writes[0].value or b"")
    del stored.records["1-0"]
    cursor.written(writes, {MARK: stored.revision})
    assert stored.flush(cursor) == ["1-0"]
    assert stored.load(ledgers).acked(at(8)) == WHOLE


def test_block_that_comes_back_before_it_is_deleted_is_rewritten(ledgers: LedgerLengths) -> None:
    cursor, stored = Cursor(ledgers, EARLIEST), Stored()
    cursor.ack(whole(5))
    stored.flush(cursor)
    cursor.ack_cumulative(whole(6))
    cursor.ack(whole(8))
    assert stored.flush(cursor) == [MARK, "1-0"]
    loaded = stored.load(ledgers)
    assert (loaded.mark_delete, loaded.acked(at(8)), loaded.acked(at(7))) == (at(6), WHOLE, 0)


def test_p6_lost_compare_merges_and_never_goes_back(cursor: Cursor, ledgers: LedgerLengths) -> None:
    """▲ P11: what stands there stays, acks only add up."""
    stored = Stored()
    cursor.ack_cumulative(whole(2))
    cursor.ack(whole(6))
    stored.revision = 9
    stored.put(MARK, records.encode(CursorMark(position=(1, 4))))
    stored.put("1-0", records.encode(CursorBlock(ledger_id=1, first_entry=0, acked="80", partial=[(8, 4, "01")])))
    for block in (MARK, "1-0"):
        cursor.reload(block, stored.records[block].value, 9)
    assert cursor.mark_delete == at(4)
    assert stored.flush(cursor) == [MARK, "1-0"]
    loaded = stored.load(ledgers)
    assert [loaded.acked(at(entry_id)) for entry_id in range(4, 9)] == [WHOLE, 0, WHOLE, WHOLE, 0b1]


def test_lost_compare_on_an_absent_record_creates_it(cursor: Cursor) -> None:
    stored = Stored()
    cursor.ack(whole(5))
    cursor.ack_cumulative(whole(0))
    stored.flush(cursor)
    stored.records.clear()
    cursor.ack(whole(6))
    cursor.ack_cumulative(whole(1))
    cursor.reload(MARK, None, 0)
    cursor.reload("1-0", None, 0)
    assert stored.flush(cursor) == [MARK, "1-0"]


def test_seek_wins_over_what_a_lost_compare_finds(cursor: Cursor, ledgers: LedgerLengths) -> None:
    stored = Stored()
    cursor.ack_cumulative(whole(7))
    cursor.ack(whole(9))
    stored.flush(cursor)
    stored.flush(stored.load(ledgers))
    cursor.seek(at(2))
    stored.revision = 50
    stored.put(MARK, stored.records[MARK].value)
    stored.put("1-0", stored.records["1-0"].value)
    for block in (MARK, "1-0"):
        cursor.reload(block, stored.records[block].value, 50)
    stored.flush(cursor)
    loaded = stored.load(ledgers)
    assert (loaded.mark_delete, loaded.acked(at(9))) == (at(2), 0)


def test_a_sought_mark_never_stands_beside_older_acks(ledgers: LedgerLengths) -> None:
    """▲ Each prefix of the writes may be all that is stored before a crash: messages would never come again."""
    cursor, stored = Cursor(ledgers, EARLIEST), Stored()
    cursor.ack_cumulative(whole(4))
    cursor.ack(whole(6))
    stored.flush(cursor)
    cursor.seek(at(1))
    cursor.ack(whole(7))
    writes = cursor.block_writes()
    assert sorted(write.block for write in writes) == ["1-0", MARK]
    for write in writes:
        stored.put(write.block, write.value or b"")
        found = stored.load(ledgers)
        assert found.mark_delete == at(4) or found.acked(at(6)) == 0


def test_once_a_sought_mark_is_stored_it_goes_first_again_and_lost_compares_merge(
    cursor: Cursor, ledgers: LedgerLengths
) -> None:
    """▲ Acks deleted before the mark that covers them would be forgotten in a crash between the two."""
    stored = Stored()
    cursor.ack_cumulative(whole(4))
    cursor.seek(at(1))
    cursor.ack(whole(5))
    assert stored.flush(cursor) == ["1-0", MARK]
    cursor.ack_cumulative(whole(6))
    assert stored.flush(cursor) == [MARK, "1-0"]
    stored.revision = 9
    stored.put(MARK, records.encode(CursorMark(position=(1, 8), seeks=1)))
    cursor.reload(MARK, stored.records[MARK].value, 9)
    assert cursor.mark_delete == at(8)


def test_a_seek_during_the_write_of_another_keeps_the_mark_last(ledgers: LedgerLengths) -> None:
    """▲ What the first of them stored is no part of the second."""
    cursor, stored = Cursor(ledgers, EARLIEST), Stored()
    cursor.ack_cumulative(whole(7))
    stored.flush(cursor)
    cursor.seek(at(4))
    cursor.ack(whole(6))
    [block, mark] = cursor.block_writes()
    cursor.seek(at(1))
    for write in (block, mark):
        assert write.value is not None
        stored.revision += 1
        stored.put(write.block, write.value)
    cursor.written([block, mark], {one: stored.records[one].mod_revision for one in ("1-0", MARK)})
    assert stored.flush(cursor) == ["1-0", MARK]
    assert stored.load(ledgers).mark_delete == at(1)


def test_a_seek_deletes_the_stored_acks_behind_it_and_leaves_their_room(ledgers: LedgerLengths) -> None:
    """▲ Or they would be read with the next load: what was sought again would not come."""
    cursor, stored = Cursor(ledgers, EARLIEST, max_partial=2), Stored()
    cursor.ack(whole(5))
    cursor.ack(whole(3, 4))
    for entry_id in (6, 7):
        cursor.ack(AckPosition(at(entry_id), 4, 0b1))
    assert not cursor.has_room(at(8))
    assert cursor.has_room(at(7)), "of an entry that is acked in part already"
    cursor.ack_cumulative(whole(0))
    stored.flush(cursor)
    cursor.seek(EARLIEST)
    assert stored.flush(cursor) == ["1-0", "4-0", MARK]
    cursor.ack(AckPosition(at(9), 4, 0b1))
    assert cursor.has_room(at(8)), "one of two entries is acked in part now"
    loaded = stored.load(ledgers)
    assert [loaded.acked(place) for place in (at(0), at(5), at(6), at(7), at(3, 4))] == [0] * 5


def test_a_block_that_somebody_else_has_deleted_is_not_deleted_again(cursor: Cursor) -> None:
    """▲ With a compare that is lost each time, no write of the cursor would ever succeed again."""
    stored = Stored()
    cursor.ack(whole(5))
    stored.flush(cursor)
    cursor.ack_cumulative(whole(6))
    del stored.records["1-0"]
    cursor.reload("1-0", None, 0)
    assert stored.flush(cursor) == [MARK]
    assert not cursor.dirty


def test_acks_found_behind_the_mark_by_a_lost_compare_move_it(cursor: Cursor) -> None:
    stored = Stored()
    cursor.ack_cumulative(whole(2))
    cursor.ack(whole(7))
    found = CursorBlock(ledger_id=1, first_entry=0, acked=(0b11000).to_bytes(1, "little").hex(), partial=[])
    stored.revision = 9
    stored.put("1-0", records.encode(found))
    cursor.reload("1-0", stored.records["1-0"].value, 9)
    assert cursor.mark_delete == at(4)
    assert cursor.acked(at(7)) == WHOLE


def test_the_number_of_seeks_is_stored_and_never_goes_back(cursor: Cursor, ledgers: LedgerLengths) -> None:
    """▲ What was received before a seek would look as if it were new."""
    stored = Stored()
    cursor.ack_cumulative(whole(7))
    for entry_id in (5, 3):
        cursor.seek(at(entry_id))
    stored.flush(cursor)
    loaded = stored.load(ledgers)
    assert loaded.seeks == 2
    loaded.reload(MARK, records.encode(CursorMark(position=(1, 3), seeks=1)), 9)
    assert loaded.seeks == 2


def test_acks_around_others_are_written_into_a_block_that_is_stored_already(
    cursor: Cursor, ledgers: LedgerLengths
) -> None:
    stored = Stored()
    cursor.ack(whole(3))
    stored.flush(cursor)
    assert cursor.ack_around(whole(6), LeftOut(at(1), {(1, 0): 0b10}, []))
    stored.flush(cursor)
    loaded = stored.load(ledgers)
    assert [loaded.acked(at(entry_id)) for entry_id in range(1, 8)] == [0, *[WHOLE] * 5, 0]
