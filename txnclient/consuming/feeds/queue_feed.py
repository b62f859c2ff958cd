"""One segment of a queue subscription, as one of its consumers sees it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from txnclient.connection.deadlines import Deadline
from txnclient.connection.session import TRANSIENT, Session
from txnclient.consuming.feeds.ack_timeouts import TICKS, AckTimeouts
from txnclient.consuming.feeds.acks import MAX_BYTES, MAX_POSITIONS, POSITION_BYTES, positions_to_wire
from txnclient.consuming.feeds.dead_letters import DeadLetters
from txnclient.consuming.feeds.feed import SubscriptionFeed
from txnclient.consuming.feeds.inbox import QueueInbox
from txnclient.consuming.feeds.pace import Wait
from txnclient.consuming.feeds.receiver import FeedReceiver
from txnclient.consuming.received.bits import bits_of
from txnclient.consuming.received.message import Message, ReceivedEntry
from txnclient.transactions.transaction_impl import TransactionImpl
from txnwire.errors import ConnectionLost, DataCorrupt, TxnError
from txnwire.ids import Position
from txnwire.proto import txn_pb2 as pb

_log = logging.getLogger("txnclient")


class QueueFeed(SubscriptionFeed):
    """Feeds a queue's segment to one of its consumers. An unacked message comes again, here or elsewhere: after a
    `nack`, after the abort of a transaction that acked it, and when the connection or this consumer ends."""

    def __init__(
        self,
        session: Session,
        receiver: FeedReceiver,
        segment: str,
        inbox: QueueInbox,
        terms: pb.Subscribe,
        life: Callable[[], int],
        dead_letters: DeadLetters | None,
        ack_timeout_s: float | None = None,
    ) -> None:
        self._ack_timeout_s = ack_timeout_s
        self._unacked = AckTimeouts()
        self._ticking: asyncio.TimerHandle | None = None
        self._queue_inbox = inbox
        self._dead_letters = dead_letters
        self._parted: ReceivedEntry | None = None
        """The last entry that came in part: its other parts come without its bytes."""
        self._looking: asyncio.TimerHandle | None = None
        super().__init__(session, receiver, segment, inbox, terms, life)

    def aborted(self, revision: int) -> None:
        """Nothing to do: the broker redelivers only the messages acked in it."""

    def not_acked(self, bits: Mapping[Position, int], counts: Mapping[Position, int]) -> None:
        self._queue_inbox.let_go(bits)
        self._push_nacks(bits, counts)

    def refused(self, messages: Sequence[Message[Any]]) -> None:
        self.nack_nowait(messages, 0.0)

    def _on_detached(self) -> None:
        self._parted = None
        for timer in (self._looking, self._ticking):
            if timer is not None:
                timer.cancel()
        self._looking = self._ticking = None
        self._unacked = AckTimeouts()
        self._queue_inbox.detached()
        self.acks.detached()

    def take(self, at_most: int) -> list[Message[Any]]:
        """Take messages of one entry, which have one redelivery count: all for the application, or all dead."""
        self._queue_inbox.asked_for(self._receiver.at_once)
        messages = super().take(at_most)
        if messages and self._ack_timeout_s is not None and self._ticking is None:
            self._tick_later(self._ack_timeout_s)
        if messages and self._dead_letters is not None and self._dead_letters.is_dead(messages[0]):
            self._queue_inbox.put_aside(len(messages))
            if self._ack_timeout_s is not None:
                self._unacked.exempt(messages[0].entry, bits_of(message.index for message in messages))
            self._dead_letters.put(self, messages)
            return []
        return messages

    # ---- sharing ----------------------------------------------------------------------------------------------------

    @property
    def _sharing(self) -> int:
        return self._queue_inbox.pace.sharing

    def _received(self, position: Position, delivered: pb.DeliveredEntry) -> ReceivedEntry:
        known = self._known(position, delivered)
        if known is not None:
            count, serializer = delivered.redelivery_count, self._receiver.serializer
            # ▲ One without a serializer refers to none: the garbage collector would not see that way (`Message`).
            same = None if serializer is None and known.serializer is not None else known
            entry = ReceivedEntry(self.segment, position, known.raw, count, self._inbox, serializer, same)
        elif delivered.entry:
            entry = super()._received(position, delivered)
        else:
            raise DataCorrupt("the broker has sent no bytes of an entry that was not the last one")
        if delivered.entry:
            self._parted = (known or entry) if delivered.skip else None
            if self._parted is entry:
                self._session.divided[self.segment, position] = entry
        return entry

    def _known(self, position: Position, delivered: pb.DeliveredEntry) -> ReceivedEntry | None:
        """The entry, if a part of it came before: here, or with its bytes to another consumer of this client."""
        if delivered.entry:
            known = self._session.divided.get((self.segment, position)) if delivered.skip else None
            # ▲ Another topic of this name may have other bytes there, or what came before may be damaged.
            return known if known is not None and known.raw == delivered.entry else None
        return self._parted if self._parted is not None and self._parted.position == position else None

    def on_deliver(self, deliver: pb.Deliver) -> None:
        if self._retiring is not None:
            return
        awaited = self._receiver.is_awaited
        super().on_deliver(deliver)
        if deliver.sharing:
            self._told_sharing(deliver.sharing)
        inbox = self._queue_inbox
        if inbox.pace.idle:
            self._give_back_unbegun(keep=0)  # under way as it became idle
        elif deliver.entries and awaited:
            inbox.starved()
            self._replenish()
        if self._looking is None and inbox.pace.shares and inbox.unbegun:
            self._look_later()

    def _told_sharing(self, sharing: int) -> None:
        """▲ What a consumer keeps that was alone is more than its share."""
        self._queue_inbox.told_sharing(sharing)
        if self._queue_inbox.pace.shares:
            keep = 0 if self._queue_inbox.pace.idle else self._queue_inbox.window
            self._give_back_unbegun(keep=keep)
        due = self._queue_inbox.grant_anew()
        if self._attached:  # otherwise the first grant follows
            self._grant(due)

    def _look_later(self) -> None:
        self._queue_inbox.pace.begin_period(self._queue_inbox.buffered, self._receiver.asks)
        self._looking = self._session.loop.call_later(self._queue_inbox.pace.period_s, self._look)

    def _look(self) -> None:
        """▲ A worker that hangs keeps what it works on, no more."""
        self._looking = None
        inbox, receiver = self._queue_inbox, self._receiver
        if not inbox.pace.shares or not inbox.unbegun or self._link is None or self._retiring is not None:
            return
        # An application that waits takes what there is: it has asked, and only pieces of incomplete values are here.
        if not receiver.is_awaited and (found := inbox.look(receiver.asks)) is not Wait.SHORT:
            self._revoke()
            if found is Wait.UNASKED:
                receiver.pause(self)
            self._give_back_unbegun(keep=0 if found is Wait.UNASKED else inbox.window)
        if inbox.unbegun:
            self._look_later()

    def _revoke(self) -> None:
        """▲ Sent before any message is given back: that message would come again at once."""
        if self._link is not None:
            self._link.push_if_open(pb.Command(flow=pb.Flow(consumer_id=self._consumer_id, revoke=True)))

    def resume(self) -> None:
        self._queue_inbox.pace.resumed()
        self._replenish()

    def pause(self, paused: bool) -> None:
        """▲ A paused segment's messages go to the others: here they would wait without end, also where the application
        waits for other segments, and its waiting would even raise the window."""
        pace = self._queue_inbox.pace
        was_idle, pace.halted = pace.idle, paused
        super().pause(paused)
        if pace.idle and not was_idle:
            self._revoke()
            self._give_back_unbegun(keep=0)
        self._replenish()

    def _give_back_unbegun(self, *, keep: int) -> None:
        self._push_nacks(*self._queue_inbox.take_back(keep=keep), unbegun=True)

    # ---- ack timeout ------------------------------------------------------------------------------------------------

    def _tick_later(self, timeout_s: float) -> None:
        self._ticking = self._session.loop.call_later(timeout_s / TICKS, self._tick, timeout_s)

    def _tick(self, timeout_s: float) -> None:
        self._ticking = None
        late = self._unacked.look(self._queue_inbox.copies)
        if late:
            _log.warning(
                "%d messages of segment://%s are given back: not acked within %s s", len(late), self.segment, timeout_s
            )
            self.nack_nowait(late, 0.0)
        if self._queue_inbox.copies and self._link is not None:
            self._tick_later(timeout_s)

    # ---- giving back ------------------------------------------------------------------------------------------------

    def start_over(self, min_revision: int = 0) -> None:
        self._give_back_held()
        super().start_over(min_revision)

    def _leave_broker(self) -> None:
        self._give_back_held()
        super()._leave_broker()

    def _give_back_held(self) -> None:
        """Before leaving, nack the messages the application holds: this delivery counts, as one of them may have made
        the application close. Buffered messages come again uncounted."""
        self._push_nacks(*self._queue_inbox.held)

    def _push_nacks(
        self, bits: Mapping[Position, int], counts: Mapping[Position, int], *, unbegun: bool = False
    ) -> None:
        """Nack without waiting; without a connection the broker has already taken everything back."""
        if self._link is not None:
            for part in _parts(bits, counts):
                positions = positions_to_wire(part, counts)
                nack = pb.Nack(consumer_id=self._consumer_id, positions=positions, unbegun=unbegun)
                self._link.push_if_open(pb.Command(nack=nack))

    def nack_nowait(self, messages: Sequence[Message[Any]], delay_s: float) -> list[asyncio.Future[None]]:
        """Give them back, to be delivered again after the delay. The futures resolve when the broker has answered.

        Messages no longer held have been given back already, as are all when a connection is lost.
        """
        counts = {position: message.entry.count for message in messages for position in message.entry.positions}
        given = self._queue_inbox.give_back(messages)
        return [self._nack(part, counts, delay_s) for part in _parts(given, counts)]

    def _nack(
        self, bits: Mapping[Position, int], counts: Mapping[Position, int], delay_s: float
    ) -> asyncio.Future[None]:
        answered: asyncio.Future[None] = self._session.loop.create_future()
        link = self._link
        if link is None or link.closed:
            answered.set_result(None)
            return answered
        nack = pb.Nack(
            consumer_id=self._consumer_id,
            positions=positions_to_wire(bits, counts),
            delay_ms=round(delay_s * 1000),
        )
        try:
            answer = link.call_nowait(pb.Command(nack=nack), timeout_s=self._session.timeout_s)
        except ConnectionLost:
            answered.set_result(None)
        except TxnError as error:
            self._not_taken(error, answered)
        else:
            answer.add_done_callback(partial(self._nack_answered, answered))
        return answered

    def _nack_answered(self, answered: asyncio.Future[None], answer: asyncio.Future[pb.Command]) -> None:
        if answered.done():
            return
        error = ConnectionLost("cancelled") if answer.cancelled() else answer.exception()
        if error is None or isinstance(error, ConnectionLost):
            answered.set_result(None)
        elif isinstance(error, TxnError):
            self._not_taken(error, answered)

    def _not_taken(self, error: TxnError, answered: asyncio.Future[None]) -> None:
        """The broker refused the nack: attach again, which gives everything back. ▲ Otherwise these messages would stay
        with this consumer for ever, unprocessed."""
        self._leave_broker()
        if isinstance(error, TRANSIENT):
            answered.set_result(None)
        else:
            answered.set_exception(error)
            answered.exception()  # every caller retrieves it

    # ---- for dead letters -------------------------------------------------------------------------------------------

    def ack_nowait(
        self, messages: Sequence[Message[Any]], txn: TransactionImpl, deadline: Deadline
    ) -> list[asyncio.Future[None]]:
        return self.acks.ack(messages, txn, deadline)

    def settled(self, count: int) -> None:
        self._queue_inbox.set_free(count)
        self._replenish()


def _parts(bits: Mapping[Position, int], counts: Mapping[Position, int]) -> Iterator[dict[Position, int]]:
    """Split the bitmaps into parts that fit one command."""
    part: dict[Position, int] = {}
    size = 0
    for position, named in bits.items():
        part[position] = named
        size += POSITION_BYTES + (counts[position] >> 3)
        if len(part) >= MAX_POSITIONS or size >= MAX_BYTES:
            yield part
            part, size = {}, 0
    if part:
        yield part
