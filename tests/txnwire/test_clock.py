"""The real clock and randomness behind the ports."""

from __future__ import annotations

import asyncio
import time

from txnwire.clock import SystemClock, SystemRandom
from txnwire.ports import Clock, Random


async def test_the_clock_shares_the_event_loop_s_time_base() -> None:
    clock: Clock = SystemClock()
    assert abs(clock.monotonic() - asyncio.get_running_loop().time()) < 1.0


def test_the_wall_clock_counts_milliseconds_since_the_epoch() -> None:
    assert abs(SystemClock().wall_ms() - time.time() * 1000) < 1000


def test_random_ids_fill_their_bits_and_do_not_repeat() -> None:
    random: Random = SystemRandom()
    drawn = {random.getrandbits(64) for _ in range(1000)}
    assert len(drawn) == 1000
    assert max(drawn) >= 2**63
    assert 0 <= random.random() < 1
    assert 2 <= random.uniform(2, 3) <= 3
