"""The room in a producer's buffer, and who waits for it. Pure.

▲ C3: room is given in the order of asking, and to nobody past one who waits: or messages of one key would overtake each
other, small ones would pass large ones for ever, and which ones were sent first would depend on their sizes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

A = TypeVar("A", bound=Hashable)


class BufferRoom(Generic[A]):
    """So many bytes. What is larger than all of them is let in alone."""

    def __init__(self, bound: int) -> None:
        self.bound = bound
        self.taken = 0
        self._waiting: OrderedDict[A, int] = OrderedDict()

    def has(self, size: int) -> bool:
        """Whether `size` bytes may be taken now: they fit, and nobody has asked before."""
        return not self._waiting and self._fits(size)

    def _fits(self, size: int) -> bool:
        return not self.taken or self.taken + size <= self.bound

    def take(self, size: int) -> None:
        self.taken += size

    def give_back(self, size: int) -> None:
        self.taken -= size

    def __len__(self) -> int:
        """How many wait."""
        return len(self._waiting)

    @property
    def waiting(self) -> list[A]:
        """Who waits, in order."""
        return list(self._waiting)

    def ask(self, who: A, size: int) -> None:
        """Wait behind all who wait."""
        self._waiting[who] = size

    def leave(self, who: A) -> bool:
        """Whether it was waiting. Who is behind it may have room now."""
        return self._waiting.pop(who, None) is not None

    def next(self) -> A | None:
        """Who has waited longest, if there is room for it: it waits no longer, and is to take its room."""
        who = next(iter(self._waiting), None)
        if who is None or not self._fits(self._waiting[who]):
            return None
        del self._waiting[who]
        return who
