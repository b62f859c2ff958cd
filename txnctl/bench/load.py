"""Makes calls at a rate, or as fast as possible; counts what was done, how long each call took, and what failed.

With a rate, calls are due at fixed times, independent of earlier ones, and each is timed from when it was due: so calls
that wait during a stall count as slow (otherwise a stall of a second would count as one slow call).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from txnctl.bench.latencies import Latencies
from txnwire.errors import TxnError
from txnwire.ports import Clock

MAX_UNDER_WAY = 10_000
"""Concurrent calls with a rate; beyond that the load falls behind, and says so."""
FAILED_PAUSE_S = 0.1
"""Pause of a loop whose call has failed."""


@dataclass
class Measured:
    """What has been done so far. `calls` that succeeded with `messages` of `bytes`; `errors` by class."""

    clock: Clock
    began_s: float = 0.0
    ended_s: float | None = None
    calls: int = 0
    messages: int = 0
    bytes: int = 0
    behind: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    latencies: Latencies = field(default_factory=Latencies)

    @property
    def seconds(self) -> float:
        return max(1e-9, (self.clock.monotonic() if self.ended_s is None else self.ended_s) - self.began_s)

    def done(self, took_s: float, messages: int, size: int) -> None:
        self.calls += 1
        self.messages += messages
        self.bytes += size
        self.latencies.record(took_s)

    def as_row(self, calls: str) -> dict[str, Any]:
        """`calls`: the name of a call in the plural, as fields are named."""
        row: dict[str, Any] = {"seconds": round(self.seconds, 3), calls: self.calls}
        row[f"{calls}_per_s"] = round(self.calls / self.seconds, 1)
        if calls != "messages":
            row |= {"messages": self.messages, "messages_per_s": round(self.messages / self.seconds, 1)}
        row["megabytes_per_s"] = round(self.bytes / self.seconds / 1e6, 3)
        row["latency_ms"] = self.latencies.in_ms()
        row["errors"] = dict(sorted(self.errors.items()))
        row["not_begun_in_time"] = self.behind
        return row


Call = Callable[[], Awaitable[tuple[int, int] | None]]
"""One call: (messages, bytes), or None if there was nothing to do. Raises `TxnError`."""


class CallLoad:
    """Repeats calls: in `concurrency` loops, or with `per_second` as many as are due."""

    def __init__(self, clock: Clock, *, seconds: float, concurrency: int, per_second: float | None) -> None:
        self.measured = Measured(clock)
        self._clock = clock
        self._seconds = seconds
        self._concurrency = concurrency
        self._per_second = per_second

    async def run(self, calls: list[Call]) -> None:
        """`calls`: one for each loop in turn, so that a loop can have its own resources. Ends when the time is over and
        all calls under way are answered."""
        measured = self.measured
        measured.began_s = self._clock.monotonic()
        until = measured.began_s + self._seconds
        try:
            async with asyncio.TaskGroup() as group:
                if self._per_second is None:
                    for number in range(self._concurrency):
                        group.create_task(self._loop(calls[number % len(calls)], until))
                else:
                    await self._at_rate(group, calls, until, self._per_second)
        finally:
            measured.ended_s = self._clock.monotonic()

    async def _loop(self, call: Call, until: float) -> None:
        while (now := self._clock.monotonic()) < until:
            if not await self._timed(call, now):
                await asyncio.sleep(FAILED_PAUSE_S)

    async def _at_rate(self, group: asyncio.TaskGroup, calls: list[Call], until: float, per_second: float) -> None:
        under_way: dict[asyncio.Task[bool], None] = {}
        number, began = 0, self._clock.monotonic()
        while (now := self._clock.monotonic()) < until:
            while (due := began + number / per_second) <= now:
                if len(under_way) < MAX_UNDER_WAY:
                    task = group.create_task(self._timed(calls[number % len(calls)], due))
                    under_way[task] = None
                    task.add_done_callback(under_way.pop)
                else:
                    self.measured.behind += 1
                number += 1
            await asyncio.sleep(max(0.001, min(due, until) - now))

    async def _timed(self, call: Call, due: float) -> bool:
        try:
            done = await call()
        except TxnError as error:
            self.measured.errors[type(error).__name__] += 1
            return False
        if done is not None:
            self.measured.done(self._clock.monotonic() - due, *done)
        return True
