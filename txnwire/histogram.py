"""Fixed-bucket histograms for hot paths, shown by `/metrics`. Pure; the caller passes the time."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import Final

LATENCY_BOUNDS_S: Final = (
    *(0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0),
)
"""Upper bounds of latency buckets, in seconds; one more bucket holds larger values."""

SIZE_BOUNDS: Final = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0)
"""Upper bounds of the buckets of a count."""


@dataclass(frozen=True, slots=True)
class HistogramSnapshot:
    """The state of a histogram. `counts[i]`: observations at or below `bounds[i]` and above the bound before; the last:
    above all of them. `total`: the sum of the observations."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float

    @property
    def count(self) -> int:
        return sum(self.counts)

    def quantile(self, q: float) -> float:
        """The upper bound of the bucket that holds the `q` quantile; 0.0 without observations."""
        rank, seen = q * self.count, 0
        for bound, count in zip((*self.bounds, float("inf")), self.counts, strict=True):
            seen += count
            if seen and seen >= rank:
                return bound
        return 0.0


class Histogram:
    __slots__ = ("_bounds", "_counts", "_total")

    def __init__(self, bounds: tuple[float, ...] = LATENCY_BOUNDS_S) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._total += value

    def snapshot(self) -> HistogramSnapshot:
        return HistogramSnapshot(self._bounds, tuple(self._counts), self._total)
