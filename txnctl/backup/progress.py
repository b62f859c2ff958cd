"""Reports the progress of a backup or a restore, and ends its threads before it returns."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final, TypeVar

T = TypeVar("T")

UNITS: Final = ("B", "kB", "MB", "GB", "TB")


def size_text(size: float) -> str:
    """For example `12.3 MB`; a kB has 1,000 bytes."""
    for unit in UNITS:
        if size < 1000 or unit == UNITS[-1]:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    raise AssertionError("unreachable")


class Stopped(Exception):
    """Ends a thread whose command was ended."""


async def in_thread(work: Callable[[], T], *, stop: Callable[[], None] = lambda: None) -> T:
    """Like `asyncio.to_thread`, but a cancelled caller asks the thread by `stop` to end, and waits for that.

    ▲ A thread that goes on writes beside the next command, which has the folder's lock by then."""
    running = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        stop()
        while not running.done():
            with suppress(asyncio.CancelledError):  # cancelled again: it still waits
                await asyncio.wait([running])
        raise


class CopyProgress:
    """Counts files and bytes of one step, and calls `on_progress`. After `stop` the next `add` raises `Stopped`."""

    def __init__(self, on_progress: Callable[[str], None], what: str, files: int, size: int) -> None:
        self._on_progress = on_progress
        self._what = what
        self._files, self._of_files = 0, files
        self._size, self._of_size = 0, size
        self._stopped = False
        self.add(0, files=0)

    def stop(self) -> None:
        self._stopped = True

    def add(self, size: int, *, files: int = 1) -> None:
        if self._stopped:
            raise Stopped
        self._files += files
        self._size += size
        share = 100 * self._size // max(self._of_size, 1)
        self._on_progress(
            f"{self._what}: {self._files:,} of {self._of_files:,} files, "
            f"{size_text(self._size)} of {size_text(self._of_size)} ({min(share, 100)} %)"
        )
