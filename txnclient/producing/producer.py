"""`Producer`, as applications use it; `ProducerImpl` does the work."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from datetime import timedelta
from types import TracebackType
from typing import Generic

from txnclient.connection.deadlines import within
from txnclient.connection.opening import closed_behind
from txnclient.producing.bulk import SentIds
from txnclient.producing.producer_impl import ProducerImpl
from txnclient.serializers import V
from txnclient.transactions.transaction import Transaction, impl_of
from txnwire.entry import Columns, OutgoingMessage
from txnwire.ids import MessageId


class Producer(Generic[V]):
    """Sends messages to a topic; made by `client.producer(topic)`. It stores sends of one key, and sends without key in
    one batch, in order. It follows splits and merges of segments, and readers see the same order across them."""

    def __init__(self, impl: ProducerImpl[V]) -> None:
        self._impl = impl

    def __repr__(self) -> str:
        return repr(self._impl)

    @property
    def name(self) -> str:
        return self._impl.name

    @property
    def topic(self) -> str:
        return self._impl.topic

    @property
    def last_sequence_id(self) -> int:
        """The highest sequence id known to be stored, -1 for none. Of a numbered producer, the id behind which its
        source may go on: every id of the source up to it is stored, also at opening."""
        return self._impl.last_sequence_id

    async def send(
        self,
        value: V,
        *,
        key: str | bytes | None = None,
        properties: Mapping[str, str] | None = None,
        event_time_ms: int | None = None,
        txn: Transaction | None = None,
        chunk: bool = False,
        sequence_id: int | None = None,
        deliver_after: float | timedelta | None = None,
        deliver_at_ms: int | None = None,
        timeout: float | None = None,
    ) -> MessageId:
        """Send one message and wait until it is stored; waits for room in the buffer, in the order of asking.
        `timeout` in seconds; None, and at most: the client's.

        `chunk`: send a value over 5 MiB in pieces, within a transaction; the pieces appear together or not at all. The
        id is the first piece's.

        `sequence_id`: of a numbered producer, the message's id in its source. Ids ascend, with any gaps; one that is
        passed over counts as stored. An id that is stored, also by an earlier life of the producer, is not stored
        again: the call returns, with an empty segment and position (0, -1) in the `MessageId` where the place is not
        known. One that timed out or was cancelled may be sent again, and is stored once.

        `deliver_after` (seconds or a timedelta) or `deliver_at_ms` (ms since 1970): queue subscriptions deliver the
        message then, or later, on the broker's clock; at most 30 days from now; a time that has passed: at once.
        Streams and readers are given it at once, in order. Until it is acked it counts as unread.

        Raises `TxnConflict`, `InvalidTxnState`, `MessageTooLarge`, `ProducerFenced`, `NotAllowed` (a numbered producer
        at a broker of an older release), `StoreFull`; `Timeout`: its fate is unknown; `OutcomeUnknown`: whether it was
        stored is no longer known; `TopicNotFound`: the topic was deleted (open a new producer to write to a new
        topic of the name); `ExpiredTransaction`: the client was fenced. A cancelled send may still be stored. In a
        transaction it is part of it from the call on: after a failure or a cancel the transaction can only abort.
        """
        sending = self._impl.send(
            value,
            key=key,
            properties=properties,
            event_time_ms=event_time_ms,
            txn=impl_of(txn),
            chunk=chunk,
            sequence_id=sequence_id,
            deliver_after=deliver_after,
            deliver_at_ms=deliver_at_ms,
        )
        if timeout is None:
            return await sending
        return await within(sending, timeout, f"sending to {self.topic}")

    def send_nowait(
        self,
        value: V,
        *,
        key: str | bytes | None = None,
        properties: Mapping[str, str] | None = None,
        event_time_ms: int | None = None,
        txn: Transaction | None = None,
        sequence_id: int | None = None,
        deliver_after: float | timedelta | None = None,
        deliver_at_ms: int | None = None,
    ) -> asyncio.Future[MessageId]:
        """Queue one message; the future resolves when it is stored. Raises `WouldBlock` when the buffer is full, or
        other sends wait for room in it, `MessageTooLarge`, `InvalidTxnState`; the future has what `send` raises.
        `sequence_id`, `deliver_after`, `deliver_at_ms`: as in `send`.

        Without a transaction, check the future: the next `flush` or `close` raises a failure that was not retrieved. In
        one, its commit waits for it and raises its failure; an abort fails unsent messages with `InvalidTxnState`.
        After a cancel of the future the transaction can only abort.
        """
        return self._impl.send_nowait(
            value,
            key=key,
            properties=properties,
            event_time_ms=event_time_ms,
            txn=impl_of(txn),
            sequence_id=sequence_id,
            deliver_after=deliver_after,
            deliver_at_ms=deliver_at_ms,
        )

    async def send_many(
        self,
        messages: Iterable[V | tuple[str | bytes | None, V] | OutgoingMessage] | Columns,
        *,
        txn: Transaction | None = None,
        deliver_after: float | timedelta | None = None,
        deliver_at_ms: int | None = None,
        timeout: float | None = None,
    ) -> SentIds:
        """Send values, (key, value) pairs, `OutgoingMessage`s, or `Columns` (values and optional keys, properties and
        event times) in bulk, and wait until all are stored.

        It makes no object per message and fills entries of `batch_bytes`; it reads an iterator as room in the buffer
        allows. Returns their ids, a sequence in the order of `messages`. Raises the first failure, as `send` does, or
        the iterator's error, once all sent messages are answered. These may be stored then, as after a cancel; in a
        transaction none counts, because it can only abort. `timeout` in seconds, of the whole call; None: the client's,
        of each entry. `deliver_after`, `deliver_at_ms`: as in `send`, one time for all, counted from the call on.
        """
        sending = self._impl.send_many(
            messages, txn=impl_of(txn), deliver_after=deliver_after, deliver_at_ms=deliver_at_ms
        )
        return await within(sending, timeout, f"sending to {self.topic}")

    async def flush(self, *, timeout: float | None = None) -> None:
        """Wait until everything sent so far is stored, also sends that wait for room in the buffer. Raises the first
        failure among them, as `send` does, or an earlier unreported one (also of an open transaction). `timeout` in
        seconds; None: the client's."""
        await self._impl.flush(timeout=timeout)

    async def close(self) -> None:
        """Send gathered messages and wait, at most 5 s; messages not stored by then fail. Idempotent. Raises the first
        unreported failure outside transactions, as `send` does, after it has closed the producer."""
        await self._impl.close()

    async def __aenter__(self) -> Producer[V]:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await closed_behind(self.close, error)


def producer_impl(producer: Producer[V]) -> ProducerImpl[V]:
    """The implementation, for the other parts of the client."""
    return producer._impl
