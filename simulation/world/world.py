"""Hosts and processes of one simulated cluster: each process has its own ports, can be killed, paused, restarted."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from simulation.world.loop import ProcessLife, SimLoop
from simulation.world.sim_disk import SimDisk
from simulation.world.sim_ledger import SimLedgerStore
from simulation.world.sim_transport import Network, SimTransport
from simulation.world.store_faults import StoreFaults
from txnstore.memory.memory_etcd import MemoryEtcd
from txnstore.memory.memory_store import MemoryStore
from txnstore.memory.mvcc import Change
from txnstore.store import Event, EventKind

WALL_START_MS = 1_700_000_000_000


class SimClock:
    """`txnwire.ports.Clock`; `step_ms`: how far an operator or NTP has stepped the wall clock."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        self.step_ms = 0
        self._drift = 0.0
        self._drifts_since_s = 0.0

    def monotonic(self) -> float:
        return self._loop.time()

    def wall_ms(self) -> int:
        return WALL_START_MS + int(self._loop.time() * 1000) + self.step_ms + self._drifted_ms()

    def drift(self, share: float) -> None:
        """From now on the wall clock runs that much too fast, or too slow (below 0); the deviation stays."""
        self.step_ms += self._drifted_ms()
        self._drift, self._drifts_since_s = share, self._loop.time()

    def set_right(self) -> None:
        self.drift(0.0)
        self.step_ms = 0

    def _drifted_ms(self) -> int:
        return int((self._loop.time() - self._drifts_since_s) * 1000 * self._drift)


FURTHEST_OFF_MS = 600_000
DEFAULT_TXN_OPS = 128
"""Limit of an etcd with default settings."""
PAGES_DIVIDED_BY = 100
"""Divides page and turn sizes of hundreds and thousands in some runs, so that a run's data exceeds them."""


def pages_divided_by(seed: int) -> int:
    return PAGES_DIVIDED_BY if seed % 4 == 1 else 1


@dataclass(frozen=True, slots=True)
class Ports:
    """The ports of one life of a process."""

    owner: ProcessLife
    transport: SimTransport
    clock: SimClock
    random: random.Random
    store: MemoryStore
    ledgers: SimLedgerStore
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when it is asked to end, as by SIGTERM."""


@dataclass(frozen=True, slots=True)
class Broken:
    """A process ended by an exception."""

    at: float
    process: str
    error: BaseException


Program = Callable[[Ports], Awaitable[None]]


class World:
    """Everything outside of the processes."""

    def __init__(self, loop: SimLoop, seed: int) -> None:
        self.loop = loop
        self.seed = seed
        self.network = Network(loop, seed)
        self.clocks_differ = seed % 2 == 1
        """True in every other run: no two hosts agree on the time, from the beginning on."""
        self._clock_chance = random.Random(f"{seed}/clocks")
        self.etcd_clock = SimClock(loop)
        self.etcd = MemoryEtcd(
            self.etcd_clock,
            max_txn_ops=10_000 if seed % 3 == 0 else DEFAULT_TXN_OPS,
            pages_divided_by=pages_divided_by(seed),
        )
        self.etcd.on_change = self._changed
        self.store_faults = StoreFaults(seed, loop.trace, loop.time)
        self.disks: dict[str, SimDisk] = {}
        self.processes: dict[str, SimProcess] = {}
        self.broken: list[Broken] = []
        self.findings: list[str] = []
        """What a fault has found wrong in the cluster's reaction."""
        self.witnesses: list[Callable[[float, Sequence[Event]], None]] = []
        """Called with every change in etcd, revision by revision, with its time."""

    def disk(self, host: str) -> SimDisk:
        if host not in self.disks:
            self.disks[host] = SimDisk(f"{self.seed}/{host}", trace=self.loop.trace, forgives_untold_ends=True)
        return self.disks[host]

    def add(self, name: str, program: Program, *, restart_s: float | None = 1.0, disk: str | None = None) -> SimProcess:
        """Adds a process on a host of its own name. `restart_s`: how soon its supervisor restarts it after its end.
        `disk`: the one it works on, its own if None; brokers share one, as on one machine."""
        process = SimProcess(self, name, program, restart_s, disk or name)
        if self.clocks_differ:
            process.clock.step_ms = self._clock_chance.randrange(-FURTHEST_OFF_MS, FURTHEST_OFF_MS)
        self.processes[name] = process
        return process

    def _changed(self, change: Change) -> None:
        for witness in self.witnesses:
            witness(self.loop.time(), change.events)
        for event in change.events:
            record = event.record
            value = f" = {record.value.decode()}" if event.kind is EventKind.PUT else ""
            self.loop.trace.record(
                self.loop.time(), "etcd", event.kind.name, change.revision, f"{record.key.decode()}{value}"
            )

    def note(self, text: str) -> None:
        self.loop.trace.record(self.loop.time(), "world", text)


class SimProcess:
    """One process through its lives. `clock` belongs to its host and keeps its steps over restarts."""

    def __init__(self, world: World, name: str, program: Program, restart_s: float | None, disk: str) -> None:
        self.name = name
        self._disk = disk
        self.clock = SimClock(world.loop)
        self.life = 0
        self._world = world
        self._program = program
        self._restart_s = restart_s
        self._ports: Ports | None = None
        self._kept_down = False
        self._restarting = False
        self._down = asyncio.Event()

    @property
    def alive(self) -> bool:
        return self._ports is not None

    @property
    def owner(self) -> ProcessLife | None:
        """Owner of its present life."""
        return None if self._ports is None else self._ports.owner

    @property
    def open_ledgers(self) -> int:
        return 0 if self._ports is None else self._ports.ledgers.open_ledgers

    @property
    def paused(self) -> bool:
        return self._ports is not None and self._ports.owner.paused

    @property
    def leases_good_until(self) -> float:
        """See `StoreClient.leases_good_until`; -1 while it is down."""
        return -1.0 if self._ports is None else self._ports.store.leases_good_until()

    @property
    def undisturbed(self) -> bool:
        """Whether it runs and reaches etcd."""
        connected = self._ports is not None and self._ports.store.memory_backend.connected
        return connected and not self.paused and not self._world.etcd.paused

    def start(self) -> None:
        if self._ports is not None:
            return
        self._kept_down = False
        self._down.clear()
        self.life += 1
        self._ports = ports = self._new_ports()
        self._world.note(f"start {self.name} life {self.life}")
        self._world.network.host_is_up(self.name)
        loop = self._world.loop
        loop.call_soon(self._run, ports, context=loop.context_of(ports.owner))

    def _new_ports(self) -> Ports:
        world = self._world
        owner = world.loop.new_owner(f"{self.name}.{self.life}")
        chance = random.Random(f"{world.seed}/{owner.name}")
        store = MemoryStore(world.etcd, self.clock, chance, name=self.name, faults=world.store_faults)
        transport = SimTransport(world.network, owner, self.name)
        return Ports(owner, transport, self.clock, chance, store, SimLedgerStore(world.disk(self._disk)))

    def _run(self, ports: Ports) -> None:
        task = self._world.loop.create_task(self._live(ports), name=ports.owner.name)
        task.add_done_callback(lambda task: self._ended(ports, task))

    async def _live(self, ports: Ports) -> None:
        try:
            await self._program(ports)
        finally:
            await ports.ledgers.close()
            await ports.store.close()

    def _ended(self, ports: Ports, task: asyncio.Task[None]) -> None:
        """It ended without being killed."""
        error = None if task.cancelled() else task.exception()
        self._world.note(f"end {self.name} life {self.life} {type(error).__name__ if error else ''}")
        if error is not None:
            self._world.broken.append(Broken(self._world.loop.time(), self.name, error))
        self._bury(ports)
        if self._restart_s is not None and not self._kept_down and not self._restarting:
            self._restarting = True
            self._world.loop.call_in_world(self._restart_s, self._restart)

    def _restart(self) -> None:
        self._restarting = False
        if not self._kept_down:
            self.start()

    async def wait_ended(self, timeout_s: float) -> bool:
        """Whether it ended or was killed within that time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._down.wait()
        return self._down.is_set()

    def kill(self) -> None:
        """▲ As SIGKILL, at any instruction: no clean-up, no goodbye. `start` begins the next life."""
        if self._ports is not None:
            self._world.note(f"kill {self.name} life {self.life}")
            self._bury(self._ports)

    def stop(self) -> None:
        """As SIGTERM: it hands over what it has and ends, and its supervisor restarts it."""
        if self._ports is not None:
            self._world.note(f"stop {self.name} life {self.life}")
            self._ports.stopping.set()

    def keep_down(self) -> None:
        self._kept_down = True

    def fail_with_host(self) -> None:
        """Its host fails without notice: peers notice only the silence. The disk is `SimDisk`'s matter: others may work
        on it."""
        if self._ports is not None:
            self._world.note(f"host of {self.name} life {self.life} fails")
            self._bury(self._ports, with_host=True)

    def _bury(self, ports: Ports, *, with_host: bool = False) -> None:
        if self._ports is ports:
            self._ports = None
            self._down.set()
        self._world.loop.kill(ports.owner)
        self._world.network.owner_died(ports.owner, host=self.name if with_host else None)
        ports.store.memory_backend.forget()

    def pause(self) -> None:
        if self._ports is not None:
            self._world.note(f"pause {self.name}")
            self._world.loop.pause(self._ports.owner)

    def resume(self) -> None:
        if self._ports is not None and self._ports.owner.paused:
            self._world.note(f"resume {self.name}")
            self._world.loop.resume(self._ports.owner)

    def disconnect_store(self) -> None:
        if self._ports is not None:
            self._world.note(f"{self.name} loses etcd")
            self._ports.store.memory_backend.disconnect()

    def cut_watches(self) -> None:
        if self._ports is not None:
            self._world.note(f"{self.name} loses its watches")
            self._ports.store.memory_backend.cut_watches()

    def reconnect_store(self) -> None:
        if self._ports is not None:
            self._ports.store.memory_backend.reconnect()
