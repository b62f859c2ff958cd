"""How long the event loop of a process did not come round. Whatever takes long in one piece keeps leases from being
renewed and every client waiting, so it is measured where it is felt, not where it is thought to come from."""

from __future__ import annotations

import asyncio
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
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._asleep_at = self._begun_at = clock.monotonic()
        self._before_s = self._lately_s = 0.0
        self._late_at = self._asleep_at
        self._tick_s = TICK_S

    def longest_s(self) -> float:
        """Of the last one to two minutes."""
        return max(self._before_s, self._lately_s)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self._asleep_at = self._clock.monotonic()
            await asyncio.sleep(self._tick_s)
            self.woke(self._clock.monotonic())

    def woke(self, now: float) -> None:
        late_s = now - self._asleep_at - self._tick_s
        self._lately_s = max(self._lately_s, late_s)
        self._asleep_at = now
        if late_s > LATE_S:
            self._late_at = now
        self._tick_s = TICK_S if now - self._late_at < BUSY_FOR_S else IDLE_TICK_S
        if now - self._begun_at >= WINDOW_S:
            self._before_s, self._lately_s, self._begun_at = self._lately_s, 0.0, now
