"""One or two brokers, one coordinator and controller, two clients, and whatever can befall them: the production code,
assembled over simulated ports, run from one seed and judged by the history checker (DESIGN §13)."""

from __future__ import annotations

import asyncio
import gc
import logging
import random
import sys
import warnings
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TextIO

import structlog

from segments.settings import BrokerSettings
from simulation import guards
from simulation.checker import check
from simulation.history import History
from simulation.loop import OWNER, SimLoop, SimulationStuck
from simulation.nemesis import DATA, Nemesis
from simulation.passing_work import PassingDrain, PassingLife, PassingLog
from simulation.queue_work import QueueDrain, QueueLife, QueueLog
from simulation.recorder import Recorder
from simulation.sim_ledger import DiskFaults, SimLedgerStore
from simulation.trace import Trace
from simulation.workload import ClientLife, Drain, Plan
from simulation.world import Ports, World
from txnctl.checking.invariants import broken_invariants
from txnctl.checking.ledgers import broken_ledgers
from txnctl.checking.picture import take_picture
from txnctl.server import Server
from txnctl.settings import ServerSettings
from txnwire.errors import OutcomeUnknown, StoreFull, StoreUnavailable, Timeout

CONTROL = "control:6650"
PASSING = "client-passing"
QUEUE_WORKERS = ("client-jobs-1", "client-jobs-2")
WORK_S = 60.0
QUIET_S = 40.0
"""After healing: longer than any transaction's time limit, the client grace and a lease together."""
DRAIN_S = 120.0
EXCUSED = (StoreFull, StoreUnavailable, Timeout, TimeoutError, OutcomeUnknown)
HEADER_RETENTION_S = 5.0
"""Below the 7.5 s by which `store_faults` may let a write land late, so that late begins meet collected headers."""
RELIEF_S = 20.0
"""After healing, until the maintenance role has taken back the alarm of a full etcd."""


@dataclass(frozen=True, slots=True)
class Report:
    """What one run showed. `findings` is empty where nothing is wrong."""

    seed: int
    digest: str
    virtual_s: float
    events: int
    operations: dict[str, int]
    errors: dict[str, int]
    faults: dict[str, int]
    findings: list[str]
    history: History = field(repr=False)


def server_settings(name: str, roles: str, listen: str) -> ServerSettings:
    return ServerSettings(
        id=name,
        roles=tuple(roles.split(",")),
        listen=listen,
        tcids=2,
        lease_ttl_s=4.0,
        client_grace_s=5.0,
        header_retention_s=HEADER_RETENTION_S,
    )


def broker_settings(ledger_roll_bytes: int) -> BrokerSettings:
    """Of brokers that roll, trim and write sidecars all the time."""
    return BrokerSettings(
        ledger_roll_bytes=ledger_roll_bytes,
        housekeeping_s=1.5,
        roll_least_age_ms=400,
        roll_least_bytes=2048,
        aborted_in_store=8,
    )


async def serve(ports: Ports, settings: ServerSettings, brokers: BrokerSettings | None = None) -> None:
    """A server process: as `txnctl serve`, over simulated ports. Ends when a role cannot be taken up, or fails."""
    server = Server(
        settings,
        store=ports.store,
        ledgers=ports.ledgers,
        transport=ports.transport,
        clock=ports.clock,
        random=ports.random,
        broker_settings=brokers,
    )
    try:
        await server.start()
        raise await server.wait_failed()
    finally:
        await server.close()


class Scenario:
    """`faults`: None for all, else names of `Nemesis` joined by commas; an empty text for none."""

    def __init__(self, loop: SimLoop, seed: int, *, work_s: float, faults: str | None) -> None:
        self._loop = loop
        self._work_s = work_s
        self._world = World(loop, seed)
        shape = self._shape = random.Random(f"{seed}/shape")
        self._world.disk(DATA).faults = DiskFaults(sync_s=shape.choice(((0.0002, 0.002), (0.002, 0.05))))
        self._brokers = ["broker-1", "broker-2"][: shape.choice((1, 1, 2))]
        pause_s = shape.choice((0.01, 0.05, 0.15))
        self.plan = Plan(f"txn://{CONTROL}", Recorder(loop.time), pause_s=pause_s)
        self.queue = QueueLog()
        self.passing = PassingLog()
        self._add_processes()
        self.nemesis = Nemesis(self._world, pace_s=shape.choice((2.0, 6.0, 12.0)), only=faults)
        self.findings: list[str] = []
        self.drained = False
        self._healed_at = float("inf")

    def _add_processes(self) -> None:
        control = server_settings("control", "coordinator,controller,admin", CONTROL)
        self._world.add("control", lambda ports: serve(ports, control))
        brokers = broker_settings(self._shape.choice((4096, 64 * 1024, 1024 * 1024)))
        for name in self._brokers:
            settings = server_settings(name, "broker", f"{name}:6650")
            self._world.add(name, partial(serve, settings=settings, brokers=brokers), disk=DATA)
        for name in ("client-1", "client-2"):
            self._world.add(name, lambda ports: ClientLife(ports, self.plan).live())
        for name in QUEUE_WORKERS:
            self._world.add(name, lambda ports: QueueLife(ports, self.plan, self.queue).live())
        self._world.add(PASSING, lambda ports: PassingLife(ports, self.plan, self.passing).live())

    async def run(self) -> None:
        for process in self._world.processes.values():
            process.start()
        trouble = self._loop.create_task(self.nemesis.run())
        await asyncio.sleep(self._work_s)
        trouble.cancel()
        await asyncio.wait([trouble])
        self._world.note("heal")
        self._healed_at = self._loop.time()
        self.nemesis.heal()
        await asyncio.sleep(2.0)
        self.plan.active = False
        clients = [self._world.processes[name] for name in ("client-1", "client-2", *QUEUE_WORKERS, PASSING)]
        for process in clients:
            process.keep_down()
        await asyncio.sleep(QUIET_S)
        for process in clients:
            process.kill()
        await self._drain()
        await self._check_records()

    async def _drain(self) -> None:
        self._world.note("drain")
        drains: list[Drain] = []

        async def program(ports: Ports) -> None:
            drains.append(Drain(ports, self.plan))
            await drains[-1].run()
            await QueueDrain(ports, self.plan, self.queue).run()
            self.findings += self.queue.findings()
            await PassingDrain(ports, self.plan, self.passing).run()
            self.findings += self.passing.findings()
            queue_drained.append(True)

        queue_drained: list[bool] = []
        drain = self._world.add("drain", program, restart_s=None)
        drain.start()
        await drain.wait_ended(DRAIN_S)
        self.drained = drains[-1].finished
        if not (self.drained and queue_drained):
            self.findings.append(f"the drain did not end within {DRAIN_S:g} s after everything healed")

    async def _check_records(self) -> None:
        """`txnctl check`'s invariants, and that clean-up has left nothing behind."""

        async def program(ports: Ports) -> None:
            picture = await take_picture(ports.store)
            findings = broken_invariants(picture, now_ms=ports.clock.wall_ms())
            async for finding in broken_ledgers(picture, SimLedgerStore(self._world.disk(DATA)), lambda _: None):
                findings.append(finding)
            self.findings += [f"{rule}: {text}" for rule, text in findings]
            for txn_id, segment, subscription in picture.ops:
                self.findings.append(f"left behind: op records of {txn_id} in {segment} {subscription or ''}")

        checking = self._world.add("check", program, restart_s=None)
        checking.start()
        if not await checking.wait_ended(30.0):
            self.findings.append("checking the records did not end within 30 s")

    def all_findings(self, history: History) -> list[str]:
        return [
            *(f"anomaly: {anomaly}" for anomaly in check(history)),
            *self.findings,
            *self._ended_processes(),
            *(f"unexpected error: {text}" for text in self.plan.unexpected),
            *(f"unhandled: {text}" for text in self._loop.unhandled),
        ]

    def _ended_processes(self) -> list[str]:
        """A server may end because its roles could not be taken up while faults went on; never because of a bug."""
        found: dict[str, int] = {}
        for broken in self._world.broken:
            if not (broken.at < self._healed_at + RELIEF_S and isinstance(broken.error, EXCUSED)):
                text = f"{broken.process} ended: {type(broken.error).__name__}: {broken.error}"
                found[text] = found.get(text, 0) + 1
        return [f"{text} ({count} times)" for text, count in found.items()]


def run(seed: int, *, work_s: float = WORK_S, faults: str | None = None, log: TextIO | None = None) -> Report:
    """One run from one seed. Deterministic: the same arguments give the same report, hash included."""
    trace = Trace(log)
    loop = SimLoop(seed, trace)  # type: ignore[abstract]
    alarms: dict[str, int] = {}
    with _quiet(trace, alarms), _last_words_are_findings(loop), guards.forbidden(loop.time), _no_collection():
        scenario = Scenario(loop, seed, work_s=work_s, faults=faults)
        try:
            loop.run_until_complete(scenario.run())
        except SimulationStuck as stuck:
            scenario.findings.append(f"stuck: {stuck}")
        history = scenario.plan.recorder.history(drained=scenario.drained)
        findings = scenario.all_findings(history)
        findings += [f"logged: {text} ({count} times)" for text, count in alarms.items()]
        virtual_s = loop.time()
        loop.close()
    operations: dict[str, int] = {}
    for operation in history.operations:
        kind = f"{operation.name.partition(' ')[0]} {operation.outcome}"
        operations[kind] = operations.get(kind, 0) + 1
    return Report(
        seed, trace.digest(), virtual_s, trace.events, operations, scenario.plan.errors, scenario.nemesis.counts,
        findings, history,
    )  # fmt: skip


@contextmanager
def _no_collection() -> Iterator[None]:
    """▲ The collector would run finalizers at moments that depend on what this interpreter did before."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextmanager
def _last_words_are_findings(loop: SimLoop) -> Iterator[None]:
    """Coroutines that were never awaited, and exceptions in finalizers, are bugs as well."""
    hook = sys.unraisablehook

    def keep(words: sys.UnraisableHookArgs) -> None:
        loop.unhandled.append(f"{loop.time():.6f} {_running_name()}: {words.exc_value!r} in {words.object!r}"[:300])

    sys.unraisablehook = keep
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            yield
    finally:
        sys.unraisablehook = hook


@contextmanager
def _quiet(trace: Trace, alarms: dict[str, int]) -> Iterator[None]:
    """Log lines go into the trace's text, not to the terminal; errors, which nobody plants, are kept in `alarms`."""

    def note(_: object, level: str, event: MutableMapping[str, Any]) -> Any:
        if trace.logging:
            trace.note(f"    {_running_name()} {level}: {event}")
        if level in ("error", "critical", "exception"):
            text = f"{_running_name().partition('.')[0]}: {event.get('event')}: {event.get('error')!r}"
            alarms[text] = alarms.get(text, 0) + 1
        raise structlog.DropEvent

    before = structlog.get_config()
    structlog.configure(processors=[note], cache_logger_on_first_use=False)
    root = logging.getLogger()
    handler = _TraceHandler(trace)
    root.addHandler(handler)
    root.setLevel(logging.DEBUG if trace.logging else logging.WARNING)
    try:
        yield
    finally:
        root.removeHandler(handler)
        with suppress(KeyError):
            structlog.configure(**before)


class _TraceHandler(logging.Handler):
    def __init__(self, trace: Trace) -> None:
        super().__init__()
        self._trace = trace

    def emit(self, record: logging.LogRecord) -> None:
        if self._trace.logging:
            self._trace.note(f"    {_running_name()} {record.levelname.lower()}: {record.getMessage()}")


def _running_name() -> str:
    owner = OWNER.get()
    return owner.name if owner is not None else "world"
