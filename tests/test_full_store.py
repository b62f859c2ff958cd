"""E3: a real etcd above its soft limit, under a whole cluster: no transaction begins, those that are open commit and
abort and are cleaned up, and once there is room again all goes on by itself."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import pytest

import txnclient
from tests.cluster import InProcessCluster
from tests.etcd_members import EtcdMembers
from tests.processes import read_all
from txnstore import keys
from txnstore.etcd_store import EtcdSettings, EtcdStore
from txnstore.maintenance import Maintenance, MaintenanceSettings
from txnstore.store import Commit, Delete, Put
from txnwire.clock import SystemClock, SystemRandom

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]

QUOTA = 24 * 1024 * 1024
TOPIC = "topic://public/default/full"
OPEN = 8


async def fill(store: EtcdStore, client: txnclient.Client) -> int:
    """Until no transaction begins any more; returns how many did meanwhile."""
    begun = 0
    for number in range(1000):
        await store.commit(Commit(puts=(Put(b"/filler/%d" % number, bytes(100_000)),)))
        if number % 5 == 4:
            await asyncio.sleep(0.05)  # sizes are sampled ten times a second
            try:
                await (await client.begin()).abort()
                begun += 1
            except txnclient.StoreFull:
                return begun
    raise AssertionError("etcd takes everything")


async def until_refused(store: EtcdStore, producer: txnclient.Producer, txn: txnclient.Transaction) -> None:
    """The broker looks at the size for itself, a moment later than the coordinator."""
    for number in range(50):
        await store.commit(Commit(puts=(Put(b"/filler/again/%d" % number, bytes(100_000)),)))
        try:
            await producer.send(b"more", txn=txn)
        except txnclient.StoreFull:
            return
        await asyncio.sleep(0.05)
    raise AssertionError("operations are taken above the soft limit")


async def until_one_begins(client: txnclient.Client) -> None:
    async with asyncio.timeout(40):
        while True:
            try:
                await (await client.begin()).commit()
                return
            except txnclient.StoreFull:
                await asyncio.sleep(0.2)


async def test_e3_what_is_open_ends_and_is_cleaned_up_above_the_soft_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    often = MaintenanceSettings(every_s=0.3, keep_s=1.0, cooldown_s=1.0, pressing_cooldown_s=1.0)
    monkeypatch.setattr("txnctl.sweeper.Maintenance", partial(Maintenance, settings=often))
    etcd = EtcdMembers(tmp_path / "etcd", size=1, quota_bytes=QUOTA)
    await etcd.start()
    options = {"quota_bytes": QUOTA}
    cluster = InProcessCluster(etcd.urls[0], "/e3", tmp_path / "data", etcd_options=options)
    elsewhere = EtcdSettings(endpoints=etcd.urls, prefix="/elsewhere", quota_bytes=QUOTA)
    store = await EtcdStore.connect(elsewhere, clock=SystemClock(), random=SystemRandom())
    try:
        await cluster.start()
        async with cluster.connect(timeout=2.0) as client:
            await client.create_topic(TOPIC, segments=2)
            async with await client.producer(TOPIC) as producer, await client.consumer(TOPIC, "job") as consumer:
                await producer.send_many([(f"k{number}", b"input") for number in range(OPEN)])
                messages = [await consumer.receive(timeout=5) for _ in range(OPEN)]
                txns = [await client.begin(timeout=60) for _ in range(OPEN)]
                for number, (txn, message) in enumerate(zip(txns, messages, strict=True)):
                    await producer.send(b"%d" % number, key=f"k{number}", txn=txn)
                    await consumer.ack(message, txn=txn)
                assert await fill(store, client) > 0
                await until_refused(store, producer, txns[0])
                await producer.send(b"plain")
                for number, txn in enumerate(txns[1:], start=1):
                    await (txn.abort() if number % 2 else txn.commit())
                await txns[0].abort()
                inside = cluster.servers["broker"].store
                async with asyncio.timeout(20):
                    while await inside.count(keys.TXN_OP, keys.prefix_end(keys.TXN_OP)):
                        await asyncio.sleep(0.1)
                await store.commit(Commit(deletes=(Delete(b"/filler/", b"/filler0"),)))
                begun = SystemClock().monotonic()
                await until_one_begins(client)
                print(f"E3: room again after {SystemClock().monotonic() - begun:.1f} s")
            kept = [value for value in await read_all(client, TOPIC) if value.isdigit()]
            assert sorted(kept) == [b"2", b"4", b"6"]
    finally:
        await cluster.stop()
        await store.close()
        await etcd.stop()
