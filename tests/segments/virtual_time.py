"""Scenarios in virtual time, on the simulation's loop: seconds of grace pass in no time."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import ParamSpec, TypeVar

from simulation.judges.leftovers import tasks_left
from simulation.world.guards import forbidden
from simulation.world.loop import SimLoop

P = ParamSpec("P")
T = TypeVar("T")


class LoopClock:
    """The `Clock` port over the running loop's time."""

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    def wall_ms(self) -> int:
        return int(self.monotonic() * 1000) + 1_700_000_000_000


def run(scenario: Coroutine[object, object, T], *, unhandled: int = 0, leaves_tasks: bool = False) -> T:
    """Run `scenario` to its end; clocks, chance and threads that do not come through a port raise in it. Failures of
    callbacks and tasks that nobody looked at must number `unhandled`; no task of ours is left unless `leaves_tasks`."""
    loop = SimLoop(0, max_steps=2_000_000)
    try:
        with forbidden(loop.time):
            result = loop.run_until_complete(scenario)
            left = sorted(tasks_left(asyncio.all_tasks(loop)))
            leaves_tasks |= not all(owner.alive for owner in loop.owners)  # who was killed has closed nothing
    finally:
        loop.close()
    assert len(loop.unhandled) == unhandled, loop.unhandled
    assert leaves_tasks or not left, left
    return result


def virtual_time(test: Callable[P, Coroutine[object, object, None]]) -> Callable[P, None]:
    """Decorates a test that is a coroutine function: `run` runs it, and pytest-asyncio does not see it.

    It stands directly above the function, below marks, parameters and Hypothesis' `given`."""

    @functools.wraps(test)
    def in_virtual_time(*args: P.args, **kwargs: P.kwargs) -> None:
        run(test(*args, **kwargs))

    return in_virtual_time
