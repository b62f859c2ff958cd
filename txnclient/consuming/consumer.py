"""`Consumer`, as applications use it; `ConsumerImpl` does the work."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Generic

from txnclient.connection.deadlines import within
from txnclient.consuming.consumer_impl import ConsumerImpl
from txnclient.consuming.places.lag import Lag
from txnclient.consuming.places.positions import Positions
from txnclient.consuming.places.starts import StartArgument
from txnclient.consuming.received.by_segment import as_list
from txnclient.consuming.received.message import Message
from txnclient.serializers import V
from txnclient.transactions.transaction import Transaction, impl_of, transaction_impl


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

    async def lag(self) -> Lag:
        """How far the subscription is behind, over all its consumers: messages not acked, and the age of the oldest,
        in all segments of its topics, also those that no consumer has attached to yet.

        Messages acked in a transaction count until it commits. Messages of open transactions count, and those of
        aborted ones until the subscription has gone past them. With a `topics_pattern` it is None, not known,
        while one of the topics has just come or goes. Raises `SubscriptionNotFound`, `TopicNotFound`, `Timeout`.
        """
        return await self._impl.lag()

    async def positions(self) -> Positions:
        """Where the subscription stands, over all its consumers: in each segment the first message that is not acked.

        For `start=` of a reader or of a new subscription, and for `seek`; `to_json` makes text of it. What is acked
        behind the first unacked message comes again from there. Raises `SubscriptionNotFound`, `TopicNotFound`;
        `Timeout`, `NotOwner` while a segment has no owner.
        """
        return await self._impl.positions()

    def pause(self, segments: Iterable[str] | None = None) -> None:
        """Hand out no more messages of these segments (paths, as in `segments`; None: of all, also those that come
        later), not even such as are in the buffer, until `resume`. The consumer keeps the segments.

        It holds while segments go to other consumers and come back. A segment that a split or merge makes of paused
        ones is paused. Raises `InvalidArgument` for what is no segment of its topics.
        """
        self._impl.pause(segments)

    def resume(self, segments: Iterable[str] | None = None) -> None:
        """Hand out these segments' messages again (None: of all); others that are paused stay so. Raises as `pause`."""
        self._impl.resume(segments)

    @property
    def paused(self) -> list[str]:
        """Paths of the segments assigned to this consumer now that are paused."""
        return self._impl.paused

    async def receive(self, timeout: float | None = None) -> Message[V]:
        """The next message. Raises `Timeout` when none has come within `timeout` seconds (None: waits without
        limit), `TopicNotFound`, `SubscriptionNotFound` (one of them was deleted), `DataCorrupt`, `Overloaded` (pieces
        of large values fill its memory)."""
        return await self._impl.receive(timeout)

    async def receive_many(self, max_messages: int, timeout: float | None = None) -> list[Message[V]]:
        """The buffered messages, at least one and at most `max_messages`; an empty list when none has come within
        `timeout` seconds (None: waits without limit). Raises what `receive` does otherwise."""
        return await self._impl.receive_many(max_messages, timeout)

    def __aiter__(self) -> Consumer[V]:
        return self

    async def __anext__(self) -> Message[V]:
        """Waits without limit; ends when the consumer is closed."""
        return await self._impl.next()

    async def ack(
        self,
        messages: Message[Any] | Iterable[Message[Any]],
        *,
        txn: Transaction | None = None,
        timeout: float | None = None,
    ) -> None:
        """Ack messages, at once or when `txn` commits. `timeout` in seconds; None, and at most: the client's.

        Raises `TxnConflict` (another transaction has acked one of them, or it is delivered again, e.g. because
        `ack_timeout` has passed: this one can only abort), `InvalidTxnState`, `NotAllowed` if a segment has left this
        consumer, `Overloaded`, `Timeout`; a fenced client raises `ExpiredTransaction` instead. A transaction in which
        an ack has failed or was cancelled can only abort.
        """
        await within(self._impl.ack(messages, txn=impl_of(txn)), timeout, f"acking on consumer {self.name}")

    async def ack_cumulative(
        self, message: Message[Any], *, txn: Transaction | None = None, timeout: float | None = None
    ) -> None:
        """For a stream: ack `message` and every message this consumer received before it, in every segment. `timeout`
        as of `ack`.

        It skips unacked messages of a segment that has left the consumer since, or that is delivered again after an
        abort: they come again, here or elsewhere. In a transaction that raises `TxnConflict`. It skips messages from
        before a `rewind` or a `seek`. Raises what `ack` does, naming the segment; the acks of the others stand, and the
        call may be repeated.
        """
        acking = self._impl.ack_cumulative(message, txn=impl_of(txn))
        await within(acking, timeout, f"acking on consumer {self.name}")

    @asynccontextmanager
    async def transaction(
        self, messages: Message[Any] | Iterable[Message[Any]], *, timeout: float = 60.0
    ) -> AsyncIterator[Transaction]:
        """`async with consumer.transaction(messages) as txn`: a transaction that acks them, committed at the end.

        On any exception it is aborted and the messages are given back, then the exception is raised again: a queue
        delivers them again at once, a stream goes back to its earliest message that is not acked (see `rewind`). So a
        failing block skips nothing. `timeout` in seconds is that of the transaction. Raises what `begin`, `ack` and
        `commit` do; if it is not known whether the commit has taken place, it asks by an abort.
        """
        held = as_list(messages)
        txn = await self._impl.begin_with(held, timeout)
        inside = transaction_impl(txn)
        try:
            try:
                yield txn
            except BaseException as error:
                await self._impl.undo_with(txn, held, error)
                raise
            if not inside.aborting or inside.abandoned:
                await self._impl.commit_with(txn, held)
        finally:
            inside.settle_later()  # if undecided: no other call settles it

    async def nack(self, messages: Message[Any] | Iterable[Message[Any]], *, delay: float | None = None) -> None:
        """For a queue: request redelivery after `delay` seconds (None: the consumer's redelivery_delay), to any
        consumer, with a redelivery_count of one more.

        Skips messages no longer held (acked, given back, received over a lost connection). Raises `NotAllowed` for
        those of a segment that has left this consumer, once the others are given back.
        """
        await self._impl.nack(messages, delay=delay)

    async def seek(self, start: StartArgument, *, timeout: float | None = None) -> None:
        """Move the subscription, for all its consumers, to `start` in all segments: "earliest", "latest", a timestamp
        in ms, an aware datetime, a MessageId, or `Positions`. With a MessageId other segments start at their earliest
        message, and ancestors of its segment are skipped. With positions, topics that they do not name stay.

        Acked messages from `start` on are delivered again; messages received before the seek can no longer be acked
        (`NotAllowed`). Waits for open transactions that have acked. Raises `TopicNotFound`, `SubscriptionNotFound`;
        `Timeout` or another retriable error: some segments may have been moved, repeat it.
        """
        await self._impl.seek(start, timeout=timeout)

    def rewind(self) -> None:
        """For a stream: request redelivery of all unacked messages from the earliest on, as after an aborted
        transaction. For a queue: give back all held messages, as after a lost connection.

        Use it for messages that were received but, after a failure, not acked in any way.
        """
        self._impl.rewind()

    async def unsubscribe(self, *, force: bool = False) -> None:
        """Close the consumer and delete the subscription on all its topics, with all that it has acked.

        While other consumers are connected, it closes this consumer but raises `NotAllowed`, unless `force`. After an
        error repeat it. Raises `NotAllowed`, `DataCorrupt`, `Timeout`.
        """
        await self._impl.unsubscribe(force=force)

    async def close(self) -> None:
        """Give the segments back and leave the subscription; bounded, idempotent. Acks under way fail."""
        await self._impl.close()

    async def __aenter__(self) -> Consumer[V]:
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()


def consumer_impl(consumer: Consumer[V]) -> ConsumerImpl[V]:
    """The implementation, for the other parts of the client."""
    return consumer._impl
