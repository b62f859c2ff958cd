"""Which entries acks of undecided transactions hold, asked by blocks: the same as asked one by one."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from segments.subscription.cursors.cursor import Cursor
from tests.segments.ledger_lengths import LedgerLengths
from txnwire.ids import EARLIEST, Position, TxnId
from watchers.ack_holds import AckHolds, Reservation
from watchers.acks import BLOCK_ENTRIES, WHOLE, LeftOut, ack_position, bit_of, block_of, names_all
from watchers.pending_acks import PendingAcks

EDGE = BLOCK_ENTRIES - 2
PLACES = [Position(ledger_id, EDGE + number) for ledger_id in (1, 2) for number in range(5)]
MESSAGES = 3
MORE = 5
TXN = TxnId(0, 1)

# How many messages an entry has is what a client says; nothing here knows better.
counted = st.sampled_from([MESSAGES, MESSAGES, MORE]).flatmap(
    lambda count: st.tuples(st.just(count), st.integers(0, (1 << count) - 1))
)
named = st.builds(lambda place, some: ack_position(place, *some), st.sampled_from(PLACES), counted)
reservations = st.builds(
    lambda acks: Reservation(TXN, 0, tuple(acks), cumulative=False), st.lists(named, min_size=1, max_size=4)
)
covering = st.builds(lambda ack: Reservation(TXN, 0, (ack,), cumulative=True), named)


def highest_cumulative(standing: Sequence[Reservation]) -> Position:
    return max((one.positions[0].position for one in standing if one.cumulative), default=EARLIEST)


def expected(standing: Sequence[Reservation], after: Position, last: Position) -> dict[Position, int]:
    """What is held of each entry from the highest cumulative ack on, joined over all that stands."""
    found: dict[Position, int] = {}
    for ack in (ack for one in standing for ack in one.positions):
        if after < ack.position <= last and ack.position >= highest_cumulative(standing):
            found[ack.position] = found.get(ack.position, 0) | ack.indexes
    return found


def named_by(kept: LeftOut | None, standing: Sequence[Reservation]) -> dict[Position, int]:
    """With the bitmaps of whole entries as they were named."""
    if kept is None:
        return {}
    found = {ack.position: ack.indexes for ack in kept.parts}
    for place in PLACES:
        if kept.whole.get(block_of(place), 0) & bit_of(place):
            assert place not in found
            found[place] = WHOLE
    assert kept.first == min(found)
    for held in kept.parts:
        said = {ack.messages for one in standing for ack in one.positions if ack.position == held.position}
        assert max(said) <= held.messages <= MORE
        assert not names_all(held.indexes, held.messages)
    assert list(kept.parts) == sorted(kept.parts)
    assert sum(bits.bit_count() for bits in kept.whole.values()) + len(kept.parts) == len(found)
    return found


def same(found: dict[Position, int], named: dict[Position, int]) -> bool:
    """Parts may name all of an entry together."""
    return found.keys() == named.keys() and all(
        indexes in (named[place], WHOLE if any(names_all(named[place], count) for count in (MESSAGES, MORE)) else 0)
        for place, indexes in found.items()
    )


@settings(max_examples=300)
@given(st.lists(st.one_of(reservations, covering), max_size=8), st.data())
def test_what_lies_between_two_places_is_what_is_pending_there(steps: list[Reservation], data: st.DataObject) -> None:
    """Dies if a hold that goes leaves a bit behind, or takes that of another one along."""
    holds, standing = AckHolds(), list[Reservation]()
    for reservation in steps:
        holds.add(reservation)
        standing.append(reservation)
        if data.draw(st.booleans()):
            holds.remove(standing.pop(data.draw(st.integers(0, len(standing) - 1))))
        after, last = sorted(data.draw(st.tuples(*[st.sampled_from([Position(1, 0), *PLACES, Position(3, 0)])] * 2)))
        if highest_cumulative(standing) < last:  # who asks has handled the rest
            assert same(named_by(holds.between(after, last), standing), expected(standing, after, last))
        for place in PLACES:
            covered = WHOLE if place < highest_cumulative(standing) else 0
            assert holds.pending(place) == expected(standing, EARLIEST, PLACES[-1]).get(place, covered)
        whole = {
            ack.position for one in standing if not one.cumulative for ack in one.positions if ack.indexes == WHOLE
        }
        for place in PLACES:
            row = holds.whole_from(place)
            inside = [Position(place.ledger_id, place.entry_id + number) for number in range(row + 1)]
            assert all(one in whole for one in inside[:-1])
            assert inside[-1] not in whole or block_of(inside[-1]) != block_of(place)


def test_cumulative_acks_of_one_entry_that_count_its_messages_differently_are_joined() -> None:
    """▲ Who acks past them has not sent them, and must not be refused for what their sender says."""
    holds, place = AckHolds(), PLACES[0]
    for ack in (ack_position(place, MORE, 0b10000), ack_position(place, MESSAGES, 0b1)):
        holds.add(Reservation(TXN, 0, (ack,), cumulative=True))
    kept = holds.between(EARLIEST, PLACES[-1])
    assert kept == LeftOut(place, {}, [ack_position(place, MORE, 0b10001)])


def test_p8_a_cumulative_ack_that_ends_inside_an_entry_is_kept_off_by_no_ack_of_what_follows_there() -> None:
    """They name different messages: neither transaction is in the way of the other."""
    holds, place, other = AckHolds(), PLACES[1], TxnId(0, 2)
    holds.add(Reservation(TXN, 0, (ack_position(place, MESSAGES, 0b110),), cumulative=False))
    assert holds.other_up_to(other, ack_position(place, MESSAGES, 0b001)) is None
    assert holds.other_up_to(other, ack_position(place, MESSAGES, 0b011)) == (place, TXN)
    assert holds.other_up_to(other, ack_position(PLACES[2], MESSAGES, 0b001)) == (place, TXN)


def test_p3_a_cumulative_ack_is_kept_off_by_what_another_holds_behind_its_own() -> None:
    holds, other = AckHolds(), TxnId(0, 2)
    for txn_id, place in ((other, PLACES[0]), (TXN, PLACES[1]), (other, PLACES[3])):
        holds.add(Reservation(txn_id, 0, (ack_position(place, MESSAGES, WHOLE),), cumulative=False))
    assert holds.other_up_to(other, ack_position(PLACES[2], MESSAGES, WHOLE)) == (PLACES[1], TXN)


def test_p2_a_cumulative_ack_over_the_ends_of_a_block_and_a_ledger_acks_all_behind_what_is_held() -> None:
    held, *behind = [Position(1, EDGE), Position(1, EDGE + 1), Position(1, EDGE + 2), Position(2, 0)]
    cursor = Cursor(LedgerLengths({1: BLOCK_ENTRIES + 1, 2: 2}), Position(1, EDGE - 1))
    pending = PendingAcks("s", "sub", cursor)
    pending.reserve(TXN, 0, (ack_position(held, MESSAGES, WHOLE),), cumulative=False)
    pending.ack_cumulative(ack_position(behind[-1], MESSAGES, WHOLE))
    assert [cursor.acked(place) for place in (held, *behind, Position(2, 1))] == [0, WHOLE, WHOLE, WHOLE, 0]
    assert pending.earliest_unacked() == Position(2, 1)
