"""Counts and latencies of one coordinator, and the frozen snapshot of them."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import Final

BOUNDS_S: Final = (0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
"""Upper bounds of the latency buckets, in seconds; one more bucket holds what is above."""


@dataclass(frozen=True, slots=True)
class LatencySnapshot:
    """`counts[i]`: observations at or below `BOUNDS_S[i]` and above the bound before; the last: above all of them."""

    counts: tuple[int, ...]
    total_s: float

    @property
    def count(self) -> int:
        return sum(self.counts)

    def quantile(self, q: float) -> float:
        """The upper bound, in seconds, of the bucket that holds the `q` quantile; 0.0 without observations."""
        rank, seen = q * self.count, 0
        for bound, count in zip((*BOUNDS_S, float("inf")), self.counts, strict=True):
            seen += count
            if seen and seen >= rank:
                return bound
        return 0.0


class Latency:
    __slots__ = ("_counts", "_total_s")

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS_S) + 1)
        self._total_s = 0.0

    def observe(self, seconds: float) -> None:
        self._counts[bisect_left(BOUNDS_S, seconds)] += 1
        self._total_s += seconds

    def snapshot(self) -> LatencySnapshot:
        return LatencySnapshot(tuple(self._counts), self._total_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorStatistics:
    """Counters since the start of this process; the first group is of this moment."""

    tcids: tuple[int, ...]
    open: int
    sessions: int
    retained: int
    """Decided headers that wait out their retention."""
    stuck: int
    """Decided transactions past their retention that still have op records."""
    begun: int
    committed: int
    aborted: int
    """By whatever reason, `timed_out` and `vanished` among them."""
    timed_out: int
    vanished: int
    """Aborted because their client was gone."""
    unanswered: int
    """Begins served with a fresh id because the first went unanswered."""
    collected: int
    begin_latency: LatencySnapshot
    end_latency: LatencySnapshot


class Counters:
    """The mutable side of `CoordinatorStatistics`."""

    __slots__ = (
        "aborted",
        "begin_latency",
        "begun",
        "collected",
        "committed",
        "end_latency",
        "stuck",
        "timed_out",
        "unanswered",
        "vanished",
    )

    def __init__(self) -> None:
        self.begun = self.committed = self.aborted = self.timed_out = self.vanished = 0
        self.unanswered = self.collected = self.stuck = 0
        self.begin_latency = Latency()
        self.end_latency = Latency()
