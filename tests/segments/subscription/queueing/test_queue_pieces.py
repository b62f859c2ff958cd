"""Values in pieces on queue subscriptions."""

from __future__ import annotations

from segments.log.tail_cache import LargeValueKey
from tests.segments.queueing import Rig
from tests.segments.subscription.entries import T1, whole


def test_all_pieces_of_a_value_go_to_one_consumer() -> None:
    rig = Rig()
    a, b = rig.taker("a", 100), rig.taker("b", 100)
    pieces = [rig.append(large_value=LargeValueKey("p", 1, 7 if number % 2 else 8, 3)) for number in range(6)]
    rig.append()
    rig.run()
    assert {tuple(position for position in taker.entries if position in pieces) for taker in (a, b)} == {
        tuple(pieces[::2]),
        tuple(pieces[1::2]),
    }
    rig.queue.leave(a)
    rig.run()
    assert set(pieces) <= set(b.entries)


def test_all_is_given_out_once_nothing_is_left_that_could_come_but_from_a_consumer() -> None:
    rig = Rig()
    end = [rig.append(), rig.append(txn=T1), rig.append(), rig.append(large_value=LargeValueKey("p", 1, 7, 3))][-1]
    assert not rig.queue.all_given_out(end)
    taker = rig.taker("a", 2)
    rig.run()
    assert not rig.queue.all_given_out(end)  # one is set aside, one ahead
    rig.permit(taker, 10)
    rig.run()
    assert not rig.queue.all_given_out(end)
    rig.decide(T1, committed=True)
    assert not rig.queue.all_given_out(end)
    rig.run()
    assert rig.queue.all_given_out(end)
    rig.queue.given_back([whole(taker.entries[0])], taker, due_s=5.0)
    assert not rig.queue.all_given_out(end)
    rig.queue.expire(5.0)
    rig.run()
    rig.ack(*(whole(position) for position in taker.entries))
    assert rig.queue.all_given_out(end)


def test_of_a_whole_value_parts_may_come_again_of_an_incomplete_one_nothing() -> None:
    """▲ Who is told that nothing more comes acks away what it has of a value: two nacks may give one value back."""
    rig = Rig()
    taker = rig.taker("a", 100)
    rig.append(large_value=LargeValueKey("p", 1, 7, 3))
    whole_value = [rig.append(large_value=LargeValueKey("p", 1, 8, 2)) for _ in range(2)]
    rig.run()
    assert rig.queue.may_complete(taker)
    rig.queue.given_back([whole(whole_value[0])], taker)
    rig.run()  # again with it, the other half on its way back
    assert rig.queue.may_complete(taker)
    rig.ack(*(whole(position) for position in whole_value))
    assert not rig.queue.may_complete(taker)


def test_a_value_whose_last_piece_waits_for_its_consumer_s_permits_may_complete() -> None:
    """▲ All is given out, and the consumer would be told the end: it would ack away the pieces it has."""
    rig = Rig()
    taker = rig.taker("a", 2)
    rig.taker("b", 100)
    pieces = [rig.append(large_value=LargeValueKey("p", 1, 7, 3)) for _ in range(3)]
    rig.run()
    assert (taker.entries, list(taker.kept)) == (pieces[:2], pieces[2:])
    assert rig.queue.all_given_out(rig.end)
    assert rig.queue.may_complete(taker)


def test_a_piece_waits_for_the_consumer_that_has_the_others_and_holds_up_nobody() -> None:
    rig = Rig()
    a, b = rig.taker("a", 1), rig.taker("b", 0)
    pieces = [rig.append(large_value=LargeValueKey("p", 1, 7, 3)) for _ in range(3)]
    rig.run()
    rig.permit(b, 100)
    plain = rig.append()
    rig.run()
    assert (a.entries, b.entries) == ([pieces[0]], [plain])
    rig.permit(a, 2)
    rig.run()
    assert (a.entries, b.entries) == (pieces, [plain])
    rig.queue.leave(a)
    rig.run()
    assert b.entries == [plain, *pieces]
    rig.ack(*(whole(piece) for piece in pieces))
    again = rig.append(large_value=LargeValueKey("p", 1, 7, 3))
    rig.taker("c")
    rig.run()
    assert rig.queue.statistics().unacked == 2
    assert again in rig.log


def test_pieces_kept_for_a_consumer_that_goes_are_due_for_the_others() -> None:
    rig = Rig()
    a, b = rig.taker("a", 1), rig.taker("b", 0)
    pieces = [rig.append(large_value=LargeValueKey("p", 1, 7, 3)) for _ in range(3)]
    rig.run()
    rig.permit(b, 1)
    rig.run()
    assert list(a.kept) == pieces[1:]
    rig.queue.leave(a)
    rig.permit(b, 100)
    rig.run()
    assert b.entries == pieces
    assert [count for _, _, count in b.got] == [1, 0, 0]
