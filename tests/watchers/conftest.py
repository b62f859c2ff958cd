"""A store of either kind for the shells of `watchers`, a decision watch over it, and pending acks over a cursor."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator

import pytest

from segments.subscription.cursors.cursor import Cursor
from tests.segments.ledger_lengths import LedgerLengths
from tests.watchers.decision_watch import NEVER
from tests.watchers.pending_acks import SEGMENT
from txnstore.etcd.etcd_store import EtcdSettings, EtcdStore
from txnstore.memory.memory_etcd import MemoryEtcd
from txnstore.memory.memory_store import MemoryStore
from txnstore.store import MetadataStore
from txnwire.clock import SystemClock, SystemRandom
from txnwire.ids import EARLIEST
from watchers.decisions import DecisionWatch
from watchers.pending_acks import PendingAcks


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


@pytest.fixture
async def watch(any_store: MetadataStore) -> AsyncIterator[DecisionWatch]:
    watch = DecisionWatch(any_store, SystemClock(), NEVER)
    await watch.start()
    try:
        yield watch
    finally:
        await watch.close()


# ---- over both stores


@pytest.fixture
def cursor() -> Cursor:
    return Cursor(LedgerLengths({1: 10, 2: 10}), EARLIEST)


@pytest.fixture
def pending(cursor: Cursor) -> PendingAcks:
    return PendingAcks(SEGMENT, "sub", cursor)
