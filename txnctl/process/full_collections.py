"""When Python's garbage collector looks at everything there is: only while that is quick.

A full collection stops a process for some 0.2 µs for each object, so for a third of a second where a quarter of a
million transactions are open. Most objects go with their last reference; what only a collection frees are cycles:
errors, and the frames that raised them. So no full collection comes by itself. Every `LOOK_S` there is one, unless
there is too much to look at; then all of that is frozen (`gc.freeze`), and the next ones look at what has come since.
Once most of it has gone, all is looked at again. Where much comes quickly there is a look sooner, for to count a
million objects stops the process as well, for a tenth of a second.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from typing import Final

LOOK_S: Final = 30.0
GROWTH_S: Final = 1.0
GROWN: Final = 20
"""Collections of the middle generation since the last look: each has handed on 8 000 objects at most."""
MOST: Final = 100_000
"""Objects that a collection looks at: 20 ms, and twice as long on a busy machine. How many there are tells a walk
through those that are not frozen, a tenth of the time. ▲ Blocks of memory do not tell: where a hundred thousand frozen
objects have gone and as many have come, there are as many blocks."""
NEVER: Final = 1_000_000_000
OLDEST: Final = 2
"""Generation; the younger ones are small."""


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
        self._for_good = sys.getallocatedblocks()
        self._buried = False
        """Whether more than that is frozen, with cycles in it perhaps."""
        self._looked_at = gc.get_count()[OLDEST]

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            for _ in range(round(LOOK_S / GROWTH_S)):
                await asyncio.sleep(GROWTH_S)
                if self.grown:
                    break
            self.look()

    @property
    def grown(self) -> bool:
        """Whether so much may have come since the last look that the next one is due."""
        return gc.get_count()[OLDEST] - self._looked_at >= GROWN

    def look(self) -> None:
        """Collect, or freeze."""
        if len(gc.get_objects(generation=OLDEST)) > self._most:
            gc.freeze()
            self._buried = True
        elif self._buried and sys.getallocatedblocks() - self._for_good < self._most:  # some two for each object
            gc.unfreeze()
            self._begin()
        else:
            gc.collect()
        self._looked_at = gc.get_count()[OLDEST]
