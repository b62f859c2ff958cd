"""How old a process's view of the cluster may be: counted from when the store was asked, not from its answer."""

from __future__ import annotations

import asyncio
import random

from segments.layout.freshness import Freshness
from tests.segments.virtual_time import LoopClock, virtual_time
from txnstore.memory.memory_etcd import MemoryEtcd
from txnstore.memory.memory_store import NO_FAULT, Fate, MemoryStore

LEASE_S = 10.0


class SlowAnswers:
    """The store looks at once, and answers `answer_s` seconds later."""

    def __init__(self) -> None:
        self.answer_s = 0.0

    def fate(self, request: str, client: str) -> Fate:
        return Fate(answer_s=self.answer_s) if request == "read" else NO_FAULT

    def watch_delay_s(self, client: str) -> float:
        return 0.0


@virtual_time
async def test_a_view_is_as_old_as_the_question_that_was_answered_last() -> None:
    """▲ What changed behind the question is not in the answer, however late that comes."""
    etcd, faults, told = MemoryEtcd(LoopClock()), SlowAnswers(), list[tuple[float, bool]]()
    store = MemoryStore(etcd, LoopClock(), random.Random(1), faults=faults)
    freshness = Freshness(store, LoopClock(), lease_ttl_s=LEASE_S)
    others: list[bool] = []
    freshness.add_listener(lambda: told.append((freshness.silent_s, freshness.stale)))
    freshness.add_listener(lambda: others.append(freshness.stale))
    asking = asyncio.ensure_future(freshness.run())
    await asyncio.sleep(1.0)
    faults.answer_s = 4.0
    await asyncio.sleep(60.0)
    assert 4.0 <= freshness.silent_s <= 8.0
    assert told == []
    etcd.pause()
    await asyncio.sleep(60.0)
    assert [stale for _, stale in told] == [True]
    assert LEASE_S < told[0][0] <= LEASE_S + 5.0
    etcd.resume()
    await asyncio.sleep(10.0)
    assert [stale for _, stale in told] == others == [True, False]
    asking.cancel()
    await asyncio.wait([asking])
    await store.close()
