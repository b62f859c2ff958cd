"""How much of a benchmark is run: all of it, or just enough to see that it works."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T", int, float)


@dataclass(frozen=True, slots=True)
class Scale:
    """`quick`: a few seconds each, whose numbers say nothing."""

    quick: bool = False

    def of(self, whole: T, quick: T) -> T:
        return quick if self.quick else whole
