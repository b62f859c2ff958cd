"""The elected sweeper, and what its candidates do for a store in which nobody can be elected."""

from __future__ import annotations

import asyncio
import random

from tests.segments.virtual_time import LoopClock, run
from txnctl.sweeper import Sweeper
from txnstore.memory_etcd import DEFAULT_QUOTA_BYTES, MemoryEtcd
from txnstore.memory_store import MemoryStore
from txnstore.store import Commit, Put
from txnwire.errors import StoreFull


def test_e3_a_full_store_that_can_elect_nobody_is_relieved_all_the_same() -> None:
    """▲ At its quota etcd grants no lease: the role that takes the alarm back must not depend on one."""

    async def scenario() -> None:
        clock = LoopClock()
        etcd = MemoryEtcd(clock)
        store = MemoryStore(etcd, clock, random.Random(1))
        await store.commit(Commit(puts=(Put(b"/some", b"thing"),)))
        etcd.quota_bytes = 1
        try:
            await store.commit(Commit(puts=(Put(b"/more", b""),)))
        except StoreFull:
            etcd.quota_bytes = DEFAULT_QUOTA_BYTES  # what filled it has gone, but the alarm stays
        assert etcd.no_space
        sweeper = Sweeper(store, clock, random.Random(2), id="one", address="one:1", lease_ttl_s=4.0)
        sweeper.start()
        async with asyncio.timeout(60):
            while etcd.no_space or not etcd.leases():
                await asyncio.sleep(1.0)
        await sweeper.close()
        await store.close()

    run(scenario())
