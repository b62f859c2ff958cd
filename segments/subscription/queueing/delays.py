"""Messages of a queue that wait for their time: given back with a delay, or sent to be delivered later. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush

from txnwire.ids import Position


class MessageDelays:
    """Keeps indexes of entries until their time, on any clock that never goes back."""

    def __init__(self) -> None:
        self._indexes: dict[Position, int] = {}
        self._heap: list[tuple[float, Position, int]] = []

    def __len__(self) -> int:
        """Number of delays: several for an entry whose messages have several."""
        return len(self._heap)

    @property
    def entries(self) -> int:
        return len(self._indexes)

    @property
    def next_s(self) -> float | None:
        """When the first delay is over."""
        return self._heap[0][0] if self._heap else None

    def of(self, position: Position) -> int:
        """Bitmap of the entry's messages that wait."""
        return self._indexes.get(position, 0)

    def put(self, position: Position, indexes: int, until_s: float) -> None:
        """`indexes` do not wait yet."""
        self._indexes[position] = self._indexes.get(position, 0) | indexes
        heappush(self._heap, (until_s, position, indexes))

    def over(self, now_s: float) -> Iterator[Position]:
        """Removes the delays that end by `now_s`; yields the entry of each."""
        while self._heap and self._heap[0][0] <= now_s:
            _, position, indexes = heappop(self._heap)
            left = self._indexes.pop(position) & ~indexes
            if left:
                self._indexes[position] = left
            yield position
