"""Which fault is injected where, after how many copied messages: drawn from a seed before the run begins. Pure."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["kill", "stop", "split", "merge"]

MESSAGES_A_KILL = 2500
MESSAGES_A_LAYOUT_CHANGE = 5000
LATEST_S = 0.3


@dataclass(frozen=True, slots=True)
class Fault:
    """kill: SIGKILL; stop: SIGTERM; split and merge: of a segment of the topic `target`. It comes `after_s` seconds
    after so many messages have been seen copied."""

    at_message: int
    after_s: float
    kind: Kind
    target: str

    def __str__(self) -> str:
        return f"{self.kind} {self.target}"


def schedule(seed: int, messages: int, groups: Mapping[str, Sequence[str]], topics: Sequence[str]) -> list[Fault]:
    """In turn each group has one of its members killed and one stopped, in an order drawn for each round, all of them
    at least once; and every topic is changed at least once."""
    chance = random.Random(f"{seed}/copying")
    turns: list[tuple[Kind, str]] = []
    least = 2 * len(groups)
    while len(turns) < max(least, messages // MESSAGES_A_KILL):
        kinds: tuple[Kind, ...] = ("kill", "stop")
        members = [(kind, chance.choice(names)) for names in groups.values() for kind in kinds]
        turns += chance.sample(members, len(members))
    changes: list[tuple[Kind, str]] = []
    while len(changes) < max(len(topics), messages // MESSAGES_A_LAYOUT_CHANGE):
        change: Kind = "split" if not changes or chance.random() < 0.5 else "merge"
        changes += [(change, topic) for topic in chance.sample(list(topics), len(topics))]
    return sorted(
        [*_spread(chance, messages, turns), *_spread(chance, messages, changes)], key=lambda one: one.at_message
    )


def _spread(chance: random.Random, messages: int, what: Sequence[tuple[Kind, str]]) -> list[Fault]:
    """One in each of as many equal parts of the copying."""
    return [
        Fault(int((part + chance.random()) * messages / len(what)), chance.uniform(0, LATEST_S), kind, target)
        for part, (kind, target) in enumerate(what)
    ]
