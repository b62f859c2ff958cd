"""Clients that work on and retry what is retriable: how long their sends take, and what else they meet.

As a program in a container: `python3 load.py URL TOPIC FOLDER`. It works until `FOLDER/stop` is there, then reads back
what it was told is kept, and leaves `FOLDER/report.json`. `FOLDER/committed` says meanwhile how many transactions have
committed; a file `FOLDER/tell` it answers by `FOLDER/told`, all values that were acknowledged by then. Where
`FOLDER/only-read` is there, it leaves what it reads in `FOLDER/read`, and does nothing else.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import txnclient
from txnclient import InvalidTxnState, TxnError

PAUSE_S = 0.05
LOOK_S = 0.1
SHOWN = 5


@dataclass
class Load:
    """`async with` it. `errors`: not retriable, and so a failure; `repeated`: transactions that were begun anew."""

    client: txnclient.Client
    topic: str
    senders: int = 4
    sends_s: list[float] = field(default_factory=list)
    committed: int = 0
    kept: set[bytes] = field(default_factory=set)
    repeated: Counter[str] = field(default_factory=Counter)
    errors: list[str] = field(default_factory=list)
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)
    _stopping: bool = False

    async def __aenter__(self) -> Load:
        await self.client.create_topic(self.topic, segments=4)
        self._tasks = [asyncio.create_task(self._work(number)) for number in range(self.senders)]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stopping = True
        await asyncio.gather(*self._tasks)

    async def _work(self, number: int) -> None:
        async with await self.client.producer(self.topic) as producer:
            count = 0
            while not self._stopping:
                count += 1
                try:
                    begin = time.monotonic()
                    await producer.send(plain := f"{number}-{count} plain".encode(), key=f"key-{number}")
                    self.sends_s.append(time.monotonic() - begin)
                    self.kept.add(plain)
                    await self._transaction(producer, f"{number}-{count}")
                except TxnError as error:
                    self.errors.append(repr(error))
                await asyncio.sleep(PAUSE_S)

    async def _transaction(self, producer: txnclient.Producer, name: str) -> None:
        """Once more under another number where it was aborted, or where an error says that it may be repeated."""
        for attempt in range(20):
            values = [f"{name}.{attempt} {part}".encode() for part in "ab"]
            try:
                async with self.client.transaction() as txn:
                    for value in values:
                        await producer.send(value, key=value.decode(), txn=txn)
            except TxnError as error:
                if not (error.retriable or error.requires_abort or isinstance(error, InvalidTxnState)):
                    raise
                self.repeated[type(error).__name__] += 1
                continue
            self.committed += 1
            self.kept.update(values)
            return
        raise TxnError(f"{name}: repeated for ever")

    async def wait_committed(self, more: int, *, within_s: float = 60.0) -> None:
        wanted = self.committed + more
        async with asyncio.timeout(within_s):
            while self.committed < wanted:
                await asyncio.sleep(0.05)

    def percentile_ms(self, percent: float) -> float:
        ordered = sorted(self.sends_s)
        return 1000 * ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]

    async def read_back(self) -> list[bytes]:
        async with await self.client.reader(self.topic, start="earliest", end="latest") as reader:
            return [message.value async for message in reader]

    def report(self, read: list[bytes]) -> dict[str, Any]:
        found = Counter(read)
        return {
            "committed": self.committed,
            "sends": len(self.sends_s),
            "p50_ms": self.percentile_ms(50),
            "p99_ms": self.percentile_ms(99),
            "longest_ms": self.percentile_ms(100),
            "repeated": dict(self.repeated),
            "errors": self.errors,
            "missing": texts(self.kept - found.keys())[:SHOWN],
            "too many": texts(value for value, times in found.items() if times > 1 or value not in self.kept)[:SHOWN],
        }


def texts(values: Iterable[bytes]) -> list[str]:
    return sorted(value.decode() for value in values)


def put(path: Path, text: str) -> None:
    """Whole, or not there."""
    part = path.with_name(f".{path.name}")
    part.write_text(text)
    part.rename(path)


async def work(url: str, topic: str, folder: Path) -> None:
    async with txnclient.connect(url, timeout=60.0) as client:
        load = Load(client, topic)
        if (folder / "only-read").exists():
            put(folder / "read", json.dumps(texts(await load.read_back())))
            return
        async with load:
            while not (folder / "stop").exists():
                put(folder / "committed", str(load.committed))
                if (folder / "tell").exists():
                    (folder / "tell").unlink()
                    put(folder / "told", json.dumps(texts(load.kept)))
                await asyncio.sleep(LOOK_S)
        put(folder / "report.json", json.dumps(load.report(await load.read_back())))


if __name__ == "__main__":
    asyncio.run(work(sys.argv[1], sys.argv[2], Path(sys.argv[3])))
