"""What a kept name takes of a real etcd: docs/scaling.md counts with it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from coordinator_v5.coordinator import Coordinator
from coordinator_v5.settings import CoordinatorSettings
from tests.etcd_members import EtcdMembers, etcdctl
from tests.waiting import until_answer
from txnstore import keys
from txnstore.etcd.etcd_store import EtcdStore
from txnstore.etcd.settings import EtcdSettings
from txnwire.clock import SystemClock, SystemRandom

pytestmark = [pytest.mark.process, pytest.mark.timeout(240)]

NAMES = 4_000
AT_ONCE = 200
MOST_BYTES = 150
"""Of one name with its key, its record and what etcd adds."""


def name(number: int) -> str:
    text = f"orders/2026-11-28/{number:08}/pay"
    assert len(text) == 30
    return text


async def in_use(store: EtcdStore, url: str) -> int:
    """Without history, and without what pages have free."""
    revision = await store.mark_revision(keys.COMPACTION, b"", None)
    # Unlike our own call it waits until etcd has let go of what is compacted.
    await etcdctl(f"--endpoints={url}", "compaction", str(revision), "--physical")
    print((await store.status()).db_bytes_in_use)
    await store.defragment()
    return (await store.status()).db_bytes_in_use


async def test_a_kept_name_takes_at_most_150_bytes_of_etcd(tmp_path: Path) -> None:
    etcd = EtcdMembers(tmp_path / "etcd", size=1)
    await etcd.start()
    clock, random = SystemClock(), SystemRandom()
    store = await EtcdStore.connect(EtcdSettings(endpoints=(etcd.urls[0],)), clock=clock, random=random)
    settings = CoordinatorSettings(tcids=1, header_retention_s=0.2, collect_every_s=0.1)
    coordinator = Coordinator(store, clock, random, settings, id="one", address="one:1")
    try:
        await coordinator.start()

        async def one(number: int) -> None:
            begun = await coordinator.begin_named(0, name=name(number))
            await coordinator.end(begun.txn_id, commit=True, name=name(number))

        await one(NAMES)
        before = await in_use(store, etcd.urls[0])
        for first in range(0, NAMES, AT_ONCE):
            await asyncio.gather(*map(one, range(first, first + AT_ONCE)))
        await until_answer(
            lambda: store.count(keys.TXN, keys.prefix_end(keys.TXN)), lambda left: not left, "all to be collected"
        )
        each = (await in_use(store, etcd.urls[0]) - before) / NAMES
        print(f"a name of 30 bytes takes {each:.0f} bytes")
        assert await store.count(keys.TXN_NAME, keys.prefix_end(keys.TXN_NAME)) == NAMES + 1
        assert 0 < each <= MOST_BYTES
    finally:
        await coordinator.close()
        await store.close()
        await etcd.stop()
