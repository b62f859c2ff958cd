"""How much a queue's consumer keeps ahead, and what it gives back; how many messages `process` takes at once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.txnclient.consuming.feeds.test_queue_inbox import entry
from txnclient.batch_pace import MOST_S, WORK_S, BatchPace
from txnclient.consuming.feeds.inbox import QueueInbox
from txnclient.consuming.feeds.pace import PERIOD_S, QueuePace, Wait
from txnclient.consuming.received.message import ReceivedEntry
from txnclient.consuming.received.pieces import LargeEntry
from txnwire.entry import OutgoingMessage, Piece, encode_entry
from txnwire.ids import Position

PREFETCH = 100


def shared(window: int = PREFETCH) -> QueueInbox:
    inbox = QueueInbox(window)
    inbox.told_sharing(1)
    return inbox


def arrive(inbox: QueueInbox, entry_id: int, count: int = 1) -> None:
    inbox.arrived(entry(entry_id, count), b"")


def test_a_consumer_that_is_alone_keeps_its_prefetch_and_one_that_shares_a_message() -> None:
    inbox = QueueInbox(PREFETCH)
    assert inbox.attached() == PREFETCH
    inbox.told_sharing(1)
    assert inbox.grant_anew() == 1
    inbox.told_sharing(2)
    assert inbox.grant_anew() == PREFETCH


def test_the_window_doubles_only_when_the_application_waits_and_all_permits_are_used() -> None:
    inbox = shared()
    permits = inbox.grant_anew()
    for number in range(20):
        for _ in range(permits):
            arrive(inbox, number)
        inbox.starved()
        while inbox.take(PREFETCH):
            pass
        permits = inbox.permits_due()
    assert inbox.window == PREFETCH
    slow = shared()
    permits = slow.grant_anew()
    for number in range(20):  # the application comes back when the next message is there
        for _ in range(permits):
            arrive(slow, number)
        assert len(slow.take(1)) == 1
        permits = slow.permits_due()
    assert slow.window == 1


def test_few_messages_do_not_raise_the_window() -> None:
    """▲ With a window of hundreds the first of many long jobs would all go to one worker."""
    inbox = shared()
    outstanding = inbox.grant_anew()
    for number in range(50):
        arrive(inbox, number)
        outstanding -= 1
        inbox.starved()
        inbox.take(1)
        outstanding += inbox.permits_due()
    assert inbox.window <= 2
    assert outstanding > 0


def test_an_application_that_asks_for_many_at_once_has_as_many_ahead() -> None:
    inbox = shared()
    inbox.asked_for(40)
    assert inbox.grant_anew() == 40
    inbox.asked_for(1000)
    assert inbox.window == PREFETCH
    inbox.asked_for(1)
    assert inbox.window == 1


def test_an_application_that_asks_for_nothing_keeps_nothing_and_is_granted_nothing() -> None:
    inbox = shared()
    inbox.asked_for(10)
    assert inbox.grant_anew() == 10
    for number in range(10):
        arrive(inbox, number)
    inbox.take(1)
    inbox.pace.begin_period(inbox.buffered, asks=7)
    assert inbox.look(asks=7) is Wait.UNASKED
    bits, counts = inbox.take_back(keep=0)
    assert len(bits) == len(counts) == 9
    assert (inbox.buffered, inbox.permits_due(), inbox.grant_anew()) == (0, 0, 0)
    inbox.pace.paused = False
    assert inbox.permits_due() == 10


def test_of_an_entry_every_message_counts_however_it_ends() -> None:
    """▲ Counted as one, a consumer of batches would have too small a window, or be granted less each time."""
    inbox = shared()
    inbox.asked_for(8)
    assert inbox.grant_anew() == 8
    arrive(inbox, 0, 8)
    inbox.starved()
    assert inbox.window == 16
    assert inbox.permits_due() == 8
    inbox.pace.begin_period(inbox.buffered, asks=1)
    inbox.take(8)
    assert inbox.look(asks=2) is Wait.SHORT
    assert inbox.permits_due() == 8
    arrive(inbox, 1, 16)
    inbox.take_back(keep=2)
    assert inbox.permits_due() == 14


def test_an_application_that_asks_now_and_then_gets_a_message_in_the_end() -> None:
    """▲ It asks, does not wait, and comes back after several periods: each time what came was given back by then, so
    that a queue of such consumers would hand out nothing, ever."""
    pace = QueuePace()
    pace.told(1)
    between_s = 10 * PERIOD_S
    for ask in range(1, 10):
        pace.resumed()
        pace.begin_period(1, ask)
        if pace.period_s > between_s:
            pace.taken(1)  # the next call comes first
            assert pace.look(ask + 1) is Wait.SHORT
            assert pace.period_s > between_s, "the one after it, too"
            break
        assert pace.look(ask) is Wait.UNASKED
    else:
        pytest.fail(f"every call was in vain, the last for {pace.period_s} s")
    pace.begin_period(1, 100)
    pace.taken(1)
    assert pace.look(200) is Wait.SHORT
    assert pace.period_s == PERIOD_S, "it asks often again"


def test_an_application_that_got_what_it_asked_for_has_not_asked_in_vain() -> None:
    """When it hangs later, what waits for it is given back as soon as that of any other."""
    pace = QueuePace()
    pace.told(1)
    pace.resumed()
    pace.taken(1)
    pace.begin_period(1, 1)
    assert pace.look(1) is Wait.UNASKED
    assert pace.period_s == PERIOD_S


def test_when_jobs_become_long_the_window_falls_to_what_is_worked_off() -> None:
    inbox = shared()
    inbox.asked_for(80)
    inbox.grant_anew()
    for number in range(80):
        arrive(inbox, number)
    inbox.asked_for(1)
    inbox.pace.starved(PREFETCH)
    inbox.pace.begin_period(inbox.buffered, asks=1)
    for _ in range(24):
        inbox.take(1)
    assert inbox.look(asks=25) is Wait.LONG
    assert inbox.window == 2
    inbox.take_back(keep=inbox.window)
    assert inbox.buffered == 2
    inbox.pace.begin_period(inbox.buffered, asks=25)
    for _ in range(2):
        inbox.take(1)
    assert inbox.look(asks=27) is Wait.SHORT


def test_of_an_entry_the_last_messages_are_given_back_and_the_first_ones_stay() -> None:
    inbox = shared()
    arrive(inbox, 0, 2)
    arrive(inbox, 1, 5)
    arrive(inbox, 2, 1)
    assert inbox.take_back(keep=4) == (
        {Position(1, 1): 0b11100, Position(1, 2): 0b1},
        {Position(1, 1): 5, Position(1, 2): 1},
    )
    taken = [(message.position.entry_id, message.index) for _ in range(2) for message in inbox.take(9)]
    assert taken == [(0, 0), (0, 1), (1, 0), (1, 1)]


def piece(entry_id: int, number: int, pieces: int, *, chunk_id: int = 7) -> ReceivedEntry:
    raw = encode_entry(
        [OutgoingMessage(b"x")],
        producer="p",
        incarnation=1,
        sequence_id=number,
        publish_time_ms=1,
        piece=Piece(chunk_id=chunk_id, number=number, pieces=pieces, total_bytes=pieces),
    )
    return ReceivedEntry("a/b/c/0000-ffff-0", Position(1, entry_id), raw)


def test_values_in_pieces_are_given_back_with_all_their_pieces_incomplete_ones_too() -> None:
    """▲ They would be stranded with a worker that hangs: no other consumer could complete them."""
    inbox = shared()
    inbox.grant_anew()
    for number in range(3):
        inbox.arrived(piece(number, number, 3), b"")
    for number in range(2):
        inbox.arrived(piece(10 + number, number, 3, chunk_id=8), b"")
    inbox.arrived(piece(20, 0, 3, chunk_id=9), b"")
    assert inbox.unbegun
    bits, counts = inbox.take_back(keep=0)
    assert bits == counts == {Position(1, number): 1 for number in (0, 1, 2, 10, 11, 20)}
    assert not inbox.unbegun
    for number in range(3):
        inbox.arrived(piece(10 + number, number, 3, chunk_id=8), b"")
    (message,) = inbox.take(5)
    assert isinstance(message.entry, LargeEntry)
    assert message.entry.positions == (Position(1, 10), Position(1, 11), Position(1, 12))


@given(
    st.lists(
        st.tuples(st.sampled_from(["deliver", "take", "look", "starved", "resume", "told"]), st.integers(1, 9)),
        max_size=60,
    )
)
def test_every_message_is_taken_or_given_back_once_and_every_permit_is_granted_again(
    steps: list[tuple[str, int]],
) -> None:
    inbox = shared(20)
    permits, sharing, asks, entry_id = inbox.grant_anew(), 1, 0, 0
    sent = taken = back = 0
    for what, number in steps:
        if what == "deliver" and permits >= number:
            arrive(inbox, entry_id, number)
            entry_id += 1
            sent += number
            permits -= number
        elif what == "take":
            asks += 1
            inbox.pace.paused = False
            taken += len(inbox.take(number))
        elif what == "look":
            found = inbox.look(asks)
            if found is not Wait.SHORT:
                bits, _ = inbox.take_back(keep=0 if found is Wait.UNASKED else inbox.window)
                back += sum(one.bit_count() for one in bits.values())
            inbox.pace.begin_period(inbox.buffered, asks)
        elif what == "starved":
            inbox.starved()
        elif what == "resume":
            inbox.pace.paused = False
        elif what == "told":
            sharing += number
            inbox.told_sharing(sharing)
            permits = inbox.grant_anew()
        permits += inbox.permits_due()
        assert sent == taken + back + inbox.buffered
    if not inbox.pace.shares:
        inbox.told_sharing(sharing + 1)
        permits = inbox.grant_anew()
    while (more := inbox.take(20)) or inbox.pace.paused:
        inbox.pace.paused = False
        taken += len(more)
        permits += inbox.permits_due()
    assert sent == taken + back
    assert permits > inbox.window // 2, "it would get nothing more"


@pytest.mark.parametrize(
    ("messages", "took_s", "waited_s", "at_once"),
    [
        (1, 0.05, 0.0, 1),
        (1, 10.0, 0.0, 1),
        (1, 0.0, 0.0, 500),
        (100, 0.1, 0.0, 50),
        (500, 0.001, 0.0, 500),
        (1, 0.05, 0.2, 4),  # slow commits: longer batches
        (1, 0.05, 100.0, int(MOST_S / 0.05)),
    ],
)
def test_a_batch_is_what_the_handler_works_off_in_a_while(
    messages: int, took_s: float, waited_s: float, at_once: int
) -> None:
    pace = BatchPace(500)
    assert pace.at_once == 1
    pace.waited(waited_s)
    pace.worked(messages, took_s)
    assert pace.at_once == at_once


def test_a_fixed_wait_for_commits_makes_no_batch_shorter() -> None:
    """▲ Counted as work, a commit of 30 ms would keep batches of one message, each of which waits for a commit."""
    pace = BatchPace(500)
    for _ in range(3):
        pace.worked(pace.at_once, 0.0001 * pace.at_once)
        pace.waited(0.03)
    assert pace.at_once == WORK_S / 0.0001
