"""The cursor against a set of acked messages, with crashes and writes that go through in parts.

Leaves out: seeks (`test_seek_is_the_one_way_back`, `test_a_sought_mark_never_stands_beside_older_acks`), lost compares
(`test_p6_lost_compare_merges_and_never_goes_back`), acks around pending ones
(`test_what_is_acked_around_others_is_stored_over_blocks_and_ledgers`), room promised to a queue's consumers
(`test_what_a_queue_gives_out_may_be_acked_message_by_message_however_much_of_it_is`), the bound by bytes
(`test_p8_entries_acked_in_part_take_room_by_their_size_until_they_are_acked_whole`), ledgers that are trimmed
(`test_what_is_trimmed_counts_as_consumed_by_each_subscription`).
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from segments.subscription.cursors.cursor import BLOCK_ENTRIES, Cursor
from segments.subscription.cursors.partial_acks import RECORD_BYTES, stored_bytes
from tests.segments.ledger_lengths import LedgerLengths
from txnstore.records import CursorBlock, decode
from txnstore.store import KeyValue
from txnwire.errors import Overloaded
from txnwire.ids import EARLIEST, Position
from watchers.acks import WHOLE, AckPosition, ack_position
from watchers.pending_acks import BlockWrite

MESSAGES = 3
LENGTHS = {1: 3, 2: 0, 3: 4, 4: 8200}
PLACES = [
    *(Position(1, entry_id) for entry_id in range(3)),
    *(Position(3, entry_id) for entry_id in range(4)),
    *(Position(4, entry_id) for entry_id in (0, 1, 4094, 4095, 4096, 4097, 8191, 8192)),
]
acks = st.builds(
    ack_position, st.sampled_from(PLACES), st.just(MESSAGES), st.sampled_from([WHOLE, 0b001, 0b010, 0b011, 0b110])
)


class CursorMachine(RuleBasedStateMachine):
    """Model: everything before `floor` is acked, and beyond it single messages as (position, index), which are of
    `PLACES` only. `durable`: what surely stands in etcd since the last whole flush."""

    more_partial = 0
    record_bytes = RECORD_BYTES

    def __init__(self) -> None:
        super().__init__()
        self.ledgers = LedgerLengths(dict(LENGTHS))
        self.cursor = self.load({})
        self.stored: dict[str, KeyValue] = {}
        self.revision = 0
        self.floor = Position(1, 0)
        self.acked: set[tuple[Position, int]] = set()
        self.durable: tuple[Position, set[tuple[Position, int]]] = (self.floor, set())
        self.holds: list[AckPosition] = []

    def load(self, stored: dict[str, KeyValue]) -> Cursor:
        return Cursor.load(
            self.ledgers,
            EARLIEST,
            list(stored.values()),
            max_blocks=2,
            max_partial=2 + self.more_partial,
            record_bytes=self.record_bytes,
        )

    def add(self, ack: AckPosition) -> None:
        self.acked.update((ack.position, index) for index in range(MESSAGES) if ack.indexes >> index & 1)

    @rule(ack=acks)
    def acknowledge(self, ack: AckPosition) -> None:
        before = self.cursor.acked(ack.position)
        try:
            self.cursor.ack(ack)
        except Overloaded:
            assert self.cursor.acked(ack.position) == before
            assert ack.position != self.cursor.next_unacked(EARLIEST)
            return
        self.add(ack)

    @rule(ack=acks)
    def acknowledge_cumulatively(self, ack: AckPosition) -> None:
        self.cursor.ack_cumulative(ack)
        self.floor = max(self.floor, ack.position)
        self.add(ack)

    @rule(ack=acks)
    def hold(self, ack: AckPosition) -> None:
        try:
            self.cursor.hold(ack)
        except Overloaded:
            return
        self.holds.append(ack)

    @rule(data=st.data(), commit=st.booleans())
    def let_go(self, data: st.DataObject, commit: bool) -> None:
        if not self.holds:
            return
        ack = self.holds.pop(data.draw(st.integers(0, len(self.holds) - 1)))
        if commit:
            self.cursor.ack(ack, held=True)
            self.add(ack)
        self.cursor.unhold(ack)

    @rule(data=st.data())
    def flush(self, data: st.DataObject) -> None:
        """As one write, or in parts with a crash in between; acks may come while it is under way."""
        writes = self.cursor.block_writes()
        part = data.draw(st.integers(0, len(writes)))
        then = (self.floor, set(self.acked))
        if data.draw(st.booleans()):
            self.acknowledge(data.draw(acks))
            self.acknowledge_cumulatively(data.draw(acks))
        self.apply(writes[:part])
        if part == len(writes):
            self.durable = then

    def apply(self, writes: list[BlockWrite] | object) -> None:
        assert isinstance(writes, list)
        self.revision += 1
        for write in writes:
            found = self.stored.get(write.block)
            assert write.mod_revision == (found.mod_revision if found else 0)
            if write.value is None:
                del self.stored[write.block]
            else:
                key = b"/cursor/s/sub/" + write.block.encode()
                self.stored[write.block] = KeyValue(key, write.value, 1, self.revision, self.revision)
        self.cursor.written(writes, {write.block: self.revision for write in writes})

    @rule()
    def crash(self) -> None:
        """What was flushed whole is still acked; whatever is acked now had been acked before."""
        before = {place: self.bits(place) for place in PLACES}
        self.cursor = self.load(self.stored)
        self.holds = []
        mark = self.cursor.mark_delete
        assert self.durable[0] <= self.ledgers.next_after(mark) <= self.first_unacked()
        assert all(self.cursor.acked(place) >> index & 1 for place, index in self.durable[1])
        assert all(self.cursor.acked(place) & ~before[place] == 0 for place in PLACES)
        self.floor = self.ledgers.next_after(mark)
        self.acked = {(p, i) for p in PLACES for i in range(MESSAGES) if self.cursor.acked(p) >> i & 1}

    def bits(self, place: Position) -> int:
        bits = sum(1 << index for index in range(MESSAGES) if (place, index) in self.acked)
        return WHOLE if place < self.floor or bits == 0b111 else bits

    def first_unacked(self) -> Position:
        place = self.floor
        while self.bits(place) == WHOLE:
            place = self.ledgers.next_after(place)
        return place

    @invariant()
    def agrees_with_the_model(self) -> None:
        for place in PLACES:
            assert self.cursor.acked(place) == self.bits(place)

    @invariant()
    def mark_stands_before_the_first_unacked(self) -> None:
        assert self.ledgers.next_after(self.cursor.mark_delete) == self.first_unacked()
        assert self.cursor.next_unacked(EARLIEST) == self.first_unacked()

    @invariant()
    def stays_bounded(self) -> None:
        """One more than allowed, for the first unacked entry; a block the mark has passed stays while it is held."""
        found = self.cursor.statistics()
        passed = [ack.position for ack in self.holds if ack.position <= self.cursor.mark_delete]
        assert found.blocks <= 2 + 1 + len({(place.ledger_id, place.entry_id // BLOCK_ENTRIES) for place in passed})
        assert found.partial <= 2 + self.more_partial + 1 + len(set(passed))

    @invariant()
    def no_record_holds_more_than_it_may(self) -> None:
        for write in self.cursor.block_writes():
            if write.value is not None and write.block != "mark":
                named = decode(CursorBlock, write.value, key=write.block.encode()).partial
                assert sum(stored_bytes(messages) for _, messages, _ in named) <= max(
                    self.record_bytes, 4 * stored_bytes(MESSAGES)
                )


class PagedMachine(CursorMachine):
    """Every entry acked in part has a record of its own, but two in a block's: pages come and go all the time."""

    more_partial = 6
    record_bytes = 2 * stored_bytes(MESSAGES)

    @rule(entries=st.integers(2, 4))
    def crash_and_go_on_with_records_of_another_size(self, entries: int) -> None:
        """What stands in one record moves to several, as what an earlier version has stored does."""
        self.record_bytes = entries * stored_bytes(MESSAGES)
        self.crash()


CursorMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
PagedMachine.TestCase.settings = settings(max_examples=250, stateful_step_count=40, deadline=None)
TestCursor = CursorMachine.TestCase
TestPages = PagedMachine.TestCase
