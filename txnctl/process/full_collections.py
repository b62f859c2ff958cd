"""Runs full collections of Python's garbage collector only while they are quick.

A full collection stops a process for some 0.2 µs per object: a third of a second with a quarter of a million open
transactions. Most objects go with their last reference; only cycles need a collection: errors, and the frames that
raised them. So automatic full collections are off. One runs every `LOOK_S`, unless there are too many objects; then all
are frozen (`gc.freeze`), and the next collections cover only newer objects. Once most frozen objects have gone, all are
collected again. If many objects come quickly the next look is sooner, because counting a million objects also stops the
process for a tenth of a second.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from typing import Final

LOOK_S: Final = 30.0
GROWTH_S: Final = 1.0
GROWN: Final = 20
"""Collections of the middle generation since the last look: each has promoted 8 000 objects at most."""
MOST: Final = 100_000
"""Most objects of one collection: 20 ms, and twice as long on a busy machine. A walk through the unfrozen objects
counts them in a tenth of the time. ▲ Memory blocks do not show it: if a hundred thousand frozen objects have gone and
as many have come, the number of blocks is the same."""
NEVER: Final = 1_000_000_000
OLDEST: Final = 2
"""The oldest generation; the younger ones are small."""


class FullCollections:
    def __init__(self, most: int = MOST) -> None:
        """Freezes the objects that exist by now: they stay for good."""
        self._most = most
        young, middle, _ = gc.get_threshold()
        gc.set_threshold(young, middle, NEVER)
        self._begin()

    def _begin(self) -> None:
        gc.collect()
        gc.freeze()
        self._for_good = sys.getallocatedblocks()
        self._buried = False
        """Whether more than that is frozen, maybe with cycles."""
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
        """Whether so many objects may have come since the last look that the next one is due."""
        return gc.get_count()[OLDEST] - self._looked_at >= GROWN

    def look(self) -> None:
        """Collects or freezes."""
        if len(gc.get_objects(generation=OLDEST)) > self._most:
            gc.freeze()
            self._buried = True
        elif self._buried and sys.getallocatedblocks() - self._for_good < self._most:  # some two for each object
            gc.unfreeze()
            self._begin()
        else:
            gc.collect()
        self._looked_at = gc.get_count()[OLDEST]
