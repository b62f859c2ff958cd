"""Targets of clean-up with one commit to write, without any participant behind them."""

from __future__ import annotations

from txnstore.store import Commit, CommitVerdict, Delete
from txnwire.clock import SystemClock
from txnwire.errors import TxnError
from watchers.clean_up import CleanUpPlan


class Deletes:
    """A participant that has one commit to write, which deletes so many keys."""

    def __init__(self, name: str, deletes: int) -> None:
        self.name = name
        self.backlog = 1
        self._keys = [f"{name}/{number}".encode() for number in range(deletes)]

    def plan(self, now_s: float, *, everything: bool = False) -> CleanUpPlan | None:
        return CleanUpPlan(Commit(deletes=tuple(map(Delete, self._keys)))) if self.backlog else None

    def settle(self, plan: CleanUpPlan, result: CommitVerdict, now_s: float) -> bool:
        self.backlog = 0
        return result.succeeded

    def next_flush_s(self) -> float | None:
        return None

    def lost(self, error: TxnError) -> None:
        raise error


class Losing(Deletes):
    """Loses its compare so many times."""

    def __init__(self, losses: int) -> None:
        super().__init__("/segment", 1)
        self.losses = losses

    def settle(self, plan: CleanUpPlan, result: CommitVerdict, now_s: float) -> bool:
        if not self.losses:
            return super().settle(plan, result, now_s)
        self.losses -= 1
        return False


class Flushed(Deletes):
    """Has a write that may wait for an hour, and at first nothing else."""

    def __init__(self) -> None:
        super().__init__("/segment", 1)
        self.backlog = 0
        self.asked = 0

    def next_flush_s(self) -> float | None:
        self.asked += 1
        return SystemClock().monotonic() + 3600.0
