"""A set of keys and key ranges that tests quickly whether another key or range meets it. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable


class Spans:
    """Single keys in a hash set (the hot path), half-open ranges [start, end) merged and sorted; the keys are sorted
    only once a range asks about them."""

    __slots__ = ("_ends", "_sorted", "_starts", "keys")

    def __init__(self) -> None:
        self.keys: set[bytes] = set()
        self._sorted: list[bytes] | None = None
        self._starts: list[bytes] = []
        self._ends: list[bytes] = []

    @property
    def has_ranges(self) -> bool:
        return bool(self._starts)

    def add_keys(self, keys: Iterable[bytes]) -> None:
        if self._sorted is None:
            self.keys.update(keys)
            return
        for key in keys:
            if key not in self.keys:
                self.keys.add(key)
                insort(self._sorted, key)

    def add_range(self, start: bytes, end: bytes) -> None:
        """Add [start, end), merged with every range it overlaps or touches."""
        first = bisect_left(self._ends, start)
        last = bisect_right(self._starts, end)
        if first < last:
            start = min(start, self._starts[first])
            end = max(end, self._ends[last - 1])
        self._starts[first:last] = [start]
        self._ends[first:last] = [end]

    def meets_key(self, key: bytes) -> bool:
        return key in self.keys or self._in_range(key)

    def meets_any(self, keys: Iterable[bytes]) -> bool:
        if not self.keys.isdisjoint(keys):
            return True
        return bool(self._starts) and any(self._in_range(key) for key in keys)

    def meets_range(self, start: bytes, end: bytes) -> bool:
        following = bisect_right(self._starts, start)
        if following < len(self._starts) and self._starts[following] < end:
            return True
        if self._in_range(start):
            return True
        if self._sorted is None:
            self._sorted = sorted(self.keys)
        at = bisect_left(self._sorted, start)
        return at < len(self._sorted) and self._sorted[at] < end

    def _in_range(self, key: bytes) -> bool:
        at = bisect_right(self._starts, key) - 1
        return at >= 0 and key < self._ends[at]
