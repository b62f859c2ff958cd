"""Which fault befalls which process when: drawn from a seed before the run begins. Pure."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["kill", "stop", "pause"]

SERVERS = ("broker-1", "broker-2", "server", "etcd")
CALM_SHARE = 0.2
LONGEST_PAUSE_S = {"etcd": 6.0}
"""Of others: longer than the lease of 5 s that the test clusters have, so that what wakes is a zombie."""
OTHERS_PAUSE_S = 13.0


@dataclass(frozen=True, slots=True)
class Fault:
    """`targets` are hit at one moment. kill: SIGKILL; stop: SIGTERM; pause: SIGSTOP, and SIGCONT `for_s` later."""

    at_s: float
    kind: Kind
    targets: tuple[str, ...]
    for_s: float = 0.0

    def __str__(self) -> str:
        text = f"{self.kind} {', '.join(self.targets)}"
        return f"{text} for {self.for_s:.1f} s" if self.kind == "pause" else text


def schedule(seed: int, seconds: float, workers: Sequence[str], *, pace_s: float) -> list[Fault]:
    """Faults at a mean distance of `pace_s`, now and then a calm of several times that."""
    chance = random.Random(f"{seed}/faults")
    faults: list[Fault] = []
    at_s = 0.0
    while True:
        at_s += chance.expovariate(1 / (pace_s * (4.0 if chance.random() < CALM_SHARE else 1.0)))
        if at_s > seconds:
            return faults
        faults.append(_fault(chance, at_s, workers))


def _fault(chance: random.Random, at_s: float, workers: Sequence[str]) -> Fault:
    step = chance.random()
    if step < 0.1:
        count = chance.randrange(2, len(SERVERS) + 1)
        return Fault(at_s, "kill", tuple(sorted(chance.sample(SERVERS, count))))
    target = chance.choice([*SERVERS, "broker-1", "broker-2", *workers])
    if step < 0.5:
        return Fault(at_s, "kill", (target,))
    if step < 0.6 and target != "etcd":
        return Fault(at_s, "stop", (target,))
    return Fault(at_s, "pause", (target,), chance.uniform(0.1, LONGEST_PAUSE_S.get(target, OTHERS_PAUSE_S)))
