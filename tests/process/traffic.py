"""Steady sending to, and receiving from, every segment of a topic, with the longest silence of each."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise

import xxhash

import txnclient
from tests.waiting import until
from txnwire.ids import HASH_SPACE

PAUSE_S = 0.02


def keys_of(segments: int) -> list[str]:
    """One key for each of so many equal segments, in hash order."""
    found: dict[int, str] = {}
    number = 0
    while len(found) < segments:
        key = f"key-{number}"
        found.setdefault((xxhash.xxh3_64_intdigest(key.encode()) % HASH_SPACE) * segments // HASH_SPACE, key)
        number += 1
    return [found[index] for index in range(segments)]


@dataclass
class Traffic:
    """`async with` it: one producer a key, each with one message on its way, and one stream consumer."""

    client: txnclient.Client
    topic: str
    segments: int
    sent: dict[str, list[bytes]] = field(default_factory=lambda: defaultdict(list))
    """Acknowledged, by key."""
    received: dict[str, list[bytes]] = field(default_factory=lambda: defaultdict(list))
    _at: dict[tuple[str, str], list[float]] = field(default_factory=lambda: defaultdict(list))
    _stopping: bool = False
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)

    async def __aenter__(self) -> Traffic:
        await self.client.create_topic(self.topic, segments=self.segments)
        self._tasks = [asyncio.create_task(self._send(key)) for key in keys_of(self.segments)]
        self._tasks.append(asyncio.create_task(self._receive()))
        await self.wait_flowing()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stopping = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _send(self, key: str) -> None:
        async with await self.client.producer(self.topic) as producer:
            while not self._stopping:
                value = f"{key}:{len(self.sent[key])}".encode()
                await producer.send(value, key=key)
                self.sent[key].append(value)
                self._at["sent", key].append(time.monotonic())
                await asyncio.sleep(PAUSE_S)

    async def _receive(self) -> None:
        async with await self.client.consumer(self.topic, "traffic") as consumer:
            while not self._stopping:
                message = await consumer.receive(timeout=60)
                key = (message.key or b"").decode()
                self.received[key].append(message.value)
                self._at["received", key].append(time.monotonic())
                await consumer.ack(message)

    async def wait_flowing(self, *, timeout_s: float = 30.0) -> None:
        """Until every segment has stored and delivered something new. Raises what has ended a sender or receiver."""
        since_s = time.monotonic()
        sides = [(side, key) for side in ("sent", "received") for key in keys_of(self.segments)]

        def flowing() -> bool:
            if all(self._at[side] and self._at[side][-1] > since_s for side in sides):
                return True
            for task in self._tasks:
                if task.done():
                    task.result()
            return False

        await until(flowing, "something new of every segment", within_s=timeout_s)

    def longest_silence_s(self, side: str, *, since_s: float) -> float:
        """Of the segment that was silent longest: between two acknowledgements ("sent"), or deliveries ("received"),
        the later of which came after `since_s`."""
        longest = 0.0
        for key in keys_of(self.segments):
            at = self._at[side, key]
            longest = max(longest, *(b - a for a, b in pairwise(at) if b > since_s))
        return longest

    async def finish(self) -> None:
        """Stop, and compare what was acknowledged with what is there: all of it, once, in order per key; what was
        received first came in order, and nothing was left out."""
        await self.__aexit__()
        found: dict[str, list[bytes]] = defaultdict(list)
        async with await self.client.reader(self.topic, start="earliest", end="latest") as reader:
            async for message in reader:
                found[(message.key or b"").decode()].append(message.value)
        for key, values in found.items():
            numbers = [int(value.rpartition(b":")[2]) for value in values]
            assert numbers == list(range(len(numbers))), f"{key}: a message is lost, doubled or out of order"
            assert 0 <= len(values) - len(self.sent[key]) <= 1, f"{key}: one at most was still on its way"
            first_seen = list(dict.fromkeys(self.received[key]))
            assert first_seen == values[: len(first_seen)]
        assert len(found) == self.segments
