"""Faults of processes with their disk or connections do what they say, and end."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

from simulation.faults.process_faults import slow_take_overs, unheard_seals
from simulation.faults.scene import DATA, Scene
from simulation.faults.strikes import Strikes
from simulation.world.loop import SimLoop
from simulation.world.world import Ports, World
from txnstore import keys, records
from txnstore.records import LedgerRecord, OwnerRecord
from txnstore.store import Commit, Put

SEGMENT = "public/sim/in/0000-ffff-0"
BROKER, CLIENT = "broker-1", "client-1"


async def _until_stopped(ports: Ports) -> None:
    await ports.stopping.wait()


def _put(world: World, key: bytes, value: bytes) -> None:
    def apply() -> None:
        world.etcd.mvcc.commit([Commit(puts=(Put(key, value),))])

    world.etcd.arrive(apply)


async def _read_s(world: World) -> float:
    begin = world.loop.time()
    await world.disk(DATA).read_pause("a ledger")
    return world.loop.time() - begin


def run_over(scenario: Callable[[World, Scene], Awaitable[None]]) -> None:
    loop = SimLoop(1)  # type: ignore[abstract]

    async def main() -> None:
        world = World(loop, 1)
        for name in (BROKER, "control-1", CLIENT):
            world.add(name, _until_stopped).start()
        strikes = Strikes(world)
        _put(world, keys.owner(SEGMENT), records.encode(OwnerRecord(broker=BROKER, address=f"{BROKER}:1")))
        await asyncio.sleep(0.1)
        await scenario(world, Scene(world, random.Random(1), (BROKER,), ("control-1",), (CLIENT,), strikes))

    loop.run_until_complete(main())
    loop.close()


def test_while_seals_are_unheard_who_seals_dies_and_comes_back() -> None:
    async def scenario(world: World, scene: Scene) -> None:
        injected = asyncio.ensure_future(unheard_seals(scene))
        await asyncio.sleep(0.1)
        _put(world, keys.ledger(SEGMENT), records.encode(LedgerRecord(ledgers=[])))
        await asyncio.sleep(0.01)
        assert world.processes[BROKER].alive, "it has listed a ledger, and sealed nothing"
        _put(world, keys.ledger(SEGMENT), records.encode(LedgerRecord(ledgers=[], sealed=(1, 0))))
        await asyncio.sleep(0.01)
        assert not world.processes[BROKER].alive
        await injected
        assert world.processes[BROKER].alive
        _put(world, keys.ledger(SEGMENT), records.encode(LedgerRecord(ledgers=[], sealed=(1, 0))))
        await asyncio.sleep(0.01)
        assert world.processes[BROKER].alive, "it is over"

    run_over(scenario)


def test_take_overs_are_slow_as_brokers_stop_in_order_until_it_is_over() -> None:
    async def scenario(world: World, scene: Scene) -> None:
        injected = asyncio.ensure_future(slow_take_overs(scene))
        await asyncio.sleep(0.01)
        assert not world.processes[BROKER].alive
        assert world.processes["control-1"].alive
        assert await _read_s(world) >= 0.01
        await injected
        assert await _read_s(world) < 0.001
        await asyncio.sleep(2.0)
        assert world.processes[BROKER].alive

    run_over(scenario)
