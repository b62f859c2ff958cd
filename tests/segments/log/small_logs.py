"""Logs of one entry in each ledger, under housekeeping."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from segments.log.settings import BrokerSettings
from tests.segments.brokering import TOPIC, Client, Cluster
from tests.waiting import until
from txnstore import keys, records
from txnstore.records import LedgerRecord, TopicRecord
from txnstore.store import Commit, Put

ONE_ENTRY_EACH = BrokerSettings(
    lease_ttl_s=60.0,
    claim_retry_s=0.05,
    ledger_roll_bytes=1,
    housekeeping_s=0.02,
    roll_least_age_ms=1,
    cursor_flush_s=0.01,
)


async def set_policies(cluster: Cluster, **policies: Any) -> None:
    found = await cluster.store.get(keys.topic(TOPIC.path))
    assert found is not None
    record = records.decode(TopicRecord, found.value, key=found.key)
    changed = msgspec.structs.replace(record, policies=policies)
    await cluster.store.commit(Commit(puts=(Put(found.key, records.encode(changed)),)))


async def ledger_list(cluster: Cluster, segment: str) -> LedgerRecord:
    found = await cluster.store.get(keys.ledger(segment))
    assert found is not None
    return records.decode(LedgerRecord, found.value, key=found.key)


async def aborted_in_store(cluster: Cluster, segment: str) -> int:
    prefix = keys.aborted_records(segment)
    return len((await cluster.store.range(prefix, keys.prefix_end(prefix))).records)


def files(cluster: Cluster, segment: str, suffix: str = "ledger") -> list[int]:
    return sorted(int(path.stem) for path in (cluster.data_dir / "ledgers" / segment).glob(f"*.{suffix}"))


async def settle(turns: int = 3) -> None:
    """Let a few rounds of housekeeping pass."""
    for _ in range(turns):
        await asyncio.sleep(0.002)


async def write(cluster: Cluster, client: Client, segment: str, rounds: int) -> None:
    """Per round one aborted, one committed and one plain message, each in a ledger of its own."""
    producer = await client.producer(segment, f"p{len(cluster.clients)}")
    for number in range(rounds):
        for kind in ("aborted", "committed"):
            txn = await cluster.begin()
            await producer.send(f"{kind}-{number}", txn=txn)
            await (cluster.abort(txn) if kind == "aborted" else cluster.commit(txn))
            await cluster.wait_no_ops(txn)
        await producer.send(f"plain-{number}")


def expected(rounds: int) -> list[str]:
    return [f"{kind}-{number}" for number in range(rounds) for kind in ("committed", "plain")]


async def read_to_sentinel(client: Client, segment: str, name: str) -> list[str]:
    reader = await client.reader(segment)
    await (await client.producer(segment, name)).send(f"sentinel {name}")
    await until(lambda: f"sentinel {name}" in reader.values, what="the sentinel")
    return [value for value in reader.values if not value.startswith("sentinel")]
