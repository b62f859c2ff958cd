"""Messages of a (segment, subscription) that acks of undecided transactions hold. Pure.

Individual acks are kept by entry, as chains of reservations with their bitmaps; a cumulative ack holds everything from
the first unacked message to its position. The cursor, not this module, knows which messages are acked already.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from txnwire.errors import InternalError
from txnwire.ids import Position, TxnId
from watchers.acks import BLOCK_ENTRIES, WHOLE, AckPosition, Block, LeftOut, ack_position, bit_of, block_of


class Reservation:
    """One ack op from its reservation to its transaction's decision. Callers use only its attributes."""

    __slots__ = ("cumulative", "in_flight", "positions", "txn_id", "writer")

    def __init__(self, txn_id: TxnId, writer: int, positions: tuple[AckPosition, ...], *, cumulative: bool) -> None:
        self.txn_id = txn_id
        self.writer = writer
        self.positions = positions
        self.cumulative = cumulative
        self.in_flight = True


class _Hold:
    """One link of an entry's chain of reservations."""

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
    """Each reservation adds and removes only its own holds. A refused resend therefore keeps the holds of the first
    sending in the same transaction."""

    def __init__(self) -> None:
        self._individual: dict[Position, _Hold] = {}
        self._lowest: list[Position] = []
        """Heap over `_individual`; stale positions are removed lazily."""
        self._whole: dict[Block, int] = {}
        """Bitmaps of the entries that an ack of the whole entry holds: a cumulative ack then compares dozens of blocks
        instead of a hundred thousand entries."""
        self._parts: dict[Position, None] = {}
        """Entries held in part only."""
        self._cumulative: dict[Reservation, None] = {}
        self._covered: AckPosition | None = None
        self._uncovered = False
        """Whether `_covered` still counts a removed ack: after many removals in a row it is computed only once."""

    @property
    def covered(self) -> AckPosition | None:
        """The highest cumulative ack, its indexes joined over reservations. All cumulative acks belong to one
        transaction, because any two of them hold the same earliest messages."""
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
            if ack.indexes == WHOLE:
                self._whole[block_of(position)] = self._whole.get(block_of(position), 0) | bit_of(position)
                if chained is not None:
                    self._parts.pop(position, None)
            elif chained is None:
                self._parts[position] = None

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
        """Bitmap of the messages of one entry that any transaction holds."""
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

    def whole_from(self, position: Position) -> int:
        """Number of consecutive entries, from `position` on and within its block, that acks of the whole entry hold."""
        found = self._whole.get(block_of(position), 0) >> position.entry_id % BLOCK_ENTRIES
        return (~found & found + 1).bit_length() - 1

    def between(self, after: Position, last: Position) -> LeftOut | None:
        """The holds behind `after`, up to `last`. The highest cumulative ack, if it lies there, stands for all entries
        before it. None if there are no holds. O(blocks, and entries held in part)."""
        covered = self.covered
        at = [] if covered is None or not after < covered.position <= last else [covered.position]
        if covered is not None:
            after = max(after, covered.position)
        whole = {block: bits for block, held in self._whole.items() if (bits := _within(block, held, after, last))}
        parts = []
        for position in [*at, *sorted(one for one in self._parts if after < one <= last)]:
            held = ack_position(position, self._messages(position), self.pending(position))
            if held.indexes == WHOLE:
                whole[block_of(position)] = whole.get(block_of(position), 0) | bit_of(position)
            else:
                parts.append(held)
        firsts = [parts[0].position] if parts else []
        if whole:
            (ledger_id, number), bits = min(whole.items())
            firsts.append(Position(ledger_id, number * BLOCK_ENTRIES + (bits & -bits).bit_length() - 1))
        return LeftOut(min(firsts), whole, parts) if firsts else None

    def _messages(self, position: Position) -> int:
        covered, hold = self.covered, self._individual.get(position)
        named = 0 if covered is None or covered.position != position else covered.messages
        return max(named, 0 if hold is None else hold.messages)

    def other(self, txn_id: TxnId, ack: AckPosition) -> TxnId | None:
        """A transaction besides `txn_id` that holds a message which the individual `ack` names."""
        covered, position = self.covered, ack.position
        if covered is not None and position <= covered.position:
            holder = self._covering()
            if holder != txn_id and (position < covered.position or ack.indexes & covered.indexes):
                return holder
        hold = self._individual.get(position)
        return None if hold is None else hold.other(txn_id, ack.indexes)

    def other_up_to(self, txn_id: TxnId, ack: AckPosition) -> tuple[Position, TxnId] | None:
        """As `other`, for a cumulative ack. O(entries held), if any is held at or below it."""
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
        else:
            while hold.next is not None and hold.next.reservation is not reservation:
                hold = hold.next
            if hold.next is None:
                raise InternalError(f"{position} was not held by this ack of {reservation.txn_id}")
            hold.next = hold.next.next
        self._index(position)

    def _index(self, position: Position) -> None:
        """Corrects the indexes after the entry lost a hold."""
        first = hold = self._individual.get(position)
        while hold is not None and hold.indexes != WHOLE:
            hold = hold.next
        if hold is not None:
            return  # still held whole
        if first is None:
            self._parts.pop(position, None)
        else:
            self._parts[position] = None
        block = block_of(position)
        if (left := self._whole.get(block, 0) & ~bit_of(position)) != 0:
            self._whole[block] = left
        else:
            self._whole.pop(block, None)

    def _cover(self, ack: AckPosition) -> None:
        highest = self._covered
        if highest is None or ack.position > highest.position:
            self._covered = ack
        elif ack.position == highest.position:
            # ▲ Take the larger count: one ack's indexes may exceed the other's count.
            messages = max(ack.messages, highest.messages)
            self._covered = AckPosition(ack.position, messages, ack.indexes | highest.indexes)


def _within(block: Block, bits: int, after: Position, last: Position) -> int:
    """The bits of a block's bitmap behind `after`, up to `last`."""
    ledger_id, number = block
    first = number * BLOCK_ENTRIES
    if ledger_id < after.ledger_id or ledger_id > last.ledger_id:
        return 0
    if ledger_id == after.ledger_id and after.entry_id >= first:
        bits = bits >> after.entry_id + 1 - first << after.entry_id + 1 - first
    if ledger_id == last.ledger_id:
        bits &= (1 << max(0, last.entry_id + 1 - first)) - 1
    return bits
