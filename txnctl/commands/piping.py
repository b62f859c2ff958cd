"""`txnctl produce` and `txnctl consume`: good citizens of a pipe."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import typer

import txnclient
from txnctl.commands.asking import DEFAULT_URL, Url, connected
from txnctl.commands.output import Format
from txnctl.commands.running import run
from txnwire.errors import InvalidArgument

CHUNK_MESSAGES = 1000
READ_BYTES = 65536
CHUNKS_AHEAD = 4
SHOWN_BYTES = 80

Topic = Annotated[str, typer.Argument(help="topic://tenant/namespace/name")]


def produce(
    topic: Topic,
    key_field: Annotated[
        str | None, typer.Option(help="lines are JSON objects; this field is the message's key")
    ] = None,
    txn: Annotated[int, typer.Option(min=0, help="so many messages a transaction; 0: no transactions")] = 0,
    timeout: Annotated[float, typer.Option(min=0.1, help="seconds a transaction may stay open")] = 60.0,
    url: Url = DEFAULT_URL,
) -> None:
    """Send every line of standard input as one message. Says on standard error how many were sent."""

    async def work() -> None:
        sent = _Sent()
        async with connected(url) as client, await client.producer(topic) as producer:
            try:
                if txn:
                    await _produce_in_transactions(client, producer, key_field, txn, timeout, sent)
                else:
                    await _produce_plain(producer, key_field, sent)
            finally:  # also after an error or Ctrl-C: whoever goes on must know from where
                print(f"{sent.messages} messages sent to {topic}", file=sys.stderr)

    run(work())


def consume(
    topic: Topic,
    subscription: Annotated[str, typer.Option("--subscription", "-s", help="its position is kept under this name")],
    count: Annotated[int | None, typer.Option(min=1, help="stop after so many messages")] = None,
    idle: Annotated[float | None, typer.Option(min=0.01, help="stop when nothing came for so many seconds")] = None,
    start: Annotated[str, typer.Option(help="where a new subscription begins: earliest or latest")] = "earliest",
    isolation: Annotated[str, typer.Option(help="read_committed")] = "read_committed",
    output: Annotated[
        Format, typer.Option("--output", "-o", help="table: the value alone; json: all of it")
    ] = Format.TABLE,
    url: Url = DEFAULT_URL,
) -> None:
    """Print messages, one a line, and ack them once they are printed. Runs until --count, --idle or Ctrl-C."""

    async def work() -> None:
        async with (
            connected(url) as client,
            await client.consumer(topic, subscription, start=start, isolation=isolation) as consumer,
        ):
            await _consume(consumer, count, idle, output)

    run(work())


@dataclass
class _Sent:
    """`lines` have been read, `messages` are stored (in a transaction: committed)."""

    lines: int = 0
    messages: int = 0

    def keyed(self, lines: list[bytes], key_field: str | None) -> Iterator[tuple[bytes | None, bytes]]:
        for line in lines:
            self.lines += 1
            yield _keyed(line, key_field, self.lines)


async def _produce_plain(producer: txnclient.Producer, key_field: str | None, sent: _Sent) -> None:
    async for lines in _stdin_chunks():
        await producer.send_many(list(sent.keyed(lines, key_field)))
        sent.messages = sent.lines


async def _produce_in_transactions(
    client: txnclient.Client,
    producer: txnclient.Producer,
    key_field: str | None,
    size: int,
    timeout_s: float,
    sent: _Sent,
) -> None:
    waiting = list[tuple[bytes | None, bytes]]()

    async def send(messages: list[tuple[bytes | None, bytes]]) -> None:
        async with client.transaction(timeout=timeout_s) as txn:
            await producer.send_many(messages, txn=txn)
        sent.messages += len(messages)

    async for lines in _stdin_chunks():
        for message in sent.keyed(lines, key_field):
            waiting.append(message)
            if len(waiting) == size:
                await send(waiting)
                waiting.clear()
    if waiting:
        await send(waiting)


def _keyed(line: bytes, key_field: str | None, number: int) -> tuple[bytes | None, bytes]:
    if key_field is None:
        return None, line
    try:
        record = msgspec.json.decode(line, type=dict[str, Any])
    except msgspec.DecodeError as error:
        found = line[:SHOWN_BYTES].decode(errors="replace")
        raise InvalidArgument(f"line {number}: --key-field needs one JSON object a line, found {found!r}") from error
    if key_field not in record:
        found = line[:SHOWN_BYTES].decode(errors="replace")
        raise InvalidArgument(f"line {number}: no field {key_field!r} for --key-field in {found!r}")
    key = record[key_field]
    return (None if key is None else str(key).encode()), line


async def _stdin_chunks() -> AsyncIterator[list[bytes]]:
    """Lines of standard input as they come, without their ends; at most a few chunks are read ahead.

    A daemon thread reads, because a blocked read of a terminal cannot be cancelled and must not keep Ctrl-C waiting.
    """
    loop, chunks = asyncio.get_running_loop(), asyncio.Queue[list[bytes] | None](CHUNKS_AHEAD)

    def hand_over(chunk: list[bytes] | None) -> None:
        asyncio.run_coroutine_threadsafe(chunks.put(chunk), loop).result()

    def read() -> None:
        rest = b""
        while data := os.read(sys.stdin.fileno(), READ_BYTES):
            *lines, rest = (rest + data).split(b"\n")
            hand_over(lines)
        hand_over([rest] if rest else [])
        hand_over(None)

    threading.Thread(target=read, name="stdin", daemon=True).start()
    while (chunk := await chunks.get()) is not None:
        if chunk:
            yield [line.removesuffix(b"\r") for line in chunk]


async def _consume(consumer: txnclient.Consumer, count: int | None, idle_s: float | None, output: Format) -> None:
    seen = 0
    while count is None or seen < count:
        wanted = CHUNK_MESSAGES if count is None else min(CHUNK_MESSAGES, count - seen)
        messages = await consumer.receive_many(wanted, timeout=idle_s if idle_s is not None else 3600.0)
        if not messages and idle_s is not None:
            return
        try:
            for message in messages:
                sys.stdout.buffer.write(_line(message, output) + b"\n")
            sys.stdout.buffer.flush()
        except BrokenPipeError:  # the reader of the pipe has gone: what it did not get stays unacked
            sys.stdout = None  # or the interpreter would complain at exit
            return
        await consumer.ack(messages)
        seen += len(messages)


def _line(message: txnclient.Message, output: Format) -> bytes:
    if output is Format.TABLE:
        return message.value
    return msgspec.json.encode(
        {
            "value": message.value.decode(errors="replace"),
            "key": None if message.key is None else message.key.decode(errors="replace"),
            "properties": message.properties,
            "id": str(message.id),
            "topic": message.topic,
            "publish_time_ms": message.publish_time_ms,
            "event_time_ms": message.event_time_ms,
            "producer_name": message.producer_name,
            "sequence_id": message.sequence_id,
            "txn_id": None if message.txn_id is None else str(message.txn_id),
        }
    )
