"""What becomes of requests to etcd: delays always, and while `share` is above 0 lost ones, both ways."""

from __future__ import annotations

import random
from collections.abc import Callable

from simulation.trace import Trace
from txnstore.memory_store import Fate

REPEATABLE = ("read", "watch", "status")


class StoreFaults:
    """`txnstore.memory_store.Faults`. `share`: how many requests go unanswered, from 0 to 1."""

    def __init__(self, seed: int, trace: Trace, now: Callable[[], float]) -> None:
        self._random = random.Random(f"{seed}/store")
        self._trace = trace
        self._now = now
        self.share = 0.0
        self.slow_watches = 0.0

    def fate(self, request: str, client: str) -> Fate:
        chance = self._random
        arrive_s = chance.uniform(0.0002, 0.002)
        if chance.random() >= self.share:
            fate = Fate(arrive_s=arrive_s, answer_s=chance.uniform(0.0001, 0.001))
        else:
            fate = self._unanswered(arrive_s)
        arrives = "never" if fate.arrive_s is None else f"{fate.arrive_s:.6f}"
        self._trace.record(self._now(), "etcd", client, request, arrives, f"{fate.answer_s:.6f}", fate.fail_s)
        return fate

    def _unanswered(self, arrive_s: float) -> Fate:
        """▲ Its fate is unknown to the client: it was lost, it was applied, or it lands when nobody expects it."""
        fail_s = self._random.uniform(0.001, 1.5)
        match self._random.randrange(3):
            case 0:
                return Fate(arrive_s=None, fail_s=fail_s)
            case 1:
                return Fate(arrive_s=min(arrive_s, fail_s / 2), fail_s=fail_s)
            case _:
                return Fate(arrive_s=fail_s + self._random.uniform(0.01, 6.0), fail_s=fail_s)

    def watch_delay_s(self, client: str) -> float:
        if self._random.random() < self.slow_watches:
            return self._random.uniform(0.05, 3.0)
        return self._random.uniform(0.0001, 0.002)
