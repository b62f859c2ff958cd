"""A subscription of either type in one segment: applies acks, inside transactions and outside (DESIGN §6)."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple, Protocol

from segments.log.ledgers.segment_log import SegmentLog
from segments.log.sends.op_gate import OpGate, Turn
from segments.log.settings import BrokerSettings
from segments.subscription.cursors.cursor import Cursor
from segments.subscription.dispatch import Dispatcher
from segments.subscription.queueing.queue import QueueOutcomes, QueueStatistics
from txnstore.store import Commit, CommitVerdict, MetadataStore
from txnstore.writes.op_transitions import plan_ack_op, read_op_verdict
from txnwire.errors import (
    ExpiredTransaction,
    InternalError,
    InvalidArgument,
    NotOwner,
    OutcomeUnknown,
    Overloaded,
    Timeout,
    TxnConflict,
    TxnError,
)
from txnwire.ids import Position, TxnId
from txnwire.ports import Clock
from txnwire.tasks import errand
from watchers.acks import AckPosition, ack_op_record, check_op_size
from watchers.outcomes import Decision
from watchers.pending_acks import AppliedAcks, PendingAcks, PendingAckStatistics, Reservation

SEEK_BITS: Final = 24
"""Low bits of `received_under` that count the seeks; the create revision has the others."""
MAX_UINT64: Final = (1 << 64) - 1

AckReply = Callable[[TxnError | None], None]
"""Called once with the outcome of an ack in a transaction: None once its op is recorded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionStatistics:
    """`backlog`: entries behind the mark-delete position up to the last confirmed one. `pending`: pending acks.
    `consumer`: the reader of a stream; `consumers`: all that are attached. `held_back`: a stream's new holder waits for
    its predecessor's acks. `queue`: a queue's entries by place. `drained`: it has consumed a sealed segment."""

    name: str
    type: str
    consumer: str | None
    consumers: tuple[str, ...]
    mark_delete: Position
    backlog: int
    permits: int
    delivered: int
    held_back: bool
    pending: PendingAckStatistics
    open_transactions: tuple[TxnId, ...]
    queue: QueueStatistics | None = None
    drained: bool = False


class SubscriptionEvents(Protocol):
    """The segment, which a subscription notifies and asks."""

    def hold(self, txn_id: TxnId) -> None: ...
    def let_go(self, txn_id: TxnId) -> None: ...
    def lost(self, error: TxnError) -> None: ...
    def check(self) -> None: ...
    def op_recorded(self) -> None: ...
    def acked(self, subscription: Subscription) -> None:
        """A write is due: a cursor moved or clean-up is queued."""

    @property
    def max_read_position(self) -> Position: ...
    @property
    def last_confirmed(self) -> Position: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentContext:
    """The objects that all subscriptions of a segment share."""

    store: MetadataStore
    settings: BrokerSettings
    clock: Clock
    segment: str
    epoch: int
    ledgers: SegmentLog
    dispatcher: Dispatcher
    outcomes: QueueOutcomes
    op_counter: Callable[[], int]
    events: SubscriptionEvents
    ancestors: Callable[[], Sequence[int]]
    """Ids of the segment's ancestors that still exist; no later layout adds one."""


class Acker(Protocol):
    """The attached consumer that sent an ack."""

    @property
    def holder(self) -> str:
        """`name@incarnation`."""


class _AckOp(NamedTuple):
    txn_id: TxnId
    reservation: Reservation
    acker: Acker
    reply: AckReply


class Subscription(ABC):
    """Applies acks and decisions for both types of subscription. Implements most of `dispatch.AckState`."""

    def __init__(self, surroundings: SegmentContext, name: str, cursor: Cursor, pending: PendingAcks) -> None:
        self._store = surroundings.store
        self._settings = surroundings.settings
        self.name = name
        self._segment = surroundings.segment
        self._epoch = surroundings.epoch
        self.cursor = cursor
        self.pending = pending
        self.created = 0
        """The create revision of its record: distinguishes it from another subscription of the same name."""
        self._ledgers = surroundings.ledgers
        self._dispatcher = surroundings.dispatcher
        self._op_counter = surroundings.op_counter
        self._events = surroundings.events
        self.gate: OpGate[_AckOp] = OpGate()
        self._ackers: dict[TxnId, dict[str, None]] = {}
        """The consumers with pending acks, by transaction."""
        self._fewer_pending = asyncio.Event()
        self._over: TxnError | None = None
        self._applying: asyncio.Task[None] | None = None
        """Set while a decision on many acks is applied in turns."""
        self._unanswered = 0
        self._all_answered = asyncio.Event()
        self._all_answered.set()

    def stop(self, error: TxnError) -> None:
        """Begin its deletion: close its consumers and refuse acks. Ops in flight continue."""
        self._over = error
        self.close(error)

    def check(self) -> None:
        """Raises the error given to `stop`, once it is being deleted."""
        if self._over is not None:
            raise self._over

    async def wait_all_answered(self) -> None:
        """Wait until no ack op is in flight: after `stop`, none can land later."""
        await self._all_answered.wait()

    def _answered(self, reply: AckReply, error: TxnError | None) -> None:
        self._unanswered -= 1
        if not self._unanswered:
            self._all_answered.set()
        reply(error)

    # ---- differences of the types -----------------------------------------------------------------------------------

    @property
    @abstractmethod
    def type(self) -> str: ...

    @abstractmethod
    def close(self, error: TxnError) -> None:
        """Close every attached consumer with `error`."""

    @abstractmethod
    def _check_position(self, ack: AckPosition, acker: Acker) -> None:
        """Raises `InvalidArgument` for a message that cannot have been delivered."""

    @abstractmethod
    def _settled(self, positions: Sequence[AckPosition]) -> None:
        """`positions` were acked, or reserved in a transaction."""

    @abstractmethod
    def _not_acked(self, positions: Sequence[AckPosition], acker: Acker, error: TxnError) -> None:
        """An ack was refused before anything was reserved."""

    @abstractmethod
    def _refused(self, reservations: Sequence[Reservation], error: TxnError) -> None:
        """The ops of `reservations` were refused, and these released."""

    @abstractmethod
    def _settle(self, acked: Sequence[AckPosition], released: Sequence[AckPosition]) -> None:
        """A decision, or part of it, has been applied to these positions."""

    @abstractmethod
    def _decision_applied(self, applied: AppliedAcks) -> None:
        """A decision has been applied completely."""

    @abstractmethod
    def statistics(self) -> SubscriptionStatistics: ...

    @abstractmethod
    def visible(self, decision: Decision) -> None:
        """A transaction's entries in this segment are visible now, or never will be."""

    @abstractmethod
    def restart(self) -> None:
        """Go on from the cursor, which a seek has moved. No consumer is attached."""

    # ---- acks -------------------------------------------------------------------------------------------------------

    def ack(self, positions: tuple[AckPosition, ...], acker: Acker, *, cumulative: bool) -> None:
        """Ack outside any transaction. Persisted within a second; a crash before that redelivers. Raises
        `InvalidArgument`, `Overloaded`."""
        self._check(positions, acker, cumulative=cumulative)
        try:
            changed = self.pending.ack_cumulative(positions[0]) if cumulative else self.pending.ack(positions)
        except Overloaded:
            self._events.acked(self)  # some may have been applied before there was no room
            raise
        self._settled(positions)
        if changed:
            self._events.acked(self)

    def ack_in(
        self,
        txn_id: TxnId,
        writer: int,
        positions: tuple[AckPosition, ...],
        acker: Acker,
        *,
        cumulative: bool,
        reply: AckReply,
    ) -> None:
        """Ack in a transaction: ▲ reserve before the op is sent, release only on a definite refusal.

        Raises `TxnConflict`, `InvalidArgument`, `Overloaded`; it then never calls `reply`.
        """
        self._check(positions, acker, cumulative=cumulative)
        check_op_size(positions)
        try:
            reservation = self.pending.reserve(txn_id, writer, positions, cumulative=cumulative)
        except TxnError as error:
            self._not_acked(positions, acker, error)
            raise
        self._settled(positions)
        self._events.hold(txn_id)
        self._ackers.setdefault(txn_id, {})[acker.holder] = None
        self._unanswered += 1
        self._all_answered.clear()
        ack = _AckOp(txn_id, reservation, acker, partial(self._answered, reply))
        turn = self.gate.enter(txn_id, ack)
        if turn is not Turn.WAIT:
            self._send_op(ack, first=turn is Turn.FIRST)

    def _check(self, positions: tuple[AckPosition, ...], acker: Acker, *, cumulative: bool) -> None:
        if self._over is not None:
            raise self._over
        if not positions or (cumulative and len(positions) > 1):
            raise InvalidArgument(f"an ack of {len(positions)} positions: expected one, or several if not cumulative")
        if len(positions) > self._settings.max_ack_positions:
            raise InvalidArgument(
                f"an ack names {len(positions)} positions, at most {self._settings.max_ack_positions} are allowed: "
                "send several"
            )
        for ack in positions:
            self._check_position(ack, acker)

    def _check_readable(self, ack: AckPosition, readable: Position) -> None:
        position = ack.position
        if position > readable or (position > self.cursor.mark_delete and not self._ledgers.contains(position)):
            raise InvalidArgument(
                f"ack of {position} in {self._segment}: no such message has been delivered, the last that could be is "
                f"at {readable}"
            )

    def _send_op(self, ack: _AckOp, *, first: bool) -> None:
        reservation = ack.reservation
        op = ack_op_record(
            self._segment,
            self.name,
            reservation.positions,
            cumulative=reservation.cumulative,
            writer=reservation.writer,
            consumer=ack.acker.holder,
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
        except TxnError as error:  # the store accepts nothing now: release like any refusal
            future = asyncio.get_running_loop().create_future()
            future.set_exception(error)
        future.add_done_callback(partial(self._op_done, ack, commit, first))

    def _op_done(self, ack: _AckOp, commit: Commit, first: bool, future: asyncio.Future[CommitVerdict]) -> None:
        if future.cancelled():
            return
        try:
            read_op_verdict(commit, future.result(), ack.txn_id)
        except OutcomeUnknown as error:
            self._events.lost(error)
            # A resend is harmless: the next owner knows whether the ack is pending.
            ack.reply(Timeout(f"{self._segment}: the store was closed before it confirmed an ack, send it again"))
            return
        except TxnError as error:
            self._op_refused(ack, error, first=first)
            return
        self._events.op_recorded()
        if first:
            for waiting in self.gate.first_confirmed(ack.txn_id):
                self._send_op(waiting, first=False)
        applied = self.pending.confirmed(ack.reservation)
        ack.reply(None)
        self._go_on(applied)

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
            self._go_on(applied)
        if not self.pending.holds(ack.txn_id):
            self._ackers.pop(ack.txn_id, None)
            self._events.let_go(ack.txn_id)
        self._fewer_pending.set()
        self._refused([one.reservation for one in refused], error)
        if isinstance(error, NotOwner):
            self._events.lost(error)

    # ---- decisions --------------------------------------------------------------------------------------------------

    def restored(self, txn_id: TxnId, acker: str | None) -> None:
        """Recovery has found an ack op; `acker` None counts as another consumer than any that attaches."""
        self.gate.loaded(txn_id)
        self._ackers.setdefault(txn_id, {})[acker or ""] = None

    def decided(self, decision: Decision) -> None:
        self._go_on(self.pending.decided(decision))

    def _go_on(self, applied: AppliedAcks | None) -> None:
        """Continue after a decision: `applied` holds all of it, or is None if nothing is applied so far."""
        if applied is not None:
            self._settle(applied.acked, applied.released)
            self._applied(applied)
        if self.pending.applying and self._applying is None:
            self._applying = errand(self._apply_in_turns(), name="acks applied", of=f"{self.name} of {self._segment}")

    async def _apply_in_turns(self) -> None:
        """▲ Stops once the subscription is being deleted: deletion erases its records in etcd."""
        try:
            while self.pending.applying and self._over is None:
                part = self.pending.apply_part()
                self._settle(part.acked, part.released)
                if part.whole is not None:
                    self._applied(part.whole)
                await asyncio.sleep(0)
        except Exception as error:
            # ▲ A defect. Give up the segment, so that the next owner applies the rest: its acks would stay held here.
            self._events.lost(InternalError(f"acks of {self.name} on {self._segment} not applied: {error!r}"))
            raise
        finally:
            self._applying = None

    def _applied(self, applied: AppliedAcks) -> None:
        self.gate.forget(applied.decision.txn_id)
        self._ackers.pop(applied.decision.txn_id, None)
        self._fewer_pending.set()
        self._decision_applied(applied)
        self._events.let_go(applied.decision.txn_id)
        self._events.acked(self)
        self._dispatcher.wake()

    async def wait_nothing_pending(self, *, timeout_s: float) -> None:
        """Return once no ack is pending in an open transaction. Raises `Timeout` naming one of them."""
        try:
            async with asyncio.timeout(timeout_s):
                while self.pending.open_transactions():
                    self._fewer_pending.clear()
                    await self._fewer_pending.wait()
        except TimeoutError as error:
            held = self.pending.open_transactions()
            raise Timeout(
                f"{len(held)} open transactions hold acks of subscription {self.name} on {self._segment}, transaction "
                f"{held[0] if held else 'none'} among them: commit or abort it and try again"
            ) from error

    @property
    def received_under(self) -> int:
        """▲ An ack under another number is not applied: the message was received before a seek, or from a deleted
        subscription of this name. The ack would consume a message that was never delivered since."""
        return (self.created << SEEK_BITS) + self.cursor.seeks & MAX_UINT64

    # ---- dispatch.AckState ------------------------------------------------------------------------------------------

    def skip(self, position: Position, messages: int = 0) -> int:
        return self.pending.skip(position, messages)

    def pass_over(self, position: Position, messages: int) -> None:
        if self.pending.pass_over(position):
            self._events.acked(self)

    # ---- drained.Consumption ----------------------------------------------------------------------------------------

    @property
    def consumed(self) -> Position:
        return self.cursor.mark_delete

    @property
    def pending_acks(self) -> bool:
        return bool(self.pending.open_transactions())

    @property
    def drained(self) -> bool:
        """Whether it has consumed all of a sealed segment."""
        end = self._ledgers.end
        return end is not None and self.consumed >= end and not self.pending_acks

    # ---- the rest ---------------------------------------------------------------------------------------------------

    def rolled(self) -> None:
        """A ledger was closed: the mark-delete position may cross its end."""
        self.cursor.advance()
        self._events.acked(self)

    @property
    def _backlog(self) -> int:
        return self._ledgers.entries_between(self.cursor.mark_delete, self._ledgers.last_confirmed)
