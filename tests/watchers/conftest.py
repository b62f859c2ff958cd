"""A store of either kind for the shells of `watchers`."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator

import pytest

from txnstore.etcd.etcd_store import EtcdSettings, EtcdStore
from txnstore.memory.memory_etcd import MemoryEtcd
from txnstore.memory.memory_store import MemoryStore
from txnstore.store import MetadataStore
from txnwire.clock import SystemClock, SystemRandom


@pytest.fixture(params=["memory", "etcd"])
def etcd_url(request: pytest.FixtureRequest) -> str | None:
    """None: in memory."""
    if request.param == "memory":
        return None
    url: str = request.getfixturevalue("etcd")
    return url


@pytest.fixture
async def any_store(etcd_url: str | None, key_prefix: str) -> AsyncIterator[MetadataStore]:
    store: MetadataStore
    if etcd_url is None:
        store = MemoryStore(MemoryEtcd(SystemClock()), SystemClock(), random.Random(0))
    else:
        settings = EtcdSettings(endpoints=(etcd_url,), prefix=key_prefix, development=True)
        store = await EtcdStore.connect(settings, clock=SystemClock(), random=SystemRandom())
    try:
        yield store
    finally:
        await store.close()
