"""The real clock and randomness for the `Clock` and `Random` ports; the simulation has its own."""

from __future__ import annotations

import random
import time


class SystemClock:
    """`time.monotonic` (the time base of asyncio's and uvloop's event loops) and the wall clock."""

    def monotonic(self) -> float:
        """Seconds since an arbitrary start; never stepped."""
        return time.monotonic()

    def wall_ms(self) -> int:
        """Milliseconds since the Unix epoch; an operator or NTP may step it."""
        return time.time_ns() // 1_000_000


class SystemRandom(random.SystemRandom):
    """Randomness from the kernel, safe for ids that must never collide: also after a fork, or in a cloned machine."""
