"""Counts how often each message of a queue was given back: a poison message must not raise the count of the others in
its entry. Pure."""

from __future__ import annotations

from txnwire.ids import Position


class RedeliveryCounts:
    """Keeps counts only of entries given back and not forgotten."""

    def __init__(self) -> None:
        self._counts: dict[Position, dict[int, int]] = {}
        """By entry: count → bitmap of the indexes given back that many times."""

    def __len__(self) -> int:
        """Entries."""
        return len(self._counts)

    def given_back(self, position: Position, indexes: int) -> None:
        """Add one to the count of `indexes`, which may be `WHOLE`."""
        before = self._counts.get(position)
        if before is None:
            self._counts[position] = {1: indexes}
            return
        after: dict[int, int] = {}
        rest = indexes
        for count, counted in before.items():
            rest &= ~counted
            after[count + 1] = after.get(count + 1, 0) | (counted & indexes)
            after[count] = after.get(count, 0) | (counted & ~indexes)
        after[1] = after.get(1, 0) | rest
        self._counts[position] = {count: counted for count, counted in after.items() if counted}

    def forget(self, position: Position) -> None:
        self._counts.pop(position, None)

    def parts(self, position: Position, everything: int, shown: int) -> tuple[tuple[int, int], ...]:
        """(indexes not to deliver, count) for each count among the `shown` indexes; `everything`: all of the entry."""
        counts = self._counts.get(position)
        if counts is None:
            return ((everything & ~shown, 0),)
        parts = []
        for count, counted in counts.items():
            if part := shown & counted:
                parts.append((everything & ~part, count))
                shown &= ~part
        if shown:
            parts.append((everything & ~shown, 0))
        return tuple(parts)
