"""One stream subscription in one segment: who holds it, what is acked, in transactions and outside (DESIGN §6, §8)."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple, Protocol

from segments.cursor import Cursor
from segments.dispatch import Consumer, Dispatcher, Isolation
from segments.ledgers import SegmentLedgers
from segments.op_gate import OpGate, Turn
from segments.settings import BrokerSettings
from txnstore.op_transitions import plan_ack_op, read_op_verdict
from txnstore.store import Commit, CommitResult, MetadataStore
from txnwire.errors import (
    ExpiredTransaction,
    InvalidArgument,
    NotAllowed,
    NotOwner,
    OutcomeUnknown,
    TxnConflict,
    TxnError,
)
from txnwire.ids import Position, TxnId
from watchers.acks import AckPosition, ack_op_record
from watchers.outcomes import Decision
from watchers.pending_acks import AppliedAcks, PendingAcks, PendingAckStatistics, Reservation

REWINDS_REMEMBERED: Final = 100

AckReply = Callable[[TxnError | None], None]
"""Called once with the outcome of an ack in a transaction: None once its op is recorded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionStatistics:
    """`backlog`: entries behind the mark-delete position up to the last confirmed one. `pending`: of acks."""

    name: str
    consumer: str | None
    mark_delete: Position
    backlog: int
    permits: int
    delivered: int
    held_back: bool
    pending: PendingAckStatistics
    open_transactions: tuple[TxnId, ...]


class SubscriptionEvents(Protocol):
    """What the segment has to know."""

    def hold(self, txn_id: TxnId) -> None: ...
    def let_go(self, txn_id: TxnId) -> None: ...
    def lost(self, error: TxnError) -> None: ...
    def check(self) -> None: ...
    def acked(self, subscription: Subscription) -> None:
        """There is something to write: a cursor moved or clean-up is queued."""

    @property
    def max_read_position(self) -> Position: ...
    @property
    def last_confirmed(self) -> Position: ...


class _AckOp(NamedTuple):
    txn_id: TxnId
    reservation: Reservation
    acker: str | None
    reply: AckReply


class Subscription:
    """Implements `dispatch.AckState`. `holder` is `name@incarnation` of whoever attached last."""

    def __init__(
        self,
        store: MetadataStore,
        settings: BrokerSettings,
        *,
        name: str,
        segment: str,
        epoch: int,
        cursor: Cursor,
        pending: PendingAcks,
        ledgers: SegmentLedgers,
        dispatcher: Dispatcher,
        op_counter: Callable[[], int],
        events: SubscriptionEvents,
    ) -> None:
        self._store = store
        self._settings = settings
        self.name = name
        self._segment = segment
        self._epoch = epoch
        self.cursor = cursor
        self.pending = pending
        self._ledgers = ledgers
        self._dispatcher = dispatcher
        self._op_counter = op_counter
        self._events = events
        self.gate: OpGate[_AckOp] = OpGate()
        self.holder: str | None = None
        self.assignment_epoch = 0
        self.consumer: Consumer | None = None
        self._ackers: dict[TxnId, dict[str, None]] = {}
        """Whose acks are pending, by transaction."""
        self._held_back = False
        self._high_water = cursor.mark_delete
        self._rewinds: deque[tuple[Position, Position]] = deque(maxlen=REWINDS_REMEMBERED)
        """What was delivered and is delivered again: from, to."""

    # ---- holders ----------------------------------------------------------------------------------------------------

    def attach(self, consumer: Consumer, holder: str, assignment_epoch: int) -> None:
        """Make `consumer` the one reader, fencing whoever was attached.

        ▲ P12: a *new* holder gets nothing before its predecessor's pending acks are decided; they might come back, and
        then later messages of the same keys would have been processed before them. Raises `NotAllowed`.
        """
        if assignment_epoch < self.assignment_epoch:
            raise NotAllowed(
                f"{holder} attaches to {self._segment} under assignment epoch {assignment_epoch}, but "
                f"{self.assignment_epoch} has followed it: wait for your next assignment"
            )
        self.fence(NotAllowed(f"{holder} now reads {self._segment} for subscription {self.name}"))
        self.holder, self.assignment_epoch, self.consumer = holder, assignment_epoch, consumer
        self._held_back = self._awaits_predecessor()
        if not self._held_back:
            consumer.next_read = self._go_back()
        self._dispatcher.attach(consumer)

    def restored(self, txn_id: TxnId, acker: str | None) -> None:
        """An ack op found by recovery; `acker` None is taken for somebody else."""
        self.gate.loaded(txn_id)
        self._ackers.setdefault(txn_id, {})[acker or ""] = None

    def _awaits_predecessor(self) -> bool:
        return any(acker != self.holder for ackers in self._ackers.values() for acker in ackers)

    def fence(self, error: TxnError) -> None:
        """Close the attached consumer, if there is one."""
        consumer, self.consumer = self.consumer, None
        if consumer is not None:
            self._dispatcher.detach(consumer)
            consumer.sink.consumer_closed(error)

    def detach(self, consumer: Consumer) -> None:
        """It has gone by itself."""
        self._dispatcher.detach(consumer)
        if self.consumer is consumer:
            self.consumer = None

    # ---- acks -------------------------------------------------------------------------------------------------------

    def ack(self, positions: tuple[AckPosition, ...], *, cumulative: bool) -> None:
        """Outside any transaction. Persisted within a second; a crash before that redelivers. Raises `InvalidArgument`,
        `Overloaded`."""
        self._check(positions, cumulative=cumulative)
        changed = self.pending.ack_cumulative(positions[0]) if cumulative else self.pending.ack(positions)
        if changed:
            self._events.acked(self)

    def ack_in(
        self, txn_id: TxnId, writer: int, positions: tuple[AckPosition, ...], *, cumulative: bool, reply: AckReply
    ) -> None:
        """In a transaction: ▲ reserved before the op is sent, released only on a definite refusal.

        Raises `TxnConflict`, `InvalidArgument`, `Overloaded`, and then `reply` hears nothing.
        """
        self._check(positions, cumulative=cumulative)
        reservation = self.pending.reserve(txn_id, writer, positions, cumulative=cumulative)
        self._events.hold(txn_id)
        self._ackers.setdefault(txn_id, {})[self.holder or ""] = None
        ack = _AckOp(txn_id, reservation, self.holder, reply)
        turn = self.gate.enter(txn_id, ack)
        if turn is not Turn.WAIT:
            self._send_op(ack, first=turn is Turn.FIRST)

    def _check(self, positions: tuple[AckPosition, ...], *, cumulative: bool) -> None:
        if not positions or (cumulative and len(positions) > 1):
            raise InvalidArgument(f"an ack of {len(positions)} positions: expected one, or several if not cumulative")
        if len(positions) > self._settings.max_ack_positions:
            raise InvalidArgument(
                f"an ack names {len(positions)} positions, at most {self._settings.max_ack_positions} are allowed: "
                "send several"
            )
        readable, mark_delete = self._readable(), self.cursor.mark_delete
        for ack in positions:
            if ack.position > readable or (ack.position > mark_delete and not self._ledgers.contains(ack.position)):
                raise InvalidArgument(
                    f"ack of {ack.position} in {self._segment}: no such message has been delivered, the last that "
                    f"could be is at {readable}"
                )

    def _readable(self) -> Position:
        """The last position that may have been delivered. Who reads uncommitted may also ack what it was shown."""
        if self.consumer is not None and self.consumer.isolation is not Isolation.READ_COMMITTED:
            return self._events.last_confirmed
        return self._events.max_read_position

    def _send_op(self, ack: _AckOp, *, first: bool) -> None:
        reservation = ack.reservation
        op = ack_op_record(
            self._segment,
            self.name,
            reservation.positions,
            cumulative=reservation.cumulative,
            writer=reservation.writer,
            consumer=ack.acker,
        )
        commit = plan_ack_op(
            ack.txn_id,
            self._segment,
            self.name,
            self._epoch,
            self._op_counter(),
            op,
            first_in_subscription=first,
        )
        try:
            future = self._store.commit_nowait(commit)
        except InvalidArgument as error:  # more bitmaps than one record may hold: refused like any other, released
            future = asyncio.get_running_loop().create_future()
            future.set_exception(error)
        future.add_done_callback(partial(self._op_done, ack, commit, first))

    def _op_done(self, ack: _AckOp, commit: Commit, first: bool, future: asyncio.Future[CommitResult]) -> None:
        if future.cancelled():
            return
        try:
            read_op_verdict(commit, future.result(), ack.txn_id)
        except OutcomeUnknown as error:
            self._events.lost(error)
            ack.reply(error)
            return
        except TxnError as error:
            self._op_refused(ack, error, first=first)
            return
        if first:
            for waiting in self.gate.first_confirmed(ack.txn_id):
                self._send_op(waiting, first=False)
        applied = self.pending.confirmed(ack.reservation)
        ack.reply(None)
        if applied is not None:
            self._applied(applied)

    def _op_refused(self, ack: _AckOp, error: TxnError, *, first: bool) -> None:
        refused = [ack]
        while first and (waiting := self.gate.first_refused(ack.txn_id)) is not None:
            if not isinstance(error, TxnConflict | ExpiredTransaction):
                self._send_op(waiting, first=True)
                break
            refused.append(waiting)
        for one in refused:
            applied = self.pending.release(one.reservation)
            one.reply(error)
            if applied is not None:
                self._applied(applied)
        if isinstance(error, TxnConflict | ExpiredTransaction):
            self._rewind()  # delivered, and its ack will never come
        if not self.pending.holds(ack.txn_id):
            self._ackers.pop(ack.txn_id, None)
            self._events.let_go(ack.txn_id)
            self._release_successor()
        if isinstance(error, NotOwner):
            self._events.lost(error)

    # ---- decisions --------------------------------------------------------------------------------------------------

    def decided(self, decision: Decision) -> None:
        applied = self.pending.decided(decision)
        if applied is not None:
            self._applied(applied)

    def _applied(self, applied: AppliedAcks) -> None:
        self.gate.forget(applied.decision.txn_id)
        self._ackers.pop(applied.decision.txn_id, None)
        if applied.released and not self._held_back:
            self._rewind()
        self._release_successor()
        self._events.acked(self)
        self._dispatcher.wake()

    def _release_successor(self) -> None:
        """Let a new holder begin once none of its predecessors' acks are pending any more."""
        if self._held_back and not self._awaits_predecessor():
            self._held_back = False
            if self.consumer is not None:
                self.consumer.next_read = self._go_back()
            self._dispatcher.wake()

    def _rewind(self) -> None:
        """After an abort: what the consumer has buffered may lie behind messages that are due again."""
        if self.consumer is not None:
            self.consumer.rewind_to(self._go_back())
            self._dispatcher.wake()

    def _go_back(self) -> Position:
        at = self.pending.earliest_unacked()
        if at <= self._high_water:
            self._rewinds.append((at, self._high_water))
        return at

    # ---- dispatch.AckState ------------------------------------------------------------------------------------------

    def holds_back(self) -> bool:
        return self._held_back

    def skip(self, position: Position) -> int:
        return self.pending.skip(position)

    def redelivery_count(self, position: Position) -> int:
        if position > self._high_water:
            self._high_water = position
            return 0
        return sum(1 for begin, end in self._rewinds if begin <= position <= end)

    def pass_over(self, position: Position, messages: int) -> None:
        if self.pending.pass_over(position):
            self._events.acked(self)

    def drained(self, end: Position) -> bool:
        return self.cursor.mark_delete >= end

    # ---- the rest ---------------------------------------------------------------------------------------------------

    def rolled(self) -> None:
        """A ledger was closed: the mark-delete position may cross its end."""
        self.cursor.advance()
        self._events.acked(self)

    def statistics(self) -> SubscriptionStatistics:
        return SubscriptionStatistics(
            name=self.name,
            consumer=self.holder if self.consumer is not None else None,
            mark_delete=self.cursor.mark_delete,
            backlog=self._ledgers.entries_between(self.cursor.mark_delete, self._ledgers.last_confirmed),
            permits=0 if self.consumer is None else self.consumer.permits,
            delivered=0 if self.consumer is None else self.consumer.delivered,
            held_back=self._held_back,
            pending=self.pending.statistics(),
            open_transactions=tuple(self.pending.open_transactions()),
        )
