"""What befalls a simulated cluster: one fault after another, drawn from the seed, until everything heals."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

from simulation.sim_ledger import DiskFaults
from simulation.world import World
from txnstore.memory_etcd import DEFAULT_QUOTA_BYTES

DATA = "data"
"""The disk of all brokers."""
OFTEN = ("kill a server", "pause", "reset", "lose replies", "etcd full")
CALM_SHARE = 0.25


class Nemesis:
    """`pace_s`: mean time between two faults; now and then there is a calm of several times that."""

    def __init__(self, world: World, *, pace_s: float = 8.0, only: str | None = None) -> None:
        self._world = world
        self._random = random.Random(f"{world.seed}/nemesis")
        self._pace_s = pace_s
        self._clients = [name for name in world.processes if name.startswith("client")]
        self._brokers = [name for name in world.processes if name.startswith("broker")]
        self._servers = ["control", *self._brokers]
        self._usual_disk = world.disk(DATA).faults
        self.counts: dict[str, int] = {}
        self._faults: dict[str, Callable[[], Awaitable[None]]] = {
            "kill a server": self._kill_server,
            "kill a client": self._kill_client,
            "power failure": self._power_failure,
            "pause": self._pause,
            "cut": self._cut,
            "reset": self._reset,
            "lose replies": self._lose_replies,
            "lose etcd": self._lose_etcd,
            "etcd unanswered": self._etcd_unanswered,
            "etcd restart": self._etcd_restart,
            "etcd pause": self._etcd_pause,
            "etcd compaction": self._etcd_compaction,
            "etcd full": self._etcd_full,
            "early expiry": self._early_expiry,
            "slow watches": self._slow_watches,
            "slow disk": self._slow_disk,
            "failing disk": self._failing_disk,
            "wall clock": self._wall_clock,
        }
        if only is not None:
            self._faults = {name: fault for name, fault in self._faults.items() if name in only.split(",")}

    async def run(self) -> None:
        """Until cancelled. Several faults may overlap."""
        if not self._faults:
            await asyncio.Event().wait()
        running: dict[asyncio.Task[None], None] = {}
        try:
            while True:
                calm = 4.0 if self._random.random() < CALM_SHARE else 1.0
                await asyncio.sleep(self._random.expovariate(1 / (self._pace_s * calm)))
                name = self._random.choice([*self._faults, *(name for name in OFTEN if name in self._faults)])
                self.counts[name] = self.counts.get(name, 0) + 1
                self._world.note(f"fault: {name}")
                task = asyncio.get_running_loop().create_task(_run(self._faults[name]))
                running[task] = None
                task.add_done_callback(lambda task: running.pop(task))
        finally:
            for task in list(running):
                task.cancel()

    def heal(self) -> None:
        """End every fault that still goes on, and start whatever is down."""
        world = self._world
        world.network.heal()
        world.store_faults.share = world.store_faults.slow_watches = 0.0
        for disk in world.disks.values():
            disk.faults = self._usual_disk
        world.etcd.quota_bytes = DEFAULT_QUOTA_BYTES
        if not world.etcd.running:
            world.etcd.restart()
        world.etcd.resume()
        for process in world.processes.values():
            process.clock.step_ms = 0
            process.resume()
            process.reconnect_store()
            process.start()

    async def _for_a_while(self, shortest_s: float, longest_s: float) -> None:
        await asyncio.sleep(self._random.uniform(shortest_s, longest_s))

    async def _kill_server(self) -> None:
        process = self._world.processes[self._random.choice(self._servers)]
        process.kill()
        await self._for_a_while(0.01, 6.0)
        process.start()

    async def _kill_client(self) -> None:
        process = self._world.processes[self._random.choice(self._clients)]
        process.kill()
        await self._for_a_while(0.01, 15.0)
        process.start()

    async def _power_failure(self) -> None:
        """Of the machine with the disk, and of every broker on it."""
        processes = [self._world.processes[name] for name in self._brokers]
        for process in processes:
            process.kill()
        self._world.disk(DATA).power_failure()
        await self._for_a_while(0.5, 12.0)
        for process in processes:
            process.start()

    async def _pause(self) -> None:
        """Up to longer than a lease: when it wakes it may be a zombie."""
        process = self._world.processes[self._random.choice([*self._servers, *self._clients])]
        process.pause()
        await self._for_a_while(0.1, 16.0)
        process.resume()

    async def _cut(self) -> None:
        names = list(self._world.processes)
        source, target = self._random.choice(names), self._random.choice(names)
        self._world.network.cut(source, target)
        if self._random.random() < 0.5:
            self._world.network.cut(target, source)
        await self._for_a_while(0.1, 15.0)
        self._world.network.heal()

    async def _reset(self) -> None:
        """One connection, or one after another for some seconds, between the same retries."""
        for _ in range(self._random.choice((1, 1, 20))):
            links = self._world.network.links()
            if links:
                self._random.choice(links).reset("connection reset")
            await self._for_a_while(0.0, 0.4)

    async def _lose_replies(self) -> None:
        """▲ Requests are applied and nobody hears of it."""
        for _ in range(self._random.choice((1, 3, 15))):
            links = self._world.network.links()
            if links:
                self._random.choice(links).lose_replies(1, self._random.uniform(0.005, 0.5))
            await self._for_a_while(0.0, 0.4)

    async def _lose_etcd(self) -> None:
        process = self._world.processes[self._random.choice(self._servers)]
        process.disconnect_store()
        await self._for_a_while(0.05, 14.0)
        process.reconnect_store()

    async def _etcd_unanswered(self) -> None:
        self._world.store_faults.share = self._random.choice((0.02, 0.1, 0.4))
        await self._for_a_while(0.5, 8.0)
        self._world.store_faults.share = 0.0

    async def _etcd_restart(self) -> None:
        self._world.etcd.crash()
        await self._for_a_while(0.05, 12.0)
        self._world.etcd.restart()

    async def _etcd_pause(self) -> None:
        self._world.etcd.pause()
        await self._for_a_while(0.05, 6.0)
        self._world.etcd.resume()

    async def _etcd_compaction(self) -> None:
        """Also under watches that are behind: those resync."""
        etcd = self._world.etcd
        self._world.store_faults.slow_watches = 0.5
        await self._for_a_while(0.1, 2.0)
        if etcd.running:
            etcd.compact(etcd.mvcc.revision)
            etcd.cut()
        self._world.store_faults.slow_watches = 0.0

    async def _etcd_full(self) -> None:
        """E3: above the soft limit new work is refused while what is open ends; at the quota nothing can be put, until
        the maintenance role has made room. Something else filled it, and goes away again."""
        etcd = self._world.etcd
        etcd.quota_bytes = int(etcd.mvcc.bytes_in_use / self._random.choice((0.78, 0.9, 1.1)))
        await self._for_a_while(1.0, 12.0)
        etcd.quota_bytes = DEFAULT_QUOTA_BYTES

    async def _early_expiry(self) -> None:
        leases = self._world.etcd.leases()
        if leases:
            self._world.etcd.expire_lease(self._random.choice(leases))

    async def _slow_watches(self) -> None:
        self._world.store_faults.slow_watches = self._random.choice((0.05, 0.5, 1.0))
        await self._for_a_while(0.5, 10.0)
        self._world.store_faults.slow_watches = 0.0

    async def _slow_disk(self) -> None:
        await self._with_disk(DiskFaults(sync_s=(0.0002, 0.05), slow_share=0.2))

    async def _failing_disk(self) -> None:
        await self._with_disk(DiskFaults(sync_s=self._usual_disk.sync_s, failing_share=0.1))

    async def _with_disk(self, faults: DiskFaults) -> None:
        disk = self._world.disk(DATA)
        disk.faults = faults
        await self._for_a_while(0.5, 8.0)
        disk.faults = self._usual_disk

    async def _wall_clock(self) -> None:
        """An hour forth or back; nothing may be aborted, or kept, by it (D6)."""
        process = self._world.processes[self._random.choice(list(self._world.processes))]
        process.clock.step_ms = self._random.choice((-3_600_000, 3_600_000, 0))


async def _run(fault: Callable[[], Awaitable[None]]) -> None:
    await fault()
