"""Measures pauses of a process' event loop. Anything that blocks the loop for long stops lease renewals and delays
every client, so it is measured at the loop, not at its suspected causes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from txnwire.ports import Clock

TICK_S: Final = 0.01
"""A pause is noticed if it is longer, and reported up to this much too short."""
IDLE_TICK_S: Final = 0.1
"""The same after an idle time of the loop: a hundred ticks a second would be most of an idle process' work."""
LATE_S: Final = 0.001
BUSY_FOR_S: Final = 1.0
"""A loop that was late by this much counts as busy for this long."""
WINDOW_S: Final = 60.0


class Pauses:
    """`cpu`: seconds for which this thread has had a core. A pause without CPU time comes from a busy machine, not from
    our own work."""

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
        """The longest pause of the last one to two minutes."""
        return max(self._before_s, self._lately_s)

    def longest_work_s(self) -> float:
        """The most CPU time of this thread within one pause, over the same time."""
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
        # Work done while the loop was on time is no pause: at most the rest of the CPU time belongs to one.
        self._worked_lately_s = max(self._worked_lately_s, min(late_s, worked_at - self._worked_at))
        self._lately_s = max(self._lately_s, late_s)
        self._asleep_at, self._worked_at = now, worked_at
        if late_s > LATE_S:
            self._late_at = now
        self._tick_s = TICK_S if now - self._late_at < BUSY_FOR_S else IDLE_TICK_S
        if now - self._begun_at >= WINDOW_S:
            self._before_s, self._lately_s, self._begun_at = self._lately_s, 0.0, now
            self._worked_before_s, self._worked_lately_s = self._worked_lately_s, 0.0
