"""What a producer's wait through a change is: the slowest batch that was on its way at any time of it."""

from __future__ import annotations

import asyncio

from txnctl.demo.waits import Waits


async def test_what_was_on_its_way_counts_and_the_next_and_both_are_waited_for() -> None:
    now_s = 0.0
    waits = Waits(lambda: now_s)
    assert waits.usual_s() == 0.0
    with waits.batch():
        now_s = 10.0  # over before the change, which is from 11 to 13
    now_s = 12.0
    with waits.batch():
        now_s = 13.5
        asked = asyncio.create_task(waits.longest_s(11.0, 13.0))
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not asked.done()
    now_s = 14.0
    with waits.batch():
        await asyncio.sleep(0)
        assert not asked.done()
        now_s = 18.0
    with waits.batch():
        assert await asked == 4.0  # is not kept waiting by one that began later
        now_s = 40.0
    assert await waits.longest_s(11.0, 13.0) == 4.0
    assert await waits.longest_s(11.0, 12.5) == 4.0
    assert waits.usual_s() == (4.0 + 10.0) / 2


async def test_nobody_is_waited_for_where_no_more_batches_come() -> None:
    waits = Waits(lambda: 1.0)
    asked = asyncio.create_task(waits.longest_s(0.5, 0.7))
    await asyncio.sleep(0)
    assert not asked.done()
    waits.close()
    assert await asked is None
