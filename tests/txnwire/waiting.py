"""Waiting on conditions in tests: never a fixed sleep, always a bound."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def eventually(condition: Callable[[], bool], *, timeout_s: float = 10.0) -> None:
    """Return once `condition()` holds; fail the test after `timeout_s`."""
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.002)


async def idle(turns: int = 50) -> None:
    """Let everything that can run without time or I/O run."""
    for _ in range(turns):
        await asyncio.sleep(0)
