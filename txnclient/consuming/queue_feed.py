"""One segment of a queue subscription, as one of its consumers sees it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from txnclient.connection.deadlines import Deadline
from txnclient.connection.session import TRANSIENT, Session
from txnclient.consuming.acks import MAX_BYTES, MAX_POSITIONS, POSITION_BYTES, positions_to_wire
from txnclient.consuming.dead_letters import DeadLetters
from txnclient.consuming.feed import SubscriptionFeed
from txnclient.consuming.inbox import QueueInbox
from txnclient.consuming.message import Message
from txnclient.consuming.receiver import Receiver
from txnclient.transactions.transaction_impl import TransactionImpl
from txnwire.errors import ConnectionLost, TxnError
from txnwire.ids import Position
from txnwire.proto import txn_pb2 as pb


class QueueFeed(SubscriptionFeed):
    """Feeds a queue's segment to one of its consumers. An unacked message comes again, here or elsewhere: after a
    `nack`, after the abort of a transaction that acked it, and when the connection or this consumer ends."""

    def __init__(
        self,
        session: Session,
        receiver: Receiver,
        segment: str,
        inbox: QueueInbox,
        terms: pb.Subscribe,
        life: Callable[[], int],
        dead_letters: DeadLetters | None,
    ) -> None:
        self._queue_inbox = inbox
        self._dead_letters = dead_letters
        super().__init__(session, receiver, segment, inbox, terms, life)

    def aborted(self, revision: int) -> None:
        """Nothing to do: the broker redelivers only the messages acked in it."""

    def not_acked(self, bits: Mapping[Position, int], counts: Mapping[Position, int]) -> None:
        self._queue_inbox.let_go(bits)
        self._push_nacks(bits, counts)

    def refused(self, messages: Sequence[Message[Any]]) -> None:
        self.nack_nowait(messages, 0.0)

    def _on_detached(self) -> None:
        self._queue_inbox.detached()
        self.acks.detached()

    def take(self, at_most: int) -> list[Message[Any]]:
        """Take messages of one entry, which have one redelivery count: all for the application, or all dead."""
        messages = super().take(at_most)
        if messages and self._dead_letters is not None and self._dead_letters.is_dead(messages[0]):
            self._queue_inbox.put_aside(len(messages))
            self._dead_letters.put(self, messages)
            return []
        return messages

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

    def _push_nacks(self, bits: Mapping[Position, int], counts: Mapping[Position, int]) -> None:
        """Nack without waiting; without a connection the broker has already taken everything back."""
        if self._link is not None:
            for part in _parts(bits, counts):
                nack = pb.Nack(consumer_id=self._consumer_id, positions=positions_to_wire(part, counts))
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
