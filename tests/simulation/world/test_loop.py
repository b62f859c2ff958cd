"""The loop in virtual time: asyncio's primitives run on it, the seed interleaves processes, the dead stay dead."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

from simulation.world.loop import Nondeterminism, ProcessLife, SimLoop, SimulationStuck
from simulation.world.trace import Trace


def run(seed: int, scenario: Callable[[SimLoop], Awaitable[object]]) -> tuple[object, SimLoop]:
    loop = SimLoop(seed)

    async def main() -> object:
        return await scenario(loop)

    try:
        return loop.run_until_complete(main()), loop
    finally:
        loop.close()


def spawn(loop: SimLoop, owner: ProcessLife, work: Callable[[], Awaitable[object]]) -> None:
    async def main() -> None:
        await work()

    loop.call_soon(lambda: loop.create_task(main()), context=loop.context_of(owner))


def test_time_jumps_and_asyncio_runs_as_ever() -> None:
    async def scenario(loop: SimLoop) -> list[str]:
        seen: list[str] = []
        queue: asyncio.Queue[str] = asyncio.Queue(1)
        async with asyncio.TaskGroup() as group:
            for name, delay in (("b", 3600.0), ("a", 60.0)):
                group.create_task(_put_later(queue, name, delay))
            for _ in range(2):
                seen.append(await queue.get())
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(86_400):
                await loop.create_future()
        return [*seen, f"{loop.time():.0f}"]

    assert run(1, scenario)[0] == ["a", "b", "90000"]


async def _put_later(queue: asyncio.Queue[str], name: str, delay: float) -> None:
    await asyncio.sleep(delay)
    await queue.put(name)


def test_callbacks_of_one_process_keep_their_order_and_processes_interleave_by_the_seed() -> None:
    async def scenario(loop: SimLoop) -> str:
        seen: list[str] = []
        for name in "ab":
            context = loop.context_of(loop.new_owner(name))
            for number in range(6):
                loop.call_soon(seen.append, f"{name}{number}", context=context)
        await asyncio.sleep(1)
        assert [at for at in seen if at[0] == "a"] == [f"a{n}" for n in range(6)]
        assert [at for at in seen if at[0] == "b"] == [f"b{n}" for n in range(6)]
        return " ".join(seen)

    orders = [run(seed, scenario)[0] for seed in range(20)]
    assert len(dict.fromkeys(orders)) > 5
    assert orders == [run(seed, scenario)[0] for seed in range(20)]


def test_a_killed_process_never_runs_again_not_even_its_cleanup() -> None:
    async def scenario(loop: SimLoop) -> list[str]:
        seen: list[str] = []
        victim = loop.new_owner("victim")

        async def work() -> None:
            try:
                seen.append("works")
                await asyncio.sleep(1)
            finally:
                seen.append("cleans up")

        spawn(loop, victim, work)
        await asyncio.sleep(0.5)
        loop.kill(victim)
        await asyncio.sleep(5)
        return list(seen)

    assert run(3, scenario)[0] == ["works"]


def test_a_paused_process_catches_up_when_it_is_resumed() -> None:
    async def scenario(loop: SimLoop) -> list[float]:
        seen: list[float] = []
        sleeper = loop.new_owner("sleeper")

        async def work() -> None:
            for _ in range(3):
                await asyncio.sleep(1)
                seen.append(round(loop.time(), 1))

        spawn(loop, sleeper, work)
        await asyncio.sleep(1.5)
        loop.pause(sleeper)
        await asyncio.sleep(10)
        loop.resume(sleeper)
        await asyncio.sleep(5)
        return seen

    assert run(3, scenario)[0] == [1.0, 11.5, 12.5]


def test_waiting_for_nobody_is_reported() -> None:
    async def scenario(loop: SimLoop) -> None:
        await loop.create_future()

    with pytest.raises(SimulationStuck, match="nothing is ready"):
        run(1, scenario)


def test_spinning_takes_time() -> None:
    async def scenario(loop: SimLoop) -> None:
        end = loop.time() + 0.01
        while loop.time() < end:
            await asyncio.sleep(0)

    run(1, scenario)


def test_threads_are_refused_and_failed_callbacks_are_kept() -> None:
    async def scenario(loop: SimLoop) -> None:
        with pytest.raises(Nondeterminism):
            await loop.run_in_executor(None, print)
        loop.call_soon(_fails)
        await asyncio.sleep(1)

    _, loop = run(1, scenario)
    assert len(loop.unhandled) == 1
    assert "ValueError: planted" in loop.unhandled[0]


def _fails() -> None:
    raise ValueError("planted")


def test_the_hash_tells_runs_apart() -> None:
    def digest(seed: int, log: bool = False) -> str:
        loop = SimLoop(seed, Trace())

        async def main() -> None:
            for name in "abc":
                spawn(loop, loop.new_owner(name), _busy)
            await asyncio.sleep(1)

        loop.run_until_complete(main())
        loop.close()
        return loop.trace.digest()

    assert digest(1) == digest(1)
    assert digest(1) != digest(2)


async def _busy() -> None:
    for _ in range(10):
        await asyncio.sleep(0)
    with suppress(TimeoutError):
        await asyncio.wait_for(asyncio.Event().wait(), 0.1)


def test_what_is_buried_asks_for_no_real_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clean-up that gathers what is left would otherwise have asyncio make a loop of its own, and leave it open."""

    def refuse() -> asyncio.AbstractEventLoop:
        raise AssertionError("a real event loop was asked for")

    asked: list[asyncio.AbstractEventLoop] = []

    async def unfinished() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            asked.append(asyncio.gather().get_loop())

    async def scenario(loop: SimLoop) -> None:
        spawn(loop, loop.new_owner("process"), unfinished)
        await asyncio.sleep(1.0)

    loop = SimLoop(1)  # type: ignore[abstract]
    loop.run_until_complete(scenario(loop))
    monkeypatch.setattr(asyncio.get_event_loop_policy(), "new_event_loop", refuse)
    loop.close()
    assert asked == [loop]
