"""`txnctl bench`: produce, consume or whole transactions against a running cluster, with rates and percentiles.

Ctrl-C ends it early and shows the measurements so far.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from typing import Annotated, Any

import typer

import txnclient
from txnctl.bench.load import Call, CallLoad
from txnctl.commands.shared.asking import DEFAULT_URL, Url, connected
from txnctl.commands.shared.groups import group
from txnctl.commands.shared.output import Format, Output, cell, say, show_json
from txnctl.commands.shared.running import run
from txnctl.commands.shared.typed import seconds as seconds_option
from txnctl.commands.shared.typed import size as size_option
from txnwire.clock import SystemClock
from txnwire.protocol import MAX_CHUNKED_BYTES

app = group("Load on a running cluster: rates, percentiles, errors.")

DIFFERENT_VALUES = 1024
PROGRESS_EVERY_S = 1.0
RECEIVE_S = 0.5
MOST = 1_000_000
"""▲ Of any number: all calls that are due are begun in one turn of the loop, which heeds no Ctrl-C meanwhile."""

Topic = Annotated[str, typer.Argument(help="topic://tenant/namespace/name")]
Seconds = Annotated[float, seconds_option(least=0.1, help="for how long")]
Rate = Annotated[
    float | None,
    typer.Option(min=0.1, max=MOST, help="calls a second, each timed from when it was due; default: as many as go"),
]
Concurrency = Annotated[int, typer.Option(min=1, max=MOST, help="calls at once, where no rate is given")]
Size = Annotated[int, size_option(help="bytes of a message, which are random", most=MAX_CHUNKED_BYTES)]
Create = Annotated[int | None, typer.Option(min=1, help="create the topic first, with so many segments")]


@app.command()
def produce(
    topic: Topic,
    size: Size = 100,
    batch: Annotated[int, typer.Option(min=1, max=MOST, help="messages a call: 1 sends, more send in bulk")] = 1,
    concurrency: Concurrency = 64,
    rate: Rate = None,
    seconds: Seconds = 10.0,
    compression: Annotated[str, typer.Option(help="zstd, lz4 or none")] = "zstd",
    create: Create = None,
    output: Output = Format.TABLE,
    url: Url = DEFAULT_URL,
) -> None:
    """Send messages without transactions; a call ends when the broker has stored it durably."""
    load = CallLoad(SystemClock(), seconds=seconds, concurrency=concurrency, per_second=rate)

    async def work() -> None:
        values = _values(size)
        async with connected(url) as client:
            await _created(client, topic, create)
            async with await client.producer(topic, compression=_compression(compression)) as producer:

                async def send() -> tuple[int, int]:
                    if batch == 1:
                        await producer.send(values[load.measured.calls % len(values)])
                    else:
                        await producer.send_many([values[number % len(values)] for number in range(batch)])
                    return batch, batch * size

                await _measured(load, [send])

    _run(work(), load, "calls" if batch > 1 else "messages", output)


@app.command()
def consume(
    topic: Topic,
    subscription: Annotated[str, typer.Option("--subscription", "-s", help="it is created if it is new")] = "bench",
    kind: Annotated[str, typer.Option("--type", help="stream or queue")] = "stream",
    consumers: Annotated[int, typer.Option(min=1, max=MOST, help="in this process")] = 1,
    batch: Annotated[int, typer.Option(min=1, max=MOST, help="messages taken and acked at once, at most")] = 1000,
    start: Annotated[str, typer.Option(help="where a new subscription begins: earliest or latest")] = "earliest",
    seconds: Seconds = 10.0,
    output: Output = Format.TABLE,
    url: Url = DEFAULT_URL,
) -> None:
    """Receive and ack. Latency: from the newest message's publish time to having it, by the clocks of both ends."""
    clock = SystemClock()
    load = CallLoad(clock, seconds=seconds, concurrency=consumers, per_second=None)

    async def work() -> None:
        async with connected(url) as client, AsyncExitStack() as stack:
            opened = [
                await stack.enter_async_context(
                    await client.consumer(topic, subscription, type=kind, start=start, prefetch=max(1000, 2 * batch))
                )
                for _ in range(consumers)
            ]
            await _measured(load, [_receiving(consumer, batch, load, clock) for consumer in opened])

    _run(work(), load, "messages", output)


def _receiving(consumer: txnclient.Consumer, batch: int, load: CallLoad, clock: SystemClock) -> Call:
    async def receive() -> None:
        messages = await consumer.receive_many(batch, timeout=RECEIVE_S)
        if not messages:
            return
        measured, now_ms = load.measured, clock.wall_ms()
        measured.calls += len(messages)
        measured.messages += len(messages)
        measured.bytes += sum(len(message.data) for message in messages)
        for message in messages:
            measured.latencies.record(max(0, now_ms - message.publish_time_ms) / 1000)
        await consumer.ack(messages)

    return receive


@app.command()
def transactions(
    topic: Topic,
    size: Size = 100,
    messages: Annotated[int, typer.Option(min=0, max=MOST, help="sent in each transaction")] = 1,
    abort: Annotated[float, typer.Option(min=0.0, max=1.0, help="share of them that is aborted")] = 0.0,
    concurrency: Concurrency = 64,
    rate: Rate = None,
    seconds: Seconds = 10.0,
    create: Create = None,
    output: Output = Format.TABLE,
    url: Url = DEFAULT_URL,
) -> None:
    """Begin, send, commit. Latency: of the whole transaction."""
    load = CallLoad(SystemClock(), seconds=seconds, concurrency=concurrency, per_second=rate)

    async def work() -> None:
        values = _values(size)
        async with connected(url) as client:
            await _created(client, topic, create)
            async with await client.producer(topic) as producer:
                aborting = 0.0

                async def one() -> tuple[int, int]:
                    nonlocal aborting
                    aborting += abort
                    txn = await client.begin()
                    for number in range(messages):
                        producer.send_nowait(values[number % len(values)], txn=txn)
                    if aborting >= 1.0:
                        aborting -= 1.0
                        await txn.abort()
                    else:
                        await txn.commit()
                    return messages, messages * size

                await _measured(load, [one])

    _run(work(), load, "transactions", output)


# ---- running ----


async def _measured(load: CallLoad, calls: list[Call]) -> None:
    """Runs the load; shows progress on a terminal."""
    telling = asyncio.create_task(_tell(load)) if sys.stderr.isatty() else None
    try:
        await load.run(calls)
    finally:
        if telling is not None:
            telling.cancel()
            print(file=sys.stderr)


async def _tell(load: CallLoad) -> None:
    while True:
        await asyncio.sleep(PROGRESS_EVERY_S)
        done = load.measured
        rate = done.calls / done.seconds
        print(f"\r{done.seconds:4.0f} s  {done.calls:,} done, {rate:,.0f}/s ", end="", file=sys.stderr, flush=True)


def _run(work: Coroutine[Any, Any, None], load: CallLoad, calls: str, output: Format) -> None:
    """Exit code 1 if no call succeeded. Shows the measurements however the run ended."""
    try:
        run(_all_failed(work, load))
    finally:
        if load.measured.began_s:
            _show(load.measured.as_row(calls), output)


async def _all_failed(work: Coroutine[Any, Any, None], load: CallLoad) -> int:
    await work
    return int(load.measured.calls == 0 and bool(load.measured.errors))


def _show(row: dict[str, Any], output: Format) -> None:
    if output is Format.JSON:
        show_json(row)
        return
    width = max(map(len, row)) + 2
    for name, value in row.items():
        shown = value
        if name == "latency_ms":
            shown = ", ".join(f"{share} {'-' if ms is None else f'{ms:,.2f}'}" for share, ms in value.items())
        elif name == "errors":
            shown = ", ".join(f"{error} {count:,}" for error, count in value.items()) or "none"
        else:
            shown = cell(value)
        say(f"{name.replace('_', ' '):<{width}}{shown}")


async def _created(client: txnclient.Client, topic: str, segments: int | None) -> None:
    if segments is not None:
        await client.create_topic(topic, segments=segments)


def _compression(name: str) -> str | None:
    return None if name == "none" else name


def _values(size: int) -> list[bytes]:
    """Random, so that nothing compresses them; few enough to fit a processor's cache if they are small."""
    return [os.urandom(size) for _ in range(DIFFERENT_VALUES if size <= 4096 else 16)]
