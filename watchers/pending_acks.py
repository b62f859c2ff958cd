"""Acks in transactions on one (segment, subscription): PIP-31's machine as a pure core (DESIGN §6, "Pending acks").

    PENDING ──reserve──► PENDING_ACK ──commit──► DELETED
       ▲                      │
       └──── release, abort ──┘

A message in PENDING_ACK is not redelivered. A plain ack on it is dropped; a plain cumulative ack acks all but it, and
its transaction decides it. A second transaction that acks it gets `TxnConflict`. Messages of an entry count by index.
Pending acks of a named transaction are held per writer. Source: PIP-31, "New Acknowledgement State".

The life of one ack op, as the segment drives it:

    reserve ──► (op sent) ──► confirmed
                    └───────► release        only on a definite refusal ▲

An op whose fate is unknown stays in flight; `MetadataStore.commit_nowait` resolves only when it is definite.

A decision on very many acks is applied in parts, and other tasks run in between: until the last part the transaction
counts as undecided here (`PendingAcks.applying`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, NamedTuple, Protocol

from txnwire.errors import InternalError, InvalidArgument, Overloaded, TxnConflict
from txnwire.ids import Position, TxnId
from txnwire.turns import in_weighed_steps, turn_size
from watchers.ack_holds import AckHolds, Reservation
from watchers.acks import WHOLE, AckOp, AckPosition, LeftOut, names_all
from watchers.outcomes import Decision, refusal

__all__ = [
    "AppliedAcks",
    "AppliedPart",
    "BlockWrite",
    "CursorView",
    "PendingAckStatistics",
    "PendingAcks",
    "Reservation",
]

APPLIED_AT_ONCE: Final = 1000
"""Positions of acks to which a decision is applied without a pause; those of one op always are."""


class BlockWrite(NamedTuple):
    """A cursor record to be written: `value` None deletes it. `mod_revision` is that of its last read or write (0:
    absent). `generation` tells a later change apart (see `CursorView.written`)."""

    block: str
    value: bytes | None
    mod_revision: int
    generation: int


class CursorView(Protocol):
    """The methods of `segments.subscription.cursors.cursor.Cursor` that pending acks and clean-up use; see there."""

    @property
    def mark_delete(self) -> Position: ...
    def following(self, position: Position) -> Position: ...
    def acked(self, position: Position) -> int: ...
    def next_unacked(self, position: Position) -> Position: ...
    def hold(self, ack: AckPosition, *, bounded: bool = True) -> None: ...
    def unhold(self, ack: AckPosition) -> None: ...
    def ack(self, ack: AckPosition, *, held: bool = False) -> bool: ...
    def ack_cumulative(self, ack: AckPosition) -> bool: ...
    def ack_around(self, ack: AckPosition, kept: LeftOut) -> bool: ...
    @property
    def dirty(self) -> bool: ...
    def block_writes(self) -> Sequence[BlockWrite]: ...
    def written(self, writes: Iterable[BlockWrite], revisions: Mapping[str, int]) -> None: ...
    def reload(self, block: str, value: bytes | None, mod_revision: int) -> None: ...
    @property
    def seeks(self) -> int: ...


class AppliedAcks(NamedTuple):
    """A decision that has been applied to this subscription; its durable clean-up is queued.

    `acked`: now DELETED, and applied to the cursor. `released`: back to PENDING: a queue redelivers these, a stream
    consumer is rewound if there are any. A cumulative ack is listed as its one position.
    """

    decision: Decision
    acked: tuple[AckPosition, ...]
    released: tuple[AckPosition, ...]


class AppliedPart(NamedTuple):
    """`whole`: the complete result, with the last part only."""

    acked: tuple[AckPosition, ...]
    released: tuple[AckPosition, ...]
    whole: AppliedAcks | None = None


@dataclass(frozen=True, slots=True)
class PendingAckStatistics:
    """`positions`: entries held individually. `cumulative`: cumulative acks pending. `deferred`: transactions decided
    but waiting for an op in flight. `cleaning`: applied, clean-up not durable yet."""

    transactions: int
    positions: int
    cumulative: int
    deferred: int
    cleaning: int


class _TxnAcks:
    """The acks of one transaction here. `reservations` in order of reserving, with `positions` positions."""

    __slots__ = ("decision", "in_flight", "positions", "reservations")

    def __init__(self) -> None:
        self.reservations: dict[Reservation, None] = {}
        self.positions = 0
        self.in_flight = 0
        self.decision: Decision | None = None

    def add(self, reservation: Reservation) -> None:
        self.reservations[reservation] = None
        self.positions += len(reservation.positions)

    def remove(self, reservation: Reservation) -> None:
        del self.reservations[reservation]
        self.positions -= len(reservation.positions)


class PendingAcks:
    def __init__(self, segment: str, subscription: str, cursor: CursorView) -> None:
        self.segment = segment
        self.subscription = subscription
        self._cursor = cursor
        self._txns: dict[TxnId, _TxnAcks] = {}
        self._holds = AckHolds()
        self._deferred: dict[TxnId, Decision] = {}
        self._applying: dict[TxnId, Iterator[AppliedPart]] = {}
        self._cleaning: OrderedDict[TxnId, AppliedAcks] = OrderedDict()

    @property
    def cursor(self) -> CursorView:
        return self._cursor

    # ---- acks in a transaction

    def reserve(
        self, txn_id: TxnId, writer: int, positions: tuple[AckPosition, ...], *, cumulative: bool
    ) -> Reservation:
        """▲ Call it before the op is sent. All or nothing. The same transaction may ack a message again (a resend).

        Raises `TxnConflict` if a message is pending in another transaction or acked already, or the transaction is
        decided; `Overloaded` if the cursor could not hold the ack; `InvalidArgument` if a cumulative ack does not name
        exactly one position, or none is named."""
        held = self._txns.get(txn_id)
        decision = self._decision(txn_id, held)
        if decision is not None:
            raise refusal(decision)
        if not positions or (cumulative and len(positions) != 1):
            raise InvalidArgument(f"an ack names {len(positions)} positions: expected some, a cumulative one just one")
        if cumulative:
            self._check_cumulative(txn_id, positions[0])
        else:
            for ack in positions:
                self._check(txn_id, ack)
        reservation = Reservation(txn_id, writer, positions, cumulative=cumulative)
        # ▲ Held from here on, before the op is sent: an op of unknown fate keeps other transactions off.
        self._hold(reservation, bounded=True)
        if held is None:
            held = self._txns[txn_id] = _TxnAcks()
        held.add(reservation)
        held.in_flight += 1
        return reservation

    def confirmed(self, reservation: Reservation) -> AppliedAcks | None:
        """The op is recorded. Returns the remembered decision that can now be applied."""
        held = self._landed(reservation)
        if held.decision is None or held.in_flight:
            return None
        return self._apply(reservation.txn_id, held, held.decision)

    def release(self, reservation: Reservation) -> AppliedAcks | None:
        """▲ The op is *definitely* not recorded, now or later. Its messages go back to PENDING, as if they had not been
        acked. Returns the remembered decision that can now be applied to the rest."""
        held = self._landed(reservation)
        held.remove(reservation)
        self._unhold(reservation)
        if not held.reservations:
            del self._txns[reservation.txn_id]
            self._deferred.pop(reservation.txn_id, None)
            return None
        if held.decision is None or held.in_flight:
            return None
        return self._apply(reservation.txn_id, held, held.decision)

    def restore(self, op: AckOp) -> None:
        """Restore an op that recovery found in the store (P5). It was admitted once, so nothing is checked."""
        reservation = Reservation(op.txn_id, op.writer, op.positions, cumulative=op.cumulative)
        reservation.in_flight = False
        self._hold(reservation, bounded=False)
        self._txns.setdefault(op.txn_id, _TxnAcks()).add(reservation)

    def decided(self, decision: Decision) -> AppliedAcks | None:
        """Apply a decision (commit: to the cursor, monotonically), remember it while an op of the transaction is in
        flight, or drop it if the transaction holds nothing here (P7). Also None if it is `applying` from now on."""
        held = self._txns.get(decision.txn_id)
        if held is None or decision.txn_id in self._applying:
            return None
        if held.in_flight:
            # ▲ An op in flight may have landed before the decision: a commit applied now would miss it, and the range
            # delete of the clean-up would then lose the ack.
            held.decision = self._deferred[decision.txn_id] = decision
            return None
        return self._apply(decision.txn_id, held, decision)

    @property
    def applying(self) -> bool:
        """Whether a decision is being applied in parts: the caller must call `apply_part`."""
        return bool(self._applying)

    def apply_part(self) -> AppliedPart:
        """Apply the next part of the oldest `applying` decision. ▲ Until its last part the transaction holds something
        here, and admits nothing more. Parts of a commit count at once; any consumer may ack messages that an
        abort released. Clean-up waits for the last part, so after a crash the next owner applies all parts again."""
        return next(next(iter(self._applying.values())))

    # ---- plain acks

    def ack(self, positions: Sequence[AckPosition]) -> bool:
        """Ack outside any transaction, without the messages pending in one. Returns whether the cursor moved.

        Raises `Overloaded` past the cursor's bound; positions before the failing one have been applied."""
        moved = False
        for ack in positions:
            pending = self._holds.pending(ack.position)
            rest = _without(ack, pending) if pending else ack
            if rest.indexes:
                moved = self._cursor.ack(rest) or moved
        return moved

    def ack_cumulative(self, ack: AckPosition) -> bool:
        """Ack everything up to and including `ack` but for messages pending in a transaction. Returns whether anything
        changed. Raises `Overloaded` if the cursor could not hold the acks behind the first pending message; those
        before it are then acked. O(blocks, and entries pending in part)."""
        covered, lowest = self._holds.covered, self._holds.lowest()
        if covered is None and (lowest is None or lowest > ack.position):
            return self._cursor.ack_cumulative(ack)
        if covered is not None and ack.position <= covered.position:
            return ack.position == covered.position and self.ack([ack])
        # ▲ Pending messages are left out, or an abort could not bring them back. Messages behind them are acked: they
        # would come again although their ack was answered, and keep a split segment undrained.
        kept = self._holds.between(self._cursor.mark_delete, ack.position)
        if kept is None:  # only holds that recovery found: applied already, still to be cleaned up
            return self._cursor.ack_cumulative(ack)
        before = Position(kept.first.ledger_id, kept.first.entry_id - 1)
        # ▲ Also past a trimmed position that it covers: otherwise the messages acked here would be delivered again.
        moved = (covered is None or covered.position < kept.first) and before > self._cursor.mark_delete
        if moved:
            self._cursor.ack_cumulative(AckPosition(before, 0))
        return self._cursor.ack_around(ack, kept) or moved

    # ---- dispatch

    def pass_over(self, position: Position) -> bool:
        """Ack an aborted entry: no consumer sees it, so none will ever ack it. Not bounded: a refusal would hold the
        mark-delete position for ever. Returns whether the cursor moved."""
        return self._cursor.ack(AckPosition(position, 0), held=True)

    def skip(self, position: Position, messages: int = 0) -> int:
        """Bitmap of indexes not to deliver (acked or pending); `WHOLE`: deliver none of the entry, 0: all of it. With
        `messages`, the entry's count, a bitmap that names all of them becomes `WHOLE`."""
        skipped = self._cursor.acked(position)
        if skipped != WHOLE:
            skipped |= self._holds.pending(position)
        return WHOLE if messages and names_all(skipped, messages) else skipped

    def earliest_unacked(self) -> Position:
        """The first position with a message neither acked nor pending, where a stream consumer is rewound to. It may
        lie behind the last entry. O(entries pending and blocks acked from the mark-delete position on)."""
        position = self._cursor.following(self._cursor.mark_delete)
        if self._holds.covered is not None:
            position = max(position, self._holds.covered.position)
        while True:
            position = self._cursor.next_unacked(position)
            if self._holds.pending(position) != WHOLE:
                return position
            # Skip a run of held entries at once: a hundred thousand single steps would stop the loop.
            last = position.entry_id + max(0, self._holds.whole_from(position) - 1)
            position = self._cursor.following(Position(position.ledger_id, last))

    def holds(self, txn_id: TxnId) -> bool:
        """Whether the transaction's decision is still awaited here."""
        return txn_id in self._txns

    def open_transactions(self) -> Sequence[TxnId]:
        """Transactions with acks pending here (P12 waits until those of a predecessor are gone). O(n)."""
        return tuple(self._txns)

    def unsettled(self, revision: int) -> bool:
        """Whether a transaction decided at or before `revision` still has an op in flight here."""
        return any(decision.revision <= revision for decision in self._deferred.values())

    # ---- durable clean-up (driven by `watchers.clean_up.AckCleanUp`)

    def clean_up_batch(self, limit: int) -> Sequence[AppliedAcks]:
        """The oldest `limit` applied decisions whose clean-up is not durable. O(limit)."""
        return tuple(islice(self._cleaning.values(), limit))

    def cleaned(self, batch: Sequence[AppliedAcks]) -> None:
        """Their ops are deleted from etcd, and the cursor's records there hold their acks."""
        for applied in batch:
            self._cleaning.pop(applied.decision.txn_id, None)

    @property
    def clean_up_backlog(self) -> int:
        return len(self._cleaning)

    def statistics(self) -> PendingAckStatistics:
        return PendingAckStatistics(
            transactions=len(self._txns),
            positions=self._holds.positions,
            cumulative=self._holds.cumulative,
            deferred=len(self._deferred),
            cleaning=len(self._cleaning),
        )

    # ---- inside

    def _decision(self, txn_id: TxnId, held: _TxnAcks | None) -> Decision | None:
        if held is not None:
            return held.decision
        applied = self._cleaning.get(txn_id)
        return None if applied is None else applied.decision

    def _check(self, txn_id: TxnId, ack: AckPosition) -> None:
        """Raises unless an individual ack may go to PENDING_ACK: only from PENDING."""
        if self._cursor.acked(ack.position) & ack.indexes:
            raise TxnConflict(f"{self._where(ack.position)} is acked already")
        other = self._holds.other(txn_id, ack)
        if other is not None:
            raise self._pending_elsewhere(ack.position, other)

    def _check_cumulative(self, txn_id: TxnId, ack: AckPosition) -> None:
        """A cumulative ack must ack something new, and nothing that another transaction holds."""
        position, cursor = ack.position, self._cursor
        nothing_before = cursor.following(cursor.mark_delete) >= position
        if nothing_before and ack.indexes & ~cursor.acked(position) == 0:
            raise TxnConflict(f"{self._where(position)} and all before it are acked already")
        found = self._holds.other_up_to(txn_id, ack)
        if found is not None:
            raise self._pending_elsewhere(*found)

    def _where(self, position: Position) -> str:
        return f"{self.segment}@{position} of subscription {self.subscription}"

    def _pending_elsewhere(self, position: Position, other: TxnId) -> TxnConflict:
        return TxnConflict(f"{self._where(position)} is being acked in transaction {other}: abort this one")

    def _hold(self, reservation: Reservation, *, bounded: bool) -> None:
        """Reserves room in the cursor first, so that a commit can always be applied."""
        if not reservation.cumulative:
            held = 0
            try:
                for ack in reservation.positions:
                    self._cursor.hold(ack, bounded=bounded)
                    held += 1
            except Overloaded:
                for ack in reservation.positions[:held]:
                    self._cursor.unhold(ack)
                raise
        self._holds.add(reservation)

    def _unhold(self, reservation: Reservation) -> None:
        self._holds.remove(reservation)
        if not reservation.cumulative:
            for ack in reservation.positions:
                self._cursor.unhold(ack)

    def _landed(self, reservation: Reservation) -> _TxnAcks:
        held = self._txns.get(reservation.txn_id)
        if held is None or not reservation.in_flight or reservation not in held.reservations:
            raise InternalError(f"{self.segment} {self.subscription}: an ack of {reservation.txn_id} landed twice")
        reservation.in_flight = False
        held.in_flight -= 1
        return held

    def _apply(self, txn_id: TxnId, held: _TxnAcks, decision: Decision) -> AppliedAcks | None:
        if held.positions > turn_size(APPLIED_AT_ONCE):
            # ▲ Like a decision that waits for an op in flight: further acks in it are refused, and a seek waits.
            held.decision = self._deferred[txn_id] = decision
            self._applying[txn_id] = self._in_parts(txn_id, held, decision)
            return None
        acked: list[AckPosition] = []
        losing: list[Reservation] = []
        for reservation in held.reservations:
            if decision.counts(reservation.writer):
                self._to_cursor(reservation)
                acked += reservation.positions
            else:
                losing.append(reservation)
            self._unhold(reservation)
        return self._applied(decision, acked, [ack for reservation in losing for ack in self._released(reservation)])

    def _applied(
        self, decision: Decision, acked: Sequence[AckPosition], released: Sequence[AckPosition]
    ) -> AppliedAcks:
        txn_id = decision.txn_id
        del self._txns[txn_id]
        if self._deferred:
            self._deferred.pop(txn_id, None)
        applied = self._cleaning[txn_id] = AppliedAcks(decision, tuple(acked), tuple(released))
        return applied

    def _in_parts(self, txn_id: TxnId, held: _TxnAcks, decision: Decision) -> Iterator[AppliedPart]:
        """▲ Acks that count come first, the others only behind them: a message that both name is not released."""
        acked: list[AckPosition] = []
        released: list[AckPosition] = []
        losing: list[Reservation] = []
        for part in in_weighed_steps(held.reservations, _weight, APPLIED_AT_ONCE):
            counting = [reservation for reservation in part if decision.counts(reservation.writer)]
            if len(counting) < len(part):
                losing += (reservation for reservation in part if not decision.counts(reservation.writer))
            for reservation in counting:
                self._to_cursor(reservation)
                self._unhold(reservation)
            done = tuple(ack for reservation in counting for ack in reservation.positions)
            acked += done
            yield AppliedPart(done, ())
        for part in in_weighed_steps(losing, _weight, APPLIED_AT_ONCE):
            for reservation in part:
                self._unhold(reservation)
            back = tuple(
                ack for reservation in part if not reservation.cumulative for ack in self._released(reservation)
            )
            released += back
            yield AppliedPart((), back)
        # Cumulative acks hold each other's messages: only the last one releases any.
        for part in in_weighed_steps((one for one in losing if one.cumulative), _weight, APPLIED_AT_ONCE):
            back = tuple(ack for reservation in part for ack in self._released(reservation))
            released += back
            yield AppliedPart((), back)
        del self._applying[txn_id]
        yield AppliedPart((), (), self._applied(decision, acked, released))

    def _released(self, reservation: Reservation) -> list[AckPosition]:
        """The messages that go back to PENDING from an ack that does not count. ▲ Not those that an ack of
        a counting writer has acked as well: they would be delivered again. Nor those that a later ack still holds:
        that ack releases them."""
        if reservation.cumulative:
            ack = reservation.positions[0]
            return [ack] if self._cursor.next_unacked(self._cursor.mark_delete) <= ack.position else []
        found = []
        for ack in reservation.positions:
            done = self._cursor.acked(ack.position) | self._holds.pending(ack.position)
            rest = _without(ack, done) if done and done != WHOLE else ack
            if done != WHOLE and rest.indexes:
                found.append(rest)
        return found

    def _to_cursor(self, reservation: Reservation) -> None:
        if reservation.cumulative:
            self._cursor.ack_cumulative(reservation.positions[0])
            return
        for ack in reservation.positions:
            self._cursor.ack(ack, held=True)


def _weight(reservation: Reservation) -> int:
    return len(reservation.positions)


def _without(ack: AckPosition, pending: int) -> AckPosition:
    """The part of a plain ack left when some messages of its entry are pending."""
    if ack.indexes != WHOLE:
        return AckPosition(ack.position, ack.messages, ack.indexes & ~pending)
    everything = (1 << ack.messages) - 1
    return AckPosition(ack.position, ack.messages, everything & ~pending)
