"""Runs a command's coroutine: SIGTERM ends it as Ctrl-C does, and the process exits with its code."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any

import typer
import uvloop

INTERRUPTED = 130
TERMINATED = 143


def run(work: Coroutine[Any, Any, int | None], *, terminated: int = TERMINATED) -> None:
    """Runs it to the end and exits with the returned code (None: 0), or with `terminated` after a SIGTERM."""
    try:
        code = uvloop.run(_until_terminated(work, terminated))
    except KeyboardInterrupt:
        code = INTERRUPTED
    raise typer.Exit(code or 0)


async def _until_terminated(work: Coroutine[Any, Any, int | None], terminated: int) -> int | None:
    task = asyncio.ensure_future(work)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        return await task
    except asyncio.CancelledError:
        current = asyncio.current_task()
        if current is not None and current.cancelling():
            raise  # Ctrl-C: asyncio's runner turns this into KeyboardInterrupt
        return terminated  # everything has been stopped in order
