"""▲ Faults at moments that random times seldom hit: a process involved in a step dies, sleeps or loses etcd within
milliseconds of it, between the step and the answer, or between its answer and the next one (`simulation.faults.steps`
names the steps)."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from simulation.faults.steps import CHANGE_OF_LAYOUT, ON_DISK, REQUESTS, Step, step_of
from simulation.world.world import World
from txnstore import keys
from txnstore.records import OwnerRecord, RegistrationRecord, decode
from txnstore.store import Event, EventKind

DISK = "data"
LAST_STRIKE_S = 6.0
"""Longest strike: longer than a lease."""
SHARE = 0.6
"""Share of the steps that are struck at."""


@dataclass(slots=True)
class Armed:
    """`left`: how many more of these steps are struck at; `skip`: how many pass before. `how`: the fault for the doer
    of the step, each time and at once; without it, fault, process and time are drawn."""

    chance: random.Random
    left: int
    steps: tuple[str, ...] = CHANGE_OF_LAYOUT
    skip: int = 0
    how: str | None = None


class Strikes:
    """Watches etcd's changes, the brokers' disk and the requests to etcd, and strikes while it is armed. `hits`: how
    often at which step."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._clients = [name for name in world.processes if name.startswith("client")]
        self._brokers = [name for name in world.processes if name.startswith("broker")]
        self._controls = [name for name in world.processes if name.startswith("control")]
        self._armed: list[Armed] = []
        self._owners: dict[str, str] = {}
        """segment path → the broker that took it last"""
        self._coordinators: dict[int, str] = {}
        """TCID → the process that took it last"""
        self._leaders: dict[str, str] = {}
        """role → the process that was elected last"""
        self.hits: dict[str, int] = {}
        world.witnesses.append(self._saw)
        world.disk(DISK).witnesses.append(self._disk_did)
        world.store_faults.witnesses.append(self._sent)

    def arm(
        self,
        chance: random.Random,
        hits: int,
        steps: Sequence[str] = CHANGE_OF_LAYOUT,
        skip: int = 0,
        how: str | None = None,
    ) -> Armed:
        armed = Armed(chance, hits, tuple(steps), skip, how)
        self._armed.append(armed)
        return armed

    def disarm(self, armed: Armed) -> None:
        if armed in self._armed:
            self._armed.remove(armed)

    def heal(self) -> None:
        self._armed.clear()

    # --- what is seen ---

    def _saw(self, _: float, events: Sequence[Event]) -> None:
        for event in events:
            if self._armed and (step := step_of(event)) is not None:
                self._offer(step)
            if event.kind is EventKind.PUT:
                self._remember(event)

    def _remember(self, event: Event) -> None:
        key, value = event.record.key, event.record.value
        if key.startswith(keys.OWNER):
            self._owners[key[len(keys.OWNER) :].decode()] = decode(OwnerRecord, value, key=key).broker
        elif key.startswith(keys.TC):
            self._coordinators[int(key[len(keys.TC) :], 16)] = decode(RegistrationRecord, value, key=key).id
        elif key.startswith(keys.LEADER):
            self._leaders[key[len(keys.LEADER) :].decode()] = decode(RegistrationRecord, value, key=key).id

    def _disk_did(self, what: str, segment: str) -> None:
        if self._armed:
            self._offer(Step(ON_DISK[what], segment))

    def _sent(self, request: str, client: str) -> None:
        if self._armed and request in REQUESTS:
            self._offer(Step(REQUESTS[request]), doer=client)

    def _offer(self, step: Step, doer: str | None = None) -> None:
        for armed in self._armed:
            if step.name in armed.steps and armed.left and (doer is None or doer in self._servers):
                self._consider(step, armed, doer or self._doer(step, armed.chance))

    def _consider(self, step: Step, armed: Armed, doer: str) -> None:
        if armed.skip:
            armed.skip -= 1
        elif armed.how is not None or armed.chance.random() < SHARE:
            armed.left -= 1
            struck = [doer] if armed.how is not None else self._part_in(step, doer, armed.chance)
            self.hits[step.name] = self.hits.get(step.name, 0) + 1
            after_s = 0.0 if armed.how is not None else armed.chance.choice((0.0, 0.001, 0.01))
            self._world.note(f"strike at {step.name} of {doer}")
            self._world.loop.call_in_world(after_s, self._strike, struck, armed.chance, armed.how)

    # --- who is struck ---

    def leader(self, role: str) -> str:
        """The process elected last."""
        return self._leaders.get(role, self._controls[0])

    @property
    def _servers(self) -> list[str]:
        return [*self._controls, *self._brokers]

    def _doer(self, step: Step, chance: random.Random) -> str:
        """The process that does the step, as far as can be seen from outside."""
        if step.segment is not None:
            return self._owners.get(step.segment, self._brokers[0])
        if step.tcid is not None:
            return self._coordinators.get(step.tcid, self._controls[0])
        if step.leads is not None:
            return self.leader(step.leads)
        return chance.choice(self._controls)

    def _part_in(self, step: Step, doer: str, chance: random.Random) -> list[str]:
        """Usually the step's doer; else the leading controller, others of the same kind, or both at once."""
        peers = self._brokers if doer in self._brokers else self._controls
        others = [name for name in peers if name != doer]
        leader = self.leader("controller")
        if step.name in CHANGE_OF_LAYOUT:
            return chance.choice(([doer], [leader], [doer, leader], others))
        return chance.choice(([doer], [doer], [doer], others, [chance.choice(self._servers)]))

    def _strike(self, names: Sequence[str], chance: random.Random, how: str | None) -> None:
        kind = how or chance.choice(("kill", "kill", "stop", "pause", "pause", "etcd", "mute", "mute", "mute", "cut"))
        for name in names:
            self._world.note(f"strike: {kind} {name}")
            if kind in ("mute", "cut"):
                self._strike_at_links(kind, name, chance)
                continue
            process = self._world.processes[name]
            {"kill": process.kill, "stop": process.stop, "pause": process.pause, "etcd": process.disconnect_store}[
                kind
            ]()
            back = {
                "kill": process.start,
                "stop": process.start,
                "pause": process.resume,
                "etcd": process.reconnect_store,
            }[kind]
            self._world.loop.call_in_world(chance.choice((0.05, 2.0, LAST_STRIKE_S)), back)

    def _strike_at_links(self, kind: str, name: str, chance: random.Random) -> None:
        """▲ A server's answers about stored entries or a seal are lost: clients learn of the layout from others
        first."""
        world = self._world
        if kind == "mute":
            for link in world.network.links():
                if link.ends[1].host == name:
                    link.lose_replies(1, chance.choice((0.005, 0.1, 1.0)))
            return
        for client in self._clients:
            world.network.cut(name, client)
        routes = [(name, client) for client in self._clients]
        world.loop.call_in_world(chance.choice((0.2, 1.0, 5.0)), world.network.mend, routes)
