"""`process` and `process_batches` without `await`: the handler runs in the calling thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any

import txnclient.producing.producer
from txnclient.batch_pace import BatchPace
from txnclient.consuming.consumer import consumer_impl
from txnclient.consuming.received.message import Message
from txnclient.handlers import BatchWork, Handled, Handler, MessageWork, handle_plainly, producers_by_name
from txnclient.processing import Limits, Processing, ProcessStatistics
from txnclient.serializers import V
from txnclient.sync.bridge import RunInCaller
from txnclient.sync.consumer import Consumer
from txnclient.sync.producer import Producer
from txnclient.sync.transaction import Transaction
from txnclient.transactions.transaction import Transaction as AsyncTransaction

STOP_POLL_S = 0.02
"""How often to poll a `threading.Event`, which cannot wake an event loop."""

Producers = Producer[Any] | Mapping[str, Producer[Any]] | None


def process(
    consumer: Consumer[V],
    handler: Handler[V],
    producers: Producers = None,
    *,
    batch_messages: int = 500,
    batch_bytes: int = 4 * 1024 * 1024,
    linger_ms: float = 5,
    txn_timeout: float = 60.0,
    commits_under_way: int = 4,
    stop: threading.Event | None = None,
    max_messages: int | None = None,
    idle_timeout: float | None = None,
    patience: float = 120.0,
) -> ProcessStatistics:
    """As `txnclient.process`, with a plain handler, which runs in this thread and may use the synchronous face.

    `stop` is a `threading.Event`. Ctrl-C ends it at once; uncommitted messages are handled again."""
    inner: Any = producers
    if isinstance(producers, Mapping):
        inner = {name: one._inner for name, one in producers.items()}
    elif producers is not None:
        inner = producers._inner
    chosen: dict[str | None, txnclient.producing.producer.Producer[Any]] = producers_by_name(inner)
    ordered = consumer.type == "stream"

    def run(run_in_caller: RunInCaller) -> Coroutine[Any, Any, ProcessStatistics]:
        async def work(messages: Sequence[Message[V]]) -> list[Handled]:
            begun_s = clock.monotonic()
            handled = await run_in_caller(lambda: _handle_all(handler, messages, ordered))
            pace.worked(len(handled), clock.monotonic() - begun_s)
            return handled

        return _run(consumer, MessageWork(work, chosen), limits, stop, pace)

    limits = Limits(
        batch_messages=batch_messages,
        batch_bytes=batch_bytes,
        linger_ms=linger_ms,
        txn_timeout=txn_timeout,
        commits_under_way=commits_under_way,
        stop=None,
        max_messages=max_messages,
        idle_timeout=idle_timeout,
        patience=patience,
    )
    clock, pace = consumer_impl(consumer._inner).session.clock, BatchPace(limits.batch_messages)
    return consumer._bridge.serve(run)


def process_batches(
    consumer: Consumer[V],
    handler: Callable[[Sequence[Message[V]], Transaction], None],
    *,
    batch_messages: int = 500,
    batch_bytes: int = 4 * 1024 * 1024,
    linger_ms: float = 5,
    txn_timeout: float = 60.0,
    commits_under_way: int = 4,
    stop: threading.Event | None = None,
    max_messages: int | None = None,
    idle_timeout: float | None = None,
    patience: float = 120.0,
) -> ProcessStatistics:
    """As `txnclient.process_batches`, with a plain handler, which runs in this thread and sends through the synchronous
    face."""
    bridge = consumer._bridge

    def run(run_in_caller: RunInCaller) -> Coroutine[Any, Any, ProcessStatistics]:
        async def work(messages: Sequence[Message[V]], txn: AsyncTransaction) -> None:
            await run_in_caller(lambda: handler(messages, Transaction(bridge, txn)))

        return _run(consumer, BatchWork(work), limits, stop)

    limits = Limits(
        batch_messages=batch_messages,
        batch_bytes=batch_bytes,
        linger_ms=linger_ms,
        txn_timeout=txn_timeout,
        commits_under_way=commits_under_way,
        stop=None,
        max_messages=max_messages,
        idle_timeout=idle_timeout,
        patience=patience,
    )
    return bridge.serve(run)


def _handle_all(handler: Handler[V], messages: Sequence[Message[V]], ordered: bool) -> list[Handled]:
    """Handle the whole batch in one call to the caller's thread."""
    handled: list[Handled] = []
    for message in messages:
        handled.append(handle_plainly(handler, message))
        if handled[-1].error is not None and ordered:
            break
    return handled


async def _run(
    consumer: Consumer[Any],
    work: MessageWork | BatchWork,
    limits: Limits,
    stop: threading.Event | None,
    pace: BatchPace | None = None,
) -> ProcessStatistics:
    if stop is None:
        return await Processing(consumer_impl(consumer._inner), work, limits, pace).run()
    stopping = asyncio.Event()

    async def watch() -> None:
        while not stop.is_set():  # noqa: ASYNC110 - a threading.Event cannot be awaited
            await asyncio.sleep(STOP_POLL_S)
        stopping.set()

    watching = asyncio.create_task(watch(), name="process: stop")
    try:
        return await Processing(consumer_impl(consumer._inner), work, replace(limits, stop=stopping), pace).run()
    finally:
        watching.cancel()
