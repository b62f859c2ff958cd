"""What a fault's coroutine gets: the world, its own random generator, and the processes by role."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from simulation.faults.strikes import Strikes
from simulation.world.world import SimProcess, World

DATA = "data"
"""The disk of all brokers."""


@dataclass(frozen=True, slots=True)
class Scene:
    """One running fault. ▲ `chance` is the fault's own: with another source of random choices, leaving out another
    fault would change this one."""

    world: World
    chance: random.Random
    brokers: tuple[str, ...]
    controls: tuple[str, ...]
    clients: tuple[str, ...]
    strikes: Strikes
    told: list[str] = field(default_factory=list)
    """What it has drawn, in words, for readers of a reduced list of faults."""

    @property
    def servers(self) -> tuple[str, ...]:
        return (*self.controls, *self.brokers)

    def any_of(self, names: tuple[str, ...]) -> SimProcess:
        name = self.chance.choice(names)
        self.told.append(name)
        return self.world.processes[name]

    async def for_a_while(self, shortest_s: float, longest_s: float) -> None:
        span_s = self.chance.uniform(shortest_s, longest_s)
        self.told.append(f"{span_s:.3f} s")
        await asyncio.sleep(span_s)


@dataclass(frozen=True, slots=True)
class FaultKind:
    """`weight`: how often it is drawn, relative to the others."""

    strike: Callable[[Scene], Awaitable[None]]
    weight: int = 1
