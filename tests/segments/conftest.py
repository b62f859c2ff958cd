"""`cluster`: brokers over the real etcd; `memory_cluster`: over one in memory, whose requests can be made to fail."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.segments.brokering import Cluster
from txnstore.etcd.etcd_store import EtcdSettings, EtcdStore
from txnstore.memory.memory_etcd import MemoryEtcd
from txnstore.memory.memory_store import MemoryStore
from txnstore.store import MetadataStore
from txnwire.clock import SystemClock, SystemRandom


@pytest.fixture
async def cluster(etcd: str, key_prefix: str, store: EtcdStore, tmp_path: Path) -> AsyncIterator[Cluster]:
    async def make_store() -> MetadataStore:
        settings = EtcdSettings(endpoints=(etcd,), prefix=key_prefix, development=True)
        return await EtcdStore.connect(settings, clock=SystemClock(), random=SystemRandom())

    cluster = Cluster(make_store, store, tmp_path)
    try:
        yield cluster
    finally:
        await cluster.close()


@pytest.fixture
async def memory_cluster(memory_etcd: MemoryEtcd, memory_store: MemoryStore, tmp_path: Path) -> AsyncIterator[Cluster]:
    async def make_store() -> MetadataStore:
        return MemoryStore(memory_etcd, SystemClock(), random.Random(1))

    cluster = Cluster(make_store, memory_store, tmp_path)
    try:
        yield cluster
    finally:
        await cluster.close()
