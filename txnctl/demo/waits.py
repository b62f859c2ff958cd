"""Measures how long the loaders' batches took, and which were under way during a change."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Waits:
    """Times are those of `now`, in seconds. A batch counts from its first begin to the answer of its commit, including
    all repeats."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._numbers = 0
        self._under_way: dict[int, float] = {}
        self._over: list[tuple[float, float]] = []
        self._closed = False
        self._changed = asyncio.Event()

    @contextmanager
    def batch(self) -> Iterator[None]:
        self._numbers += 1
        number, begun = self._numbers, self._now()
        self._under_way[number] = begun
        self._changed.set()
        try:
            yield
        finally:
            del self._under_way[number]
            self._over.append((begun, self._now()))
            self._changed.set()

    def close(self) -> None:
        """No more batches will come."""
        self._closed = True
        self._changed.set()

    async def longest_s(self, since_s: float, until_s: float) -> float | None:
        """The longest of the batches under way between the two times, and the first one after; None if there was none.
        Waits for batches that are still under way, or to come."""
        while not (self._closed or any(begun > until_s for begun in self._begun())):
            await self._change()
        last_s = min((begun for begun in self._begun() if begun > until_s), default=until_s)
        while any(begun <= last_s for begun in self._under_way.values()):
            await self._change()
        return max((over - begun for begun, over in self._over if begun <= last_s and over >= since_s), default=None)

    def usual_s(self) -> float:
        """The median of all finished batches, 0 if there are none."""
        return statistics.median([over - begun for begun, over in self._over] or [0.0])

    def _begun(self) -> Iterator[float]:
        yield from self._under_way.values()
        yield from (begun for begun, _ in self._over)

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()
