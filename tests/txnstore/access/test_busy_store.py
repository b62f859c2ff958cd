"""An etcd that refuses requests for a moment, having too many of them."""

from __future__ import annotations

import random
from typing import cast

import pytest

from tests.segments.virtual_time import LoopClock, virtual_time
from tests.txnstore.faulty_store import A, Busy, client
from txnstore.access.backend import Backend
from txnstore.access.store_client import StoreClient
from txnstore.memory.memory_etcd import MemoryEtcd
from txnstore.store import Commit, Put
from txnwire.errors import StoreUnavailable


@virtual_time
async def test_e4_a_read_that_is_refused_for_a_moment_is_asked_again_in_its_time() -> None:
    """▲ Whoever is told that its request was wrong ends by it."""
    etcd = MemoryEtcd(LoopClock())
    store = client(etcd)
    await store.commit(Commit(puts=(Put(A, b"1"),)))
    busy = Busy(store.memory_backend, times=5)
    reading = StoreClient(cast(Backend, busy), LoopClock(), random.Random(0), quota_bytes=1 << 30)
    found = await reading.get(A)
    assert found is not None
    assert (found.value, busy.left) == (b"1", 0)
    busy.left = 1_000_000
    with pytest.raises(StoreUnavailable, match="too many requests"):
        await reading.get(A)
    await reading.close()
    await store.close()
