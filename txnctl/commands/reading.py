"""`txnctl read` and `txnctl topics peek`: reads messages without a subscription and changes no position."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

import txnclient
from txnclient.consuming.places.starts import StartArgument
from txnctl.commands.piping import IsolationOption, Null, Topic, write
from txnctl.commands.shared.asking import DEFAULT_URL, Url, connected, start_of
from txnctl.commands.shared.lines import as_json
from txnctl.commands.shared.output import Format, Output, show_json, show_rows
from txnctl.commands.shared.running import run
from txnctl.commands.shared.typed import TIMES
from txnwire.errors import InvalidArgument, TxnError
from txnwire.ids import Position, TxnId
from txnwire.snapshot import SegmentBounds

AT_ONCE = 1000
WAIT_S = 3600.0
SHOWN_BYTES = 60
LATEST = "latest"

From = Annotated[str, typer.Option("--from", help=f"earliest, a snapshot's file, a message id, or a time: {TIMES}")]
To = Annotated[str | None, typer.Option("--to", help="a snapshot's file, or a time, as for --from; default: as of now")]
At = Annotated[
    str | None,
    typer.Option(help="the topic as of this moment: a file that `txnctl snapshot -o json` wrote, or a time"),
]


def read(
    topic: Topic,
    start: From = "earliest",
    to: To = None,
    at: At = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="continue with new messages, until Ctrl-C")] = False,
    count: Annotated[int | None, typer.Option(min=1, help="stop after so many messages")] = None,
    isolation: Annotated[
        IsolationOption, typer.Option(help="uncommitted: also messages of open and aborted transactions")
    ] = IsolationOption.COMMITTED,
    null: Null = False,
    output: Annotated[
        Format, typer.Option("--output", "-o", help="table: the value alone; json: all of it")
    ] = Format.TABLE,
    url: Url = DEFAULT_URL,
) -> None:
    """Print messages, one a line, without a subscription and without acks.

    A time is that of sending. A transaction is shown whole or not at all: one that sent anything after the end is left
    out."""
    if at is not None and (to is not None or follow or start != "earliest"):
        raise InvalidArgument("--at reads the whole topic as of one moment: leave out --from, --to and --follow")
    if to is not None and follow:
        raise InvalidArgument("--follow has no end: leave out --to")
    first = _bound(start, "--from")
    last = None if (text := to or at) is None else _bound(text, "--to" if at is None else "--at")
    if isinstance(last, txnclient.MessageId | str) and last != LATEST:
        raise InvalidArgument(f"--to {text}: expected a snapshot's file or a time")

    async def work() -> None:
        async with connected(url) as client:
            left = count
            async for messages in _between(client, topic, first, last, follow, isolation.value):
                shown = messages if left is None else messages[:left]
                if not write(shown, output, b"\0" if null else b"\n"):
                    return
                left = None if left is None else left - len(shown)
                if left == 0:
                    return

    run(work())


def peek(
    topic: Topic,
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="the number of newest messages")] = 10,
    output: Output = Format.TABLE,
    url: Url = DEFAULT_URL,
) -> None:
    """The newest committed messages of a topic, oldest of them first; `txnctl read` shows all."""

    async def work() -> None:
        async with connected(url) as client:
            newest = await _newest(client, topic, count)
        if output is Format.JSON:
            show_json([_row(message) for message in newest])
            return
        rows = [_row(message) | {"value": _shown(message.data)} for message in newest]
        columns = ["sent", "key", "value", "txn_id", "segment", "position"]
        show_rows(rows, columns, output, empty=f"nothing is committed in {topic}")

    run(work())


Bound = StartArgument | txnclient.Snapshot


def _bound(text: str, option: str) -> Bound:
    """Raises `InvalidArgument` that names the option."""
    path = Path(text)
    try:
        if path.is_file():
            return txnclient.Snapshot.from_json(path.read_text())
        return start_of(text)
    except OSError as error:
        raise InvalidArgument(f"{option} {text}: {error.strerror}") from error
    except (TxnError, ValueError) as error:
        told = f"{text} is no snapshot as `txnctl snapshot -o json` writes it" if path.is_file() else str(error)
        raise InvalidArgument(f"{option}: {told.removeprefix('start ')}") from error


async def _between(
    client: txnclient.Client, topic: str, first: Bound, last: Bound | None, follow: bool, isolation: str
) -> AsyncIterator[list[txnclient.Message[bytes]]]:
    if isinstance(last, str) and last == LATEST:
        last = None
    end: txnclient.Snapshot | str | None = last if isinstance(last, txnclient.Snapshot) else None if follow else LATEST
    until_ms: int | None = None
    late: set[TxnId | None] = set()
    if last is not None and not isinstance(last, txnclient.Snapshot):
        until_ms = int(last.timestamp() * 1000) if isinstance(last, datetime) else int(str(last))
        end = await client.snapshot(topic)
        async for messages in _reading(client, topic, until_ms + 1, end, isolation):
            late |= {one.txn_id for one in messages if one.publish_time_ms > until_ms}
        late.discard(None)
    async for messages in _reading(client, topic, first, end, isolation):
        yield [
            one for one in messages if until_ms is None or (one.publish_time_ms <= until_ms and one.txn_id not in late)
        ]


async def _reading(
    client: txnclient.Client, topic: str, start: Bound, end: txnclient.Snapshot | str | None, isolation: str
) -> AsyncIterator[list[txnclient.Message[bytes]]]:
    async with await client.reader(topic, start=start, end=end, isolation=isolation) as reader:
        while not reader.ended:
            yield await reader.receive_many(AT_ONCE, timeout=WAIT_S)


async def _newest(client: txnclient.Client, topic: str, count: int) -> list[txnclient.Message[bytes]]:
    """Reads the last entries of the newest ledgers; where those are too few, more and more ledgers."""
    end, ledgers = await client.snapshot(topic), 0
    while True:
        start = _before(end, count, ledgers)
        newest: list[txnclient.Message[bytes]] = []
        try:
            async for messages in _reading(client, topic, start or "earliest", end, "read_committed"):
                newest = sorted([*newest, *messages], key=lambda one: (one.publish_time_ms, one.position))[-count:]
        except txnclient.DataTrimmed:
            if start is None:
                raise
            ledgers = sys.maxsize  # retention has taken what stands there: what is kept is read
            continue
        if start is None or len(newest) >= count:
            return newest
        ledgers = 2 * ledgers + 1


def _before(end: txnclient.Snapshot, entries: int, ledgers: int) -> txnclient.Snapshot | None:
    """A snapshot so many entries, or if it is not 0 so many ledgers, before the end of each segment; None if that is
    before the first one of all."""
    topics, reaches = {}, False
    for name, bounds in end.topics.items():
        segments = {}
        for path, one in bounds.segments.items():
            at = Position(one.end.ledger_id, max(-1, one.end.entry_id - entries))
            if ledgers:
                at = Position(max(0, one.end.ledger_id - ledgers), -1)
            reaches = reaches or at.ledger_id > 0
            segments[path] = SegmentBounds(at, at)
        topics[name] = bounds._replace(segments=segments)
    return replace(end, topics=topics, pending=(), aborted=(), losers=(), counted={}) if reaches else None


def _row(message: txnclient.Message[bytes]) -> dict[str, Any]:
    row: dict[str, Any] = json.loads(as_json(message))
    sent = datetime.fromtimestamp(message.publish_time_ms / 1000).astimezone()
    return row | {"sent": sent.isoformat(timespec="milliseconds")}


def _shown(data: bytes) -> str:
    text = data[:SHOWN_BYTES].decode(errors="replace").replace("\n", "⏎")
    return text + "…" * (len(data) > SHOWN_BYTES)
