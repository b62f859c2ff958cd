"""How many messages stand in a part of a ledger: exact, with as little reading as what is known allows."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from segments.log.ledgers.message_counts import BLOCKS_KEPT, STEP, CountedRange, MessageCounts
from txnstore.records import LedgerInfo
from txnwire.ids import Position


def appended(sizes: list[int], ledger_id: int = 1) -> MessageCounts:
    counts = MessageCounts()
    for number, messages in enumerate(sizes):
        counts.appended(Position(ledger_id, number), messages)
    return counts


def read(counts: MessageCounts, among: CountedRange, sizes: list[int]) -> int:
    """The messages of a range, and so many blocks are read for it."""
    blocks = 0
    while counts.messages(among) is None:
        missing = counts.blocks_to_read(among)
        assert missing, "whoever counts would ask for ever"
        for block in missing:
            counts.note(among.ledger_id, block, sizes[block * STEP : min(block * STEP + STEP, among.length)])
            blocks += 1
    return blocks


sizes_of_a_ledger = st.integers(0, 5 * STEP).map(lambda entries: [1 + number * 7 % 5 for number in range(entries)])


@given(sizes_of_a_ledger, st.data())
def test_every_part_is_counted_exactly(sizes: list[int], data: st.DataObject) -> None:
    """Of a ledger written here, or elsewhere; open, closed with its messages told, or without."""
    here, told = data.draw(st.booleans()), data.draw(st.booleans())
    closed = data.draw(st.booleans()) or not here
    counts = appended(sizes) if here else MessageCounts()
    if closed:
        info = LedgerInfo(ledger_id=1, closed_length=len(sizes), messages=sum(sizes) if told else None)
        counts.listed([info])
    for _ in range(3):
        first = data.draw(st.integers(0, len(sizes)))
        end = data.draw(st.integers(first, len(sizes)))
        among = CountedRange(1, first, end, len(sizes), closed)
        blocks = read(counts, among, sizes)
        assert counts.messages(among) == sum(sizes[first:end])
        assert read(counts, among, sizes) <= 2, "only the blocks at its edges are read again"
        if here or told:
            assert blocks <= 1 + (len(sizes) + STEP - 1) // STEP


@given(sizes_of_a_ledger, st.data())
def test_chosen_entries_of_a_block_are_counted_exactly(sizes: list[int], data: st.DataObject) -> None:
    counts = appended(sizes)
    among = CountedRange(1, 0, len(sizes), len(sizes), False)
    for block in range((len(sizes) + STEP - 1) // STEP):
        part = sizes[block * STEP : block * STEP + STEP]
        bits = data.draw(st.sampled_from([(1 << len(part)) - 1, 1, 5 % (1 << len(part)), 0]))
        if counts.messages_of(among, block, bits) is None:
            counts.note(1, block, part)
        assert counts.messages_of(among, block, bits) == sum(
            messages for at, messages in enumerate(part) if bits >> at & 1
        )


def test_what_was_appended_here_is_counted_without_reading() -> None:
    sizes = [3] * (4 * STEP + 7)
    counts = appended(sizes)
    assert counts.messages(CountedRange(1, 0, len(sizes), len(sizes), False)) == 3 * len(sizes)
    assert counts.messages(CountedRange(1, 2 * STEP, len(sizes), len(sizes), False)) == 3 * (2 * STEP + 7)
    assert counts.messages(CountedRange(1, 4 * STEP + 2, len(sizes), len(sizes), False)) == 15
    assert counts.blocks_to_read(CountedRange(1, STEP + 5, len(sizes), len(sizes), False)) == [1]


def test_of_a_closed_ledger_whose_messages_are_told_the_nearer_side_is_read() -> None:
    counts = MessageCounts()
    counts.listed([LedgerInfo(ledger_id=1, closed_length=10 * STEP, messages=20 * STEP)])
    assert counts.messages(CountedRange(1, 0, 10 * STEP, 10 * STEP, True)) == 20 * STEP
    assert counts.blocks_to_read(CountedRange(1, STEP + 5, 10 * STEP, 10 * STEP, True)) == [0, 1]
    assert counts.blocks_to_read(CountedRange(1, 9 * STEP + 5, 10 * STEP, 10 * STEP, True)) == [9]
    assert MessageCounts().blocks_to_read(CountedRange(1, 8 * STEP, 10 * STEP, 10 * STEP, True)) == [8, 9]


def test_what_is_not_confirmed_is_not_counted() -> None:
    """▲ Its append may still fail."""
    sizes = [2] * (STEP + 3)
    counts = appended(sizes)
    for confirmed in (STEP + 1, STEP, STEP - 1):
        among = CountedRange(1, 0, confirmed, confirmed, False)
        read(counts, among, sizes)
        assert counts.messages(among) == 2 * confirmed


def test_appends_that_failed_are_forgotten_with_the_close() -> None:
    """▲ A block that they had filled stands in the ledger in part."""
    sizes = [2] * STEP
    counts = appended(sizes)
    assert counts.total(1, STEP - 6) is None, "not known of so many entries"
    counts.listed([LedgerInfo(ledger_id=1, closed_length=STEP - 6)])
    among = CountedRange(1, 0, STEP - 6, STEP - 6, True)
    assert read(counts, among, sizes) == 1
    assert counts.messages(among) == 2 * (STEP - 6)


def test_a_block_that_failed_appends_had_filled_is_no_sum() -> None:
    """▲ Also where a later take-over has closed the ledger at another length."""
    counts = appended([2] * 2 * STEP)
    counts.listed([LedgerInfo(ledger_id=1, closed_length=2 * STEP - 1)])
    assert counts._sums == {1: {0: 2 * STEP}}


def test_the_total_of_a_ledger_is_known_when_it_is_closed() -> None:
    counts = appended([1, 2, 3], ledger_id=4)
    assert (counts.total(4, 3), counts.total(4, 2), counts.total(5, 0), counts.total(3, 3)) == (6, None, 0, None)
    counts.appended(Position(5, 1), 9)  # not all before it were noted: nothing is known
    assert counts.total(5, 2) is None


def test_what_was_counted_is_known_whenever_the_list_is_written_anew() -> None:
    """Of every block of every ledger that is kept: nothing of them is read again as the log rolls."""
    whole = [CountedRange(ledger_id, 0, 3 * STEP, 3 * STEP, True) for ledger_id in (1, 2)]
    counts = appended([3] * 3 * STEP, ledger_id=1)
    for number in range(3 * STEP):
        counts.appended(Position(2, number), 2)
    parts = [CountedRange(5, first, first + 5, 2 * STEP, True) for first in (7, STEP + 7)]
    assert sum(read(counts, part, [4] * 2 * STEP) for part in parts) == 2
    closed = [LedgerInfo(ledger_id=one, closed_length=length * STEP) for one, length in ((1, 3), (2, 3), (5, 2))]
    for _ in range(2):
        counts.listed(closed)
        assert [counts.messages(among) for among in (*whole, *parts)] == [9 * STEP, 6 * STEP, 20, 20]


def test_little_is_kept_and_nothing_of_ledgers_that_are_gone() -> None:
    counts = MessageCounts()
    entries = 100 * STEP
    counts.listed([LedgerInfo(ledger_id=1, closed_length=entries), LedgerInfo(ledger_id=2)])
    among = CountedRange(1, 3, entries - 3, entries, True)
    assert read(counts, among, [1] * entries) <= 102
    assert len(counts._recent) <= BLOCKS_KEPT
    counts.listed([LedgerInfo(ledger_id=2)])
    assert (counts._recent, counts._sums, counts._totals) == ({}, {}, {})
