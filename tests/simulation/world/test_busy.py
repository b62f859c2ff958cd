"""The judge of processes that never rest."""

from __future__ import annotations

import asyncio

from simulation.world.busy import BusyJudge
from simulation.world.loop import SimLoop


async def spin(rest_s: float) -> None:
    while True:
        await asyncio.sleep(rest_s)


def judged(*rests_s: float) -> BusyJudge:
    """After three tenths of a virtual second in which each of these processes slept so long again and again."""
    loop = SimLoop(1)
    judge = BusyJudge(loop)

    async def scenario() -> None:
        for number, rest_s in enumerate(rests_s):
            owner = loop.new_owner(f"process-{number}")
            loop.create_task(spin(rest_s), context=loop.context_of(owner))
        for _ in range(3):
            await asyncio.sleep(0.1)
            judge.look()

    try:
        loop.run_until_complete(scenario())
    finally:
        loop.close()
    return judge


def test_a_process_that_spins_is_found_by_its_name_and_its_tasks() -> None:
    findings = judged(0.001, 0.0).findings
    assert findings
    assert all("process-1 had run" in one and "tasks: spin" in one for one in findings), findings


def test_processes_that_wait_between_their_calls_are_not() -> None:
    judge = judged(0.001, 0.01)
    assert judge.findings == []
    assert judge.most > 50
