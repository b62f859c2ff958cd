"""Dedup and order of sends: chained admission, repeats, fencing, restart (DESIGN §7, "Dedup and order")."""

from __future__ import annotations

import msgspec
import pytest

from segments.log.sends.dedup import PART_PRODUCERS, Dedup, DedupVerdict, InFlight, join_parts
from txnwire.errors import DataCorrupt, InternalError, InvalidArgument, ProducerFenced, SequenceGap
from txnwire.ids import Position

IDLE_S = 3600.0
NOW_S = 100.0


def at(entry_id: int) -> Position:
    return Position(1, entry_id)


class Producer:
    """One connection, whose sends are noted under their sequence ids."""

    def __init__(self, dedup: Dedup[str], name: str = "p", incarnation: int = 0xABC) -> None:
        self.dedup = dedup
        self.connected = dedup.connect(name, incarnation, NOW_S)

    def send(
        self, first: int, previous: int, count: int = 1, waiter: str = ""
    ) -> tuple[DedupVerdict, InFlight[str] | None]:
        admission = self.dedup.admit(self.connected.token, first, count, previous, waiter or str(first))
        return admission.verdict, admission.entry

    def new(self, first: int, previous: int, count: int = 1) -> InFlight[str]:
        verdict, entry = self.send(first, previous, count)
        assert verdict is DedupVerdict.NEW
        assert entry is not None
        return entry


@pytest.fixture
def dedup() -> Dedup[str]:
    return Dedup(idle_s=IDLE_S)


@pytest.fixture
def producer(dedup: Dedup[str]) -> Producer:
    return Producer(dedup)


# ---- order


def test_pipelined_entries_are_stored_in_order_gaps_between_their_ids_included(
    dedup: Dedup[str], producer: Producer
) -> None:
    """Ids are given over all segments: what comes here rises, with gaps."""
    entries = [producer.new(0, -1, 3), producer.new(10, 2), producer.new(11, 10, 5)]
    for position, entry in enumerate(entries):
        assert dedup.stored(entry, at(position), NOW_S) == [str(entry.first)]
    assert dedup.last_sequence_id("p", 0xABC) == 15


def test_entry_is_admitted_only_right_behind_the_one_it_names(dedup: Dedup[str], producer: Producer) -> None:
    """▲ Chaining: 7 names 5, which has not come."""
    dedup.stored(producer.new(0, -1), at(0), NOW_S)
    with pytest.raises(SequenceGap, match="entry 7 names 5 as its predecessor, but the last one here is 0"):
        producer.send(7, 5)
    producer.new(5, 0)
    producer.new(7, 5)


@pytest.mark.parametrize("stored", [False, True])
def test_l8_an_entry_that_names_one_before_the_last_is_refused(
    dedup: Dedup[str], producer: Producer, stored: bool
) -> None:
    """▲ Its sender knows nothing of 5, which is here: with 7 stored, another 5 would look like a repeat."""
    first, second = producer.new(0, -1), producer.new(5, 0)
    if stored:
        dedup.stored(first, at(0), NOW_S)
        dedup.stored(second, at(1), NOW_S)
    with pytest.raises(SequenceGap, match="entry 7 names 0 as its predecessor, but the last one here is 5"):
        producer.send(7, 0)
    producer.new(7, 5)


def test_first_entry_names_no_predecessor(producer: Producer) -> None:
    with pytest.raises(SequenceGap, match="the last one here is -1"):
        producer.send(7, 3)
    producer.new(7, -1)


def test_l8_resend_of_a_failed_predecessor_is_never_mistaken_for_a_repeat(
    dedup: Dedup[str], producer: Producer
) -> None:
    """▲ 1 fails; were 2 or 3, admitted behind it, stored after that, the resend of 1 would look like a repeat."""
    dedup.stored(producer.new(0, -1), at(0), NOW_S)
    first, second, third = producer.new(1, 0), producer.new(2, 1), producer.new(3, 2)
    assert dedup.failed(first) == [first, second, third]
    assert [entry.failed for entry in (first, second, third)] == [True, True, True]
    assert dedup.failed(second) == ()
    with pytest.raises(InternalError, match="out of order"):
        dedup.stored(second, at(1), NOW_S)
    with pytest.raises(SequenceGap):
        producer.send(2, 1)
    resent = producer.new(1, 0)
    again = producer.new(2, 1)
    dedup.stored(resent, at(1), NOW_S)
    dedup.stored(again, at(2), NOW_S)
    assert dedup.last_sequence_id("p", 0xABC) == 2


def test_l8_failure_in_the_middle_keeps_what_is_before_it(dedup: Dedup[str], producer: Producer) -> None:
    first, second, third = producer.new(1, -1), producer.new(2, 1), producer.new(3, 2)
    assert dedup.failed(second) == [second, third]
    dedup.stored(first, at(0), NOW_S)
    skipping = producer.new(9, 1)
    dedup.stored(skipping, at(1), NOW_S)
    assert dedup.last_sequence_id("p", 0xABC) == 9


def test_l8_an_entry_that_has_failed_is_not_stored_in_place_of_its_resend(
    dedup: Dedup[str], producer: Producer
) -> None:
    """▲ Whoever sent it was told that it failed: the answer to the resend is the one that counts."""
    failed = producer.new(1, -1)
    dedup.failed(failed)
    resent = producer.new(1, -1)
    with pytest.raises(InternalError, match="out of order"):
        dedup.stored(failed, at(0), NOW_S)
    assert dedup.stored(resent, at(1), NOW_S) == ["1"]


def test_stored_out_of_order_is_an_error(dedup: Dedup[str], producer: Producer) -> None:
    producer.new(1, -1)
    second = producer.new(2, 1)
    with pytest.raises(InternalError, match="out of order"):
        dedup.stored(second, at(0), NOW_S)


# ---- repeats


def test_l9_repeat_of_an_entry_on_its_way_shares_its_outcome(dedup: Dedup[str], producer: Producer) -> None:
    """▲ Attached, not answered: the first may still fail."""
    entry = producer.new(1, -1, 2)
    for waiter in ("again", "once more"):
        verdict, attached = producer.send(1, -1, 2, waiter)
        assert (verdict, attached) == (DedupVerdict.ATTACHED, entry)
    assert dedup.stored(entry, at(0), NOW_S) == ["1", "again", "once more"]


def test_l9_repeat_shares_a_failure_too(dedup: Dedup[str], producer: Producer) -> None:
    first, second = producer.new(1, -1), producer.new(2, 1)
    producer.send(2, 1, waiter="again")
    failed = dedup.failed(first)
    assert [entry.waiters for entry in failed] == [["1"], ["2", "again"]]
    assert second.failed


def test_l9_repeat_of_an_entry_on_its_way_is_known_as_one(dedup: Dedup[str], producer: Producer) -> None:
    """▲ Where there is no room for anything new: refused, it would be sent anew, and stored twice."""
    token = producer.connected.token
    dedup.stored(producer.new(0, -1), at(0), NOW_S)
    producer.new(1, 0, 2)
    assert [dedup.knows(token, first) for first in (0, 1, 3)] == [True, True, False]
    assert not dedup.knows(Producer(dedup, "other").connected.token, 0)


def test_stored_repeat_is_acked_again_with_its_position_if_it_was_the_last(
    dedup: Dedup[str], producer: Producer
) -> None:
    dedup.stored(producer.new(1, -1, 2), at(4), NOW_S)
    dedup.stored(producer.new(3, 2), at(5), NOW_S)
    token = producer.connected.token
    assert dedup.admit(token, 3, 1, 2, "x") == (DedupVerdict.STORED, None, at(5))
    assert dedup.admit(token, 1, 2, -1, "x") == (DedupVerdict.STORED, None, None)


def test_stored_repeat_is_acked_while_later_ones_are_on_their_way(dedup: Dedup[str], producer: Producer) -> None:
    dedup.stored(producer.new(1, -1), at(0), NOW_S)
    producer.new(2, 1)
    assert producer.send(1, -1)[0] is DedupVerdict.STORED


@pytest.mark.parametrize(("first", "count"), [(1, 4), (2, 1), (3, 3)])
def test_same_ids_with_other_extent_are_another_content(
    dedup: Dedup[str], producer: Producer, first: int, count: int
) -> None:
    dedup.stored(producer.new(0, -1, 2), at(0), NOW_S)
    producer.new(2, 1, 3)
    with pytest.raises(InvalidArgument, match="same id, other content"):
        producer.send(first, 0, count)


@pytest.mark.parametrize(("first", "count", "previous"), [(5, 0, -1), (5, 1, 5), (5, 1, 9), (5, 1, -2), (-1, 1, -2)])
def test_impossible_sequence_ids_are_refused(producer: Producer, first: int, count: int, previous: int) -> None:
    with pytest.raises(InvalidArgument, match="expected at least one message, with ids above"):
        producer.send(first, previous, count)


# ---- connections


def test_l10_second_connection_of_a_name_fences_the_first_whatever_its_incarnation(dedup: Dedup[str]) -> None:
    """▲ What the first has on its way goes on, and what was acked stays."""
    first = Producer(dedup, incarnation=1)
    entry = first.new(0, -1)
    for incarnation in (1, 2):
        second = Producer(dedup, incarnation=incarnation)
        assert second.connected.fenced == first.connected.token
        assert not dedup.knows(first.connected.token, 0), "nothing of it is answered as a repeat"
        with pytest.raises(ProducerFenced):
            first.send(1, 0)
        first = second
    assert dedup.stored(entry, at(0), NOW_S) == ["0"]
    assert dedup.last_sequence_id("p", 1) == 0
    assert dedup.statistics().connected == 1


def test_reconnected_producer_goes_on_where_it_was(dedup: Dedup[str]) -> None:
    before = Producer(dedup)
    dedup.stored(before.new(0, -1), at(0), NOW_S)
    on_its_way = before.new(1, 0)
    after = Producer(dedup)
    assert after.connected.last_sequence_id == 0
    assert after.send(0, -1)[0] is DedupVerdict.STORED
    assert after.send(1, 0, waiter="again") == (DedupVerdict.ATTACHED, on_its_way)
    after.new(2, 1)


def test_other_incarnation_of_a_name_starts_anew(dedup: Dedup[str]) -> None:
    """▲ A restarted process begins its sequence ids again; by name alone they would all look like repeats."""
    dedup.stored(Producer(dedup, incarnation=1).new(0, -1), at(0), NOW_S)
    assert Producer(dedup, incarnation=2).connected == (2, -1, 1)


def test_disconnect_ends_the_connection_only(dedup: Dedup[str], producer: Producer) -> None:
    entry = producer.new(0, -1)
    dedup.disconnect(producer.connected.token, NOW_S)
    dedup.disconnect(producer.connected.token, NOW_S)
    with pytest.raises(ProducerFenced):
        producer.send(1, 0)
    dedup.stored(entry, at(0), NOW_S)
    assert Producer(dedup).connected.fenced is None


def test_names_do_not_disturb_each_other(dedup: Dedup[str]) -> None:
    one, other = Producer(dedup, "one"), Producer(dedup, "other")
    first = one.new(5, -1)
    other.new(0, -1)
    dedup.failed(first)
    other.new(1, 0)
    one.new(5, -1)


# ---- restart


def test_l7_repeat_is_known_after_a_restart_from_footer_and_tail(dedup: Dedup[str], producer: Producer) -> None:
    dedup.stored(producer.new(0, -1, 3), at(0), NOW_S)
    other = Producer(dedup, "other", (1 << 64) - 1)
    dedup.stored(other.new(7, -1), at(1), NOW_S)
    snapshot = dedup.snapshot(NOW_S)
    successor: Dedup[str] = Dedup(idle_s=IDLE_S)
    successor.restore(snapshot, NOW_S)
    successor.replay("p", 0xABC, 0, 3, at(0), NOW_S)
    successor.replay("p", 0xABC, 3, 2, at(2), NOW_S)
    successor.replay("new", 1, 4, 1, at(3), NOW_S)
    resumed = Producer(successor)
    assert resumed.connected.last_sequence_id == 4
    assert successor.admit(resumed.connected.token, 3, 2, 2, "x") == (DedupVerdict.STORED, None, at(2))
    assert resumed.send(0, -1, 3)[0] is DedupVerdict.STORED
    resumed.new(5, 4)
    assert successor.last_sequence_id("other", (1 << 64) - 1) == 7
    assert successor.last_sequence_id("new", 1) == 4


def test_what_all_producers_have_on_their_way_is_counted(dedup: Dedup[str]) -> None:
    for name, entries in (("p", 2), ("q", 3)):
        producer = Producer(dedup, name)
        for number in range(entries):
            producer.new(number, number - 1)
    assert dedup.statistics().in_flight == 5


def test_what_is_on_its_way_is_not_in_the_snapshot(dedup: Dedup[str], producer: Producer) -> None:
    dedup.stored(producer.new(0, -1), at(0), NOW_S)
    producer.new(1, 0)
    successor: Dedup[str] = Dedup(idle_s=IDLE_S)
    successor.restore(dedup.snapshot(NOW_S), NOW_S)
    assert successor.last_sequence_id("p", 0xABC) == 0


def test_snapshot_reads_as_it_stands(dedup: Dedup[str], producer: Producer) -> None:
    dedup.stored(producer.new(0, -1, 2), at(9), NOW_S)
    dedup.disconnect(producer.connected.token, NOW_S)
    assert dedup.snapshot(NOW_S + 5) == b'{"v":1,"producers":[["p",2748,0,1,1,9,5.0]]}'


def test_a_producer_that_is_connected_or_has_something_on_its_way_is_not_idle(dedup: Dedup[str]) -> None:
    """However long it has stored nothing: nobody who restores the snapshot may forget it sooner for that."""
    silent, sending = Producer(dedup, "silent"), Producer(dedup, "sending")
    for entry_id, one in enumerate((silent, sending)):
        dedup.stored(one.new(0, -1), at(entry_id), NOW_S)
    sending.new(1, 0)
    dedup.disconnect(sending.connected.token, NOW_S)
    later = msgspec.json.decode(dedup.snapshot(NOW_S + 50))["producers"]
    assert [(row[0], row[-1]) for row in later] == [("silent", 0.0), ("sending", 0.0)]


@pytest.mark.parametrize("snapshot", [b"", b"{", b'{"v":3,"producers":[]}', b'{"v":1,"producers":[["p"]]}'])
def test_corrupt_snapshot_is_an_error(dedup: Dedup[str], snapshot: bytes) -> None:
    with pytest.raises(DataCorrupt, match="dedup snapshot"):
        dedup.restore(snapshot, NOW_S)


# ---- expiry


def test_idle_producers_expire_connected_and_busy_ones_never(dedup: Dedup[str]) -> None:
    gone, busy, staying = (Producer(dedup, name) for name in ("gone", "busy", "staying"))
    for one in (gone, busy, staying):
        dedup.stored(one.new(0, -1), at(0), NOW_S)
    busy.new(1, 0)
    for one in (gone, busy):
        dedup.disconnect(one.connected.token, NOW_S)
    assert dedup.expire(NOW_S + IDLE_S) == 0
    assert dedup.expire(NOW_S + IDLE_S + 1) == 1
    assert dedup.statistics().producers == 2
    assert dedup.last_sequence_id("gone", 0xABC) == -1


def test_l7_a_producer_that_has_reconnected_is_known_however_long_it_is_silent_then(dedup: Dedup[str]) -> None:
    """Forgotten while it is connected, a send of it whose answer is lost would be stored a second time."""
    before = Producer(dedup)
    dedup.stored(before.new(0, -1), at(0), NOW_S)
    dedup.disconnect(before.connected.token, NOW_S)
    silent = Producer(dedup)
    assert dedup.expire(NOW_S + IDLE_S + 1) == 0
    dedup.stored(silent.new(1, 0), at(1), NOW_S + IDLE_S + 1)
    assert Producer(dedup).send(1, 0)[0] is DedupVerdict.STORED


def test_a_busy_producer_that_was_idle_for_longest_keeps_no_other_from_being_forgotten(dedup: Dedup[str]) -> None:
    busy, gone = (Producer(dedup, name) for name in ("busy", "gone"))
    for one in (busy, gone):
        dedup.stored(one.new(0, -1), at(0), NOW_S)
    busy.new(1, 0)
    for one in (busy, gone):
        dedup.disconnect(one.connected.token, NOW_S)
    assert dedup.expire(NOW_S + IDLE_S + 1) == 1
    assert [dedup.last_sequence_id(name, 0xABC) for name in ("busy", "gone")] == [0, -1]


def test_idle_time_goes_on_over_a_restart(dedup: Dedup[str], producer: Producer) -> None:
    dedup.stored(producer.new(0, -1), at(0), NOW_S)
    dedup.disconnect(producer.connected.token, NOW_S)
    successor: Dedup[str] = Dedup(idle_s=IDLE_S)
    successor.restore(dedup.snapshot(NOW_S + 3000), 5.0)
    assert successor.expire(5.0 + 599) == 0
    assert successor.expire(5.0 + 601) == 1


def test_an_entry_found_behind_the_snapshot_renews_the_idle_time(dedup: Dedup[str], producer: Producer) -> None:
    """Forgotten by the age of the snapshot, its resend would be stored a second time."""
    dedup.stored(producer.new(0, -1), at(0), NOW_S)
    dedup.disconnect(producer.connected.token, NOW_S)
    successor: Dedup[str] = Dedup(idle_s=IDLE_S)
    successor.restore(dedup.snapshot(NOW_S + IDLE_S - 1), 5.0)
    successor.replay("p", 0xABC, 1, 1, at(1), 5.0)
    assert successor.expire(5.0 + 2) == 0
    assert successor.last_sequence_id("p", 0xABC) == 1
    assert successor.expire(5.0 + IDLE_S + 1) == 1


def test_producers_are_forgotten_some_at_a_time_the_longest_idle_first(dedup: Dedup[str]) -> None:
    for number in range(10):
        one = Producer(dedup, f"p{number}")
        dedup.stored(one.new(0, -1), at(number), NOW_S + number)
        dedup.disconnect(one.connected.token, NOW_S + number)
    later = NOW_S + IDLE_S + 6.5
    assert (dedup.expire(later, limit=4), dedup.expire(later, limit=4), dedup.expire(later, limit=4)) == (4, 3, 0)
    assert [dedup.last_sequence_id(f"p{number}", 0xABC) for number in range(6, 9)] == [-1, 0, 0]


def test_restored_producers_are_forgotten_in_the_order_of_their_idle_times(dedup: Dedup[str]) -> None:
    """Whatever their order in the snapshot: one behind another that is remembered still would stay for ever."""
    for name, since in (("new", 500.0), ("old", 0.0)):
        one = Producer(dedup, name)
        dedup.stored(one.new(0, -1), at(0), NOW_S + since)
        dedup.disconnect(one.connected.token, NOW_S + since)
    successor: Dedup[str] = Dedup(idle_s=IDLE_S)
    successor.restore(dedup.snapshot(NOW_S + 500), 0.0)
    assert successor.expire(IDLE_S - 400) == 1
    assert successor.last_sequence_id("old", 0xABC) == -1


def test_a_snapshot_in_parts_is_the_snapshot(dedup: Dedup[str]) -> None:
    for number in range(PART_PRODUCERS * 2 + 1):
        dedup.stored(Producer(dedup, f"p{number}").new(0, -1), at(number), NOW_S)
    parts = list(dedup.snapshot_parts(NOW_S))
    assert len(parts) == 3
    successor: Dedup[str] = Dedup(idle_s=IDLE_S)
    successor.restore(join_parts(parts), NOW_S)
    assert successor.statistics().producers == PART_PRODUCERS * 2 + 1
    assert Dedup[str](idle_s=IDLE_S).snapshot(NOW_S) == b'{"v":1,"producers":[]}'
