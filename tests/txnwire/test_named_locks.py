"""Locks by name: one holder at a time."""

from __future__ import annotations

import asyncio

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
