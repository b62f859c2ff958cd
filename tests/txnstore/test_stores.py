"""The contract suite over both backends."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator

import pytest

from tests.txnstore.store_contract import StoreContract
from txnstore import keys
from txnstore.etcd.etcd_store import EtcdSettings, EtcdStore
from txnstore.memory.memory_etcd import MemoryEtcd
from txnstore.memory.memory_store import MemoryStore
from txnwire.clock import SystemClock, SystemRandom


async def connected(etcd: str, prefix: str) -> EtcdStore:
    settings = EtcdSettings(endpoints=(etcd,), prefix=prefix, development=True)
    return await EtcdStore.connect(settings, clock=SystemClock(), random=SystemRandom())


class TestEtcdStore(StoreContract):
    @pytest.fixture
    async def other_store(self, etcd: str, key_prefix: str) -> AsyncIterator[EtcdStore]:
        store = await connected(etcd, key_prefix)
        yield store
        await store.close()

    @pytest.fixture
    async def bare_store(self, etcd: str) -> AsyncIterator[EtcdStore]:
        store = await connected(etcd, "")
        yield store
        await store.close()

    async def test_keys_lie_under_the_prefix(self, store: EtcdStore, bare_store: EtcdStore, key_prefix: str) -> None:
        prefix = key_prefix.encode()
        await store.incarnation()
        found = await bare_store.range(prefix + b"/", prefix + b"0")
        first, second = [record.key for record in found.records]
        assert first == prefix + b"/incarnation"
        assert second.startswith(prefix + keys.SENDER)


class TestMemoryStore(StoreContract):
    @pytest.fixture
    def store(self, memory_store: MemoryStore) -> MemoryStore:
        return memory_store

    @pytest.fixture
    async def other_store(self, memory_etcd: MemoryEtcd) -> AsyncIterator[MemoryStore]:
        store = MemoryStore(memory_etcd, SystemClock(), random.Random(1), name="other")
        yield store
        await store.close()

    @pytest.fixture
    def bare_store(self, memory_store: MemoryStore) -> MemoryStore:
        return memory_store
