"""What the worker processes of a chaos run do: the simulation's workloads, over real ports, and one of its own."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import txnclient
from simulation.clients.plan import TOPICS, Plan
from simulation.seeking.seek_sending import TOPIC as SOUGHT_TOPIC
from simulation.seeking.seek_work import SeekLife
from simulation.workloads.acking_work import TOPIC as ACKING_TOPIC
from simulation.workloads.acking_work import AckingLife
from simulation.workloads.dead_work import DeadLife
from simulation.workloads.keyed_work import KeyedLife, KeyedLog
from simulation.workloads.large_work import LargeLife
from simulation.workloads.layout_work import LayoutLife
from simulation.workloads.obedient_work import ObedientLife, ObedientLog
from simulation.workloads.passing_work import TOPIC as PASSING_TOPIC
from simulation.workloads.passing_work import PassingLife
from simulation.workloads.queue_work import QueueLife, QueueLog
from simulation.workloads.workload import ClientLife
from tests.process.chaos.kept import LOGS, Kept, TakenOnDisk, WriteAheadTransport
from txnclient.consuming.consumer import Consumer
from txnclient.producing.producer import Producer
from txnwire.clock import SystemClock
from txnwire.ports import Transport
from txnwire.transport.grpc_transport import GrpcTransport

WORKS: dict[str, tuple[str, ...]] = {
    "worker-1": ("history-1", "keyed-1", "queue-1", "obedient-1", "seeking", "acking"),
    "worker-2": ("history-2", "keyed-2", "queue-2", "passing", "large"),
    "worker-3": ("history-3", "obedient-2", "leaving", "layouts", "dead"),
}
"""Worker process → its clients."""
STEADY = ("history-1", "history-2", "history-3")
"""Clients that commit transactions for as long as nothing is in their way."""
ENDING = (*STEADY, "obedient-1", "obedient-2")
"""Clients that must end when they are told to, because no call of theirs is repeated in vain."""
LIVES: dict[str, Callable[[Any, Plan, Any], Any]] = {
    "passing": PassingLife,
    "seeking": SeekLife,
    "acking": AckingLife,
    "large": LargeLife,
    "dead": DeadLife,
}
"""Of works whose one client knows of everything (`LOGS`)."""
LAYOUT_PACES_S = (None, 8.0, 3.0, 1.0)
LEFT_OPEN_SHARE = 0.4


@dataclass(frozen=True, slots=True)
class Life:
    name: str


@dataclass(frozen=True, slots=True)
class RealPorts:
    owner: Life
    transport: Transport
    clock: SystemClock
    random: random.Random


def real_ports(name: str, seed: int, before_sending: Callable[[], None] | None = None) -> RealPorts:
    """`name` must be unique for each life: the client's identities are drawn from it. `before_sending` is called before
    anything is sent to a server."""
    clock = SystemClock()
    transport: Transport = GrpcTransport(clock)
    if before_sending is not None:
        transport = WriteAheadTransport(transport, before_sending)
    return RealPorts(Life(name), transport, clock, random.Random(f"{seed}/{name}"))


def layout_pace_s(seed: int) -> float | None:
    """Mean seconds between two changes of layouts in this run; None: there are none."""
    return random.Random(f"{seed}/layouts").choice(LAYOUT_PACES_S)


# ---- works of chaos alone ------------------------------------------------------------------------------------------


class LeavingLife(ClientLife):
    """A client that leaves transactions open and goes on, as one does that has forgotten them: each must be aborted in
    its time, whatever happens to whom, and what it had acked must come again."""

    def __init__(self, ports: RealPorts, plan: Plan) -> None:
        super().__init__(ports, plan)
        self._left = 0

    async def _transaction(self, client: txnclient.Client, producers: list[Producer], consumer: Consumer) -> None:
        if self._random.random() > LEFT_OPEN_SHARE:
            await super()._transaction(client, producers, consumer)
            return
        draft = self._plan.recorder.begin(self._name, "left")
        draft.left = True
        txn = await client.begin(timeout=self._random.choice((1.0, 4.0)))
        draft.begun(txn.id)
        try:
            for _ in range(self._random.randrange(1, 4)):
                await self._step(draft, txn, producers, consumer)
        finally:
            self._plan.recorder.end(draft, "failed")  # nobody will ever ask to commit it
        await asyncio.sleep(self._random.expovariate(1 / 0.5))
        consumer.rewind()


class Alive(Protocol):
    async def live(self) -> None: ...


@dataclass(slots=True)
class Works:
    """Makes the lives of one worker's clients. `say` prints a finding."""

    seed: int
    folder: Path
    say: Callable[[str], None]

    def life(self, client: str, name: str, plan: Plan) -> Alive:
        kind = client.partition("-")[0]
        if kind in LIVES:
            kept = Kept(self.folder / f"{kind}.json", LOGS[kind])
            life: Alive = LIVES[kind](real_ports(name, self.seed, kept.write), plan, kept.log)
            return life
        ports = real_ports(name, self.seed)
        make: dict[str, Callable[[], Alive]] = {
            "history": lambda: ClientLife(ports, plan),
            "leaving": lambda: LeavingLife(ports, plan),
            "keyed": lambda: KeyedLife(ports, plan, KeyedLog()),
            "queue": lambda: QueueLife(ports, plan, QueueLog(TakenOnDisk(self.folder / f"{client}.taken.jsonl"))),
            "obedient": lambda: ObedientLife(ports, plan, ObedientLog()),
            "layouts": lambda: self._layouts(ports, plan),
        }
        return make[kind]()

    def _layouts(self, ports: RealPorts, plan: Plan) -> Alive:
        pace_s = layout_pace_s(self.seed)
        changed = (*TOPICS, *TOPICS, PASSING_TOPIC, SOUGHT_TOPIC, ACKING_TOPIC)
        return Idle() if pace_s is None else LayoutLife(ports, plan, changed, pace_s)


class Idle:
    async def live(self) -> None:
        await asyncio.Event().wait()


class Said(list[str]):
    """A list of findings that are said at once."""

    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__()
        self._say = say

    def append(self, text: str) -> None:
        self._say(text)
        super().append(text)
