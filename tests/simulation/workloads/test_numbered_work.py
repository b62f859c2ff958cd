"""Numbered producers under kills, pauses, lost messages, splits, merges and a second process of the same name."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from functools import partial

import pytest

from simulation.clients.plan import Plan
from simulation.clients.recorder import Recorder
from simulation.faults.nemesis import Nemesis, schedule_of
from simulation.faults.scene import DATA
from simulation.workloads.layout_work import LayoutLife
from simulation.workloads.numbered_work import TOPIC, NumberedLog, SourceLife, source
from simulation.world.guards import forbidden
from simulation.world.hearing import last_words_are_findings, no_collection, quiet
from simulation.world.loop import SimLoop
from simulation.world.servers import broker_settings, serve, server_settings
from simulation.world.trace import Trace
from simulation.world.world import World
from txnclient.producing.channels.source_ids import Standing

CONTROL = "control-1"
BROKERS = ("broker-1", "broker-2")
WORK_S = 20.0
FAULTS = (
    "kill a server,stop a server,kill a client,kill all of a kind,pause,isolate a server,etcd unanswered,lose etcd,"
    "early expiry,strike at a change,reset,cut a connection,lose replies,mute a broker,power failure,unheard seals,"
    "lagging connections,wall clock,host failure"
)


class NumberedRun:
    """One run from one seed."""

    def __init__(self, loop: SimLoop, seed: int) -> None:
        shape = random.Random(f"{seed}/numbered")
        self.loop = loop
        self.world = world = World(loop, seed)
        self.plan = Plan(f"txn://{CONTROL}:6650", Recorder(loop.time), segments=shape.choice((1, 2, 4)), pause_s=0.0125)
        self.log = NumberedLog(source(shape, 400), hasty=seed % 2 == 0)
        self.ended = False
        control = server_settings(CONTROL, "coordinator,controller,admin", f"{CONTROL}:6650")
        world.add(CONTROL, partial(serve, settings=control))
        brokers = replace(broker_settings(shape.choice((4096, 64 * 1024))), producer_idle_s=3600.0)
        for name in BROKERS:
            world.add(
                name, partial(serve, settings=server_settings(name, "broker", f"{name}:6650"), brokers=brokers),
                disk=DATA,
            )  # fmt: skip
        for number in range(shape.choice((1, 2))):
            world.add(f"client-{number}", lambda ports: SourceLife(ports, self.plan, self.log).live())
        pace_s = shape.choice((0.5, 2.0, 6.0))
        world.add("client-layouts", lambda ports: LayoutLife(ports, self.plan, (TOPIC,), pace_s).live())
        self.nemesis = Nemesis(world, schedule_of(seed, work_s=WORK_S, faults=FAULTS))

    async def run(self) -> None:
        for process in self.world.processes.values():
            process.start()
        trouble = self.loop.create_task(self.nemesis.run())
        await asyncio.sleep(WORK_S)
        trouble.cancel()
        await asyncio.wait([trouble])
        self.nemesis.heal()
        self.plan.active = False
        await asyncio.sleep(2.0)
        for name, process in self.world.processes.items():
            if name.startswith("client"):
                process.keep_down()
                process.kill()
        last = self.world.add("last", lambda ports: SourceLife(ports, self.plan, self.log, last=True).live())
        last.start()
        for _ in range(60):
            if len(self.log.stored) >= len(self.log.items):
                break
            await asyncio.sleep(2.0)
        for process in self.world.processes.values():
            process.keep_down()
            process.stop()
        last.kill()
        for name in (*BROKERS, CONTROL):
            await self.world.processes[name].wait_ended(30.0)


def run(seed: int) -> NumberedRun:
    trace = Trace(None)
    loop = SimLoop(seed, trace)
    logged: dict[str, int] = {}
    with quiet(trace, logged, lambda _: None), last_words_are_findings(loop), forbidden(loop.time), no_collection():
        numbered = NumberedRun(loop, seed)
        loop.run_until_complete(numbered.run())
        loop.close()
    return numbered


def test_an_acked_item_that_an_opening_does_not_tell_is_found() -> None:
    log = NumberedLog((), hasty=False, lives=3)
    log.opened([4, 5, 6], lambda one: Standing.STORED if one != 5 else Standing.NEW)
    assert list(log.findings()) == [
        "numbered: 1 items that were acked, the first of them 5, are not told as stored to life 3"
    ]


@pytest.mark.leaves("budgets", "processes are killed")
@pytest.mark.parametrize("seed", [*range(5), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(5, 30))])
def test_each_item_is_stored_once_whatever_is_killed_split_merged_or_fenced(seed: int) -> None:
    ran = run(seed)
    assert list(ran.log.findings()) == []
    assert ran.plan.unexpected == []
    assert ran.log.lives > 1
