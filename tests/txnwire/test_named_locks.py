"""Locks by name: one holder at a time."""

from __future__ import annotations

import asyncio

from tests.waiting import until
from txnwire.named_locks import NamedLocks


async def test_one_has_a_lock_at_a_time_also_behind_one_that_gave_up() -> None:
    locks, order = NamedLocks(), list[str]()

    async def hold(who: str) -> None:
        async with locks.held("a"):
            order.append(who)
            await asyncio.sleep(0.01)
            order.append(who)

    async with locks.held("b"):
        tasks = [asyncio.ensure_future(hold(who)) for who in "123"]
        await asyncio.sleep(0)
        assert locks.locked("a")
        tasks[1].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert order == ["1", "1", "3", "3"]
        assert locks.locked("b")
        assert not locks.locked("a")
        assert len(locks) == 1
    assert len(locks) == 0


async def test_a_task_that_comes_while_the_second_one_has_a_lock_waits_for_it() -> None:
    locks, order = NamedLocks(), list[int]()
    may_end = [asyncio.Event() for _ in range(3)]

    async def hold(number: int) -> None:
        async with locks.held("a"):
            order.append(number)
            await may_end[number].wait()

    first, second = (asyncio.create_task(hold(number)) for number in range(2))
    await until(lambda: order == [0])
    may_end[0].set()
    await until(lambda: order == [0, 1])
    third = asyncio.create_task(hold(2))
    await asyncio.sleep(0)
    assert order == [0, 1]
    may_end[1].set()
    await until(lambda: order == [0, 1, 2])
    may_end[2].set()
    await asyncio.gather(first, second, third)
    assert len(locks) == 0
