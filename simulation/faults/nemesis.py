"""Injects the faults of a schedule into a simulated cluster, each at its time, until everything heals.

A new kind of fault is a coroutine over a `Scene` and an entry in the `KINDS` table of its file (`process_faults`,
`network_faults`, `etcd_faults`, `disk_faults`, or a file of its own, whose table is then added here). It draws from
`scene.chance` only, waits by `scene.for_a_while`, records in `scene.told` what it drew, and restores what it changed.
It is cancelled at any wait when the work ends, so `Nemesis.heal` must undo its lasting effects as well. Names have no
comma, semicolon or colon.
"""

from __future__ import annotations

import asyncio

from simulation.faults import disk_faults, etcd_faults, network_faults, process_faults, term_faults
from simulation.faults.faults import Fault, Schedule, draw_schedule
from simulation.faults.scene import FaultKind, Scene
from simulation.faults.strikes import Strikes
from simulation.world.world import World
from txnstore.memory.memory_etcd import DEFAULT_QUOTA_BYTES

KINDS: dict[str, FaultKind] = {
    **process_faults.KINDS,
    **network_faults.KINDS,
    **etcd_faults.KINDS,
    **disk_faults.KINDS,
    **term_faults.KINDS,
}
"""▲ The order in which they are drawn, which must be the same everywhere."""


def schedule_of(seed: int, *, work_s: float, faults: str | None = None) -> Schedule:
    """The schedule of a seed's run. `faults`: see `draw_schedule`."""
    weights = {name: kind.weight for name, kind in KINDS.items()}
    return draw_schedule(seed, weights, work_s=work_s, names=faults)


class Nemesis:
    """Runs the schedule; several faults may overlap. `counts`: how many of each kind there were."""

    def __init__(self, world: World, schedule: Schedule) -> None:
        self._world = world
        self._schedule = schedule
        self._brokers = tuple(name for name in world.processes if name.startswith("broker"))
        self._controls = tuple(name for name in world.processes if name.startswith("control"))
        self._clients = tuple(name for name in world.processes if name.startswith("client"))
        self._strikes = Strikes(world)
        self.counts: dict[str, int] = {}
        self._under_way = 0
        self._ended_at = 0.0
        self.told: dict[Fault, list[str]] = {}
        """What each fault has drawn, in words."""

    async def run(self) -> None:
        """Runs until cancelled, or until the last fault is over."""
        async with asyncio.TaskGroup() as faults:
            for fault in self._schedule.faults:
                await asyncio.sleep(fault.at_s - self._world.loop.time())
                self.counts[fault.kind] = self.counts.get(fault.kind, 0) + 1
                self._world.note(f"fault {fault}")
                scene = self._scene(fault)
                self.told[fault] = scene.told
                faults.create_task(self._strike(KINDS[fault.kind], scene))

    async def _strike(self, kind: FaultKind, scene: Scene) -> None:
        self._under_way += 1
        try:
            await kind.strike(scene)
        finally:
            self._under_way -= 1
            self._ended_at = self._world.loop.time()

    @property
    def calm_since(self) -> float:
        """When the last fault ended, whose effects may come later; infinity while one is under way."""
        return float("inf") if self._under_way else self._ended_at

    def _scene(self, fault: Fault) -> Scene:
        return Scene(
            world=self._world,
            chance=fault.chance(self._world.seed),
            brokers=self._brokers,
            controls=self._controls,
            clients=self._clients,
            strikes=self._strikes,
        )

    def _start_brokers_anew(self) -> None:
        """▲ Brokers do not read again what they have found damaged, until the operator who repaired it restarts
        them."""
        for name in self._brokers:
            self._world.processes[name].kill()

    def heal(self) -> None:
        """Ends every fault that still goes on, and starts every process that is down."""
        world = self._world
        self._strikes.heal()
        self._ended_at = world.loop.time()
        world.network.heal()
        world.store_faults.heal()
        for disk in world.disks.values():
            disk.heal()
        world.etcd.quota_bytes = DEFAULT_QUOTA_BYTES
        if not world.etcd.running:
            world.etcd.restart()
        world.etcd.resume()
        world.etcd.end_delays()
        if any(disk.flips for disk in world.disks.values()):
            self._start_brokers_anew()
        for process in world.processes.values():
            process.clock.set_right()
            process.resume()
            process.reconnect_store()
            process.start()
