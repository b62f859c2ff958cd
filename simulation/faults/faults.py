"""The faults of a run, drawn from its seed before it begins: a schedule that can be printed, reduced one by one, and
replayed.

Every fault draws from its own random generator, `Random(f"{seed}/fault/{number}")`: leaving some out does not change
what the others decide. Which kinds take part, and how densely, is drawn per seed (swarm testing: Groce et al., ISSTA
2012): some runs are calm, some know one or two kinds only, some any half of them, some all.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

PACES_S = (1.0, 2.0, 5.0)
"""Mean times between two faults, one of them for each run."""
PAUSE_SHARE = 0.25
"""Share of the times between two faults that are drawn with four times the mean."""
_FAULT = re.compile(r"#(\d+) at (\d+\.\d+) s: ([^;]+)")


class BadSchedule(ValueError):
    """The requested faults do not exist."""


@dataclass(frozen=True, slots=True)
class Fault:
    """`number` counts from 1 within the schedule of one seed; `at_s`: virtual seconds after the start."""

    number: int
    at_s: float
    kind: str

    def __str__(self) -> str:
        return f"#{self.number} at {self.at_s:.3f} s: {self.kind}"

    def chance(self, seed: int) -> random.Random:
        """Source of all random choices of this fault."""
        return random.Random(f"{seed}/fault/{self.number}")


@dataclass(frozen=True, slots=True)
class Schedule:
    """`shape` says in words what was drawn for this seed."""

    seed: int
    shape: str
    faults: tuple[Fault, ...] = ()

    def only(self, numbers: Sequence[int]) -> Schedule:
        """Only faults with these numbers, in the schedule's order. Raises `BadSchedule` for an unknown number."""
        known = {fault.number: fault for fault in self.faults}
        if missing := [number for number in numbers if number not in known]:
            raise BadSchedule(f"no fault #{missing[0]} in seed {self.seed}: it has {len(known)}")
        return replace(self, faults=tuple(known[number] for number in sorted(dict.fromkeys(numbers))))

    def __str__(self) -> str:
        return "; ".join(map(str, self.faults))


def parse_faults(text: str) -> tuple[Fault, ...]:
    """Parses what `str(schedule)` printed. Raises `BadSchedule`."""
    faults = []
    for part in filter(None, (part.strip() for part in text.split(";"))):
        match = _FAULT.fullmatch(part)
        if match is None:
            raise BadSchedule(f"not a fault: {part!r}; expected '#7 at 12.345 s: kill a server'")
        faults.append(Fault(int(match[1]), float(match[2]), match[3]))
    return tuple(faults)


def expect_kinds(names: Iterable[str], kinds: Iterable[str]) -> None:
    """Raises `BadSchedule` for a name that is not in `kinds`."""
    known = list(kinds)
    if unknown := [name for name in names if name not in known]:
        raise BadSchedule(f"no kind of fault is called {unknown[0]!r}; there are: {', '.join(known)}")


def draw_schedule(seed: int, kinds: Mapping[str, int], *, work_s: float, names: str | None = None) -> Schedule:
    """`kinds`: name → relative weight. `names`: only these kinds, joined by commas, instead of the seed's choice;
    "all", or "none". A longer `work_s` adds faults behind those of a shorter one. Raises `BadSchedule` for an unknown
    name."""
    chance = random.Random(f"{seed}/faults")
    pace_s = chance.choice(PACES_S)
    shape, chosen = _choose(chance, list(kinds)) if names is None else _named(names, kinds)
    weights = [kinds[kind] for kind in chosen]
    faults: list[Fault] = []
    at_s = 0.0
    while chosen:
        pause = 4.0 if chance.random() < PAUSE_SHARE else 1.0
        at_s = round(at_s + chance.expovariate(1 / (pace_s * pause)), 3)
        if at_s >= work_s:
            break
        faults.append(Fault(len(faults) + 1, at_s, chance.choices(chosen, weights)[0]))
    return Schedule(seed, f"{shape}, one in {pace_s:g} s" if chosen else shape, tuple(faults))


def _choose(chance: random.Random, kinds: Sequence[str]) -> tuple[str, list[str]]:
    match chance.choice(("calm", "one", "two", *["half"] * 3, *["all"] * 4)):
        case "calm":
            return "calm", []
        case "one":
            kind = chance.choice(kinds)
            return f"only {kind}", [kind]
        case "two":
            pair = chance.sample(kinds, 2)
            return f"only {' and '.join(pair)}", pair
        case "half":
            some = [kind for kind in kinds if chance.random() < 0.5]
            return f"{len(some)} of {len(kinds)} kinds", some
        case _:
            return "all kinds", list(kinds)


def _named(names: str, kinds: Mapping[str, int]) -> tuple[str, list[str]]:
    if names == "all":
        return "all kinds", list(kinds)
    chosen = [name.strip() for name in names.split(",")] if names not in ("", "none") else []
    expect_kinds(chosen, kinds)
    return (f"only {', '.join(chosen)}" if chosen else "calm"), chosen
