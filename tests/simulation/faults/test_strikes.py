"""Steps of servers are named for what they are, and strikes hit whose step it is, at once or right behind it."""

from __future__ import annotations

import asyncio
import random

import pytest

from simulation.faults.steps import STEPS, Step, step_of
from simulation.faults.strikes import LAST_STRIKE_S, Strikes
from simulation.world.loop import SimLoop
from simulation.world.world import Ports, World
from txnstore import keys, records
from txnstore.store import Commit, Event, EventKind, KeyValue, Put
from txnwire.ids import TxnId

SEGMENT = "public/sim/in/0000-ffff-0"
TXN = TxnId.parse("0003-0000000000000001")
OWNER_RECORD = records.encode(records.OwnerRecord(broker="broker-2", address="broker-2:1"))


def event(key: bytes, value: bytes = b"", *, version: int = 1, kind: EventKind = EventKind.PUT) -> Event:
    return Event(kind, KeyValue(key, value, version, 1, 1))


GONE = EventKind.DELETE
CASES = [
    (event(keys.txn(TXN)), Step("begin", tcid=3)),
    (event(keys.txn(TXN), version=2), Step("decision", tcid=3)),
    (event(keys.txn(TXN), kind=GONE), Step("collection", leads="sweeper")),
    (event(keys.op(keys.write_ops(TXN, SEGMENT), 7, 1)), Step("op record", SEGMENT)),
    (event(keys.op(keys.ack_ops(TXN, SEGMENT, "s"), 7, 1), kind=GONE), Step("clean-up", SEGMENT)),
    (event(keys.watermark(SEGMENT)), Step("watermark", SEGMENT)),
    (event(keys.aborted(SEGMENT, TXN)), Step("aborted record", SEGMENT)),
    (event(keys.aborted(SEGMENT, TXN), kind=GONE), None),
    (event(keys.cursor_block(SEGMENT, "s", "mark")), Step("cursor", SEGMENT)),
    (event(keys.cursor_block(SEGMENT, "s", "mark"), kind=GONE), Step("cursor deleted", SEGMENT)),
    (event(keys.owner(SEGMENT)), Step("ownership", SEGMENT)),
    (event(keys.owner(SEGMENT), kind=GONE), Step("ownership gone", SEGMENT)),
    (event(keys.tc(3)), Step("coordinator id", tcid=3)),
    (event(keys.txn_seq(3)), Step("id block", tcid=3)),
    (event(keys.deadline(1, TXN)), Step("deadline key", tcid=3)),
    (event(keys.leader("controller")), Step("election", leads="controller")),
    (event(keys.txn_name("a/b")), Step("transaction name")),
    (event(keys.load(SEGMENT)), None),
]


@pytest.mark.parametrize(("seen", "step"), CASES, ids=[repr(seen.record.key)[:40] for seen, _ in CASES])
def test_a_step_is_named_and_whose_it_is(seen: Event, step: Step | None) -> None:
    assert step_of(seen) == step
    assert step is None or step.name in STEPS


def put(world: World, key: bytes, value: bytes) -> None:
    def apply() -> None:
        world.etcd.mvcc.commit([Commit(puts=(Put(key, value),))])

    world.etcd.arrive(apply)


def strikes_over(steps: tuple[str, ...], hits: int, skip: int, puts: list[bytes], seed: int = 1) -> dict[str, int]:
    """How often which step was hit, of the given keys put one after another."""
    loop = SimLoop(seed)

    async def main() -> dict[str, int]:
        world = World(loop, seed)
        for name in ("control-1", "broker-1", "broker-2"):
            world.add(name, _idle).start()
        strikes = Strikes(world)
        put(world, keys.owner(SEGMENT), OWNER_RECORD)
        strikes.arm(random.Random(seed), hits, steps, skip)
        for key in puts:
            put(world, key, b"")
            await asyncio.sleep(0.02)
        return strikes.hits

    found = loop.run_until_complete(main())
    loop.close()
    return found


async def _idle(_: Ports) -> None:
    await asyncio.Event().wait()


def test_as_many_are_struck_as_were_asked_for_behind_those_that_go_by() -> None:
    watermark, cursor = keys.watermark(SEGMENT), keys.cursor_block(SEGMENT, "s", "mark")
    assert strikes_over(("watermark",), 2, 0, [watermark, cursor] * 20) == {"watermark": 2}
    assert strikes_over(("watermark",), 2, 20, [watermark, cursor] * 20) == {}
    assert strikes_over(("watermark", "cursor"), 50, 0, [watermark, cursor] * 20).keys() == {"watermark", "cursor"}


def test_whose_step_it_is_dies_or_sleeps_right_then() -> None:
    """Of many draws some hit the owner itself, at once, and more often than anybody else."""
    struck: dict[str, int] = {}
    loop = SimLoop(1)

    async def main() -> None:
        world = World(loop, 1)
        for name in ("control-1", "broker-1", "broker-2"):
            world.add(name, _idle).start()
        strikes = Strikes(world)
        put(world, keys.owner(SEGMENT), OWNER_RECORD)
        await asyncio.sleep(0.1)
        for turn in range(60):
            armed = strikes.arm(random.Random(turn), 1, ("sync",))
            while armed.left:
                world.disk("data").tell("sync", SEGMENT)
            await asyncio.sleep(0.02)
            for name, process in world.processes.items():
                if process.paused or not process.alive:
                    struck[name] = struck.get(name, 0) + 1
            await asyncio.sleep(2 * LAST_STRIKE_S)
            assert all(process.alive and not process.paused for process in world.processes.values()), "they are back"

    loop.run_until_complete(main())
    loop.close()
    assert struck["broker-2"] > struck.get("broker-1", 0) + struck.get("control-1", 0)


def test_who_does_the_step_is_struck_at_once_each_time_where_it_is_said_how() -> None:
    loop = SimLoop(1)

    async def main() -> None:
        world = World(loop, 1)
        for name in ("control-1", "broker-1", "broker-2"):
            world.add(name, _idle).start()
        strikes = Strikes(world)
        put(world, keys.owner(SEGMENT), OWNER_RECORD)
        await asyncio.sleep(0.1)
        armed = strikes.arm(random.Random(1), 2, ("watermark",), how="kill")
        for _ in range(2):
            put(world, keys.watermark(SEGMENT), b"")
            await asyncio.sleep(0.02)
            assert {name: process.alive for name, process in world.processes.items()} == {
                "control-1": True,
                "broker-1": True,
                "broker-2": False,
            }
            await asyncio.sleep(2 * LAST_STRIKE_S)
        assert armed.left == 0

    loop.run_until_complete(main())
    loop.close()
