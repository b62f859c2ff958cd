"""Moves messages of a queue subscription that were delivered too often to another topic, each exactly once.

▲ The move is one transaction that sends the copy and acks the original, so no crash loses or doubles a message. If a
move fails, the consumer nacks the message and moves it after a later redelivery.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from txnclient.connection.deadlines import Deadline
from txnclient.connection.opening import Opening
from txnclient.connection.session import Session
from txnclient.connection.topic_layout import TopicLayout
from txnclient.consuming.places.starts import check_count
from txnclient.consuming.received.message import Message
from txnclient.producing.producer import Producer
from txnclient.transactions.transaction import Transaction, TransactionState, transaction_impl
from txnclient.transactions.transaction_impl import TransactionImpl
from txnwire.errors import (
    InvalidArgument,
    InvalidTxnState,
    MessageTooLarge,
    NotAllowed,
    OutcomeUnknown,
    SubscriptionNotFound,
    TopicExists,
    TopicNotFound,
    TxnError,
)
from txnwire.names import TopicName
from txnwire.protocol import MAX_VALUE_BYTES

ORIGIN_TOPIC = "dlq.topic"
ORIGIN_MESSAGE_ID = "dlq.message_id"
ORIGIN_SUBSCRIPTION = "dlq.subscription"
REDELIVERIES = "dlq.redeliveries"

MOVE_TIMEOUT_S = 30.0
CLOSE_TIMEOUT_S = 2.0
"""How long closing a consumer waits for moves; the rest is delivered to another consumer."""

_PASSING = (InvalidTxnState, NotAllowed, MessageTooLarge, TopicNotFound, SubscriptionNotFound, OutcomeUnknown)
"""Errors that fail one move only. ▲ A deleted topic is one: the next move makes a topic of dead letters again, and a
deleted topic of the message ends only its own feed, one of many under a pattern. The unknown outcome of a copy is one,
too (its segment has left the topic): its transaction is aborted."""

_log = logging.getLogger("txnclient")


class Services(Protocol):
    """The client's calls that a move needs."""

    @property
    def transaction_key(self) -> str | None: ...
    async def create_topic(self, topic: str, *, segments: int = 1) -> TopicLayout: ...
    def producer(self, topic: str) -> Opening[Producer[bytes]]: ...
    async def begin(self, *, timeout: float = 60.0) -> Transaction: ...


class DeadMessageHolder(Protocol):
    """The feed that received a dead message: acks it in a transaction, or gives it back."""

    def ack_nowait(
        self, messages: Sequence[Message[Any]], txn: TransactionImpl, deadline: Deadline
    ) -> list[asyncio.Future[None]]: ...
    def nack_nowait(self, messages: Sequence[Message[Any]], delay_s: float) -> list[asyncio.Future[None]]: ...
    def settled(self, count: int) -> None:
        """`count` of the messages it handed over are moved or given back."""


@dataclass(frozen=True, slots=True)
class DeadLetterPolicy:
    """When a message is dead, and where it goes. `topic`: None for each topic's own, `<topic>-<subscription>-DLQ`."""

    services: Services
    max_redeliveries: int
    topic: str | None

    @classmethod
    def of(cls, services: Services, max_redeliveries: int | None, topic: str | None) -> DeadLetterPolicy | None:
        """None if redelivery has no limit. Raises `InvalidArgument`."""
        if max_redeliveries is None:
            if topic is not None:
                raise InvalidArgument("a dead_letter_topic needs max_redeliveries: after how many a message goes there")
            return None
        check_count(max_redeliveries, "max_redeliveries", "redeliveries", least=0)
        return cls(services, max_redeliveries, None if topic is None else str(TopicName.parse(topic)))

    def topic_for(self, origin: str, subscription: str) -> str:
        return self.topic or f"{origin}-{subscription}-DLQ"

    def check(self, topics: Sequence[str], subscription: str) -> None:
        """▲ Raises `InvalidArgument` if no message of these topics could be moved: otherwise the first dead message
        would stop one worker after another."""
        if self.topic in topics:
            raise InvalidArgument(
                f"dead_letter_topic {self.topic!r} is a topic of this consumer, so dead letters would come back to it "
                "for ever: name another one"
            )
        for origin in topics:
            target = self.topic_for(origin, subscription)
            try:
                TopicName.parse(target)
            except InvalidArgument as error:
                raise InvalidArgument(
                    f"the dead letters of {origin} would go to {target!r}, whose name is too long: give a "
                    "dead_letter_topic, or the subscription a shorter name"
                ) from error


class DeadLetters:
    """Moves dead messages of one consumer's feeds in the background, one entry at a time to each topic. ▲ A topic that
    takes none must not hold up the others: each try takes half a minute."""

    def __init__(
        self,
        session: Session,
        policy: DeadLetterPolicy,
        subscription: str,
        *,
        redelivery_delay_s: float,
        on_failed: Callable[[TxnError], None],
    ) -> None:
        """`on_failed` receives errors that no retry cures, e.g. that the dead-letter topic may not be created."""
        self._session = session
        self._policy = policy
        self._subscription = subscription
        self._redelivery_delay_s = redelivery_delay_s
        self._on_failed = on_failed
        self._producers: dict[str, Producer[bytes]] = {}
        self._waiting: dict[str, deque[tuple[DeadMessageHolder, list[Message[Any]]]]] = {}
        """By the topic that they go to. Bounded by the feeds: they grant no permits for messages waiting here."""
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._moved = 0
        self._closed = False

    @property
    def moved(self) -> int:
        """Messages moved so far."""
        return self._moved

    def is_dead(self, message: Message[Any]) -> bool:
        return message.redelivery_count > self._policy.max_redeliveries

    def put(self, holder: DeadMessageHolder, messages: list[Message[Any]]) -> None:
        """Queue messages of one entry for moving."""
        target = self._target(messages)
        self._waiting.setdefault(target, deque()).append((holder, messages))
        if target not in self._tasks and not self._closed:
            moving = self._move_all(target, self._waiting[target])
            self._tasks[target] = self._session.tasks.start(moving, name="dead letters", on_failed=self._on_failed)

    def _target(self, messages: list[Message[Any]]) -> str:
        return self._policy.topic_for(messages[0].topic, self._subscription)

    async def _move_all(self, target: str, waiting: deque[tuple[DeadMessageHolder, list[Message[Any]]]]) -> None:
        try:
            while waiting:
                holder, messages = waiting[0]
                try:
                    await self._move(holder, messages)
                except TxnError as error:
                    await self._give_back(holder, messages, error)
                waiting.popleft()
                holder.settled(len(messages))
            del self._waiting[target]
        finally:
            del self._tasks[target]

    async def _move(self, holder: DeadMessageHolder, messages: list[Message[Any]]) -> None:
        """Move the messages. Raises the error if nothing was moved."""
        producer = await self._producer(self._target(messages))
        txn = await self._policy.services.begin(timeout=MOVE_TIMEOUT_S)
        try:
            for message in messages:
                try:
                    await self._send(producer, message, self._origin(message), txn)
                except MessageTooLarge:  # at the size limit: omit its origin
                    await self._send(producer, message, {}, txn)
            holder.ack_nowait(messages, transaction_impl(txn), self._session.deadline())
            await txn.commit()
        except TxnError as error:
            if txn.state is TransactionState.COMMITTING:
                # The outcome is unknown: retry once, then settle in the background.
                await txn.commit()
            else:
                await self._abort(txn, error)
                raise
        finally:
            transaction_impl(txn).settle_later()  # if cancelled, or the outcome is unknown
        self._moved += len(messages)

    async def _send(
        self, producer: Producer[bytes], message: Message[Any], origin: dict[str, str], txn: Transaction
    ) -> None:
        data = message.data
        await producer.send(
            data,
            key=message.key,
            properties={**message.properties, **origin},
            event_time_ms=message.event_time_ms,
            txn=txn,
            chunk=len(data) > MAX_VALUE_BYTES,
        )

    async def _abort(self, txn: Transaction, error: TxnError) -> None:
        try:
            await txn.abort()
        except TxnError as failure:
            error.add_note(f"and aborting transaction {txn.id} failed: {failure}")

    def _origin(self, message: Message[Any]) -> dict[str, str]:
        return {
            ORIGIN_TOPIC: message.topic,
            ORIGIN_MESSAGE_ID: str(message.id),
            ORIGIN_SUBSCRIPTION: self._subscription,
            REDELIVERIES: str(message.redelivery_count),
        }

    async def _producer(self, topic: str) -> Producer[bytes]:
        producer = self._producers.get(topic)
        if producer is None:
            try:
                producer = await self._policy.services.producer(topic)
            except TopicNotFound:
                await self._create(topic)
                producer = await self._policy.services.producer(topic)
            self._producers[topic] = producer
        return producer

    async def _create(self, topic: str) -> None:
        try:
            await self._policy.services.create_topic(topic, segments=1)
        except TopicExists as error:
            _log.debug("another client was first: %s", error)

    async def _give_back(self, holder: DeadMessageHolder, messages: list[Message[Any]], error: TxnError) -> None:
        _log.warning("moving %d messages of %s to the dead letters: %s", len(messages), messages[0].topic, error)
        if not (error.retriable or error.requires_abort or isinstance(error, _PASSING)):
            self._on_failed(error)
        holder.nack_nowait(messages, self._redelivery_delay_s)
        # Kept for what a retry cures: a broker remembers each producer for an hour, and a full disk refuses many moves.
        if not error.retriable and (producer := self._producers.pop(self._target(messages), None)) is not None:
            await producer.close()

    async def close(self) -> None:
        """Wait for the current moves, at most 2 s."""
        self._closed = True
        try:
            if self._tasks:
                await asyncio.wait(tuple(self._tasks.values()), timeout=CLOSE_TIMEOUT_S)
        finally:
            # ▲ First: after its producer is closed, a task would open another for the next message, never closed.
            if left := tuple(self._tasks.values()):
                for task in left:
                    task.cancel()
                await asyncio.wait(left)
            await asyncio.gather(*(producer.close() for producer in self._producers.values()))
