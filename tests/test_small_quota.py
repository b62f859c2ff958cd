"""E7 over a real etcd: transactions at a fixed rate, through a quota of which nothing would be left after a few seconds
if nothing were compacted. `make sustained` does it for longer."""

from __future__ import annotations

import asyncio
import os
from functools import partial
from pathlib import Path

import pytest

from tests.cluster import InProcessCluster
from tests.etcd_members import EtcdMembers
from txnctl.bench.load import CallLoad
from txnctl.commands.shared.asking import asking
from txnstore.access.soft_limit import FILE_LIMIT_SHARE
from txnstore.etcd.etcd_store import EtcdStore
from txnstore.maintenance import Maintenance, MaintenanceSettings
from txnwire.clock import SystemClock

SECONDS = float(os.environ.get("SUSTAINED_SECONDS", "10"))
PER_SECOND = 60
QUOTA = 800_000
"""A transaction takes 1.6 KB of etcd's file: full after 500, but for what is compacted. A minute has 3 600."""
SHARE = 0.85
"""Of what the rate asks for must be done: 510 in ten seconds, more than the quota holds."""
VALUE_BYTES = 8_000
"""So large that ledgers are closed every few seconds: aborted records leave etcd with them."""
TOPIC = "topic://public/default/sustained"

pytestmark = [pytest.mark.process, pytest.mark.timeout(120 + SECONDS)]


async def largest_file(store: EtcdStore, load: asyncio.Task[None]) -> int:
    """Bytes, as long as the load goes on."""
    largest = 0
    while not load.done():
        largest = max(largest, (await store.status()).db_bytes)
        await asyncio.sleep(0.1)
    load.result()
    return largest


async def test_e7_transactions_at_a_fixed_rate_pass_through_a_real_etcd_s_small_quota(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None is refused, the file stays below the quota, and in the end nothing of them is left."""
    often = MaintenanceSettings(every_s=0.3, keep_s=1.0, cooldown_s=1.0, pressing_cooldown_s=1.0)
    monkeypatch.setattr("txnctl.process.sweeper.Maintenance", partial(Maintenance, settings=often))
    etcd = EtcdMembers(tmp_path / "etcd", size=1, quota_bytes=QUOTA)
    await etcd.start()
    options = {"quota_bytes": QUOTA}
    overrides = {"header_retention_s": 1.0, "ledger_roll_bytes": 1_048_576}
    cluster = InProcessCluster(etcd.urls[0], "/e7", tmp_path / "data", overrides, etcd_options=options)
    try:
        await cluster.start()
        store = cluster.servers["broker"].store
        async with cluster.connect() as client:
            await client.create_topic(TOPIC, segments=2)
            async with await client.producer(TOPIC) as producer:
                done = {True: 0, False: 0}

                async def transaction() -> tuple[int, int]:
                    txn = await client.begin()
                    await producer.send(os.urandom(VALUE_BYTES), key=str(txn.id), txn=txn)
                    commit = sum(done.values()) % 3 != 0
                    await (txn.commit() if commit else txn.abort())
                    done[commit] += 1
                    return 1, VALUE_BYTES

                load = CallLoad(SystemClock(), seconds=SECONDS, concurrency=1, per_second=PER_SECOND)
                largest = await largest_file(store, asyncio.create_task(load.run([transaction])))
            assert load.measured.errors == {}
            assert sum(done.values()) >= SHARE * SECONDS * PER_SECOND, f"and {load.measured.behind} were not begun"
            async with client.reader(TOPIC, end="latest") as reader:
                assert len([message async for message in reader]) == done[True]
        async with asyncio.timeout(30), asking(cluster.url) as ask:
            while (counts := await ask.ask("store.counts"))["headers"] or counts["ops"]:
                await asyncio.sleep(0.1)
        status = await store.status()
        print(f"E7: {done} in {SECONDS:g} s, etcd's file {largest} bytes at most, {status.db_bytes_in_use} in use")
        assert largest < FILE_LIMIT_SHARE * QUOTA
        assert not status.no_space
    finally:
        await cluster.stop()
        await etcd.stop()
