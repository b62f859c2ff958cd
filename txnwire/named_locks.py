"""Locks by name, kept only while a task holds or awaits one: clients may use any number of names."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager


class NamedLocks:
    def __init__(self) -> None:
        self._locks: dict[Hashable, tuple[asyncio.Lock, int]] = {}
        """The lock, and how many have or want it."""

    def __len__(self) -> int:
        return len(self._locks)

    def locked(self, name: Hashable) -> bool:
        """Whether a task holds it. ▲ Ignores waiting tasks: two that wait and check again would wait for each other."""
        found = self._locks.get(name)
        return found is not None and found[0].locked()

    @asynccontextmanager
    async def held(self, name: Hashable) -> AsyncIterator[None]:
        lock, users = self._locks.get(name) or (asyncio.Lock(), 0)
        self._locks[name] = lock, users + 1
        try:
            async with lock:
                yield
        finally:
            lock, users = self._locks.pop(name)
            if users > 1:
                self._locks[name] = lock, users - 1
