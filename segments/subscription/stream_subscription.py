"""A stream subscription in one segment: one holder at a time, in order (DESIGN §6, §8)."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from segments.layout.subscription_records import STREAM
from segments.subscription.cursors.cursor import Cursor
from segments.subscription.dispatch import DispatchConsumer, Isolation
from segments.subscription.subscriptions import Acker, SegmentContext, Subscription, SubscriptionStatistics
from txnwire.errors import ExpiredTransaction, NotAllowed, TxnConflict, TxnError
from txnwire.ids import Position
from watchers.acks import AckPosition
from watchers.outcomes import Decision
from watchers.pending_acks import AppliedAcks, PendingAcks, Reservation

REWINDS_REMEMBERED: Final = 100


class StreamSubscription(Subscription):
    """Delivers to one holder at a time. Implements `dispatch.AckState`. `holder`: the last, as `name@incarnation`."""

    type = STREAM

    def __init__(self, surroundings: SegmentContext, name: str, cursor: Cursor, pending: PendingAcks) -> None:
        super().__init__(surroundings, name, cursor, pending)
        self.holder: str | None = None
        self.assignment_epoch = 0
        self.consumer: DispatchConsumer | None = None
        self._held_back = False
        self._high_water = cursor.mark_delete
        self._reached = cursor.mark_delete
        """The last position delivered since the last rewind."""
        self._rewound = False
        """Whether an abort has rewound the attached consumer."""
        self._rewinds: deque[tuple[Position, Position]] = deque(maxlen=REWINDS_REMEMBERED)
        """Ranges delivered again: (first, last)."""

    # ---- holders ----------------------------------------------------------------------------------------------------

    def attach(self, consumer: DispatchConsumer, assignment_epoch: int, *, after_abort: bool = False) -> None:
        """Make `consumer` the only reader and fence the previous one.

        ▲ P12: a *new* holder gets nothing before its predecessor's pending acks are decided: an abort redelivers those
        messages, and later ones of the same keys would have been processed before them.

        `after_abort`: it attaches again only because of an abort, so a redelivery already counted is not counted twice.
        Raises `NotAllowed`.
        """
        if assignment_epoch < self.assignment_epoch:
            raise NotAllowed(
                f"{consumer.holder} attaches to {self._segment} under assignment epoch {assignment_epoch}, but "
                f"{self.assignment_epoch} has followed it: wait for your next assignment"
            )
        self.close(NotAllowed(f"{consumer.holder} now reads {self._segment} for subscription {self.name}"))
        self.holder, self.assignment_epoch, self.consumer = consumer.holder, assignment_epoch, consumer
        self._held_back = self._awaits_predecessor()
        if not self._held_back:
            consumer.next_read = self._go_back(counted=not (after_abort and self._rewound))
        self._rewound = False
        self._dispatcher.attach(consumer)

    def _awaits_predecessor(self) -> bool:
        return any(acker != self.holder for ackers in self._ackers.values() for acker in ackers)

    def close(self, error: TxnError) -> None:
        consumer, self.consumer = self.consumer, None
        if consumer is not None:
            self._dispatcher.detach(consumer)
            consumer.sink.consumer_closed(error)

    def detach(self, consumer: DispatchConsumer) -> None:
        """Remove a consumer that has left."""
        self._dispatcher.detach(consumer)
        if self.consumer is consumer:
            self.consumer = None

    # ---- acks and decisions -----------------------------------------------------------------------------------------

    def _check_position(self, ack: AckPosition, acker: Acker) -> None:
        """A consumer with another isolation than `READ_COMMITTED` may ack up to the last confirmed entry."""
        consumer = self.consumer
        if consumer is not None and consumer.isolation is not Isolation.READ_COMMITTED:
            self._check_readable(ack, self._events.last_confirmed)
        else:
            self._check_readable(ack, self._events.max_read_position)

    def _settled(self, positions: Sequence[AckPosition]) -> None:
        """Nothing to do: the cursor and the pending acks hold all state."""

    def _not_acked(self, positions: Sequence[AckPosition], acker: Acker, error: TxnError) -> None:
        """Nothing to do: the client aborts the transaction, and the abort rewinds."""

    def _refused(self, reservations: Sequence[Reservation], error: TxnError) -> None:
        if isinstance(error, TxnConflict | ExpiredTransaction):
            self._rewind()  # delivered, and never acked
        self._release_successor()

    def _settle(self, acked: Sequence[AckPosition], released: Sequence[AckPosition]) -> None:
        """Nothing to do: it rewinds once, in `_decision_applied`."""

    def _decision_applied(self, applied: AppliedAcks) -> None:
        if applied.released and not self._held_back:
            self._rewind()
        self._release_successor()

    def visible(self, decision: Decision) -> None:
        """Nothing to do: dispatch asks for the read position."""

    def restart(self) -> None:
        self._high_water = self._reached = self.cursor.mark_delete
        self._rewinds.clear()

    def _release_successor(self) -> None:
        """Let a new holder begin once no ack of its predecessors is pending."""
        if self._held_back and not self._awaits_predecessor():
            self._held_back = False
            if self.consumer is not None:
                self.consumer.next_read = self._go_back()
            self._dispatcher.wake()

    def _rewind(self) -> None:
        """After an abort: messages buffered in the consumer may lie behind messages that are due again."""
        if self.consumer is not None:
            self._rewound = True
            self.consumer.rewind_to(self._go_back())
            self._dispatcher.wake()

    def _go_back(self, *, counted: bool = True) -> Position:
        """Return the earliest unacked position; everything delivered from there on is delivered again."""
        at = self.pending.earliest_unacked()
        if counted:
            if at <= self._reached:
                self._rewinds.append((at, self._reached))
            self._reached = Position(at.ledger_id, at.entry_id - 1)
        return at

    # ---- dispatch.AckState ------------------------------------------------------------------------------------------

    def holds_back(self) -> bool:
        # ▲ A decision applied in turns counts as followed before it is complete: a consumer that attaches again after
        # an abort would receive, and could ack, newer messages before the released ones.
        return self._held_back or self.pending.applying

    def redelivery_count(self, position: Position) -> int:
        self._reached = max(self._reached, position)
        if position > self._high_water:
            self._high_water = position
            return 0
        return sum(1 for begin, end in self._rewinds if begin <= position <= end)

    # ---- the rest ---------------------------------------------------------------------------------------------------

    def statistics(self) -> SubscriptionStatistics:
        consumer = self.holder if self.consumer is not None else None
        return SubscriptionStatistics(
            name=self.name,
            type=self.type,
            consumer=consumer,
            consumers=() if consumer is None else (consumer,),
            mark_delete=self.cursor.mark_delete,
            backlog=self._backlog,
            permits=0 if self.consumer is None else self.consumer.permits,
            delivered=0 if self.consumer is None else self.consumer.delivered,
            held_back=self._held_back,
            pending=self.pending.statistics(),
            open_transactions=tuple(self.pending.open_transactions()),
            drained=self.drained,
        )
