"""When Python's garbage collector looks at everything there is: only while that is quick.

A full collection stops a process for some 0.2 µs for each object, so for a third of a second where a quarter of a
million transactions are open. Most objects go with their last reference; what only a collection frees are cycles:
errors, and the frames that raised them. So no full collection comes by itself. Every `LOOK_S` there is one, unless
there is too much to look at; then all of that is frozen (`gc.freeze`), and the next ones look at what has come since.
Once most of it has gone, all is looked at again.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from typing import Final

LOOK_S: Final = 30.0
MOST: Final = 300_000
"""Blocks of memory, some two for each object that a collection looks at: 30 ms. How many objects there are only a walk
through all of them could tell."""
NEVER: Final = 1_000_000_000


class FullCollections:
    def __init__(self, most: int = MOST) -> None:
        """What is there by now is there for good, and is not looked at again."""
        self._most = most
        young, middle, _ = gc.get_threshold()
        gc.set_threshold(young, middle, NEVER)
        self._begin()

    def _begin(self) -> None:
        gc.collect()
        gc.freeze()
        self._for_good = self._frozen = sys.getallocatedblocks()
        self._buried = False
        """Whether more than that is frozen, with cycles in it perhaps."""

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            self.look()

    def look(self) -> None:
        """Collect, or freeze."""
        blocks = sys.getallocatedblocks()
        self._frozen = min(self._frozen, blocks)
        if blocks - self._frozen > self._most:
            gc.freeze()
            self._frozen, self._buried = blocks, True
        elif self._buried and blocks - self._for_good < self._most // 2:
            gc.unfreeze()
            self._begin()
        else:
            gc.collect()
