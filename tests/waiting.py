"""Waits for a condition: in real and in virtual time, never longer than a bound."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable, Coroutine
from typing import Final

WITHIN_S: Final = 60.0
FIRST_POLL_S: Final = 0.001
LONGEST_POLL_S: Final = 0.016


async def until(
    condition: Callable[[], object | Coroutine[object, object, object]], what: str = "", *, within_s: float = WITHIN_S
) -> float:
    """Return once `condition()`, which may be a coroutine, is true: the seconds that it took on the loop's clock.

    Raises `AssertionError` with `what` after `within_s`."""
    loop, poll_s = asyncio.get_running_loop(), FIRST_POLL_S
    started = loop.time()
    try:
        async with asyncio.timeout(within_s):
            while not await _value(condition):
                await asyncio.sleep(poll_s)
                poll_s = min(2 * poll_s, LONGEST_POLL_S)
    except TimeoutError:
        raise AssertionError(f"not within {within_s} s: {what or condition}") from None
    return loop.time() - started


async def _value(condition: Callable[[], object | Coroutine[object, object, object]]) -> object:
    found = condition()
    return await found if inspect.iscoroutine(found) else found


async def idle(turns: int = 50) -> None:
    """Let everything that can run without time or I/O run."""
    for _ in range(turns):
        await asyncio.sleep(0)


def wait_until(condition: Callable[[], object], what: str, *, within_s: float = WITHIN_S) -> None:
    """As `until` without a loop, for tests and Spark's tasks. Raises `TimeoutError` with `what`."""
    deadline, poll_s = time.monotonic() + within_s, FIRST_POLL_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {within_s} s for {what}")
        time.sleep(poll_s)
        poll_s = min(2 * poll_s, LONGEST_POLL_S)
