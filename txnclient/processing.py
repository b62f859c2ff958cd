"""Consume, transform, produce: the loop around a user's handler, each batch in one transaction.

    gather a batch → handler → sends and acks in one transaction → commit, while the next batch is being handled

▲ For a stream, transactions commit in order, and after a failed one no later one commits: its messages are delivered
again, and the messages behind them are handled again after them.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, SupportsIndex

from txnclient.batch_pace import BatchPace
from txnclient.connection.deadlines import Backoff
from txnclient.connection.tasks import OwnedTasks
from txnclient.consuming.consumer import Consumer, consumer_impl
from txnclient.consuming.consumer_impl import ConsumerImpl
from txnclient.consuming.received.by_segment import share_bytes
from txnclient.consuming.received.message import Message
from txnclient.handlers import (
    BatchHandler,
    BatchWork,
    Handled,
    Handler,
    HandlerFailed,
    HandlerStep,
    MessageWork,
    PrefetchedTransaction,
    Producers,
    handle,
    passes,
    producers_by_name,
)
from txnclient.serializers import V
from txnclient.transactions.transaction import Transaction, transaction_impl
from txnwire.errors import InvalidArgument, InvalidTxnState, NotAllowed, TxnError

_log = logging.getLogger("txnclient")


@dataclass(frozen=True, slots=True)
class ProcessStatistics:
    """Counts of a run; all of it is committed."""

    messages: int
    outputs: int
    transactions: int
    again: int
    """How often a transaction failed and its messages were handled again."""
    nacked: int
    """Messages of a queue for which the handler raised an exception."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of one run; `process` explains them."""

    batch_messages: int
    batch_bytes: int
    linger_ms: float
    txn_timeout: float
    commits_under_way: int
    stop: asyncio.Event | None
    max_messages: int | None
    idle_timeout: float | None
    patience: float

    def __post_init__(self) -> None:
        if self.batch_messages < 1 or self.batch_bytes < 1 or self.commits_under_way < 1:
            raise InvalidArgument("batch_messages, batch_bytes and commits_under_way are positive numbers")
        if self.linger_ms < 0 or self.patience < 0 or not self.txn_timeout > 0:
            raise InvalidArgument("linger_ms and patience must not be negative, txn_timeout must be positive")
        # ▲ A number of numpy's may have few bits: counted with it, a batch has no room, or the loop never ends.
        for name in ("batch_messages", "batch_bytes", "commits_under_way", "max_messages"):
            if isinstance(value := getattr(self, name), SupportsIndex):
                object.__setattr__(self, name, value.__index__())
        object.__setattr__(self, "linger_ms", float(self.linger_ms))


async def process(
    consumer: Consumer[V],
    handler: Handler[V],
    producers: Producers = None,
    *,
    batch_messages: int = 500,
    batch_bytes: int = 4 * 1024 * 1024,
    linger_ms: float = 5,
    txn_timeout: float = 60.0,
    commits_under_way: int = 4,
    stop: asyncio.Event | None = None,
    max_messages: int | None = None,
    idle_timeout: float | None = None,
    patience: float = 120.0,
) -> ProcessStatistics:
    """Give every message to `handler`, produce the outputs and ack the message, in one transaction.

    `handler(message)`, plain or `async`, returns None (nothing), a value, an `Output`, or a list, tuple or generator
    of these. `producers`: one, or several by name, for `Output(to=name)`. A message may be handled more than once; its
    outputs and its ack count exactly once. A plain handler runs in the event loop: keep it short.

    A batch takes the messages that are there, up to `batch_messages` or about `batch_bytes`. Of a queue it takes what
    the handler works off in some 50 ms, more where commits are slow: the rest is for other workers. It gathers for
    `linger_ms` only while commits are under way, of which there are `commits_under_way` at most. The loop ends when
    `stop` is set, after `max_messages`, or when nothing has come for `idle_timeout` seconds; otherwise never.

    After a transient failure (a conflict, a lost broker, a segment assigned elsewhere) the messages are handled again;
    if nothing was committed for `patience` seconds, the error is raised. If the handler raises, a stream's loop ends
    and raises that error; a queue's loop nacks the message (which finally becomes a dead letter) and goes on with the
    others of its batch. Whatever is raised, nothing remains half done.
    """
    chosen = producers_by_name(producers)
    behind = consumer_impl(consumer)
    clock = behind.session.clock

    async def work(messages: Sequence[Message[V]]) -> list[Handled]:
        handled: list[Handled] = []
        begun_s = clock.monotonic()
        for message in messages:
            handled.append(await handle(handler, message))
            if handled[-1].error is not None and consumer.type == "stream":
                break
        pace.worked(len(handled), clock.monotonic() - begun_s)
        return handled

    limits = Limits(
        batch_messages=batch_messages,
        batch_bytes=batch_bytes,
        linger_ms=linger_ms,
        txn_timeout=txn_timeout,
        commits_under_way=commits_under_way,
        stop=stop,
        max_messages=max_messages,
        idle_timeout=idle_timeout,
        patience=patience,
    )
    pace = BatchPace(limits.batch_messages)
    return await Processing(behind, MessageWork(work, chosen), limits, pace).run()


async def process_batches(
    consumer: Consumer[V],
    handler: BatchHandler[V],
    *,
    batch_messages: int = 500,
    batch_bytes: int = 4 * 1024 * 1024,
    linger_ms: float = 5,
    txn_timeout: float = 60.0,
    commits_under_way: int = 4,
    stop: asyncio.Event | None = None,
    max_messages: int | None = None,
    idle_timeout: float | None = None,
    patience: float = 120.0,
) -> ProcessStatistics:
    """As `process`, with `handler(messages, txn)`, plain or `async`, which sends in the transaction itself, to any
    topic; the loop acks the messages. A batch of a queue, too, takes up to `batch_messages`: name fewer for long jobs.
    One whose handler raises is handled again one message at a time, to find the ones to nack."""

    async def work(messages: Sequence[Message[V]], txn: Transaction) -> None:
        done = handler(messages, txn)
        if inspect.isawaitable(done):
            await done

    limits = Limits(
        batch_messages=batch_messages,
        batch_bytes=batch_bytes,
        linger_ms=linger_ms,
        txn_timeout=txn_timeout,
        commits_under_way=commits_under_way,
        stop=stop,
        max_messages=max_messages,
        idle_timeout=idle_timeout,
        patience=patience,
    )
    return await Processing(consumer_impl(consumer), BatchWork(work), limits).run()


# ---- the loop -------------------------------------------------------------------------------------------------------


class Processing:
    """One run of the loop."""

    def __init__(
        self,
        consumer: ConsumerImpl[Any],
        work: MessageWork | BatchWork,
        limits: Limits,
        pace: BatchPace | None = None,
    ) -> None:
        """`pace`: bounds a queue's batches; None: only `limits` do."""
        self._pace = pace or BatchPace(limits.batch_messages)
        self._bounded = pace is not None and consumer.type == "queue"
        self._consumer = consumer
        self._session = consumer.session
        self._work = work
        self._limits = limits
        self._ordered = consumer.type == "stream"
        self._one_at_a_time = consumer.services.transaction_key is not None
        self._tasks = OwnedTasks()
        self._begun_ahead = PrefetchedTransaction(consumer, limits.txn_timeout, self._tasks)
        self._under_way: deque[tuple[HandlerStep, asyncio.Task[None]]] = deque()
        self._backoff = Backoff(self._session.random)
        self._progress_at = self._session.clock.monotonic()
        self._waited_s = 0.0
        """For commits, since the last batch was taken up."""
        self._messages = self._outputs = self._transactions = self._again = self._nacked = 0

    async def run(self) -> ProcessStatistics:
        finished = False
        try:
            while True:
                messages = await self._gather()
                try:
                    if messages:
                        await self._take_up(messages)
                        self._settle_done()
                        continue
                    await self._drain()
                except TxnError as error:
                    await self._start_over(error)
                    continue
                if self._over():
                    finished = True
                    return self._statistics()
        finally:
            await self._close(finished)

    def _statistics(self) -> ProcessStatistics:
        return ProcessStatistics(self._messages, self._outputs, self._transactions, self._again, self._nacked)

    def _over(self) -> bool:
        limit = self._limits.max_messages
        return self._stopped() or self._idle or (limit is not None and self._messages + self._nacked >= limit)

    def _stopped(self) -> bool:
        return self._limits.stop is not None and self._limits.stop.is_set()

    # ---- gathering --------------------------------------------------------------------------------------------------

    _idle = False

    async def _gather(self) -> list[Message[Any]]:
        """The next batch; empty if the caller should await the commits under way instead."""
        limits = self._limits
        room = self._at_once
        if limits.max_messages is not None:
            pending = sum(len(step.messages) for step, _ in self._under_way)
            room = min(room, limits.max_messages - self._messages - self._nacked - pending)
        if room <= 0 or self._stopped():
            return []
        # With commits under way, wait only briefly, then look at them.
        wait_s = limits.linger_ms / 1000 if self._under_way else limits.idle_timeout
        messages = await self._receive(room, wait_s)
        if not messages:
            await self._begun_ahead.drop()
            self._idle = not self._under_way and not self._stopped()
            return []
        self._idle = False
        if not self._under_way or not limits.linger_ms:
            return messages
        until = self._session.clock.monotonic() + limits.linger_ms / 1000
        size = sum(map(share_bytes, messages))
        while len(messages) < room and size < limits.batch_bytes:
            left = until - self._session.clock.monotonic()
            more = await self._receive(room - len(messages), left) if left > 0 else []
            if not more:
                break
            messages += more
            size += sum(map(share_bytes, more))
        return messages

    @property
    def _at_once(self) -> int:
        return self._pace.at_once if self._bounded else self._limits.batch_messages

    async def _receive(self, at_most: int, wait_s: float | None) -> list[Message[Any]]:
        """Receive about `batch_bytes`; empty when the time is up (None: never) or the loop is to stop."""
        receive = self._consumer.receive_batch(at_most, self._limits.batch_bytes, wait_s, at_once=self._at_once)
        if self._limits.stop is None:
            return await receive
        receiving = asyncio.ensure_future(receive)
        stopping = asyncio.ensure_future(self._limits.stop.wait())
        try:
            await asyncio.wait((receiving, stopping), return_when=asyncio.FIRST_COMPLETED)
            if receiving.done():
                return receiving.result()
            return []
        finally:
            receiving.cancel()
            stopping.cancel()
            await asyncio.wait((receiving, stopping))

    # ---- a batch ----------------------------------------------------------------------------------------------------

    async def _take_up(self, messages: list[Message[Any]]) -> None:
        try:
            await self._start(messages)
        except HandlerFailed as failure:
            if self._ordered:
                raise failure.error from None
            try:
                for message in messages:
                    await self._start([message])
            except TxnError:
                await self._give_back(messages)
                raise

    async def _start(self, messages: list[Message[Any]]) -> None:
        """Handle the messages, then commit in a separate task. Raises the error that prevented the handling."""
        step = HandlerStep(self._consumer, messages, self._begun_ahead)
        self._waited_s = 0.0
        try:
            while self._one_at_a_time and self._under_way:
                await self._settle_first()
            await self._work.do(step)
            await self._refuse(step)
            if not step.has_begun:
                return
            self._consumer.ack_nowait(step.accepted, txn=transaction_impl(step.begun))
            while len(self._under_way) >= self._limits.commits_under_way:
                await self._settle_first()
            self._pace.waited(self._waited_s)
        except BaseException as error:
            await step.abort(error)
            if not self._ordered and isinstance(error, Exception) and not isinstance(error, HandlerFailed):
                await self._give_back(step.messages)
            raise
        if self._consumer.has_buffered:
            self._begun_ahead.prepare()
        before = self._under_way[-1] if self._ordered and self._under_way else None
        task = self._tasks.start(self._commit(step, before), name="process: commit")
        self._under_way.append((step, task))

    async def _refuse(self, step: HandlerStep) -> None:
        """Queue: nack the messages that the handler refused. Stream, or a transient error: raise it."""
        for message, error in step.refused:
            if self._ordered or passes(error):
                raise error
            _log.warning("message %s is given back: the handler raised %s: %s", message.id, type(error).__name__, error)
        if step.refused:
            await self._consumer.nack([message for message, _ in step.refused])
            self._nacked += len(step.refused)
            self._progressed()

    async def _commit(self, step: HandlerStep, before: tuple[HandlerStep, asyncio.Task[None]] | None) -> None:
        """Sets `step.done` or `step.error`; never raises."""
        try:
            await step.begun.flush()  # send at once, before earlier commits are done
            if before is not None:
                await asyncio.wait((before[1],))
                if not before[0].done:
                    raise NotAllowed("the transaction before this one has failed")
            await step.commit()
        except TxnError as error:
            step.error = error
            await step.abort(error)
        finally:
            step.settle_later()  # if the loop is cancelled

    # ---- the ends of transactions -----------------------------------------------------------------------------------

    def _settle_done(self) -> None:
        """Count the commits that have ended. Raises the first error."""
        while self._under_way and self._under_way[0][1].done():
            self._settle(self._under_way.popleft()[0])

    async def _settle_first(self) -> None:
        step, task = self._under_way[0]
        begun_s = self._session.clock.monotonic()
        await asyncio.wait((task,))
        self._waited_s += self._session.clock.monotonic() - begun_s
        self._under_way.popleft()
        self._settle(step)

    def _settle(self, step: HandlerStep) -> None:
        if not step.done:
            raise step.error or InvalidTxnState("a commit was given up")
        self._messages += len(step.accepted)
        self._outputs += step.outputs
        self._transactions += 1
        self._progressed()

    def _progressed(self) -> None:
        self._progress_at = self._session.clock.monotonic()
        self._backoff.reset()

    async def _drain(self) -> None:
        while self._under_way:
            await self._settle_first()

    async def _start_over(self, error: TxnError) -> None:
        """After a failed transaction: wait for the others, then request redelivery of uncommitted messages."""
        while self._under_way:
            try:
                await self._settle_first()
            except TxnError as other:
                _log.debug("and so has the next: %s", other)
        if not passes(error) or self._session.clock.monotonic() - self._progress_at > self._limits.patience:
            raise error
        _log.info("messages are handled again: %s: %s", type(error).__name__, error)
        self._again += 1
        if self._ordered:
            self._consumer.rewind()
        pause_s = self._backoff.next_s()
        if self._limits.stop is None:
            await asyncio.sleep(pause_s)
        else:
            stopping = asyncio.ensure_future(self._limits.stop.wait())
            await asyncio.wait((stopping,), timeout=pause_s)
            stopping.cancel()

    async def _give_back(self, messages: Sequence[Message[Any]]) -> None:
        """Nack a queue's messages that the failed transaction did not ack; its abort brings back the others."""
        try:
            await self._consumer.nack(messages, delay=0)
        except TxnError as error:
            _log.debug("giving messages back: %s", error)

    async def _close(self, finished: bool) -> None:
        """Wait for commits under way, at most one call timeout; the service settles the rest. Uncommitted messages are
        delivered again, to the next receiver."""
        tasks = [task for _, task in self._under_way]
        try:
            if tasks:
                await asyncio.wait(tasks, timeout=self._session.timeout_s)
            await self._begun_ahead.drop()
        finally:  # also if it is cancelled a second time
            self._begun_ahead.settle_later()
            await self._tasks.close()
            if not finished:
                self._consumer.rewind()
