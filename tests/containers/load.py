"""Clients that work on and retry what is retriable: how long their sends take, and what else they meet."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, field

import txnclient
from txnclient import InvalidTxnState, TxnError

PAUSE_S = 0.05


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
