"""The chaos of processes, over containers: its workers and judges, other faults."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from tests.containers.cluster import MEMBERS, NODES, ContainerCluster
from tests.containers.disturbing import deafen, hear, mend, spoil
from tests.containers.engine import Container, Engine
from tests.process.chaos.moments import Moments
from tests.process.chaos.run import Chaos, Settings, Verdict

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


class ContainerChaos(Chaos):
    """Every fault once, in a fixed order."""

    def __init__(self, cluster: ContainerCluster, settings: Settings) -> None:
        super().__init__(cluster, settings)  # type: ignore[arg-type]  # answers what is asked of it
        self._containers = cluster

    async def _trouble(self, moments: Moments) -> None:
        await asyncio.sleep(BETWEEN_S)
        faults: dict[str, Callable[[], Awaitable[None]]] = {
            "kill": self._kill,
            "node lost": self._lose_node,
            "partition": self._part,
            "one-way partition": self._part_one_way,
            "flapping": self._flap,
            "bad network": self._spoil,
            "disconnected": self._disconnect,
            "etcd member killed": self._kill_members,
        }
        for kind, strike in faults.items():
            self._note(kind)
            self.verdict.faults[kind] += 1
            await strike()
            await asyncio.sleep(BETWEEN_S)

    async def _do(self, deed: Callable[..., Any], *names: str) -> None:
        await asyncio.to_thread(deed, *(self._containers[name] for name in names))

    async def _gone(self, names: tuple[str, ...], for_s: float) -> None:
        await self._containers.each(names, Container.kill)
        await asyncio.sleep(for_s)
        await self._containers.each(names, Container.start)
        for name in names:
            await self._containers.wait_back(name)

    async def _kill(self) -> None:
        for name in ("broker-1", "coordinator-1"):
            await self._gone((name,), 0.5)

    async def _lose_node(self) -> None:
        await self._gone(NODES[0], LASTING_S)

    async def _part(self) -> None:
        for one, other in PARTS:
            self._note(f"partition of {one} and {other}")
            await self._do(deafen, one, other)
            await self._do(deafen, other, one)
            await asyncio.sleep(AWAY_S)
            await self._do(hear, one, other)
            await self._do(hear, other, one)

    async def _part_one_way(self) -> None:
        for one, other in PARTS[:3]:
            self._note(f"{one} does not hear {other}")
            await self._do(deafen, one, other)
            await asyncio.sleep(LASTING_S)
            await self._do(hear, one, other)

    async def _flap(self) -> None:
        for _ in range(FLAPS):
            await self._do(deafen, "broker-2", *MEMBERS)
            await asyncio.sleep(0.7)
            await self._do(hear, "broker-2", *MEMBERS)
            await asyncio.sleep(0.7)

    async def _spoil(self) -> None:
        names = ("broker-1", "coordinator-2", "etcd-2")
        await self._containers.each(names, spoil)
        await asyncio.sleep(LASTING_S)
        await self._containers.each(names, mend)

    async def _disconnect(self) -> None:
        """From its network altogether, its interface gone, and back under the same address."""
        engine = self._containers.engine
        await self._do(engine.disconnect, "coordinator-2")
        await asyncio.sleep(LASTING_S)
        await self._do(engine.connect, "coordinator-2")

    async def _kill_members(self) -> None:
        for name in MEMBERS:
            await self._gone((name,), 1.0)


async def run(engine: Engine, folder: Path, seed: int) -> Verdict:
    async with ContainerCluster(engine, folder) as cluster:
        return await ContainerChaos(cluster, Settings(seed=seed, seconds=0.0)).run()
