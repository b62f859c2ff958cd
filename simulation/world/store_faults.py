"""Faults of requests to etcd: always delays, and during troubles whatever these say, for one client or all."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from simulation.world.trace import Trace
from txnstore.memory.memory_store import Fate

LOST, APPLIED, LATE = "lost", "applied", "late"
USUAL_LATE_S = (0.01, 6.0)
"""How long after its client has given up a request the request may land."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """`share`: part of its requests that go unanswered, from 0 to 1, each with one of `fates`: lost on its way;
    applied, with the answer lost; landing `late_s` after its client has given up.

    `clients`, `requests` (see `txnstore.memory.memory_store.Faults.fate`): which ones, None for all. `pause_s`: extra
    time of every request. `watch_share`: share of watch deliveries that come `watch_s` late."""

    clients: tuple[str, ...] | None = None
    requests: tuple[str, ...] | None = None
    share: float = 0.0
    fates: tuple[str, ...] = (LOST, APPLIED, LATE)
    late_s: tuple[float, float] = USUAL_LATE_S
    pause_s: tuple[float, float] = (0.0, 0.0)
    watch_share: float = 0.0
    watch_s: tuple[float, float] = (0.05, 3.0)

    def is_about(self, client: str) -> bool:
        return self.clients is None or client in self.clients


class StoreFaults:
    """`txnstore.memory.memory_store.Faults`. Several troubles may last at once; the first that strikes a request
    decides."""

    def __init__(self, seed: int, trace: Trace, now: Callable[[], float]) -> None:
        self._random = random.Random(f"{seed}/store")
        self._trace = trace
        self._now = now
        self._troubles: dict[int, Trouble] = {}
        self._next = 0
        self.witnesses: list[Callable[[str, str], None]] = []
        """Called with every request and its client as it is sent."""

    def inject(self, trouble: Trouble) -> Callable[[], None]:
        """Adds the trouble from now on, until the returned call."""
        number, self._next = self._next, self._next + 1
        self._troubles[number] = trouble

        def end() -> None:
            self._troubles.pop(number, None)

        return end

    def heal(self) -> None:
        self._troubles.clear()

    def fate(self, request: str, client: str) -> Fate:
        for witness in self.witnesses:
            witness(request, client)
        fate = self._fate(request, client)
        arrives = "never" if fate.arrive_s is None else f"{fate.arrive_s:.6f}"
        self._trace.record(self._now(), "etcd", client, request, arrives, f"{fate.answer_s:.6f}", fate.fail_s)
        return fate

    def _fate(self, request: str, client: str) -> Fate:
        chance = self._random
        arrive_s = chance.uniform(0.0002, 0.002)
        for trouble in self._troubles.values():
            if not trouble.is_about(client) or (trouble.requests is not None and request not in trouble.requests):
                continue
            if chance.random() < trouble.share:
                return self._unanswered(arrive_s, trouble)
            arrive_s += chance.uniform(*trouble.pause_s)
        return Fate(arrive_s=arrive_s, answer_s=chance.uniform(0.0001, 0.001))

    def _unanswered(self, arrive_s: float, trouble: Trouble) -> Fate:
        """▲ Its fate is unknown to the client: it was lost, it was applied, or it lands when no process expects it."""
        fail_s = self._random.uniform(0.001, 1.5)
        match self._random.choice(trouble.fates):
            case "lost":
                return Fate(arrive_s=None, fail_s=fail_s)
            case "applied":
                return Fate(arrive_s=min(arrive_s, fail_s / 2), fail_s=fail_s)
            case _:
                return Fate(arrive_s=fail_s + self._random.uniform(*trouble.late_s), fail_s=fail_s)

    def watch_delay_s(self, client: str) -> float:
        for trouble in self._troubles.values():
            if trouble.is_about(client) and self._random.random() < trouble.watch_share:
                return self._random.uniform(*trouble.watch_s)
        return self._random.uniform(0.0001, 0.002)
