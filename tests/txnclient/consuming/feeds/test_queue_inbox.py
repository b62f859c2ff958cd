"""The inbox of a queue's segment: whose a message is, against a model of a broker; and windows counted in bytes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txnclient.consuming.feeds.acks import MAX_BYTES, MAX_POSITIONS, POSITION_BYTES, AckBatch
from txnclient.consuming.feeds.inbox import FIRST_AVERAGE_BYTES, Inbox, QueueInbox
from txnclient.consuming.feeds.queue_feed import _parts
from txnclient.consuming.received.bits import all_bits
from txnclient.consuming.received.message import Message, ReceivedEntry
from txnwire.entry import OutgoingMessage, encode_entry
from txnwire.ids import Position

WINDOW = 8


def entry(entry_id: int, count: int = 1, *, redeliveries: int = 0, size: int = 1) -> ReceivedEntry:
    raw = encode_entry(
        [OutgoingMessage(bytes(size)) for _ in range(count)],
        producer="p",
        incarnation=1,
        sequence_id=0,
        publish_time_ms=1,
    )
    return ReceivedEntry("a/b/c/0000-ffff-0", Position(1, entry_id), raw, redeliveries)


def is_current(inbox: Inbox, message: Message) -> bool:
    return bool(inbox.current(message.entry) >> message.index & 1)


class Broker:
    """Which of six entries of two messages are out at this consumer, which are acked, how many permits are left."""

    def __init__(self) -> None:
        self.out: dict[int, int] = {}
        self.due: dict[int, int] = dict.fromkeys(range(6), 3)
        self.permits = 0
        self.redeliveries = 0

    def deliver(self, inbox: QueueInbox) -> None:
        while self.due and self.permits > 0:
            number, bits = next(iter(self.due.items()))
            del self.due[number]
            received = entry(number, 2, redeliveries=self.redeliveries)
            received.holder = inbox
            inbox.arrived(received, bytes([0b11 & ~bits]))
            self.out[number] = self.out.get(number, 0) | bits
            self.permits -= bits.bit_count()

    def take_back(self, number: int, bits: int) -> None:
        back = self.out.get(number, 0) & bits
        self.out[number] = self.out.get(number, 0) & ~bits
        if back:
            self.redeliveries += 1
            self.due[number] = self.due.get(number, 0) | back


@given(st.lists(st.tuples(st.sampled_from(["take", "ack", "nack", "abort", "detach", "deliver"]), st.integers(0, 40))))
def test_a_message_is_held_by_the_copy_handed_out_last_until_it_is_acked_or_given_back(
    steps: list[tuple[str, int]],
) -> None:
    inbox, broker = QueueInbox(WINDOW), Broker()
    copies: list[Message] = []
    acked: dict[tuple[int, int], int] = {}
    broker.permits = inbox.attached()
    for what, number in steps:
        if what == "take":
            copies += inbox.take(1 + number % 3)
        elif what == "deliver":
            broker.deliver(inbox)
        elif what == "detach":
            inbox.detached()
            for held, bits in list(broker.out.items()):
                broker.take_back(held, bits)
            broker.permits = inbox.attached()
            assert not any(is_current(inbox, copy) for copy in copies)
        elif copies:
            copy = copies[number % len(copies)]
            bits = 1 << copy.index
            if not is_current(inbox, copy):
                assert inbox.give_back([copy]) == {}
                continue
            # What the application holds, the broker has given to this consumer, and takes from no other.
            assert broker.out[copy.position.entry_id] & bits
            if what == "nack":
                assert inbox.give_back([copy]) == {copy.position: bits}
                broker.take_back(copy.position.entry_id, bits)
            else:
                inbox.ack_started({copy.position: bits})
                inbox.ack_answered({copy.position: bits})
                if what == "abort":
                    broker.take_back(copy.position.entry_id, bits)
                else:
                    broker.out[copy.position.entry_id] &= ~bits
                    where = (copy.position.entry_id, copy.index)
                    acked[where] = acked.get(where, 0) + 1
            assert not is_current(inbox, copy)
        broker.permits += inbox.permits_due()
        # No more is under way than was asked for.
        assert broker.permits + inbox.buffered <= WINDOW
        current = [(copy.position, copy.index) for copy in copies if is_current(inbox, copy)]
        assert len(current) == len(dict.fromkeys(current))
    assert all(count == 1 for count in acked.values())


def test_what_is_put_aside_keeps_its_permits_until_it_is_settled() -> None:
    inbox = QueueInbox(10)
    assert inbox.attached() == 10
    for number in range(10):
        inbox.arrived(entry(number), b"")
    for _ in range(10):
        assert len(inbox.take(1)) == 1
        inbox.put_aside(1)
    assert inbox.permits_due() == 0
    inbox.set_free(10)
    assert inbox.permits_due() == 10


def test_of_an_entry_that_is_put_aside_every_message_counts() -> None:
    inbox = QueueInbox(10)
    assert inbox.attached() == 10
    inbox.arrived(entry(0, 10), b"")
    assert len(inbox.take(10)) == 10
    inbox.put_aside(10)
    assert inbox.permits_due() == 0
    inbox.detached()
    assert inbox.attached() == 0
    inbox.set_free(10)
    assert inbox.permits_due() == 10
    inbox.detached()
    assert inbox.attached() == 10


@pytest.mark.parametrize("aside", [5, 10, 30])
def test_what_is_put_aside_when_a_consumer_attaches_again_is_granted_once(aside: int) -> None:
    inbox, granted = QueueInbox(aside), 10
    assert inbox.attached() == aside
    for number in range(aside):
        inbox.arrived(entry(number), b"")
    for _ in range(aside):
        assert len(inbox.take(1)) == 1
        inbox.put_aside(1)
    inbox.set_window(granted)
    inbox.detached()
    first = inbox.attached()
    assert first == max(0, granted - aside)
    inbox.set_free(aside)
    assert first + inbox.permits_due() == granted


# ---- bytes ----------------------------------------------------------------------------------------------------------


def test_the_first_grant_is_bounded_before_any_size_is_known_and_small_messages_raise_it() -> None:
    inbox = Inbox(1000, keeps_holds=True, window_bytes=4 * FIRST_AVERAGE_BYTES)
    assert inbox.attached() == 4
    inbox.arrived(entry(0, 4, size=100), b"")
    inbox.take(4)
    assert inbox.permits_due() == 1000


def test_larger_messages_count_at_once_and_smaller_ones_little_by_little() -> None:
    inbox = Inbox(1000, keeps_holds=True, window_bytes=100_000)
    granted = inbox.attached()
    for number, size in enumerate([1_000] * 5 + [20_000]):
        inbox.arrived(entry(number, size=size), b"")
        inbox.take(1)
        granted += inbox.permits_due()
    # Asked for when they were small, and not taken back: but no more until what is out is below the new window.
    assert inbox.permits_due() == 0
    small = 0
    for number in range(6, 120):
        inbox.arrived(entry(number, size=1_000), b"")
        inbox.take(1)
        small += inbox.permits_due()
    assert small > 0
    inbox.drop_buffer()
    assert inbox.attached() > 50, "by now they count"


@given(st.lists(st.integers(1, 60_000), min_size=1, max_size=60))
def test_what_is_out_never_exceeds_what_its_sizes_allow_by_more_than_was_granted_before(sizes: list[int]) -> None:
    window_bytes = 200_000
    inbox = Inbox(1000, keeps_holds=True, window_bytes=window_bytes)
    permits = inbox.attached()
    assert permits == 1
    for number, size in enumerate(sizes):
        if permits == 0:
            while inbox.take(1):
                pass
            permits += inbox.permits_due()
        assert permits > 0, "a consumer that has taken everything gets on"
        inbox.arrived(entry(number, size=size), b"")
        permits -= 1
        permits += inbox.permits_due()
        if number and len(set(sizes[: number + 1])) == 1:
            assert (permits + inbox.buffered) * size <= window_bytes + size


# ---- commands -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "expected"), [(1, MAX_POSITIONS), (1_000_000, MAX_BYTES // (24 + 125_000) + 1)])
def test_a_command_of_acks_or_nacks_is_bounded_by_positions_and_by_bytes(count: int, expected: int) -> None:
    batch = AckBatch(None, None, None, None, 0)  # type: ignore[arg-type] # neither is used before it is sent
    added = 0
    while not batch.full:
        batch.add(Position(1, added), 1, count)
        batch.add(Position(1, added), 2, count)
        added += 1
    assert added == expected
    bits = {Position(1, number): 1 for number in range(3 * expected)}
    parts = list(_parts(bits, dict.fromkeys(bits, count)))
    assert [len(part) for part in parts] == [expected] * 3
    assert sum(POSITION_BYTES + count // 8 for _ in parts[0]) <= MAX_BYTES + POSITION_BYTES + count // 8


def test_all_entries_of_an_ack_that_never_left_are_let_go() -> None:
    """Their messages are nacked: a transaction that acks these copies would take what another copy is out of."""
    inbox = QueueInbox(WINDOW)
    for number in range(3):
        received = entry(number)
        received.holder = inbox
        inbox.arrived(received, b"")
    copies = [message for _ in range(3) for message in inbox.take(1)]
    assert all(is_current(inbox, copy) for copy in copies)
    inbox.let_go({copy.position: 1 for copy in copies})
    assert not any(is_current(inbox, copy) for copy in copies)


class Asked(dict[Position, int]):
    """Counts how often a bitmap was looked up."""

    times = 0

    def get(self, position: Position, default: Any = None) -> Any:
        self.times += 1
        return super().get(position, default)


def test_many_messages_of_one_entry_are_given_back_together() -> None:
    """▲ One by one, each copies the bitmap of all: a nack of 100 000 would hold the event loop for seconds."""
    inbox = QueueInbox(1000)
    inbox.arrived(entry(0, 1000), b"")
    messages = inbox.take(1000)
    inbox._held = asked = Asked(inbox._held)
    assert inbox.give_back(messages) == {Position(1, 0): all_bits(1000)}
    assert asked.times == 1


def test_who_shared_the_queue_has_its_whole_window_again_behind_a_lost_connection() -> None:
    """Whether it shares is the next broker's word."""
    inbox = QueueInbox(100)
    assert inbox.attached() == 100
    inbox.told_sharing(1)
    assert inbox.grant_anew() < 100
    inbox.detached()
    assert inbox.attached() == 100
