"""The room in a producer's buffer, and the queue for it. Pure.

▲ C3: room is given strictly in the order of asking: otherwise messages of one key would overtake each other, and small
ones could pass large ones for ever.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

A = TypeVar("A", bound=Hashable)


class BufferRoom(Generic[A]):
    """Gives out a bounded number of bytes in order. A message larger than the bound gets in alone."""

    def __init__(self, bound: int, gate: Callable[[], bool] | None = None) -> None:
        """`gate`: whether there is room, whatever the bytes."""
        self.bound = bound
        self._gate = gate
        self.taken = 0
        self._waiting: OrderedDict[A, int] = OrderedDict()

    def has(self, size: int) -> bool:
        """Whether `size` bytes may be taken now: they fit, and the queue is empty."""
        return not self._waiting and self._fits(size)

    def _fits(self, size: int) -> bool:
        if self._gate is not None and not self._gate():
            return False
        return not self.taken or self.taken + size <= self.bound

    def take(self, size: int) -> None:
        self.taken += size

    def give_back(self, size: int) -> None:
        self.taken -= size

    def __len__(self) -> int:
        """The length of the queue."""
        return len(self._waiting)

    @property
    def waiting(self) -> list[A]:
        """The queue, in order."""
        return list(self._waiting)

    def ask(self, who: A, size: int) -> None:
        """Join the end of the queue."""
        self._waiting[who] = size

    def leave(self, who: A) -> bool:
        """Leave the queue; whether it was in it. The next ones may have room now."""
        return self._waiting.pop(who, None) is not None

    def next(self) -> A | None:
        """Remove and return the first in the queue if there is room for it; it must then take its room."""
        who = next(iter(self._waiting), None)
        if who is None or not self._fits(self._waiting[who]):
            return None
        del self._waiting[who]
        return who
