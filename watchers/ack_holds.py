"""Which messages of a (segment, subscription) are held by acks of undecided transactions. Pure.

Individual acks are kept by entry, as chains of reservations with their bitmaps; cumulative ones hold everything from
the first unacked message to their position. Whether a message is acked already is the cursor's business, not ours.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from txnwire.errors import InternalError
from txnwire.ids import Position, TxnId
from watchers.acks import WHOLE, AckPosition, ack_position


class Reservation:
    """One ack op between being reserved and its transaction's decision. Opaque to callers, but for its attributes."""

    __slots__ = ("cumulative", "in_flight", "positions", "txn_id", "writer")

    def __init__(self, txn_id: TxnId, writer: int, positions: tuple[AckPosition, ...], *, cumulative: bool) -> None:
        self.txn_id = txn_id
        self.writer = writer
        self.positions = positions
        self.cumulative = cumulative
        self.in_flight = True


class _Hold:
    """One link of the chain of reservations that hold messages of one entry."""

    __slots__ = ("indexes", "messages", "next", "reservation")

    def __init__(self, reservation: Reservation, ack: AckPosition, next_hold: _Hold | None) -> None:
        self.reservation = reservation
        self.messages: int = ack.messages if next_hold is None else max(ack.messages, next_hold.messages)
        self.indexes = ack.indexes
        self.next = next_hold

    def other(self, txn_id: TxnId, indexes: int) -> TxnId | None:
        """A transaction besides `txn_id` that holds some of `indexes`, from this link on."""
        hold: _Hold | None = self
        while hold is not None:
            if hold.indexes & indexes and hold.reservation.txn_id != txn_id:
                return hold.reservation.txn_id
            hold = hold.next
        return None


class AckHolds:
    """Every reservation adds its own holds and takes only those away, so a refused resend within one transaction
    does not let go of what its first sending holds."""

    def __init__(self) -> None:
        self._individual: dict[Position, _Hold] = {}
        self._lowest: list[Position] = []
        """Heap over `_individual`; stale ones go lazily."""
        self._cumulative: dict[Reservation, None] = {}
        self._covered: AckPosition | None = None
        self._uncovered = False
        """Whether one has gone that `_covered` still counts: who lets go of many in a row looks through the rest once.
        """

    @property
    def covered(self) -> AckPosition | None:
        """The highest cumulative ack, its indexes joined over reservations. All cumulative ones are of one
        transaction, as any two name the same earliest messages."""
        if self._uncovered:
            self._uncovered, self._covered = False, None
            for reservation in self._cumulative:
                self._cover(reservation.positions[0])
        return self._covered

    @property
    def positions(self) -> int:
        """Entries held individually."""
        return len(self._individual)

    @property
    def cumulative(self) -> int:
        return len(self._cumulative)

    def add(self, reservation: Reservation) -> None:
        if reservation.cumulative:
            self._cumulative[reservation] = None
            self._cover(reservation.positions[0])
            return
        for ack in reservation.positions:
            position = ack.position
            chained = self._individual.get(position)
            self._individual[position] = _Hold(reservation, ack, chained)
            if chained is None:
                heappush(self._lowest, position)

    def remove(self, reservation: Reservation) -> None:
        if reservation.cumulative:
            del self._cumulative[reservation]
            highest = self._covered
            if highest is not None and reservation.positions[0].position >= highest.position:
                self._uncovered = True
            return
        for ack in reservation.positions:
            self._unchain(ack.position, reservation)
        if len(self._lowest) > 2 * len(self._individual) + 64:
            self._lowest = list(self._individual)
            heapify(self._lowest)

    def pending(self, position: Position) -> int:
        """Bitmap of what is held of one entry, in whatever transaction."""
        pending = 0
        covered = self.covered
        if covered is not None and position <= covered.position:
            pending = WHOLE if position < covered.position else covered.indexes
        hold = self._individual.get(position)
        while hold is not None:
            pending |= hold.indexes
            hold = hold.next
        return pending

    def lowest(self) -> Position | None:
        """The first entry held individually."""
        while self._lowest and self._lowest[0] not in self._individual:
            heappop(self._lowest)
        return self._lowest[0] if self._lowest else None

    def up_to(self, last: Position) -> list[AckPosition]:
        """What is held of each entry up to `last`, in order: from the last covered one on, where there is one, which
        stands for all before it. O(n log n) of the entries held."""
        covered = self.covered
        found = {
            position: hold.messages
            for position, hold in self._individual.items()
            if position <= last and (covered is None or position > covered.position)
        }
        if covered is not None and covered.position <= last:
            hold = self._individual.get(covered.position)
            found[covered.position] = max(covered.messages, 0 if hold is None else hold.messages)
        return [ack_position(at, messages, self.pending(at)) for at, messages in sorted(found.items())]

    def other(self, txn_id: TxnId, ack: AckPosition) -> TxnId | None:
        """A transaction besides `txn_id` that holds some of what `ack` names individually."""
        covered, position = self.covered, ack.position
        if covered is not None and position <= covered.position:
            holder = self._covering()
            if holder != txn_id and (position < covered.position or ack.indexes & covered.indexes):
                return holder
        hold = self._individual.get(position)
        return None if hold is None else hold.other(txn_id, ack.indexes)

    def other_up_to(self, txn_id: TxnId, ack: AckPosition) -> tuple[Position, TxnId] | None:
        """The same for a cumulative ack. O(entries held), if any is held at or below it."""
        covered = self.covered
        if covered is not None and self._covering() != txn_id:
            return covered.position, self._covering()
        lowest = self.lowest()
        if lowest is None or lowest > ack.position:
            return None
        for position, hold in self._individual.items():
            if position <= ack.position:
                other = hold.other(txn_id, WHOLE if position < ack.position else ack.indexes)
                if other is not None:
                    return position, other
        return None

    def _covering(self) -> TxnId:
        for reservation in self._cumulative:
            return reservation.txn_id
        raise InternalError("no cumulative ack is held")

    def _unchain(self, position: Position, reservation: Reservation) -> None:
        hold = self._individual[position]
        if hold.reservation is reservation:
            if hold.next is None:
                del self._individual[position]
            else:
                self._individual[position] = hold.next
            return
        while hold.next is not None and hold.next.reservation is not reservation:
            hold = hold.next
        if hold.next is None:
            raise InternalError(f"{position} was not held by this ack of {reservation.txn_id}")
        hold.next = hold.next.next

    def _cover(self, ack: AckPosition) -> None:
        highest = self._covered
        if highest is None or ack.position > highest.position:
            self._covered = ack
        elif ack.position == highest.position:
            self._covered = AckPosition(ack.position, ack.messages, ack.indexes | highest.indexes)
