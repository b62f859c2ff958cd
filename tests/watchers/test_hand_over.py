"""A segment that is handed over while etcd is away: what it has to write lands before its successor reads it."""

from __future__ import annotations

import asyncio
import random

from txnstore.memory.memory_etcd import MemoryEtcd
from txnstore.memory.memory_store import MemoryStore
from txnstore.store import Commit, CommitVerdict, Delete
from txnwire.clock import SystemClock
from txnwire.errors import StoreUnavailable, TxnError
from watchers.clean_up import CleanUp, CleanUpPlan, CleanUpSettings


class Unhurried:
    """Has something to write that may wait for long, unless everything is asked for."""

    name = "/segment"
    backlog = 0
    unwritten = True

    def plan(self, now_s: float, *, everything: bool = False) -> CleanUpPlan | None:
        return CleanUpPlan(Commit(deletes=(Delete(b"/segment/0"),))) if everything and self.unwritten else None

    def settle(self, plan: CleanUpPlan, result: CommitVerdict, now_s: float) -> bool:
        self.unwritten = False
        return result.succeeded

    def next_flush_s(self) -> float | None:
        return None

    def lost(self, error: TxnError) -> None:
        raise error


class AwayAtFirst(MemoryStore):
    """Takes no commit for a while."""

    refusals = 3

    def commit_nowait(self, commit: Commit) -> asyncio.Future[CommitVerdict]:
        if not self.refusals:
            return super().commit_nowait(commit)
        self.refusals -= 1
        refused: asyncio.Future[CommitVerdict] = asyncio.get_running_loop().create_future()
        refused.set_exception(StoreUnavailable("etcd is away"))
        return refused


async def test_a_hand_over_while_the_store_is_away_writes_all_as_soon_as_it_is_back() -> None:
    store = AwayAtFirst(MemoryEtcd(SystemClock()), SystemClock(), random.Random(0))
    clean_up = CleanUp(store, SystemClock(), CleanUpSettings(linger_s=0.002, retry_s=0.01))
    await clean_up.start()
    target = Unhurried()
    clean_up.add(target)
    await clean_up.drain(target, timeout_s=10)
    assert not target.unwritten
    await clean_up.close()
    await store.close()
