"""The chaos of processes, over containers: its workers and judges, other faults."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from tests.containers.cluster import MEMBERS, NODES, SERVERS, ContainerCluster
from tests.containers.disturbing import deafen, hear, mend, spoil
from tests.containers.engine import Container, Engine
from tests.process.chaos.moments import Moments
from tests.process.chaos.run import Chaos, Settings, Verdict

T = TypeVar("T")

ALL = (*MEMBERS, *SERVERS)
AWAY_S = 4.0
LASTING_S = 6.0
"""Beyond the lease of 5 s: what wakes up, or hears again, has been replaced."""
BETWEEN_S = 2.0
FLAPS = 4
PARTS = (
    ("broker-1", "coordinator-1"),
    ("broker-2", "etcd-1"),
    ("coordinator-2", "etcd-2"),
    ("controller-1", "broker-1"),
    ("etcd-1", "etcd-3"),
    ("coordinator-1", "coordinator-2"),
)
"""Between which there are partitions, one after the other."""
SPOILT = ("broker-1", "coordinator-2", "etcd-2")


class ContainerChaos(Chaos):
    """Every fault once, in a fixed order; then, for the seconds of the settings, what the seed draws of them."""

    def __init__(self, cluster: ContainerCluster, settings: Settings) -> None:
        super().__init__(cluster, settings)  # type: ignore[arg-type]  # answers what is asked of it
        self._containers = cluster
        self._random = random.Random(settings.seed)
        self._faults: dict[str, tuple[Callable[[], Awaitable[None]], Callable[[], Awaitable[None]]]] = {
            "kill": (self._kill_each_role, lambda: self._gone((self._one(SERVERS),), 0.5)),
            "node lost": (lambda: self._gone(NODES[0], LASTING_S), lambda: self._gone(self._one(NODES), LASTING_S)),
            "partition": (self._part_each, lambda: self._part(*self._two())),
            "one-way partition": (self._part_each_one_way, lambda: self._part_one_way(*self._two())),
            "flapping": (lambda: self._flap("broker-2"), lambda: self._flap(self._one(SERVERS))),
            "bad network": (lambda: self._spoil(SPOILT), lambda: self._spoil(self._random.sample(ALL, 3))),
            "disconnected": (lambda: self._disconnect("coordinator-2"), lambda: self._disconnect(self._one(SERVERS))),
            "etcd member killed": (self._kill_members, lambda: self._gone((self._one(MEMBERS),), 1.0)),
        }
        """Kind → what is done once of it, and what is drawn."""

    def _one(self, names: Sequence[T]) -> T:
        return self._random.choice(names)

    def _two(self) -> tuple[str, str]:
        one, other = self._random.sample(ALL, 2)
        return one, other

    async def _trouble(self, moments: Moments) -> None:
        await asyncio.sleep(BETWEEN_S)
        for kind, (once, _) in self._faults.items():
            await self._strike(kind, once)
        until = time.monotonic() + self._settings.seconds
        while time.monotonic() < until:
            kind = self._one(list(self._faults))
            await self._strike(kind, self._faults[kind][1])

    async def _strike(self, kind: str, strike: Callable[[], Awaitable[None]]) -> None:
        self._note(kind)
        self.verdict.faults[kind] += 1
        await strike()
        await asyncio.sleep(BETWEEN_S)

    async def _do(self, deed: Callable[..., Any], *names: str) -> None:
        await asyncio.to_thread(deed, *(self._containers[name] for name in names))

    async def _gone(self, names: tuple[str, ...], for_s: float) -> None:
        self._note(f"without {', '.join(names)}")
        await self._containers.each(names, Container.kill)
        await asyncio.sleep(for_s)
        await self._containers.each(names, Container.start)
        for name in names:
            await self._containers.wait_back(name)

    async def _kill_each_role(self) -> None:
        for name in ("broker-1", "coordinator-1"):
            await self._gone((name,), 0.5)

    async def _kill_members(self) -> None:
        for name in MEMBERS:
            await self._gone((name,), 1.0)

    async def _part(self, one: str, other: str) -> None:
        self._note(f"partition of {one} and {other}")
        await self._do(deafen, one, other)
        await self._do(deafen, other, one)
        await asyncio.sleep(AWAY_S)
        await self._do(hear, one, other)
        await self._do(hear, other, one)

    async def _part_each(self) -> None:
        for one, other in PARTS:
            await self._part(one, other)

    async def _part_one_way(self, one: str, other: str) -> None:
        self._note(f"{one} does not hear {other}")
        await self._do(deafen, one, other)
        await asyncio.sleep(LASTING_S)
        await self._do(hear, one, other)

    async def _part_each_one_way(self) -> None:
        for one, other in PARTS[:3]:
            await self._part_one_way(one, other)

    async def _flap(self, name: str) -> None:
        self._note(f"{name} hears etcd, and does not")
        for _ in range(FLAPS):
            await self._do(deafen, name, *MEMBERS)
            await asyncio.sleep(0.7)
            await self._do(hear, name, *MEMBERS)
            await asyncio.sleep(0.7)

    async def _spoil(self, names: Sequence[str]) -> None:
        self._note(f"bad network of {', '.join(names)}")
        await self._containers.each(names, spoil)
        await asyncio.sleep(LASTING_S)
        await self._containers.each(names, mend)

    async def _disconnect(self, name: str) -> None:
        """From its network altogether, its interface gone, and back under the same address."""
        self._note(f"{name} is off its network")
        engine = self._containers.engine
        await self._do(engine.disconnect, name)
        await asyncio.sleep(LASTING_S)
        await self._do(engine.connect, name)


async def run(engine: Engine, folder: Path, seed: int, seconds: float = 0.0) -> Verdict:
    async with ContainerCluster(engine, folder) as cluster:
        return await ContainerChaos(cluster, Settings(seed=seed, seconds=seconds)).run()
