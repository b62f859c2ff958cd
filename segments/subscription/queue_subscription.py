"""A queue subscription in one segment: the shell around `segments.subscription.queueing.queue` (DESIGN §7, "Dispatch").

Any number of consumers, no holder, no order. Each pass takes entries, due ones first, and gives each to the consumer
whose turn it is. Disk reads for due entries and for new ones do not wait for each other, one timer serves all delays,
and a consumer that waits (for its connection or a revision) does not delay the others.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from typing import Final

import structlog

from segments.layout.subscription_records import QUEUE
from segments.log.tail_cache import LogEntry
from segments.subscription.cursors.cursor import Cursor
from segments.subscription.dispatch import BATCH_ENTRIES, Delivery, DeliverySink, Isolation
from segments.subscription.queueing.queue import Handout, Queue, QueueBounds, QueueConsumer
from segments.subscription.subscriptions import Acker, SegmentContext, Subscription, SubscriptionStatistics
from txnwire.errors import ConnectionLost, InternalError, InvalidArgument, TxnError
from txnwire.ids import Position
from txnwire.turns import turn_size
from watchers.acks import AckPosition, Block, bitmap_bytes
from watchers.outcomes import Decision
from watchers.pending_acks import AppliedAcks, PendingAcks, Reservation

log = structlog.get_logger(__name__)

PASSED_OVER_AT_ONCE: Final = 1000
"""Entries of aborted transactions that one pass marks as acked."""


class AttachedConsumer(QueueConsumer):
    """Holds one consumer and its connection. `may_share`: entries may be divided between it and others. Implements
    `subscriptions.Acker`."""

    __slots__ = (
        "batch", "batch_bytes", "delivered", "detached", "ended", "has_entry", "holder", "may_share", "min_revision",
        "sharing", "sink", "waiting",
    )  # fmt: skip

    def __init__(self, sink: DeliverySink, holder: str, min_revision: int, *, may_share: bool = False) -> None:
        super().__init__()
        self.may_share = may_share
        self.sharing = 0
        """The last value that it received: odd while it shares the queue; it rises with each change."""
        self.has_entry: Position | None = None
        """The entry of its last partial delivery: further parts of that entry go there without its bytes."""
        self.sink = sink
        self.holder = holder
        self.min_revision = min_revision
        self.batch: list[Delivery] = []
        self.batch_bytes = 0
        self.delivered = 0
        self.ended = False
        self.detached = False
        self.waiting: asyncio.Task[None] | None = None


class _Lane:
    """Holds entries read from disk ahead of their turn, in order, and the read in flight."""

    __slots__ = ("entries", "reading")

    def __init__(self) -> None:
        self.entries: deque[LogEntry] = deque()
        self.reading: asyncio.Task[None] | None = None

    def find(self, position: Position) -> LogEntry | None:
        entries = self.entries
        while entries and entries[0].position < position:
            entries.popleft()
        return entries[0] if entries and entries[0].position == position else None

    def stop(self) -> None:
        self.entries.clear()
        if self.reading is not None:
            self.reading.cancel()
            self.reading = None  # a task cancelled before it begins never runs its `finally`


class QueueSubscription(Subscription):
    """Delivers one segment to the consumers of a queue. Implements `dispatch.DispatchSource` and `queue.QueueAcks`."""

    type = QUEUE

    def __init__(self, surroundings: SegmentContext, name: str, cursor: Cursor, pending: PendingAcks) -> None:
        super().__init__(surroundings, name, cursor, pending)
        self._clock = surroundings.clock
        self._outcomes = surroundings.outcomes
        self._queue = self._new_queue()
        self._consumers: dict[AttachedConsumer, None] = {}
        self._batched: dict[AttachedConsumer, None] = {}
        """Consumers with deliveries of this pass."""
        self._due, self._ahead = _Lane(), _Lane()
        self._divided: LogEntry | None = None
        """An entry with some messages due; kept, so that it is not read again for each consumer."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = 0.0
        self._delayed = False
        """Whether this pass has come to a message that is to be delivered later."""
        self._unreadable = ""
        """The error of the last read; empty if it succeeded."""

    def _new_queue(self) -> Queue[AttachedConsumer]:
        settings = self._settings
        bounds = QueueBounds(
            places=settings.queue_places, unacked=settings.queue_unacked_entries, blocks=settings.queue_cursor_blocks
        )
        return Queue(self, self._outcomes, self.cursor.following(self.cursor.mark_delete), bounds)

    # ---- consumers --------------------------------------------------------------------------------------------------

    def attach(self, consumer: AttachedConsumer, isolation: Isolation) -> None:
        """Raises `InvalidArgument` if the attached consumers read with another isolation."""
        uncommitted = isolation is Isolation.READ_UNCOMMITTED
        if uncommitted is not self._queue.uncommitted:
            if self._consumers:
                raise InvalidArgument(
                    f"the consumers of queue {self.name} share its messages, so they read with one isolation: "
                    f"{consumer.holder} asks for {isolation.name}, the others have another"
                )
            self._queue.read_uncommitted(uncommitted)
        if not self._consumers:
            self._dispatcher.add_source(self)
        self._consumers[consumer] = None
        self._dispatcher.shares.join(consumer)
        self._tell_sharing()
        self._set_timer()
        self._dispatcher.wake()

    def detach(self, consumer: AttachedConsumer, *, counted: bool = True) -> None:
        """Remove a consumer; its unacked messages go to the others. `counted` raises their redelivery count: a message
        may have crashed a lost consumer. One that leaves in order has nacked the messages it had begun with."""
        if consumer.detached:
            return
        consumer.detached = True
        del self._consumers[consumer]
        self._dispatcher.shares.leave(consumer)
        if consumer.waiting is not None:
            consumer.waiting.cancel()
        self._queue.leave(consumer, counted=counted)
        self._tell_sharing()
        if not self._consumers:
            self._divided = None
            self._dispatcher.remove_source(self)
            self._due.stop()
            self._ahead.stop()
            self._stop_timer()
        self._dispatcher.wake()

    def _tell_sharing(self) -> None:
        """Tell each consumer when it gets company, or is alone again. ▲ Its permits are void then, those under way too:
        a consumer that was alone has granted hundreds, and would get all that is sent next."""
        shares = len(self._consumers) > 1
        for consumer in self._consumers:
            if consumer.may_share and consumer.shares is not shares:
                consumer.shares = shares
                self._void_permits(consumer, 1)

    def void_permits(self, consumer: AttachedConsumer) -> None:
        """The consumer requested this and receives a reply when it is done: its later permits count."""
        if consumer.may_share and not consumer.detached:
            self._void_permits(consumer, 2)

    def _void_permits(self, consumer: AttachedConsumer, step: int) -> None:
        consumer.sharing += step
        consumer.permits = 0
        self._queue.update(consumer)
        consumer.sink.sharing(consumer.sharing)

    def close(self, error: TxnError) -> None:
        for consumer in list(self._consumers):
            self._give_up(consumer, error)

    def add_permits(self, consumer: AttachedConsumer, permits: int, min_revision: int = 0, sharing: int = 0) -> None:
        """`sharing`: the last value that the consumer had received when it granted them."""
        if consumer.detached:
            return
        if sharing == consumer.sharing:
            consumer.permits += permits
        consumer.min_revision = max(consumer.min_revision, min_revision)
        self._queue.update(consumer)
        self._dispatcher.wake()

    def nack(
        self, consumer: AttachedConsumer, positions: Sequence[AckPosition], *, delay_ms: int = 0, counted: bool = True
    ) -> None:
        """Deliver again the messages of `positions` that `consumer` has, after the delay; `counted`: it had begun with
        them. Messages that it does not have are ignored: they were acked, or another consumer has them."""
        due_s = self._clock.monotonic() + delay_ms / 1000 if delay_ms else None
        self._queue.given_back(positions, consumer, due_s=due_s, counted=counted)
        self._set_timer()
        self._dispatcher.wake()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set_timer(self) -> None:
        """Set the timer to the earliest delay, only while a consumer is attached: no timer may keep a lost segment."""
        due_s = self._queue.next_expiry_s() if self._consumers else None
        if due_s is None or due_s < self._timer_s:
            self._stop_timer()
        if due_s is not None and self._timer is None:
            self._timer_s = due_s
            delay_s = max(due_s - self._clock.monotonic(), 0.0)
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._expired)

    def _expired(self) -> None:
        self._timer = None
        self._queue.expire(self._clock.monotonic())
        self._set_timer()
        self._dispatcher.wake()

    # ---- delivering -------------------------------------------------------------------------------------------------

    def serve(self) -> None:
        queue, left = self._queue, BATCH_ENTRIES
        if queue.pass_over(turn_size(PASSED_OVER_AT_ONCE)):
            self._dispatcher.wake()
        queue.cut_short = False
        while left and not queue.cut_short and self._somebody_takes() and (self._serve_due() or self._serve_ahead()):
            left -= 1
        if not left or queue.cut_short:
            self._dispatcher.wake()  # the others' turn
        if self._delayed:
            self._delayed = False
            self._set_timer()
        for consumer in list(self._batched):
            self._flush(consumer)
        self._tell_end()

    def _somebody_takes(self) -> bool:
        """Whether a consumer can take an entry now. Blocks each consumer that must wait."""
        while (consumer := self._queue.turn) is not None:
            if consumer.batch or not self._must_wait(consumer):
                return True
        return False

    def _must_wait(self, consumer: AttachedConsumer) -> bool:
        """Block a consumer that may not receive now, until it may."""
        bound = self._dispatcher.shares.pending_bytes
        condition: Callable[[], Awaitable[None]]
        if not self._dispatcher.followed(consumer.min_revision):
            condition = partial(self._dispatcher.wait_followed, consumer.min_revision)
        elif consumer.sink.pending_bytes > bound:
            condition = partial(consumer.sink.drain, bound // 2)
        else:
            return False
        consumer.blocked = True
        self._queue.update(consumer)
        consumer.waiting = self._dispatcher.own(self._waiting(consumer, condition))
        return True

    async def _waiting(self, consumer: AttachedConsumer, condition: Callable[[], Awaitable[None]]) -> None:
        try:
            await condition()
        except ConnectionLost:
            return  # the connection's end detaches the consumer
        except TxnError as error:
            log.warning("consumer_failed", subscription=self.name, segment=self._segment, error=str(error))
            self._give_up(consumer, error)
            return
        except Exception as error:
            # ▲ A defect: it would stay blocked, with all that it has.
            self._give_up(consumer, InternalError(f"what was waited for ended: {error!r}"))
            raise
        if not consumer.detached:
            consumer.blocked = False
            self._queue.update(consumer)
            self._dispatcher.wake()

    def _give_up(self, consumer: AttachedConsumer, error: TxnError) -> None:
        if not consumer.detached:
            self.detach(consumer, counted=False)
            consumer.sink.consumer_closed(error)

    def _serve_due(self) -> bool:
        """Give out the first due entry. Returns whether there may be more to do now."""
        position = self._queue.next_due()
        if position is None:
            return False
        if not self._ledgers.contains(position):  # trimmed meanwhile
            self._queue.due_done()
            return True
        entry = self._dispatcher.cached(position) or self._rest(position) or self._due.find(position)
        if entry is None:
            self._read(self._due, position, self._queue.due_run())
            return False
        self._queue.due_done()
        self._give(entry)
        return True

    def _rest(self, position: Position) -> LogEntry | None:
        return self._divided if self._divided is not None and self._divided.position == position else None

    def _serve_ahead(self) -> bool:
        limit = self._events.last_confirmed
        position = self._queue.next_ahead(limit)
        if position is None:
            return False
        entry = self._dispatcher.cached(position) or self._ahead.find(position)
        if entry is None:
            self._read(self._ahead, position, limit)
            return False
        self._queue.ahead_done()
        self._give(entry)
        return True

    def _give(self, entry: LogEntry) -> None:
        handout = self._queue.offer(entry, self._due_s(entry) if entry.deliver_at_ms else None)
        if handout is not None:
            self._divided = entry if handout.divided else None
            self._deliver(entry, handout)

    def _due_s(self, entry: LogEntry) -> float | None:
        """When it may be delivered, on the monotonic clock; None: now. ▲ Looked at again when that time has come: the
        wall clock, which the sender meant, may have been set back meanwhile."""
        wait_ms = entry.deliver_at_ms - self._clock.wall_ms()
        if wait_ms <= 0:
            return None
        self._delayed = True
        return self._clock.monotonic() + wait_ms / 1000

    def _deliver(self, entry: LogEntry, handout: Handout[AttachedConsumer]) -> None:
        consumer = handout.consumer
        consumer.ended = False
        for skip, count in handout.parts:
            data = self._bytes_for(consumer, entry, divided=bool(skip))
            consumer.batch.append(Delivery(entry.position, data, bitmap_bytes(skip), count))
            consumer.batch_bytes += len(data)
            consumer.delivered += entry.messages - skip.bit_count()
            self._batched[consumer] = None
            # ▲ After each part: it carries the bytes again for a consumer that does not share, and two large entries do
            # not fit one frame.
            if consumer.batch_bytes >= self._dispatcher.shares.deliver_bytes:
                self._flush(consumer)

    @staticmethod
    def _bytes_for(consumer: AttachedConsumer, entry: LogEntry, *, divided: bool) -> bytes:
        """▲ Each consumer gets an entry's bytes once, not with each part: otherwise a batch of a thousand jobs would be
        sent a thousand times. The client keeps the entry by the same rule (`Subscribe.shares`)."""
        if consumer.has_entry == entry.position and divided:
            return b""
        consumer.has_entry = entry.position if divided and consumer.may_share else None
        return entry.data

    def _flush(self, consumer: AttachedConsumer) -> None:
        del self._batched[consumer]
        batch, consumer.batch, consumer.batch_bytes = consumer.batch, [], 0
        consumer.sink.deliver(batch)

    def _read(self, lane: _Lane, first: Position, last: Position) -> None:
        if lane.reading is None:
            lane.reading = self._dispatcher.own(self._reading(lane, first, last))

    async def _reading(self, lane: _Lane, first: Position, last: Position) -> None:
        try:
            lane.entries = await self._dispatcher.read_run(first, last)
            self._unreadable = ""
        except TxnError as error:
            self._report(error)
            self.close(error)
        except Exception as error:
            # ▲ A defect, which the next read would meet as well, at once and for ever.
            self.close(InternalError(f"a read of {self._segment} ended: {error!r}"))
            raise
        finally:
            if lane.reading is asyncio.current_task():
                lane.reading = None
            self._dispatcher.wake()

    def _report(self, error: TxnError) -> None:
        """Log an error once, even if consumers attach again and meet it again. A retriable error is only a warning."""
        if str(error) != self._unreadable:
            self._unreadable = str(error)
            level = log.warning if error.retriable else log.error
            level("queue_read_failed", subscription=self.name, segment=self._segment, error=self._unreadable)

    def _tell_end(self) -> None:
        """Send the end to each consumer that has received all its messages. ▲ On the end it may ack incomplete chunked
        values, as no further piece will come: so not while it may still give a complete value back."""
        end = self._ledgers.end
        if end is None or not self._queue.all_given_out(end):
            return
        for consumer in self._consumers:
            if not consumer.ended and not self._queue.may_complete(consumer):
                consumer.ended = True
                consumer.sink.end_of_segment(sealed=True)

    # ---- queue.QueueAcks --------------------------------------------------------------------------------------------

    @property
    def mark_delete(self) -> Position:
        return self.cursor.mark_delete

    def blocks(self) -> Collection[Block]:
        return self.cursor.blocks()

    def acked(self, position: Position) -> int:
        return self.cursor.acked(position)

    def next_unacked(self, position: Position) -> Position:
        return self.cursor.next_unacked(position)

    def following(self, position: Position) -> Position:
        return self.cursor.following(position)

    def has_room(self, position: Position) -> bool:
        return self.cursor.has_room(position)

    def promise(self, position: Position, messages: int) -> None:
        self.cursor.promise(position, messages)

    def withdraw(self, position: Position) -> None:
        self.cursor.withdraw(position)

    # ---- acks and decisions -----------------------------------------------------------------------------------------

    def _check(self, positions: tuple[AckPosition, ...], acker: Acker, *, cumulative: bool) -> None:
        if cumulative:
            raise InvalidArgument(
                f"a cumulative ack on queue {self.name}: a queue has no order, so ack its messages one by one"
            )
        super()._check(positions, acker, cumulative=cumulative)

    def _check_position(self, ack: AckPosition, acker: Acker) -> None:
        """Accepts an ack of a message that another consumer has now, or had under a previous owner: the work is done.
        Refuses only a message that cannot have been delivered to anyone."""
        position = ack.position
        if self._queue.holds(position):
            return
        self._check_readable(ack, self._events.last_confirmed)
        if position > self._events.max_read_position and self._queue.aside(position):
            raise InvalidArgument(
                f"ack of {position} in {self._segment}: its transaction is open, so no consumer can have received it"
            )

    def _settled(self, positions: Sequence[AckPosition]) -> None:
        self._queue.settled(positions)
        self._dispatcher.wake()

    def _not_acked(self, positions: Sequence[AckPosition], acker: Acker, error: TxnError) -> None:
        """The transaction cannot commit with them: deliver them again, to any consumer."""
        if isinstance(acker, AttachedConsumer):
            self.nack(acker, positions)

    def _refused(self, reservations: Sequence[Reservation], error: TxnError) -> None:
        for reservation in reservations:
            self._queue.given_back(reservation.positions)
        self._dispatcher.wake()

    def _settle(self, acked: Sequence[AckPosition], released: Sequence[AckPosition]) -> None:
        self._queue.settled(acked)
        self._queue.given_back(released)
        if released:
            self._dispatcher.wake()

    def _decision_applied(self, applied: AppliedAcks) -> None:
        """Nothing to do: `_settle` has handled its messages."""

    def visible(self, decision: Decision) -> None:
        self._queue.decided(decision.txn_id, committed=decision.committed)

    def restart(self) -> None:
        self._queue.give_up()
        self._queue = self._new_queue()

    # ---- the rest ---------------------------------------------------------------------------------------------------

    def statistics(self) -> SubscriptionStatistics:
        return SubscriptionStatistics(
            name=self.name,
            type=self.type,
            consumer=None,
            consumers=tuple(consumer.holder for consumer in self._consumers),
            mark_delete=self.cursor.mark_delete,
            backlog=self._backlog,
            permits=sum(consumer.permits for consumer in self._consumers),
            delivered=sum(consumer.delivered for consumer in self._consumers),
            held_back=False,
            pending=self.pending.statistics(),
            open_transactions=tuple(self.pending.open_transactions()),
            drained=self.drained,
            queue=self._queue.statistics(),
        )
