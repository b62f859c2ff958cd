"""How long the event loop of a process did not come round. Whatever takes long in one piece keeps leases from being
renewed and every client waiting, so it is measured where it is felt, not where it is thought to come from."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from txnwire.ports import Clock

TICK_S: Final = 0.01
"""A pause is noticed if it is longer, and told up to so much too short."""
IDLE_TICK_S: Final = 0.1
"""The same where nothing has kept the loop busy lately: a hundred ticks a second would be most of what an idle process
does."""
LATE_S: Final = 0.001
BUSY_FOR_S: Final = 1.0
"""A loop that came round late by so much counts as busy for so long."""
WINDOW_S: Final = 60.0


class Pauses:
    """`cpu`: seconds for which this thread has had a core. A pause without them is one of a busy machine, not of our
    own work."""

    def __init__(self, clock: Clock, cpu: Callable[[], float] = time.thread_time) -> None:
        self._clock = clock
        self._cpu = cpu
        self._asleep_at = self._begun_at = clock.monotonic()
        self._worked_at = cpu()
        self._before_s = self._lately_s = 0.0
        self._worked_before_s = self._worked_lately_s = 0.0
        self._late_at = self._asleep_at
        self._tick_s = TICK_S

    def longest_s(self) -> float:
        """Of the last one to two minutes."""
        return max(self._before_s, self._lately_s)

    def longest_work_s(self) -> float:
        """The most CPU time of this thread within one pause, of the same time."""
        return max(self._worked_before_s, self._worked_lately_s)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self._asleep_at, self._worked_at = self._clock.monotonic(), self._cpu()
            await asyncio.sleep(self._tick_s)
            self.woke(self._clock.monotonic())

    def woke(self, now: float) -> None:
        late_s = now - self._asleep_at - self._tick_s
        worked_at = self._cpu()
        # What was done while nobody was late is no pause: of that much CPU time at most the rest is one.
        self._worked_lately_s = max(self._worked_lately_s, min(late_s, worked_at - self._worked_at))
        self._lately_s = max(self._lately_s, late_s)
        self._asleep_at, self._worked_at = now, worked_at
        if late_s > LATE_S:
            self._late_at = now
        self._tick_s = TICK_S if now - self._late_at < BUSY_FOR_S else IDLE_TICK_S
        if now - self._begun_at >= WINDOW_S:
            self._before_s, self._lately_s, self._begun_at = self._lately_s, 0.0, now
            self._worked_before_s, self._worked_lately_s = self._worked_lately_s, 0.0
