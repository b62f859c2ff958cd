"""How much of a benchmark is run: all of it, or just enough to see that it works."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T", int, float)


@dataclass(frozen=True, slots=True)
class Scale:
    """`quick`: a few seconds each, whose numbers say nothing. `share`: of sizes that can be less."""

    quick: bool = False
    share: float = 1.0

    def of(self, whole: T, quick: T) -> T:
        return quick if self.quick else whole

    def part_of(self, whole: int, quick: int) -> int:
        """As `of`, less where only a share is asked for."""
        return quick if self.quick else max(quick, int(whole * self.share))
