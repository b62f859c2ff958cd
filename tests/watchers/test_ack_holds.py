"""Which entries acks of undecided transactions hold, asked by blocks: the same as asked one by one."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from txnwire.ids import Position, TxnId
from watchers.ack_holds import AckHolds, Reservation
from watchers.acks import BLOCK_ENTRIES, WHOLE, Kept, ack_position, bit_of, block_of

EDGE = BLOCK_ENTRIES - 2
PLACES = [Position(ledger_id, EDGE + number) for ledger_id in (1, 2) for number in range(5)]
MESSAGES = 3
TXN = TxnId(0, 1)

named = st.builds(
    lambda place, indexes: ack_position(place, MESSAGES, indexes), st.sampled_from(PLACES), st.integers(0, 7)
)
reservations = st.builds(
    lambda acks: Reservation(TXN, 0, tuple({ack.position: ack for ack in acks}.values()), cumulative=False),
    st.lists(named, min_size=1, max_size=4),
)
covering = st.builds(lambda ack: Reservation(TXN, 0, (ack,), cumulative=True), named)


def expected(holds: AckHolds, after: Position, last: Position) -> dict[Position, int]:
    covered = holds.covered
    return {
        place: held.indexes
        for place in PLACES
        if after < place <= last
        and (covered is None or place >= covered.position)
        and (pending := holds.pending(place))
        and (held := ack_position(place, MESSAGES, pending))
    }


def named_by(kept: Kept | None) -> dict[Position, int]:
    if kept is None:
        return {}
    found = {ack.position: ack.indexes for ack in kept.parts}
    for place in PLACES:
        if kept.whole.get(block_of(place), 0) & bit_of(place):
            assert place not in found
            found[place] = WHOLE
    assert kept.first == min(found)
    assert all(ack.messages == MESSAGES for ack in kept.parts)
    assert list(kept.parts) == sorted(kept.parts)
    assert sum(bits.bit_count() for bits in kept.whole.values()) + len(kept.parts) == len(found)
    return found


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
        covered = holds.covered
        if covered is None or covered.position < last:  # who asks has handled the rest
            assert named_by(holds.between(after, last)) == expected(holds, after, last)
        whole = {
            ack.position for one in standing if not one.cumulative for ack in one.positions if ack.indexes == WHOLE
        }
        for place in PLACES:
            row = holds.whole_from(place)
            inside = [Position(place.ledger_id, place.entry_id + number) for number in range(row + 1)]
            assert all(one in whole for one in inside[:-1])
            assert inside[-1] not in whole or block_of(inside[-1]) != block_of(place)
