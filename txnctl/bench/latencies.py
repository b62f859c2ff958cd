"""Latencies of any number of calls in bounded memory, to within 2 %. Pure.

Buckets grow by 2 % each, as in Gil Tene's HdrHistogram: from a microsecond to an hour that is some 1 100 of them.
"""

from __future__ import annotations

import math

_GROWTH = math.log(1.02)
_SMALLEST_S = 1e-6


class Latencies:
    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self.count = 0
        self.longest_s = 0.0

    def record(self, seconds: float, times: int = 1) -> None:
        """Counts `times` calls of this duration; below a microsecond counts as one."""
        bucket = int(math.log(max(seconds, _SMALLEST_S) / _SMALLEST_S) / _GROWTH)
        self._counts[bucket] = self._counts.get(bucket, 0) + times
        self.count += times
        self.longest_s = max(self.longest_s, seconds)

    def quantile(self, q: float) -> float | None:
        """Seconds within which a share `q` (0 to 1) of the calls ended; None without calls."""
        rank, seen = q * self.count, 0
        for bucket in sorted(self._counts):
            seen += self._counts[bucket]
            if seen >= rank:
                return min(self.longest_s, _SMALLEST_S * math.exp((bucket + 1) * _GROWTH))
        return None

    def in_ms(self) -> dict[str, float | None]:
        """p50, p90, p99, p99_9 and max, in milliseconds."""
        shares = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99_9": 0.999, "max": 1.0}
        found = {name: self.quantile(q) for name, q in shares.items()}
        return {name: None if seconds is None else round(seconds * 1000, 3) for name, seconds in found.items()}
