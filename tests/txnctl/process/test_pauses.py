"""The longest pause of an event loop is seen, and forgotten after a while."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.coordinator_v5.processes import StepClock
from tests.segments.virtual_time import virtual_time
from txnctl.process.pauses import BUSY_FOR_S, IDLE_TICK_S, LATE_S, TICK_S, WINDOW_S, Pauses
from txnwire.clock import SystemClock


async def test_what_keeps_the_loop_from_coming_round_is_told() -> None:
    pauses = Pauses(SystemClock())
    running = asyncio.create_task(pauses.run())
    await asyncio.sleep(3 * TICK_S)
    time.sleep(0.3)
    await asyncio.sleep(3 * TICK_S)
    running.cancel()
    assert pauses.longest_s() >= 0.25


@virtual_time
async def test_it_is_told_for_a_minute_and_not_for_three() -> None:
    worked = [0.0]
    pauses = Pauses(StepClock(), cpu=lambda: worked[0])
    now = asyncio.get_running_loop().time()
    worked[0] = 0.25
    pauses.woke(now + 0.5)
    told = []
    for tick in range(1, int(3 * WINDOW_S / TICK_S)):
        pauses.woke(now + 0.5 + tick * TICK_S)
        told.append((pauses.longest_s(), pauses.longest_work_s()))
    assert told[int(WINDOW_S / TICK_S)] == pytest.approx((0.5 - TICK_S, 0.25))
    assert told[-1] == pytest.approx((0.0, 0.0), abs=1e-6)


@virtual_time
async def test_of_a_pause_it_is_told_how_much_was_our_own_work() -> None:
    worked = [0.0]
    pauses = Pauses(StepClock(), cpu=lambda: worked[0])
    now = asyncio.get_running_loop().time()
    worked[0] = 0.02
    pauses.woke(now + TICK_S + 0.5)  # others had the core
    assert (pauses.longest_s(), pauses.longest_work_s()) == pytest.approx((0.5, 0.02))
    worked[0] = 0.22
    pauses.woke(now + 2 * TICK_S + 0.8)
    assert (pauses.longest_s(), pauses.longest_work_s()) == pytest.approx((0.5, 0.2))
    worked[0] = 0.3
    pauses.woke(now + 3 * TICK_S + 0.81)  # busy, and hardly late
    assert pauses.longest_work_s() == pytest.approx(0.2)


@virtual_time
async def test_a_loop_that_is_on_time_is_looked_at_seldom_and_one_that_was_late_often_for_a_second() -> None:
    """A hundred looks a second would be most of an idle process' work."""
    pauses = Pauses(StepClock(), cpu=lambda: 0.0)
    began = now = asyncio.get_running_loop().time()

    def woke(late_s: float) -> float:
        """The time until the next look."""
        nonlocal now
        now += pauses._tick_s + late_s
        pauses.woke(now)
        return pauses._tick_s

    while now - began < BUSY_FOR_S - 2 * TICK_S:
        assert woke(LATE_S / 2) == TICK_S, "a process that starts is busy"
    while woke(LATE_S / 2) == TICK_S:
        assert now - began < BUSY_FOR_S
    assert [woke(LATE_S / 2) for _ in range(3)] == [IDLE_TICK_S] * 3
    assert woke(2 * LATE_S) == TICK_S
    late_at = now
    while now - late_at < BUSY_FOR_S - 2 * TICK_S:
        assert woke(0.0) == TICK_S
    while woke(0.0) == TICK_S:
        assert now - late_at < BUSY_FOR_S
    assert pauses._tick_s == IDLE_TICK_S
