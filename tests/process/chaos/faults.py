"""Which fault is injected where and when: drawn from a seed before the run begins. Pure.

A fault of a process is a signal, or one of the tap before it ("cut": nothing passes, "mute": what it is told arrives
and nobody hears what it says, "reset": its connections end). What strikes etcd goes by the part a member plays
("leader", "member", "quorum", "all"), for who leads is known only when it happens. Each fault draws from its own
number, so leaving some out changes none of the others.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from tests.process.chaos.cluster import BROKERS, CONTROLS

SERVERS = (*BROKERS, *CONTROLS)
CALM_SHARE = 0.2
PAUSE_S = (0.1, 13.0)
"""Up to longer than the lease of 5 s that the cluster has, so that what wakes is a zombie."""
CUT_S = (0.1, 10.0)
ETCD_S = (0.1, 8.0)
OUTAGE_S = (0.1, 5.0)
"""Without a quorum nobody gets on at all."""

KINDS: dict[str, int] = {
    "kill": 8,
    "kill together": 2,
    "stop": 3,
    "pause": 5,
    "kill worker": 4,
    "pause worker": 2,
    "cut": 3,
    "mute": 3,
    "reset": 3,
    "strike": 8,
    "etcd kill": 3,
    "etcd pause": 2,
    "etcd cut from clients": 2,
    "etcd cut from peers": 2,
}
"""Name → weight where all take part."""

MIXES: tuple[tuple[str, ...], ...] = (
    *[tuple(KINDS)] * 4,
    ("kill", "kill together", "stop", "pause", "kill worker"),
    ("cut", "mute", "reset", "kill worker"),
    ("kill", "mute", "etcd kill"),
    ("strike",),
    ("strike", "kill worker"),
    ("kill worker", "pause worker", "stop"),
    ("etcd kill", "etcd pause", "etcd cut from clients", "etcd cut from peers"),
    ("pause", "pause worker", "etcd pause", "etcd cut from clients"),
)
"""Which kinds take part: drawn for each seed. What always goes together hides what only one of them shows."""
WRITES = (
    "op", "decision", "seal", "ledger", "change", "layout", "pruning", "cursor", "clean-up", "drained", "owner", "key",
)  # fmt: skip
"""To etcd: "strike" waits for one of them, and does a deed to whoever has a part in it."""
OFTEN_AT = ("seal", "change", "layout", "op", "decision")
DEEDS = ("kill", "kill", "stop", "pause", "mute", "reset")
PACES_S = (1.0, 2.0, 3.5)
"""Mean distance of two faults: drawn for each seed."""


@dataclass(frozen=True, slots=True)
class Fault:
    """`targets` are hit at one moment: processes; or the one part that members of etcd play; or, of a strike, the write
    it waits for and what is done then. `for_s`: how long it
    lasts, where it does not pass by itself."""

    number: int
    at_s: float
    kind: str
    targets: tuple[str, ...]
    for_s: float = 0.0

    def __str__(self) -> str:
        text = f"{self.number}: {self.kind} {', '.join(self.targets)}"
        return f"{text} for {self.for_s:.1f} s" if self.for_s else text


def schedule(
    seed: int,
    seconds: float,
    workers: Sequence[str],
    *,
    pace_s: float | None = None,
    kinds: Sequence[str] | None = None,
    only: Sequence[int] | None = None,
) -> list[Fault]:
    """Now and then there is a calm between two of several times the mean distance. `kinds`, `pace_s`: instead of what
    the seed draws; `only`: none but those of these numbers."""
    chance = random.Random(f"{seed}/faults")
    mix, drawn_s = chance.choice(MIXES), chance.choice(PACES_S)
    mean_s = drawn_s if pace_s is None else pace_s
    chosen = tuple(mix if kinds is None else kinds)
    faults: list[Fault] = []
    at_s = 0.0
    while chosen:
        at_s += chance.expovariate(1 / (mean_s * (4.0 if chance.random() < CALM_SHARE else 1.0)))
        if at_s > seconds:
            break
        number = len(faults) + 1
        faults.append(_fault(random.Random(f"{seed}/fault/{number}"), number, at_s, chosen, workers))
    return [fault for fault in faults if only is None or fault.number in only]


def _fault(chance: random.Random, number: int, at_s: float, kinds: Sequence[str], workers: Sequence[str]) -> Fault:
    kind = chance.choices(kinds, [KINDS[one] for one in kinds])[0]
    if kind.startswith("etcd"):
        part = chance.choice(("leader", "leader", "member", "member", "quorum", "all"))
        bounds = OUTAGE_S if part in ("quorum", "all") else ETCD_S
        return Fault(number, at_s, kind, (part,), chance.uniform(*bounds))
    if kind == "strike":
        return _strike(chance, number, at_s)
    if kind == "kill together":
        many = chance.sample(SERVERS, chance.randrange(2, len(SERVERS) + 1))
        return Fault(number, at_s, kind, tuple(sorted(many)))
    target = chance.choice(workers if kind.endswith("worker") else SERVERS)
    bounds = PAUSE_S if kind.startswith("pause") else CUT_S if kind in ("cut", "mute") else (0.0, 0.0)
    for_s = chance.uniform(*bounds)
    return Fault(number, at_s, kind, (target,), for_s)


def _strike(chance: random.Random, number: int, at_s: float) -> Fault:
    deed = chance.choice(DEEDS)
    for_s = chance.uniform(*PAUSE_S) if deed == "pause" else chance.uniform(*CUT_S) if deed == "mute" else 0.0
    return Fault(number, at_s, "strike", (chance.choice((*WRITES, *OFTEN_AT)), deed), for_s)
