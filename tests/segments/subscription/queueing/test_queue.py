"""The pure core of queue subscriptions, case by case."""

from __future__ import annotations

from segments.subscription.cursors.cursor import BLOCK_ENTRIES
from segments.subscription.queueing.queue import PASSED_AT_ONCE, QueueBounds, QueueStatistics
from tests.segments.queueing import Rig
from tests.segments.subscription.entries import T1, T2, whole
from txnwire.ids import Position, TxnId
from watchers.acks import WHOLE, AckPosition, ack_position


def test_round_robin_by_permits() -> None:
    rig = Rig()
    positions = [rig.append() for _ in range(7)]
    a, b, c = rig.taker("a", 100), rig.taker("b", 2), rig.taker("c", 100)
    rig.run()
    assert (a.entries, b.entries, c.entries) == (
        [positions[0], positions[3], positions[6]],
        [positions[1], positions[4]],
        [positions[2], positions[5]],
    )
    assert b.permits == 0
    rig.ack(*(whole(position) for position in positions))
    assert (rig.queue.statistics().unacked, a.held, b.held, c.held) == (0, {}, {}, {})


def test_v8_set_aside_in_intervals_then_due_in_order_before_what_is_ahead() -> None:
    rig = Rig()
    taker = rig.taker()
    first = [rig.append(txn=T1) for _ in range(3)]
    plain = rig.append()
    more = rig.append(txn=T1)
    rig.run()
    assert taker.entries == [plain]
    statistics = rig.queue.statistics()
    assert (statistics.set_aside, statistics.set_aside_transactions, rig.queue.places) == (4, 1, 3)
    rig.decide(T1, committed=True)
    assert rig.queue.statistics().set_aside == 0
    later = rig.append()
    rig.run()
    assert taker.entries == [plain, *first, more, later]
    assert rig.queue.places == len(taker.entries), "nothing is set aside or due any more"


def test_v8_aborted_is_acked_away_wherever_it_stands() -> None:
    """Set aside, not read yet, and due but aborted meanwhile by a writer that does not count."""
    rig = Rig()
    taker = rig.taker()
    rig.append(txn=T1)
    plain = rig.append()
    rig.append(txn=T1)
    lost = rig.append(txn=T2, writer=7)
    rig.run()
    rig.append(txn=T1)
    rig.decide(T1, committed=False)
    rig.losers[T2, 7] = None
    rig.decide(T2, committed=True)
    rig.run()
    assert taker.entries == [plain]
    rig.ack(whole(plain))
    assert rig.cursor.mark_delete == rig.end > lost


def test_passing_over_is_done_in_portions() -> None:
    rig = Rig()
    rig.taker()
    for _ in range(10):
        rig.append(txn=T1)
    rig.run()
    rig.decide(T1, committed=False)
    assert rig.queue.pass_over(4)
    assert rig.cursor.mark_delete == Position(1, 3)
    assert not rig.queue.pass_over(100)
    assert rig.cursor.mark_delete == Position(1, 9)


def test_p9_a_consumer_that_goes_gives_back_what_it_has_not_acked() -> None:
    rig = Rig()
    a, b = rig.taker("a"), rig.taker("b", 0)
    positions = [rig.append(messages=2) for _ in range(3)]
    rig.run()
    rig.ack(ack_position(positions[1], 2, 0b01))
    rig.ack(whole(positions[2], 2))
    rig.queue.leave(a)
    rig.permit(b, 100)
    rig.run()
    assert b.got == [(positions[0], 0, 1), (positions[0], 1, 1), (positions[1], 1, 1)]
    assert not rig.queue.statistics().due


def test_redelivery_counts_are_kept_by_message() -> None:
    """A poison message in an entry of many must not count for the others."""
    rig = Rig()
    taker = rig.taker()
    position = rig.append(messages=3)
    rig.run()
    for _ in range(2):
        rig.queue.given_back([ack_position(position, 3, 0b010)], taker)
        rig.run()
    rig.queue.given_back([whole(position, 3)], taker)
    taker.got.clear()
    rig.run()
    assert sorted(taker.got) == [(position, 0, 1), (position, 1, 3), (position, 2, 1)]


def test_a_nack_of_what_one_has_not_is_passed_over() -> None:
    rig = Rig()
    a, b = rig.taker("a", 1), rig.taker("b", 0)
    position = rig.append()
    rig.run()
    rig.queue.given_back([whole(position)], b)
    rig.queue.given_back([AckPosition(Position(1, 77), 1)], a)
    rig.run()
    assert a.entries == [position]
    assert rig.queue.next_due() is None


def test_delayed_messages_come_when_their_time_has_come() -> None:
    rig = Rig()
    taker = rig.taker()
    first, second = rig.append(messages=2), rig.append()
    rig.run()
    rig.queue.given_back([ack_position(first, 2, 0b10)], taker, due_s=5.0)
    rig.queue.given_back([whole(second)], taker, due_s=3.0)
    taker.got.clear()
    rig.queue.expire(2.9)
    rig.run()
    assert taker.got == []
    assert rig.queue.next_expiry_s() == 3.0
    rig.queue.expire(3.0)
    rig.run()
    assert taker.got == [(second, 0, 1)]
    rig.ack(ack_position(first, 2, 0b10))  # by whoever had it: at least once, so it counts
    rig.queue.expire(9.0)
    rig.run()
    assert taker.got == [(second, 0, 1)]
    assert rig.queue.next_expiry_s() is None


def test_all_whose_time_has_come_are_due_at_once_in_whichever_order_they_were_delayed() -> None:
    rig = Rig()
    taker = rig.taker()
    positions = [rig.append() for _ in range(4)]
    rig.run()
    for position, due_s in zip(positions, (9.0, 5.0, 3.0, 4.0), strict=True):
        rig.queue.given_back([whole(position)], taker, due_s=due_s)
    taker.got.clear()
    rig.queue.expire(5.0)
    rig.run()
    assert [position for position, _, _ in taker.got] == positions[1:]
    assert rig.queue.next_expiry_s() == 9.0


def test_a_stale_due_place_delivers_nothing_that_is_delayed() -> None:
    rig = Rig()
    taker = rig.taker()
    position = rig.append(messages=2)
    rig.run()
    for index in (0, 1):
        rig.queue.given_back([ack_position(position, 2, 1 << index)], taker)
    rig.step()
    assert len(taker.got) == 4
    rig.queue.given_back([ack_position(position, 2, 0b01)], taker, due_s=3.0)
    rig.queue.given_back([ack_position(position, 2, 0b10)], taker, due_s=5.0)
    rig.run()
    assert len(taker.got) == 4
    rig.queue.expire(3.0)
    rig.run()
    assert taker.got[4:] == [(position, 0, 2)]
    rig.queue.expire(5.0)
    rig.run()
    assert taker.got[5:] == [(position, 1, 2)]


def test_p3_pending_messages_are_not_delivered_and_come_back_with_an_abort() -> None:
    rig = Rig()
    taker = rig.taker()
    position = rig.append(messages=2)
    rig.run()
    rig.ack_in(T1, ack_position(position, 2, 0b01))
    rig.queue.given_back([whole(position, 2)], taker)
    taker.got.clear()
    rig.run()
    assert taker.got == [(position, 1, 1)]
    rig.end_acks(T1, committed=False)
    rig.run()
    assert taker.got == [(position, 1, 1), (position, 0, 1)]


def test_a_consumer_at_its_bound_gets_nothing_more_and_the_others_do() -> None:
    rig = Rig(bounds=QueueBounds(places=1000, unacked=2, blocks=8))
    a, b = rig.taker("a"), rig.taker("b")
    positions = [rig.append() for _ in range(6)]
    rig.run()
    assert (len(a.got), len(b.got)) == (2, 2)
    rig.ack(whole(positions[0]))
    rig.run()
    assert (len(a.got), len(b.got)) == (3, 2)


def test_past_its_bound_the_queue_reads_no_further_and_loses_nothing() -> None:
    rig = Rig(bounds=QueueBounds(places=4, unacked=1000, blocks=8))
    taker = rig.taker()
    kept = []
    for number in range(10):
        kept.append(rig.append(txn=TxnId(1, number + 1)))
    plain = rig.append()
    rig.run()
    assert rig.queue.places == 4
    assert taker.got == []
    for number in range(10):
        rig.decide(TxnId(1, number + 1), committed=number % 2 == 0)
    rig.run()
    while rig.cursor.mark_delete != rig.end:
        assert rig.queue.places <= 5
        rig.ack(*(whole(position) for position in taker.entries))
        rig.run()
    assert taker.entries == [*kept[::2], plain]


def test_the_queue_reads_no_further_than_the_cursor_has_room_for_acks() -> None:
    """▲ Around an old open transaction acks run ahead of the mark-delete position: what is given out must fit."""
    rig = Rig(bounds=QueueBounds(places=10**6, unacked=10**6, blocks=2), max_blocks=2)
    taker = rig.taker(permits=10**6)
    rig.append(txn=T1)
    for _ in range(3 * BLOCK_ENTRIES):
        rig.append()
    rig.run()
    assert len(taker.got) == 2 * BLOCK_ENTRIES - 1
    rig.ack(*(whole(position) for position in reversed(taker.entries)))
    rig.run()
    assert len(taker.got) == 2 * BLOCK_ENTRIES - 1
    rig.decide(T1, committed=True)
    rig.run()
    rig.ack(whole(Position(1, 0)))
    rig.run()
    assert len(taker.got) == 3 * BLOCK_ENTRIES + 1


def test_the_next_owner_reads_no_further_than_the_cursor_has_room_for_acks() -> None:
    """▲ It passes entries that are acked without reading them, and the cursor holds their acks all the same."""
    rig = Rig(bounds=QueueBounds(places=1000, unacked=1000, blocks=3), max_blocks=4)
    taker = rig.taker()
    for _ in range(12):
        rig.append()
        rig.append()
        rig.roll()
    rig.run()
    waits, *done = taker.entries
    assert len(done) == 5
    rig.ack(*(whole(position) for position in done))
    for _ in range(2):
        rig.begin_anew()
        after = rig.taker()
        rig.run()
        assert after.entries == [waits]
    while rig.cursor.mark_delete != rig.end:
        rig.ack(*(whole(position) for position in reversed(after.entries)))
        after.got.clear()
        rig.run()


def test_the_next_owner_gives_out_the_first_entry_however_full_the_cursor_is() -> None:
    """▲ Nothing is acked in the block of the first entry: its ack alone makes room."""
    for acked in (3, 4):
        rig = Rig(bounds=QueueBounds(places=1000, unacked=1000, blocks=3), max_blocks=4)
        rig.append()
        rig.append()
        for _ in range(acked):
            rig.roll()
            rig.cursor.ack(whole(rig.append()))
            rig.append()
        rig.begin_anew()
        taker = rig.taker()
        rig.run()
        assert len([one for one in taker.entries if one.ledger_id == 1]) == (2 if acked == 3 else 1)
        while rig.cursor.mark_delete != rig.end:
            rig.run()
            assert taker.entries
            rig.ack(*(whole(position) for position in reversed(taker.entries)))
            taker.got.clear()


def test_what_a_queue_gives_out_may_be_acked_message_by_message_however_much_of_it_is() -> None:
    """▲ C9: consumers that leave one message of each batch unacked. Were their acks refused, what they have done would
    come again and again, until it is taken for dead."""
    rig = Rig(max_partial=50)
    taker = rig.taker(permits=10**6)
    for _ in range(200):
        rig.append(messages=3)
    rig.run()
    given = list(dict.fromkeys(taker.entries))
    assert 0 < len(given) < 200
    for position in reversed(given):
        rig.ack(AckPosition(position, 3, 0b101))
    rig.run()
    assert list(dict.fromkeys(taker.entries)) == given
    for position in given[10:]:
        rig.ack(AckPosition(position, 3, 0b010))
    rig.run()
    assert len(set(taker.entries)) > len(given)


def test_what_comes_again_may_be_acked_message_by_message_as_well() -> None:
    """▲ Entries of a transaction that commits are all given out: more than the cursor has room for."""
    rig = Rig(max_partial=10)
    taker = rig.taker(permits=10**6)
    for _ in range(60):
        rig.append(messages=2, txn=T1)
    rig.run()
    rig.decide(T1, committed=True)
    rig.run()
    entries = list(dict.fromkeys(taker.entries))
    assert len(entries) == 60
    for position in reversed(entries):
        rig.ack(AckPosition(position, 2, 0b01))
    rig.queue.leave(taker)
    again = rig.taker("again", permits=10**6)
    rig.run()
    rig.ack_in(TxnId(2, 1), *(AckPosition(position, 2, 0b10) for position in entries[1:]))
    rig.end_acks(TxnId(2, 1), committed=True)
    rig.ack(AckPosition(entries[0], 2, 0b10))
    assert rig.cursor.mark_delete == entries[-1]
    rig.queue.leave(again)
    assert rig.cursor.has_room(Position(1, 10**6))


def test_a_queue_that_begins_with_its_cursor_full_goes_on() -> None:
    """▲ As behind a take-over: what it waits for lies ahead of it, behind entries of which nothing is acked."""
    rig = Rig(max_partial=5)
    for number in range(40):
        position = rig.append(messages=2)
        if number >= 3:
            rig.cursor.ack(AckPosition(position, 2, 0b01), held=True)
    assert not rig.cursor.has_room(Position(1, 0))
    taker = rig.taker(permits=10**6)
    for _ in range(100):
        rig.run()
        for position, index, _ in taker.got:
            rig.ack(AckPosition(position, 2, 1 << index))
        taker.got.clear()
    assert rig.cursor.mark_delete == rig.end
    assert rig.cursor.has_room(Position(1, 10**6))


def test_v7_reading_uncommitted_nothing_is_set_aside_and_aborted_ones_are_shown() -> None:
    rig = Rig()
    taker = rig.taker()
    opened, aborted, other = rig.append(txn=T1), rig.append(txn=T2), rig.append(txn=TxnId(1, 3))
    rig.run()
    rig.decide(T2, committed=False)
    rig.queue.read_uncommitted(True)
    more = rig.append(txn=T1)
    rig.run()
    assert taker.entries == [opened, other, more]  # the aborted one was passed over before anybody asked
    rig.queue.leave(taker)
    rig.queue.read_uncommitted(False)
    back = rig.taker("back")
    rig.run()
    assert back.got == []
    rig.decide(T1, committed=True)
    rig.run()
    assert back.entries == [opened, more]
    assert aborted not in back.entries


def test_positions_cross_ledgers() -> None:
    rig = Rig()
    taker = rig.taker()
    first = rig.append()
    rig.run()
    rig.roll()
    rig.roll()
    second = rig.append(txn=T1)
    third = rig.append()
    rig.run()
    assert taker.entries == [first, third]
    rig.queue.given_back([whole(first), whole(third)], taker)
    rig.decide(T1, committed=True)
    rig.run()
    assert taker.entries == [first, third, first, second, third]
    rig.ack(*(AckPosition(position, 1, WHOLE) for position in (first, second, third)))
    assert rig.cursor.mark_delete == third


def test_nothing_is_remembered_of_what_was_acked_behind_the_queue_s_back() -> None:
    """Part of a list whose ack was refused further on: its consumer never says so again, and goes."""
    rig = Rig()
    taker = rig.taker()
    position = rig.append()
    rig.run()
    rig.pending.ack([whole(position)])
    rig.queue.leave(taker)
    rig.taker()
    rig.run()
    assert rig.queue.statistics() == QueueStatistics()


def test_an_entry_acked_out_of_order_is_no_longer_counted_among_those_that_came_back() -> None:
    """The mark-delete position passes it later, and would leave its count in memory for good."""
    rig = Rig()
    taker = rig.taker()
    first, second = rig.append(), rig.append()
    rig.run()
    rig.queue.given_back([whole(first), whole(second)], taker)
    rig.run()
    rig.ack(whole(second))
    assert rig.queue.statistics().redelivered == 1
    rig.ack(whole(first))
    assert rig.queue.statistics().redelivered == 0


def test_what_is_set_aside_is_known_by_position() -> None:
    rig = Rig()
    rig.taker()
    aside = [rig.append(txn=txn) for txn in (T1, T1, T2)]
    plain = rig.append()
    aside.append(rig.append(txn=T1))
    assert not any(rig.queue.aside(position) for position in aside)
    rig.run()
    assert [rig.queue.aside(position) for position in (*aside, plain, Position(1, 99))] == [True] * 4 + [False] * 2
    rig.decide(T1, committed=True)
    assert [rig.queue.aside(position) for position in (*aside, plain)] == [False, False, True, False, False]


def test_a_long_run_of_pending_entries_is_passed_in_portions() -> None:
    """A segment that changes hands may have a hundred thousand of them behind its mark-delete position."""
    rig = Rig()
    positions = [rig.append() for _ in range(2 * PASSED_AT_ONCE + 10)]
    rig.open[T1] = None
    rig.ack_in(T1, *(whole(position) for position in positions[:-1]))
    rig.taker()
    for _ in range(2):
        rig.queue.cut_short = False
        assert rig.queue.next_ahead(rig.end) is None
        assert rig.queue.cut_short
    rig.queue.cut_short = False
    assert rig.queue.next_ahead(rig.end) == positions[-1]
    assert not rig.queue.cut_short


def test_a_portion_of_pending_entries_ends_before_the_entry_that_comes_next() -> None:
    """Dies if that one counts as passed: nobody would ever be given it."""
    rig = Rig()
    positions = [rig.append() for _ in range(PASSED_AT_ONCE + 3)]
    rig.open[T1] = None
    rig.ack_in(T1, *(whole(position) for position in positions[:PASSED_AT_ONCE]))
    rig.taker()
    assert rig.queue.next_ahead(rig.end) is None
    assert rig.queue.cut_short
    assert rig.queue.next_ahead(rig.end) == positions[PASSED_AT_ONCE]


def test_a_long_run_of_due_entries_that_are_acked_by_now_is_passed_in_portions() -> None:
    rig = Rig()
    positions = [rig.append() for _ in range(PASSED_AT_ONCE + 10)]
    rig.queue.given_back([whole(position) for position in positions])
    rig.pending.ack([whole(position) for position in positions[:-1]])
    assert rig.queue.next_due() is None
    assert rig.queue.cut_short
    assert rig.queue.next_due() == positions[-1]
