"""`txnctl produce` and `txnctl consume`, for use in pipes.

Bytes pass unchanged. The reader of the pipe may go at any time: messages that it did not get stay unacked. Standard
error gets one closing line, and progress only on a terminal.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any

import typer

import txnclient
from txnctl.commands.shared.asking import DEFAULT_URL, Url, connected, start_of
from txnctl.commands.shared.lines import Input, PipedMessage, Splitter, as_json, parse, runs
from txnctl.commands.shared.output import Format, show_json
from txnctl.commands.shared.running import run
from txnctl.commands.shared.typed import seconds
from txnwire.errors import InvalidArgument, Timeout, TxnError

CHUNK_MESSAGES = 1000
READ_BYTES = 65536
CHUNKS_AHEAD = 4
PROGRESS_EVERY_S = 0.5
LAST_COMMIT_S = 10.0
"""How long Ctrl-C waits for a commit under way."""

LAG_WITHIN_S = 5.0

WAIT_S = 3600.0
"""Timeout of one receive without other limits; then it is called again."""


class SubscriptionKind(StrEnum):
    STREAM = "stream"
    QUEUE = "queue"


class IsolationOption(StrEnum):
    COMMITTED = "read_committed"
    UNCOMMITTED = "read_uncommitted"


Topic = Annotated[str, typer.Argument(help="topic://tenant/namespace/name")]
Null = Annotated[bool, typer.Option("--null", "-0", help="messages end in a NUL byte instead of a newline")]


def produce(
    topic: Topic,
    key_field: Annotated[
        str | None, typer.Option(help="values are JSON objects; this field is the message's key")
    ] = None,
    txn: Annotated[int, typer.Option(min=0, help="so many messages a transaction; 0: no transactions")] = 0,
    timeout: Annotated[float, seconds(least=0.1, help="how long a transaction may stay open")] = 60.0,
    form: Annotated[
        Input, typer.Option("--input", "-i", help="lines: the value alone; json: as consume -o json writes")
    ] = Input.LINES,
    null: Null = False,
    output: Annotated[
        Format, typer.Option("--output", "-o", help="form of the count at the end: text or a JSON object")
    ] = Format.TABLE,
    url: Url = DEFAULT_URL,
) -> None:
    """Send every line of standard input as one message, byte for byte. Says at the end how many were sent."""

    async def work() -> None:
        sent = _Sent(topic, txn, form, key_field)
        async with connected(url) as client, await client.producer(topic) as producer:
            try:
                await _produce(client, producer, sent, Splitter(b"\0" if null else b"\n"), timeout)
            finally:  # also after an error or Ctrl-C: the count says where to go on
                sent.tell(output)

    run(work())


def consume(
    topic: Topic,
    subscription: Annotated[str, typer.Option("--subscription", "-s", help="its position is kept under this name")],
    kind: Annotated[
        SubscriptionKind, typer.Option("--type", help="stream: in order per key; queue: any free consumer")
    ] = SubscriptionKind.STREAM,
    count: Annotated[int | None, typer.Option(min=1, help="stop after so many messages")] = None,
    idle: Annotated[float | None, seconds(least=0.01, help="stop when nothing came for so long")] = None,
    timeout: Annotated[
        float | None, seconds(least=0.01, help="stop after so long; exit code 1 if --count was not reached")
    ] = None,
    start: Annotated[
        str, typer.Option(help="where a new subscription begins: earliest, latest, a time, a message id")
    ] = "earliest",
    isolation: Annotated[
        IsolationOption, typer.Option(help="uncommitted: also messages of open and aborted transactions")
    ] = IsolationOption.COMMITTED,
    name: Annotated[str | None, typer.Option(help="of this consumer; default: a random one")] = None,
    null: Null = False,
    output: Annotated[
        Format, typer.Option("--output", "-o", help="table: the value alone; json: all of it")
    ] = Format.TABLE,
    url: Url = DEFAULT_URL,
) -> None:
    """Print messages, one a line, and ack them once they are printed. Runs until --count, --idle, --timeout, Ctrl-C.

    The subscription is made if there is none of that name, and stays; `txnctl read` needs none."""

    async def work() -> None:
        at = start_of(start)
        async with (
            connected(url) as client,
            await client.consumer(
                topic, subscription, type=kind.value, start=at, isolation=isolation.value, name=name
            ) as consumer,
        ):
            limits = _Limits(count, idle, timeout)
            whole = await _consume(consumer, limits, output, b"\0" if null else b"\n")
            if whole and output is Format.TABLE and not limits.reached:
                await _tell_unread(consumer)
        if whole and output is Format.TABLE:
            print(_stays(topic, subscription), file=sys.stderr)

    run(work())


async def _tell_unread(consumer: txnclient.Consumer[bytes]) -> None:
    """Nothing more came, which looks like the end of the topic where messages wait for an open transaction."""
    try:
        async with asyncio.timeout(LAG_WITHIN_S):
            unread = (await consumer.lag()).messages
    except (TxnError, TimeoutError) as error:
        print(f"whether more messages are there is not known: {str(error) or 'no answer'}", file=sys.stderr)
        return
    if unread:
        print(
            f"not acked by the subscription: {unread} message{'s' * (unread != 1)}. "
            f"Other consumers have them, an open transaction holds them back "
            f"(`txnctl transactions hanging --older-than 0`), or a queue waits for their time",
            file=sys.stderr,
        )


def _stays(topic: str, subscription: str) -> str:
    return (
        f"subscription {subscription} stays, and continues here the next time; unread messages are kept for it: "
        f"`txnctl subscriptions delete {topic} {subscription}` deletes it, `txnctl read` needs none"
    )


# ---- produce --------------------------------------------------------------------------------------------------------


@dataclass
class _Sent:
    """`lines` have been read, `messages` are stored (in transactions: committed)."""

    topic: str
    per_transaction: int
    form: Input
    key_field: str | None
    lines: int = 0
    messages: int = 0
    transactions: int = 0
    progress: _Progress = field(default_factory=lambda: _Progress())

    def parse(self, lines: list[bytes], found: list[PipedMessage]) -> InvalidArgument | None:
        """Adds the lines before the first wrong one; returns that one's error."""
        for line in lines:
            self.lines += 1
            try:
                found.append(parse(line, self.form, self.key_field, self.lines))
            except InvalidArgument as error:
                return error
        return None

    def add(self, messages: int) -> None:
        self.messages += messages
        self.transactions += self.per_transaction > 0
        self.progress.show(f"{self.messages:,} messages sent")

    def tell(self, output: Format) -> None:
        self.progress.clear()
        if output is Format.JSON:
            show_json({"topic": self.topic, "messages": self.messages, "transactions": self.transactions})
        else:
            print(f"{self.messages} message{'s' * (self.messages != 1)} sent to {self.topic}", file=sys.stderr)


async def _produce(
    client: txnclient.Client, producer: txnclient.Producer[bytes], sent: _Sent, splitter: Splitter, timeout_s: float
) -> None:
    """▲ Stops at the first line that cannot be sent and sends none behind it: so the count says where to go on."""
    waiting: list[PipedMessage] = []
    async for lines in _stdin_chunks(splitter):
        wrong = sent.parse(lines, waiting)
        size = sent.per_transaction or max(1, len(waiting))
        while len(waiting) >= size:
            await _send(client, producer, sent, waiting[:size], timeout_s)
            del waiting[:size]
        if wrong is not None:
            raise wrong
    if waiting:
        await _send(client, producer, sent, waiting, timeout_s)


async def _send(
    client: txnclient.Client,
    producer: txnclient.Producer[bytes],
    sent: _Sent,
    messages: list[PipedMessage],
    timeout_s: float,
) -> None:
    if sent.per_transaction:
        txn: txnclient.Transaction | None = None
        try:
            async with client.transaction(timeout=timeout_s) as txn:
                await _send_in(producer, messages, txn)
        except asyncio.CancelledError:
            # ▲ It may have committed although the answer was lost: a rerun from the count would send it again.
            if txn is not None and await _has_committed(txn):
                sent.add(len(messages))
            raise
    else:
        await _send_in(producer, messages, None)
    sent.add(len(messages))


async def _has_committed(txn: txnclient.Transaction) -> bool:
    """Waits for the outcome of a transaction whose commit was cancelled. Raises `TxnError` if it stays unknown."""
    try:
        await txn.commit(timeout=LAST_COMMIT_S)
    except txnclient.InvalidTxnState:
        return False
    return True


async def _send_in(
    producer: txnclient.Producer[bytes], messages: list[PipedMessage], txn: txnclient.Transaction | None
) -> None:
    for alike in runs(messages):
        if alike[0].plain:
            await producer.send_many([(message.key, message.value) for message in alike], txn=txn)
        else:
            (one,) = alike
            await producer.send(
                one.value, key=one.key, properties=one.properties, event_time_ms=one.event_time_ms, txn=txn
            )


async def _stdin_chunks(splitter: Splitter) -> AsyncIterator[list[bytes]]:
    """Lines of standard input as they come, without their ends; at most a few chunks are read ahead.

    A daemon thread reads, because a blocked read of a terminal cannot be cancelled and must not keep Ctrl-C waiting.
    """
    if sys.stdin is None:
        raise InvalidArgument("standard input is closed: give produce the lines to send")
    loop, chunks = asyncio.get_running_loop(), asyncio.Queue[list[bytes] | TxnError | OSError | None](CHUNKS_AHEAD)
    source = sys.stdin.fileno()

    def hand_over(chunk: list[bytes] | TxnError | OSError | None) -> None:
        asyncio.run_coroutine_threadsafe(chunks.put(chunk), loop).result()

    def read() -> None:
        try:
            while data := os.read(source, READ_BYTES):
                hand_over(splitter.take(data))
        except (TxnError, OSError) as error:  # a folder, or a disk that fails; what was read of a line is no message
            hand_over(error)
            return
        hand_over(splitter.rest())
        hand_over(None)

    threading.Thread(target=read, name="stdin", daemon=True).start()
    while (chunk := await chunks.get()) is not None:
        if isinstance(chunk, TxnError | OSError):
            raise chunk
        if chunk:
            yield chunk


# ---- consume --------------------------------------------------------------------------------------------------------


@dataclass
class _Limits:
    """Stops after `count` messages, after `idle_s` without one, after `timeout_s` in all. None: never."""

    count: int | None
    idle_s: float | None
    timeout_s: float | None
    seen: int = 0
    began_s: float = field(default_factory=time.monotonic)

    @property
    def left_s(self) -> float:
        return WAIT_S if self.timeout_s is None else self.timeout_s - (time.monotonic() - self.began_s)

    @property
    def reached(self) -> bool:
        return self.count is not None and self.seen >= self.count

    @property
    def wanted(self) -> int:
        return CHUNK_MESSAGES if self.count is None else min(CHUNK_MESSAGES, self.count - self.seen)

    def wait_s(self) -> float:
        return max(0.0, min(self.left_s, WAIT_S if self.idle_s is None else self.idle_s))

    def over(self, *, received: int) -> bool:
        """Raises `Timeout` if the time is up before `count` was reached."""
        if self.reached:
            return True
        if self.left_s <= 0:
            if self.count is not None:
                raise Timeout(f"{self.seen} of {self.count} messages came within {self.timeout_s:g} s")
            return True
        return not received and self.idle_s is not None


async def _consume(consumer: txnclient.Consumer[bytes], limits: _Limits, output: Format, end: bytes) -> bool:
    """False if the reader of the pipe has gone."""
    progress = _Progress()
    try:
        while True:
            messages = await consumer.receive_many(limits.wanted, timeout=limits.wait_s())
            if not write(messages, output, end):
                return False
            if messages:
                await consumer.ack(messages)
            limits.seen += len(messages)
            if not sys.stdout.isatty():
                progress.show(f"{limits.seen:,} messages received")
            if limits.over(received=len(messages)):
                return True
    finally:
        progress.clear()


def write(messages: Sequence[txnclient.Message[Any]], output: Format, end: bytes) -> bool:
    """Prints messages; False if the reader of the pipe has gone, and did not get all of them."""
    try:
        for message in messages:
            sys.stdout.buffer.write((message.data if output is Format.TABLE else as_json(message)) + end)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        sys.stdout = None  # or the interpreter would complain at exit
        return False
    return True


class _Progress:
    """Rewrites a progress line on standard error; only on a terminal, and not too often."""

    def __init__(self) -> None:
        self._shown = sys.stderr.isatty()
        self._began_s = self._at = time.monotonic()
        self._dirty = False

    def show(self, what: str) -> None:
        now = time.monotonic()
        if self._shown and now - self._at >= PROGRESS_EVERY_S:
            self._at = now
            self._dirty = True
            print(f"\r\x1b[K{what}, {now - self._began_s:.0f} s", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        if self._dirty:
            self._dirty = False
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
