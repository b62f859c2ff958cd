"""The positions of a log against a list of all its entries."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from segments.log.ledgers.positions import LogPositions
from txnstore.records import LedgerInfo
from txnwire.ids import EARLIEST, Position


@dataclass(frozen=True)
class Ledgers:
    """Kept ledgers by id, with their lengths. `open`: the last of them is still written. `trimmed`: there were others
    before the first."""

    lengths: dict[int, int]
    open: bool
    trimmed: bool

    @property
    def first(self) -> int:
        return min(self.lengths)

    @property
    def last(self) -> int:
        return max(self.lengths)

    @property
    def entries(self) -> list[Position]:
        return [Position(one, entry_id) for one, length in self.lengths.items() for entry_id in range(length)]

    def positions(self) -> LogPositions:
        found = LogPositions()
        kept = [
            LedgerInfo(ledger_id=one, closed_length=None if self.open and one == self.last else length)
            for one, length in self.lengths.items()
        ]
        found.listed(kept, (self.first, 0) if self.trimmed else None)
        return found


@st.composite
def ledgers(draw: st.DrawFn) -> Ledgers:
    ids = sorted(draw(st.sets(st.integers(1, 9), min_size=1, max_size=5)))
    return Ledgers({one: draw(st.integers(0, 3)) for one in ids}, draw(st.booleans()), draw(st.booleans()))


@given(ledgers())
def test_each_entry_has_its_rank_and_is_found_by_it(log: Ledgers) -> None:
    positions = log.positions()
    for index, position in enumerate(log.entries):
        assert positions.nth(index) == position
        assert positions.rank(position) == index + 1
    count = len(log.entries)
    assert positions.nth(count) == (Position(log.last, log.lengths[log.last]) if log.open else None)
    assert positions.rank(Position(log.first, -1)) == 0
    if not log.open:
        assert positions.rank(Position(log.last + 1, 5)) == count, "of a ledger that is not listed"


@given(ledgers(), st.booleans())
def test_one_position_leads_to_the_next_up_to_the_place_of_the_next_append(log: Ledgers, sealed: bool) -> None:
    positions, at, found = log.positions(), EARLIEST, list[Position]()
    sealed = sealed and not log.open
    for _ in log.entries:
        at = positions.next_after(at, sealed=sealed)
        found.append(at)
    assert found == log.entries
    end = positions.next_after(at, sealed=sealed)
    if log.open:
        assert end == Position(log.last, log.lengths[log.last])
    elif sealed:
        at = max(at, positions.floor)
        assert end == Position(at.ledger_id, at.entry_id + 1)
    else:
        to_come = Position(log.last + 1, 0)
        assert end == to_come
        before = Position(to_come.ledger_id, -1)
        assert positions.next_after(before, sealed=False) == to_come, "nor is the ledger that is to come passed over"
    if log.trimmed and log.entries:
        assert positions.next_after(Position(log.first - 1, 7), sealed=sealed) == log.entries[0]


@given(ledgers(), st.data())
def test_ranges_are_all_entries_between_two_by_ledger(log: Ledgers, data: st.DataObject) -> None:
    positions = log.positions()
    ends = [EARLIEST, *log.entries]
    after = data.draw(st.sampled_from(ends))
    last = data.draw(st.sampled_from(ends))
    ranges = list(positions.ranges(after, last))
    found = [Position(one.ledger_id, entry_id) for one in ranges for entry_id in range(one.first, one.end)]
    assert found == [position for position in log.entries if after < position <= last]
    assert len({one.ledger_id for one in ranges}) == len(ranges)
    for one in ranges:
        assert one.closed is (not log.open or one.ledger_id != log.last)
        assert one.length == (log.lengths[one.ledger_id] if one.closed else last.entry_id + 1)


def test_a_ledger_that_was_closed_a_moment_ago_and_is_listed_as_open_has_its_end() -> None:
    """The log rolls: the next ledger is not listed yet, and nothing more comes in the last one."""
    positions = Ledgers({1: 2, 4: 3}, open=True, trimmed=False).positions()
    positions.closed(4, 3)
    assert positions.length(4) == 3
    assert positions.next_after(Position(4, 2), sealed=False) == Position(5, 0)
    assert positions.next_after(Position(4, 2), sealed=True) == Position(4, 3)
    assert positions.length(5) is None


def test_a_log_that_is_trimmed_to_its_end_goes_on_behind_what_was_trimmed() -> None:
    positions = LogPositions()
    positions.listed([], (5, 0))
    assert positions.floor == Position(5, -1)
    assert positions.next_after(EARLIEST, sealed=False) == positions.next_after(Position(3, 9), sealed=True)
    assert positions.next_after(EARLIEST, sealed=False) == Position(5, 0)
    assert list(positions.ranges(EARLIEST, Position(4, 9))) == []
    assert (positions.rank(Position(4, 9)), positions.nth(0)) == (0, None)
