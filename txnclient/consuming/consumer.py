"""`Consumer`, as applications use it; `ConsumerImpl` does the work."""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import Any, Generic

from txnclient.consuming.consumer_impl import ConsumerImpl
from txnclient.consuming.message import Message
from txnclient.consuming.starts import StartArgument
from txnclient.serializers import V
from txnclient.transactions.transaction import Transaction, impl_of


class Consumer(Generic[V]):
    """Receives and acks messages of a subscription; made by `client.consumer(topics, subscription)`.

    For a stream the controller assigns segments, and may move them to other consumers at any time. Messages not acked
    by then, or acked in a transaction that aborts, are delivered again to the segment's current consumer. For a queue
    every consumer is attached to all segments, and unacked messages are delivered again to any of them.
    """

    def __init__(self, impl: ConsumerImpl[V]) -> None:
        self._impl = impl

    def __repr__(self) -> str:
        return repr(self._impl)

    @property
    def name(self) -> str:
        return self._impl.name

    @property
    def subscription(self) -> str:
        return self._impl.subscription

    @property
    def topics(self) -> list[str]:
        return self._impl.topics

    @property
    def type(self) -> str:
        """`"stream"` or `"queue"`."""
        return self._impl.type

    @property
    def segments(self) -> list[str]:
        """Paths of the segments assigned to this consumer now."""
        return self._impl.segments

    async def receive(self, timeout: float | None = None) -> Message[V]:
        """The next message. Raises `Timeout` when none has come within `timeout` seconds (None: the client's
        timeout)."""
        return await self._impl.receive(timeout)

    async def receive_many(self, max_messages: int, timeout: float | None = None) -> list[Message[V]]:
        """The buffered messages, at least one and at most `max_messages`; an empty list when `timeout` seconds have
        passed."""
        return await self._impl.receive_many(max_messages, timeout)

    def __aiter__(self) -> Consumer[V]:
        return self

    async def __anext__(self) -> Message[V]:
        """Waits without limit; ends when the consumer is closed."""
        return await self._impl.next()

    async def ack(self, messages: Message[Any] | Iterable[Message[Any]], *, txn: Transaction | None = None) -> None:
        """Ack messages, at once or when `txn` commits.

        Raises `TxnConflict` (another transaction has acked one of them, or it is delivered again: this one can only
        abort), `InvalidTxnState`, `NotAllowed` if a segment has left this consumer, `Timeout`; a fenced client raises
        `ExpiredTransaction` instead. A transaction in which an ack has failed or was cancelled can only abort.
        """
        await self._impl.ack(messages, txn=impl_of(txn))

    async def ack_cumulative(self, message: Message[Any], *, txn: Transaction | None = None) -> None:
        """For a stream: ack `message` and every message this consumer received before it, in every segment.

        It skips unacked messages of a segment that has left the consumer since, or that is delivered again after an
        abort: they come again, here or elsewhere. In a transaction that raises `TxnConflict`. It skips messages from
        before a `rewind` or a `seek`. Raises as `ack` does, naming the segment; the acks of the others stand, and the
        call may be repeated.
        """
        await self._impl.ack_cumulative(message, txn=impl_of(txn))

    async def nack(self, messages: Message[Any] | Iterable[Message[Any]], *, delay: float | None = None) -> None:
        """For a queue: request redelivery after `delay` seconds (None: the consumer's redelivery_delay), to any
        consumer, with a redelivery_count of one more.

        Skips messages no longer held (acked, given back, received over a lost connection).
        """
        await self._impl.nack(messages, delay=delay)

    async def seek(self, start: StartArgument, *, timeout: float | None = None) -> None:
        """Move the subscription, for all its consumers, to `start` in all segments: "earliest", "latest", a timestamp
        in ms, an aware datetime, or a MessageId. With a MessageId other segments start at their earliest message, and
        ancestors of its segment are skipped.

        Acked messages from `start` on are delivered again; messages received before the seek can no longer be acked
        (`NotAllowed`). Waits for open transactions that have acked. Raises `Timeout` or another retriable error: some
        segments may have been moved, repeat it.
        """
        await self._impl.seek(start, timeout=timeout)

    def rewind(self) -> None:
        """For a stream: request redelivery of all unacked messages from the earliest on, as after an aborted
        transaction. For a queue: give back all held messages, as after a lost connection.

        Use it for messages that were received but, after a failure, not acked in any way.
        """
        self._impl.rewind()

    async def close(self) -> None:
        """Give the segments back and leave the subscription; bounded, idempotent. Acks under way fail."""
        await self._impl.close()

    async def __aenter__(self) -> Consumer[V]:
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()


def consumer_impl(consumer: Consumer[V]) -> ConsumerImpl[V]:
    """What the other parts of the client use of it."""
    return consumer._impl
