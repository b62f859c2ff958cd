"""Faults of controllers do what they say, and end; the terms that come of them are counted."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

from simulation.faults.scene import Scene
from simulation.faults.strikes import Strikes
from simulation.faults.term_faults import steps_unheard_of, term_unheard_of
from simulation.judges.terms import Terms
from simulation.world.loop import SimLoop
from simulation.world.world import Ports, World
from txnstore import keys, records
from txnstore.records import RegistrationRecord
from txnstore.store import Commit, Delete, Put
from txnwire.ports import Connection

CONTROLS, CLIENT = ("control-1", "control-2"), "client-staying"


async def _serving(ports: Ports) -> None:
    async def take(connection: Connection) -> None:
        while True:
            await connection.receive()

    await ports.transport.listen(f"{ports.owner.name.partition('.')[0]}:6650", take)
    await ports.stopping.wait()


async def _connected(ports: Ports) -> None:
    connection = await ports.transport.connect("control-1:6650", timeout_s=1.0)
    await connection.receive()


def _elect(world: World, name: str) -> None:
    key = keys.leader("controller")
    value = records.encode(RegistrationRecord(id=name, address=f"{name}:6650"))
    world.etcd.arrive(lambda: world.etcd.mvcc.commit([Commit(deletes=(Delete(key),))]))
    world.etcd.arrive(lambda: world.etcd.mvcc.commit([Commit(puts=(Put(key, value),))]))


def run_over(scenario: Callable[[World, Scene, Terms], Awaitable[None]]) -> None:
    loop = SimLoop(1)  # type: ignore[abstract]

    async def main() -> None:
        world = World(loop, 1)
        terms = Terms(world, CLIENT)
        world.witnesses.append(lambda _, events: terms.saw(events))
        for name in CONTROLS:
            world.add(name, _serving, restart_s=None).start()
        strikes = Strikes(world)
        await asyncio.sleep(0.1)
        world.add(CLIENT, _connected, restart_s=None).start()
        await asyncio.sleep(0.1)
        _elect(world, "control-1")
        await asyncio.sleep(0.1)
        await scenario(world, Scene(world, random.Random(1), (), CONTROLS, (CLIENT,), strikes), terms)

    loop.run_until_complete(main())
    loop.close()


def test_who_leads_hears_nothing_of_the_term_behind_its_back_and_keeps_its_clients() -> None:
    async def scenario(world: World, scene: Scene, terms: Terms) -> None:
        injected = asyncio.ensure_future(term_unheard_of(scene))
        await asyncio.sleep(4.9)
        _elect(world, "control-2")
        other = world.processes["control-2"]
        while other.alive:
            await asyncio.sleep(0.1)
        assert world.etcd.mvcc.compacted == 0
        await asyncio.sleep(5.1)
        assert world.etcd.mvcc.compacted > 0, "it cannot read up on what has happened"
        _elect(world, "control-1")
        await injected
        assert terms.behind_another == 1
        assert all(world.processes[name].alive for name in CONTROLS)

    run_over(scenario)


def test_a_term_of_one_whose_connections_were_lost_meanwhile_does_not_count() -> None:
    async def scenario(world: World, scene: Scene, terms: Terms) -> None:
        _elect(world, "control-2")
        for link in world.network.links():
            link.reset("by the test")
        await asyncio.sleep(0.1)
        _elect(world, "control-1")
        assert terms.behind_another == 0

    run_over(scenario)


def test_some_steps_of_the_leader_alone_are_applied_and_unheard() -> None:
    async def scenario(world: World, scene: Scene, terms: Terms) -> None:
        injected = asyncio.ensure_future(steps_unheard_of(scene))
        await asyncio.sleep(0.1)
        leaders = [world.store_faults.fate("commit", "control-1") for _ in range(100)]
        others = [world.store_faults.fate("commit", "control-2") for _ in range(100)]
        assert 20 < sum(1 for fate in leaders if fate.fail_s) < 60
        assert all(fate.arrive_s is not None for fate in (*leaders, *others))
        assert not any(fate.fail_s for fate in others)
        await injected
        assert not any(world.store_faults.fate("commit", "control-1").fail_s for _ in range(100))

    run_over(scenario)
