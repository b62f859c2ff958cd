"""What is handed out, held and asked for: tables, and a model of a broker that counts permits."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txnclient.consuming.feeds.inbox import LARGEST_WINDOW, Inbox, QueueInbox
from txnclient.consuming.received.bits import all_bits, bits_of
from txnclient.consuming.received.message import Message, ReceivedEntry
from txnwire.entry import OutgoingMessage, encode_entry
from txnwire.ids import Position
from txnwire.protocol import MAX_PERMITS


def entry(entry_id: int, count: int = 1) -> ReceivedEntry:
    raw = encode_entry(
        [OutgoingMessage(b"%d" % n) for n in range(count)],
        producer="p",
        incarnation=1,
        sequence_id=0,
        publish_time_ms=1,
    )
    return ReceivedEntry("a/b/c/0000-ffff-0", Position(1, entry_id), raw)


def shown(messages: list[Message]) -> list[tuple[int, int]]:
    return [(message.position.entry_id, message.index) for message in messages]


def take_all(inbox: Inbox) -> list[tuple[int, int]]:
    taken: list[tuple[int, int]] = []
    while messages := inbox.take(1000):
        taken += shown(messages)
    return taken


@pytest.fixture
def inbox() -> Inbox:
    return Inbox(100, keeps_holds=True)


def test_messages_come_out_in_order_and_skipped_ones_do_not(inbox: Inbox) -> None:
    inbox.arrived(entry(0, 3), b"")
    inbox.arrived(entry(1, 3), bytes([0b101]))
    inbox.arrived(entry(2, 2), bytes([0b11]))
    assert inbox.buffered == 4
    assert shown(inbox.take(2)) == [(0, 0), (0, 1)]
    assert take_all(inbox) == [(0, 2), (1, 1)]
    assert inbox.buffered == 0


def test_what_the_application_holds_is_not_handed_out_again_after_a_lost_connection(inbox: Inbox) -> None:
    inbox.arrived(entry(0, 3), b"")
    inbox.arrived(entry(1), b"")
    assert shown(inbox.take(2)) == [(0, 0), (0, 1)]
    inbox.drop_buffer()
    inbox.arrived(entry(0, 3), b"")
    inbox.arrived(entry(1), b"")
    assert take_all(inbox) == [(0, 2), (1, 0)]


def test_a_copy_is_not_handed_out_while_its_ack_is_under_way(inbox: Inbox) -> None:
    inbox.arrived(entry(0), b"")
    take_all(inbox)
    inbox.ack_started({Position(1, 0): 1})
    inbox.drop_buffer()
    inbox.arrived(entry(0), b"")
    assert take_all(inbox) == []
    inbox.ack_answered({Position(1, 0): 1})
    inbox.arrived(entry(0), b"")  # the broker knows of the ack and means it: it was lost in a crash, or aborted
    assert take_all(inbox) == [(0, 0)]


def test_no_entry_of_an_ack_comes_again_before_it_is_answered_and_each_does_once_it_is_refused(inbox: Inbox) -> None:
    acked = {Position(1, number): 0b11 for number in range(3)}

    def arrive_again() -> list[tuple[int, int]]:
        inbox.drop_buffer()
        for number in range(3):
            inbox.arrived(entry(number, 2), b"")
        return take_all(inbox)

    everything = arrive_again()
    assert len(everything) == 6
    inbox.ack_started(acked)
    assert arrive_again() == []
    inbox.ack_answered(acked)
    assert arrive_again() == everything


def test_copies_of_what_is_held_give_their_permits_back() -> None:
    """▲ A broker spends permits on them after each restart: in the end it would have none left for what is new."""
    inbox = Inbox(4, keeps_holds=True)
    assert inbox.attached() == 4
    inbox.arrived(entry(0, 2), b"")
    take_all(inbox)
    for _ in range(3):
        inbox.drop_buffer()
        assert inbox.attached() == 4
        inbox.arrived(entry(0, 2), b"")
        assert inbox.permits_due() == 2
    assert take_all(inbox) == []


def test_the_permits_of_entries_that_are_left_out_or_dropped_come_back_whole() -> None:
    """▲ Else a reader of which a span hides much, or a consumer that is rewound often, would be sent nothing more."""
    inbox = Inbox(10, keeps_holds=True)
    assert inbox.attached() == 10
    inbox.left_out(entry(0, 10), bytes([0b11]))
    assert inbox.permits_due() == 8
    inbox.arrived(entry(1, 8), b"")
    inbox.rewound()
    assert inbox.permits_due() == 8


def test_a_rewind_ends_every_hold(inbox: Inbox) -> None:
    inbox.arrived(entry(0), b"")
    inbox.arrived(entry(1), b"")
    first = inbox.take(1)
    assert first[0].entry.epoch == inbox.epoch
    inbox.rewound()
    assert first[0].entry.epoch != inbox.epoch
    inbox.arrived(entry(0), b"")
    inbox.arrived(entry(1), b"")
    assert take_all(inbox) == [(0, 0), (1, 0)]


def test_a_cumulative_ack_ends_the_holds_below_it(inbox: Inbox) -> None:
    for number in range(4):
        inbox.arrived(entry(number, 2), b"")
    take_all(inbox)
    inbox.cumulative_ack_started(Position(1, 2), 0b01)
    inbox.ack_answered({Position(1, 2): 0b01})
    inbox.drop_buffer()
    for number in range(4):
        inbox.arrived(entry(number, 2), b"")
    assert take_all(inbox) == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0)]


def test_a_reader_holds_nothing() -> None:
    inbox = Inbox(100, keeps_holds=False)
    for _ in range(2):
        inbox.arrived(entry(0), b"")
        assert take_all(inbox) == [(0, 0)]


@pytest.mark.parametrize("inbox_type", [partial(Inbox, keeps_holds=True), QueueInbox])
@pytest.mark.parametrize("most", [sys.maxsize, 10**400], ids=["largest word", "beyond any float"])
def test_c6_the_largest_bounds_that_there_are_ask_for_what_can_be_granted_in_one_turn(
    inbox_type: Callable[..., Inbox], most: int
) -> None:
    """▲ A million messages a part: of the largest number the loop would grant parts for minutes, or for ever."""
    inbox = inbox_type(most, window_bytes=most)
    assert inbox.attached() == LARGEST_WINDOW
    assert LARGEST_WINDOW // MAX_PERMITS <= 1000
    inbox.arrived(entry(0), b"")  # small ones raise the window
    inbox.set_window(most, most)
    inbox.take(1)
    assert 0 <= inbox.permits_due() <= LARGEST_WINDOW


def test_bitmaps() -> None:
    assert bits_of([0, 3]) == 0b1001
    assert all_bits(3) == 0b111


Step = st.sampled_from(["deliver", "deliver", "take", "ack", "rewind", "reattach", "shrink", "grow"])


@given(st.integers(1, 50), st.lists(Step, max_size=60), st.integers(1, 7))
def test_the_broker_never_runs_out_of_permits_for_good(window: int, steps: list[str], per_entry: int) -> None:
    """A broker that shows an entry as soon as it has a permit: once everything is taken it can show another one, and at
    no time are there more permits than the window (and one entry) allows."""
    inbox = Inbox(window, keeps_holds=True)
    permits = inbox.attached()
    next_entry = 0

    def deliver() -> None:
        nonlocal permits, next_entry
        if permits > 0:
            inbox.arrived(entry(next_entry, per_entry), b"")
            permits -= per_entry
            next_entry += 1

    for step in steps:
        if step == "deliver":
            deliver()
        elif step == "take":
            inbox.take(3)
        elif step == "ack":
            inbox.ack_started({Position(1, 0): all_bits(per_entry)})
            inbox.ack_answered({Position(1, 0): all_bits(per_entry)})
        elif step == "rewind":
            inbox.rewound()
            next_entry = 0
        elif step == "reattach":
            inbox.drop_buffer()
            permits = inbox.attached()
            next_entry = 0
        else:
            window = max(1, window + (5 if step == "grow" else -5))
            inbox.set_window(window)
        permits += inbox.permits_due()
        assert permits + inbox.buffered <= max(window, 50 + 5 * len(steps)) + per_entry
    take_all(inbox)
    permits += inbox.permits_due()
    assert permits > 0
