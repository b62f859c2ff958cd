"""When clean-up writes: who has a turn, who waits, and who is told (DESIGN §6). In virtual time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.segments.virtual_time import LoopClock, virtual_time
from tests.waiting import until
from tests.watchers.clean_up_targets import Deletes, Losing
from txnstore.memory.memory_etcd import MemoryEtcd
from txnstore.memory.memory_store import NO_FAULT, Fate, MemoryStore
from txnstore.store import CommitVerdict
from txnwire.errors import NotOwner, Timeout
from watchers.clean_up import CleanUp, CleanUpPlan, CleanUpSettings

LINGER_S, RETRY_S, ANSWER_S = 1.0, 10.0, 0.25


class Slow:
    """Each commit is answered a little later."""

    def fate(self, request: str, client: str) -> Fate:
        return Fate(answer_s=ANSWER_S) if request == "commit" else NO_FAULT

    def watch_delay_s(self, client: str) -> float:
        return 0.0


@asynccontextmanager
async def cleaning(**settings: int) -> AsyncIterator[CleanUp]:
    """Not started yet."""
    store = MemoryStore(MemoryEtcd(LoopClock()), LoopClock(), random.Random(1), faults=Slow())
    clean_up = CleanUp(store, LoopClock(), CleanUpSettings(linger_s=LINGER_S, retry_s=RETRY_S, **settings))
    try:
        yield clean_up
    finally:
        await clean_up.close()
        await store.close()


class Queued(Deletes):
    """Has several commits to write, one after the other; `planned_at`: when each was planned."""

    def __init__(self, commits: int) -> None:
        super().__init__("/segment", 1)
        self.backlog = commits
        self.planned_at: list[float] = []

    def plan(self, now_s: float, *, everything: bool = False) -> CleanUpPlan | None:
        found = super().plan(now_s, everything=everything)
        if found is not None:
            self.planned_at.append(now_s)
        return found

    def settle(self, plan: CleanUpPlan, result: CommitVerdict, now_s: float) -> bool:
        self.backlog -= 1
        return result.succeeded


class Flushing(Queued):
    """As a cursor that is always dirty: also without clean-up, one write every ten seconds."""

    every_s = 10.0

    def plan(self, now_s: float, *, everything: bool = False) -> CleanUpPlan | None:
        if self.planned_at and now_s < self.planned_at[-1] + self.every_s:
            return None
        self.backlog += 1
        found = super().plan(now_s, everything=everything)
        self.backlog -= 1
        return found

    def settle(self, plan: CleanUpPlan, result: CommitVerdict, now_s: float) -> bool:
        return result.succeeded

    def next_flush_s(self) -> float | None:
        return (self.planned_at or [0.0])[-1] + self.every_s


@virtual_time
async def test_all_that_came_before_the_start_is_written() -> None:
    targets = [Deletes(f"/{number}", 1) for number in range(3)]
    async with cleaning() as clean_up:
        for target in targets:
            clean_up.add(target)
            clean_up.wake(target)
        await asyncio.sleep(5)
        assert [target.backlog for target in targets] == [1, 1, 1]
        await clean_up.start()
        await until(lambda: not clean_up.statistics().backlog)


@virtual_time
async def test_what_is_removed_before_its_turn_is_not_written() -> None:
    gone, stays = Queued(1), Queued(1)
    async with cleaning() as clean_up:
        await clean_up.start()
        for target in (gone, stays):
            clean_up.add(target)
            clean_up.wake(target)
        clean_up.remove(gone)
        await until(lambda: not stays.backlog)
        assert gone.planned_at == []


@virtual_time
async def test_a_target_with_nothing_in_flight_is_retired_at_once() -> None:
    async with cleaning() as clean_up:
        await clean_up.start()
        target = Deletes("/segment", 1)
        clean_up.add(target)
        await asyncio.wait_for(clean_up.retire(target), 0.1)
        await asyncio.wait_for(clean_up.retire(target), 0.1)


@virtual_time
async def test_a_target_that_is_retired_with_a_full_batch_left_writes_nothing_more() -> None:
    """▲ Its subscription may be created again under the same ownership: nothing of the former one may land then."""
    async with cleaning(full_batch=2) as clean_up:
        await clean_up.start()
        target = Queued(5)
        clean_up.add(target)
        clean_up.wake(target)
        await until(lambda: bool(target.planned_at))
        await clean_up.retire(target)
        await asyncio.sleep(10 * (LINGER_S + ANSWER_S))
        assert (len(target.planned_at), target.backlog) == (1, 5)


@virtual_time
async def test_everybody_who_drains_a_target_is_told_when_it_is_done() -> None:
    async with cleaning() as clean_up:
        await clean_up.start()
        target = Queued(3)
        clean_up.add(target)
        await asyncio.gather(*(clean_up.drain(target, timeout_s=5.0) for _ in range(3)))
        assert target.backlog == 0


@virtual_time
async def test_a_drain_waits_for_the_commit_in_flight() -> None:
    """▲ Of two unanswered ones of a target the older could land last."""
    async with cleaning() as clean_up:
        await clean_up.start()
        target = Queued(3)
        clean_up.add(target)
        clean_up.wake(target)
        await until(lambda: bool(target.planned_at))
        draining = asyncio.ensure_future(clean_up.drain(target, timeout_s=5.0))
        while not draining.done():
            assert clean_up.statistics().in_flight <= 1
            await asyncio.sleep(ANSWER_S / 5)
        await draining
        assert target.backlog == 0


@virtual_time
async def test_whoever_drains_is_told_at_once_that_clean_up_is_closed() -> None:
    async with cleaning() as clean_up:
        await clean_up.start()
        targets = [Queued(1), Queued(1)]
        for target in targets:
            clean_up.add(target)
        draining = [asyncio.ensure_future(clean_up.drain(target, timeout_s=60.0)) for target in targets]
        await asyncio.sleep(ANSWER_S / 2)
        await clean_up.close()
        for drain in draining:
            with pytest.raises(NotOwner, match="has been stopped"):
                await asyncio.wait_for(drain, 0.1)


@virtual_time
async def test_a_drain_takes_no_longer_than_it_may() -> None:
    async with cleaning() as clean_up:
        await clean_up.start()
        target = Queued(100)
        clean_up.add(target)
        with pytest.raises(Timeout, match=r"9\d left"):
            await clean_up.drain(target, timeout_s=2.0)


@virtual_time
async def test_a_full_batch_behind_a_commit_does_not_linger_and_what_is_left_of_it_does() -> None:
    async with cleaning(full_batch=3) as clean_up:
        await clean_up.start()
        target = Queued(5)
        clean_up.add(target)
        clean_up.wake(target)
        await until(lambda: not target.backlog)
        rests = [after - before for before, after in zip(target.planned_at, target.planned_at[1:], strict=False)]
        assert rests == pytest.approx([ANSWER_S, ANSWER_S, ANSWER_S + LINGER_S, ANSWER_S + LINGER_S], abs=0.05)


@virtual_time
async def test_a_compare_that_is_lost_again_and_again_is_tried_at_leisure() -> None:
    """Dies if it is tried as fast as etcd answers."""
    async with cleaning() as clean_up:
        await clean_up.start()
        target = Losing(1000)
        clean_up.add(target)
        clean_up.wake(target)
        await asyncio.sleep(10 * RETRY_S)
        assert 8 <= 1000 - target.losses <= 12


@virtual_time
async def test_what_may_wait_is_written_every_time_it_has_waited_long_enough() -> None:
    """▲ And not only once: these are the acks outside transactions."""
    async with cleaning() as clean_up:
        await clean_up.start()
        target = Flushing(0)
        clean_up.add(target)
        clean_up.wake(target)
        await asyncio.sleep(10.5 * target.every_s)
        assert 10 <= len(target.planned_at) <= 11


@virtual_time
async def test_small_commits_go_on_in_large_numbers_once_many_have_been_answered() -> None:
    async with cleaning(max_in_flight=2, small_keys=16) as clean_up:
        await clean_up.start()
        for turn in range(3):
            targets = [Deletes(f"/{turn}/{number}", 1) for number in range(12)]
            for target in targets:
                clean_up.add(target)
                clean_up.wake(target)
            await asyncio.sleep(LINGER_S + ANSWER_S / 2)
            assert clean_up.statistics().in_flight == 12
            await until(lambda: not clean_up.statistics().backlog)
