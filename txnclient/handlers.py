"""Runs a user's handler on messages and sends its outputs in a transaction."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import AsyncGeneratorType, EllipsisType, GeneratorType
from typing import Any

from txnclient.connection.deadlines import Backoff
from txnclient.connection.tasks import OwnedTasks
from txnclient.consuming.consumer_impl import ConsumerImpl
from txnclient.consuming.received.message import Message
from txnclient.producing.producer import Producer, producer_impl
from txnclient.producing.producer_impl import ProducerImpl
from txnclient.serializers import V
from txnclient.transactions.transaction import Transaction, TransactionState, transaction_impl
from txnwire.entry import OutgoingMessage
from txnwire.errors import CallerError, InvalidArgument, InvalidTxnState, NotAllowed, TxnError

ABORT_TIMEOUT_S = 2.0
"""How long to wait for an abort before it goes on in the background."""

_log = logging.getLogger("txnclient")

Producers = Producer[Any] | Mapping[str, Producer[Any]] | None
Handler = Callable[[Message[V]], object]
BatchHandler = Callable[[Sequence[Message[V]], Transaction], Awaitable[None] | None]


@dataclass(frozen=True, slots=True)
class Output:
    """One message to produce. `to`: which of several producers. Without a `key` it takes the key of the message it was
    made from; `key=None` means none."""

    value: Any
    key: str | bytes | EllipsisType | None = ...
    properties: Mapping[str, str] | None = None
    event_time_ms: int | None = None
    to: str | None = None


Prepared = tuple[ProducerImpl[Any], OutgoingMessage, int]
"""A producer, the message it sends, and the message's size."""


@dataclass(slots=True)
class Handled:
    """A handler's outputs for one message, or the error it raised."""

    message: Message[Any]
    outputs: list[Output] = field(default_factory=list)
    prepared: list[Prepared] = field(default_factory=list)
    error: Exception | None = None


class HandlerFailed(Exception):
    """Carries an error that a handler raised."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


async def handle(handler: Handler[V], message: Message[V]) -> Handled:
    """Run the handler to its end; its outputs are sent only after that."""
    try:
        given = handler(message)
        if inspect.isawaitable(given):
            given = await given
        if isinstance(given, AsyncGeneratorType):
            given = [one async for one in given]
        return Handled(message, outputs_of(given, message))
    except asyncio.CancelledError as error:
        return Handled(message, error=cancelled_within(error))
    except Exception as error:  # noqa: BLE001 - the user's code; the loop decides
        return Handled(message, error=error)


def cancelled_within(error: asyncio.CancelledError) -> RuntimeError:
    """The failure of a handler that awaited something cancelled. ▲ Raises `error` itself if the processing loop is
    cancelled: it would never stop otherwise."""
    task = asyncio.current_task()
    if task is None or task.cancelling():
        raise error
    failure = RuntimeError("the handler awaited something that was cancelled")
    failure.__cause__ = error
    return failure


def handle_plainly(handler: Handler[V], message: Message[V]) -> Handled:
    """As `handle`, for a handler that does not await."""
    try:
        return Handled(message, outputs_of(handler(message), message))
    except Exception as error:  # noqa: BLE001 - the user's code; the loop decides
        return Handled(message, error=error)


def outputs_of(given: object, message: Message[Any]) -> list[Output]:
    """The outputs that a handler returned for `message`, with keys and event times."""
    if given is None:
        return []
    several: Iterable[object] = given if isinstance(given, (list, tuple, GeneratorType)) else (given,)
    return [
        _completed(one, message)
        if isinstance(one, Output)
        else Output(one, message.key, event_time_ms=message.event_time_ms)
        for one in several
    ]


def _completed(output: Output, message: Message[Any]) -> Output:
    return Output(
        output.value,
        message.key if output.key is ... else output.key,
        output.properties,
        message.event_time_ms if output.event_time_ms is None else output.event_time_ms,
        output.to,
    )


def producers_by_name(producers: Producers) -> dict[str | None, Producer[Any]]:
    if producers is None:
        return {}
    if isinstance(producers, Mapping):
        chosen: dict[str | None, Producer[Any]] = dict(producers.items())
        if len(chosen) == 1:
            chosen[None] = next(iter(producers.values()))
        return chosen
    return {None: producers}


class MessageWork:
    """Runs a handler of single messages and sends its outputs."""

    def __init__(
        self,
        handle: Callable[[Sequence[Message[Any]]], Awaitable[list[Handled]]],
        producers: Mapping[str | None, Producer[Any]],
    ) -> None:
        self._handle = handle
        self._producers = producers

    async def do(self, step: HandlerStep) -> None:
        handled = await self._handle(step.messages)
        for one in handled:
            if one.error is None:
                self._prepare(one)
            if one.error is not None:
                step.refuse(one.message, one.error)
        done = [one for one in handled if one.error is None]
        if not done or (step.refused and step.ordered):
            return
        await step.begin()
        for one in done:
            for prepared in one.prepared:
                await self._send(prepared, step.begun)
                step.outputs += 1

    def _prepare(self, one: Handled) -> None:
        """▲ Check all outputs before sending any: an output that cannot be sent fails this message, not the others of
        its batch."""
        producers = [producer_impl(self._producer_of(output)) for output in one.outputs]
        try:
            for producer, output in zip(producers, one.outputs, strict=True):
                key: Any = output.key  # completed
                prepared = producer.prepared(output.value, key, output.properties, output.event_time_ms)
                one.prepared.append((producer, *prepared))
        except CallerError as error:
            one.error = error

    def _producer_of(self, output: Output) -> Producer[Any]:
        producer = self._producers.get(output.to)
        if producer is None and not self._producers:
            raise InvalidArgument("the handler gives something back, and there is no producer to send it with")
        if producer is None:
            known = ", ".join(repr(name) for name in self._producers if name is not None) or "none"
            raise InvalidArgument(f"the handler produces to {output.to!r}: the producers given by name are {known}")
        return producer

    async def _send(self, prepared: Prepared, txn: Transaction) -> None:
        producer, message, size = prepared
        (await producer.accepted(message, size, transaction_impl(txn))).add_done_callback(_looked_at)


def _looked_at(stored: asyncio.Future[Any]) -> None:
    """Retrieve its failure, which the transaction reports."""
    if not stored.cancelled():
        stored.exception()


class BatchWork:
    """Runs a handler of whole batches, which sends its own outputs."""

    def __init__(self, handle: Callable[[Sequence[Message[Any]], Transaction], Awaitable[None]]) -> None:
        self._handle = handle

    async def do(self, step: HandlerStep) -> None:
        await step.begin()
        try:
            await self._handled(step)
        except Exception as error:
            if passes(error):
                raise
            if len(step.messages) > 1:
                raise HandlerFailed(error) from error
            await step.abort(error)
            step.refuse(step.messages[0], error)

    async def _handled(self, step: HandlerStep) -> None:
        try:
            await self._handle(step.messages, step.begun)
        except asyncio.CancelledError as error:
            raise cancelled_within(error) from error


def passes(error: BaseException) -> bool:
    """Whether to retry the same messages after a transaction failed with this error."""
    if not isinstance(error, TxnError) or error.fatal:
        return False
    return error.retriable or error.requires_abort or isinstance(error, (InvalidTxnState, NotAllowed))


# ---- one batch ------------------------------------------------------------------------------------------------------


class PrefetchedTransaction:
    """Begins the next batch's transaction while the current one is in use, if there is a next batch and the client may
    have two open."""

    def __init__(self, consumer: ConsumerImpl[Any], timeout_s: float, tasks: OwnedTasks) -> None:
        self._consumer = consumer
        self._timeout_s = timeout_s
        self._tasks = tasks
        self._beginning: asyncio.Task[None] | None = None
        self._begun: Transaction | None = None

    def prepare(self) -> None:
        if self._beginning is None and self._consumer.services.transaction_key is None:
            self._beginning = self._tasks.start(self._begin(), name="process: begin")

    async def _begin(self) -> None:
        try:
            self._begun = await self._consumer.services.begin(timeout=self._timeout_s)
        except TxnError as error:
            _log.debug("beginning ahead: %s", error)  # `take` begins again, and raises the error

    async def take(self) -> Transaction:
        """The transaction begun ahead, or a new one if half of its time has passed. Raises what `begin` does."""
        if self._beginning is not None:
            await asyncio.wait((self._beginning,))
            begun = self._begun
            now = self._consumer.session.clock.monotonic()
            if begun is not None and transaction_impl(begun).expires_at - now > self._timeout_s / 2:
                self._beginning = self._begun = None
                return begun
            await self.drop()
        return await self._consumer.services.begin(timeout=self._timeout_s)

    async def drop(self) -> None:
        """Abort it, in the background if that takes long."""
        if self._beginning is None:
            return
        await asyncio.wait((self._beginning,))
        begun, self._beginning, self._begun = self._begun, None, None
        if begun is not None:
            try:
                await begun.abort(timeout=ABORT_TIMEOUT_S)
            except TxnError as error:
                _log.debug("aborting transaction %s, which was begun ahead: %s", begun.id, error)
            finally:
                transaction_impl(begun).settle_later()

    def settle_later(self) -> None:
        """As `drop`, in the background, because the loop is cancelled."""
        begun, self._begun = self._begun, None
        if begun is not None:
            transaction_impl(begun).settle_later()


class HandlerStep:
    """Handles one batch in its transaction, and commits or aborts it."""

    def __init__(
        self, consumer: ConsumerImpl[Any], messages: list[Message[Any]], begun_ahead: PrefetchedTransaction
    ) -> None:
        self.messages = messages
        self.outputs = 0
        self.refused: list[tuple[Message[Any], Exception]] = []
        self.error: TxnError | None = None
        """Why it was not committed."""
        self.done = False
        self.ordered = consumer.type == "stream"
        self._consumer = consumer
        self._begun_ahead = begun_ahead
        self._txn: Transaction | None = None

    async def begin(self) -> None:
        self._txn = await self._begun_ahead.take()

    @property
    def begun(self) -> Transaction:
        if self._txn is None:
            raise InvalidTxnState("no transaction was begun for this batch")
        return self._txn

    @property
    def has_begun(self) -> bool:
        return self._txn is not None

    def refuse(self, message: Message[Any], error: Exception) -> None:
        self.refused.append((message, error))

    @property
    def accepted(self) -> list[Message[Any]]:
        refused = dict.fromkeys(id(message) for message, _ in self.refused)
        return [message for message in self.messages if id(message) not in refused]

    async def commit(self) -> None:
        """Commit, and retry until the outcome is known or the transaction has certainly timed out."""
        txn, session = self.begun, self._consumer.session
        backoff = Backoff(session.random)
        while True:
            try:
                await txn.commit()
                self.done = True
                return
            except TxnError as error:
                unknown = error.retriable and txn.state is TransactionState.COMMITTING
                if not unknown or session.clock.monotonic() > transaction_impl(txn).expires_at:
                    raise
                _log.debug("the outcome of %s is asked for again: %s", txn.id, error)
            await asyncio.sleep(backoff.next_s())

    async def abort(self, error: BaseException) -> None:
        """Abort because of `error`; sets `done` if the transaction has in fact committed.

        ▲ For a stream, repeat until the outcome is definite or the transaction has certainly timed out: while it is
        open, its acked messages are not redelivered, and messages behind them would be handled first."""
        txn, self._txn = self._txn, None
        if txn is None or self.done:
            return
        try:
            await self._abort(txn, error)
        finally:
            transaction_impl(txn).settle_later()

    def settle_later(self) -> None:
        """Settle the transaction in the background: see `TransactionImpl.settle_later`."""
        if self._txn is not None:
            transaction_impl(self._txn).settle_later()

    async def _abort(self, txn: Transaction, error: BaseException) -> None:
        session = self._consumer.session
        backoff = Backoff(session.random)
        while True:
            try:
                self.done = await txn.abort(timeout=ABORT_TIMEOUT_S) is TransactionState.COMMITTED
                return
            except TxnError as failure:
                unknown = failure.retriable and txn.state is TransactionState.ABORTING
                goes_on = self.ordered and isinstance(error, TxnError) and passes(error)
                if not unknown or not goes_on or session.clock.monotonic() > transaction_impl(txn).expires_at:
                    error.add_note(f"and aborting transaction {txn.id} failed: {type(failure).__name__}: {failure}")
                    return
                _log.debug("the abort of %s is asked for again: %s", txn.id, failure)
            await asyncio.sleep(backoff.next_s())
