"""A queue divides an entry's messages among its consumers by their permits."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from segments.log.tail_cache import LargeValueKey
from tests.segments.queueing import Rig, Taker
from watchers.acks import ack_position


def sharing(rig: Rig, name: str, permits: int) -> Taker:
    taker = rig.taker(name, 0)
    taker.shares = True
    rig.permit(taker, permits)
    return taker


def _indexes(taker: Taker) -> list[int]:
    return sorted(index for _, index, _ in taker.got)


def test_an_entry_s_messages_go_to_as_many_consumers_as_have_permits() -> None:
    rig = Rig()
    rig.append(10)
    a, b, c = sharing(rig, "a", 2), sharing(rig, "b", 3), sharing(rig, "c", 1)
    rig.run()
    assert (_indexes(a), _indexes(b), _indexes(c)) == ([0, 1], [2, 3, 4], [5])
    assert a.permits == b.permits == c.permits == 0
    rig.permit(b, 100)
    rig.run()
    assert _indexes(b) == [2, 3, 4, 6, 7, 8, 9]
    assert b.permits == 96


def test_what_is_left_of_a_divided_entry_comes_before_the_next_entry() -> None:
    rig = Rig()
    first, second = rig.append(3), rig.append(1)
    taker = sharing(rig, "a", 2)
    rig.run()
    rig.permit(taker, 2)
    rig.run()
    assert [(position, index) for position, index, _ in taker.got] == [(first, 0), (first, 1), (first, 2), (second, 0)]


def test_a_divided_entry_is_not_given_out_to_its_end_before_all_of_it_is() -> None:
    """▲ Otherwise the consumers would be told the end of a sealed segment with messages to come."""
    rig = Rig()
    rig.append(4)
    taker = sharing(rig, "a", 3)
    rig.run()
    assert not rig.queue.all_given_out(rig.end)
    rig.permit(taker, 1)
    rig.run()
    assert rig.queue.all_given_out(rig.end)


def test_of_a_divided_entry_each_consumer_gives_back_its_own_part() -> None:
    rig = Rig()
    position = rig.append(4)
    a, b = sharing(rig, "a", 2), sharing(rig, "b", 2)
    rig.run()
    rig.queue.leave(a)
    rig.permit(b, 10)
    rig.run()
    assert sorted(b.got) == [(position, 0, 1), (position, 1, 1), (position, 2, 0), (position, 3, 0)]
    rig.ack(ack_position(position, 4, 0b1111))
    rig.cursor.advance()
    assert rig.cursor.mark_delete == position
    assert (rig.queue.statistics().unacked, b.held) == (0, {})


def test_a_message_that_comes_back_again_and_again_takes_one_place() -> None:
    """▲ Of a divided entry it took one more each time, until the queue had no place left to read on."""
    rig = Rig()
    position = rig.append(10)
    taker = sharing(rig, "a", 1)
    rig.run()
    places = rig.queue.places
    for number in range(50):
        due_s = None if number % 2 else 1.0
        rig.queue.given_back([ack_position(position, 10, 1 << taker.got[-1][1])], taker, due_s=due_s)
        rig.queue.expire(2.0)
        rig.permit(taker, 1)
        rig.run()
        assert rig.queue.places == places


def test_what_nobody_has_begun_comes_again_uncounted() -> None:
    rig = Rig()
    position = rig.append(2)
    a = rig.taker("a", 2)
    rig.run()
    rig.queue.given_back([ack_position(position, 2, 0b10)], a, counted=False)
    rig.queue.given_back([ack_position(position, 2, 0b01)], a)
    b = rig.taker("b", 2)
    rig.run()
    assert sorted(b.got) == [(position, 0, 1), (position, 1, 0)]


@given(
    entries=st.lists(st.integers(1, 9), min_size=1, max_size=8),
    grants=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 7)), max_size=30),
)
def test_nobody_gets_more_than_its_permits_and_nothing_comes_twice_or_never(
    entries: list[int], grants: list[tuple[int, int]]
) -> None:
    rig = Rig()
    for messages in entries:
        rig.append(messages)
    takers, granted = [sharing(rig, str(number), 0) for number in range(3)], [0, 0, 0]
    for number, permits in grants:
        granted[number] += permits
        rig.permit(takers[number], permits)
        rig.run()
        for taker, most in zip(takers, granted, strict=True):
            assert len(taker.got) + taker.permits == most
    rig.permit(takers[0], 1000)
    rig.run()
    everything = [(position, index) for position, entry in rig.log.items() for index in range(entry.messages)]
    assert sorted((position, index) for taker in takers for position, index, _ in taker.got) == everything


def test_a_consumer_that_cannot_share_gets_whole_entries() -> None:
    """One that is alone, or of an earlier version."""
    rig = Rig()
    rig.append(5)
    taker = rig.taker(permits=2)
    rig.run()
    assert _indexes(taker) == [0, 1, 2, 3, 4]
    assert taker.permits == -3


def test_room_for_the_rest_of_a_divided_entry_is_kept() -> None:
    """▲ While the rest is read, entries ahead could take its room: the cursor would outgrow its bound."""
    rig = Rig(max_partial=1)
    first, second = rig.append(4), rig.append(4)
    a = sharing(rig, "a", 1)
    assert rig.step()
    assert not rig.cursor.has_room(second)
    rig.queue.given_back([ack_position(first, 4, 0b1)], a, counted=False)
    assert not rig.cursor.has_room(second)
    rig.permit(a, 3)
    rig.run()
    assert list(a.held) == [first]
    rig.ack(ack_position(first, 4, 0b1111))
    rig.permit(a, 4)
    rig.run()
    assert list(a.held) == [second], "its room was not released"


def test_pieces_given_back_go_to_another_consumer_with_those_that_were_kept() -> None:
    """▲ Pieces kept for a consumer that grants no permits would never come."""
    rig = Rig()
    pieces = [rig.append(large_value=LargeValueKey("p", 1, 7, 4)) for _ in range(4)]
    a, b = sharing(rig, "a", 2), sharing(rig, "b", 0)
    rig.run()
    assert a.entries == pieces[:2]
    rig.permit(b, 100)
    rig.run()
    assert b.entries == []
    rig.queue.given_back([ack_position(position, 1, 0b1) for position in pieces[:2]], a, counted=False)
    rig.run()
    assert sorted(b.entries) == pieces
    assert not a.kept
