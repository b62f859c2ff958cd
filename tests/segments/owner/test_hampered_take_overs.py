"""Take-overs whose disk hangs, or fails in a step that may be left out, or that find what is gone by now."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from segments.ledger.file_ledger import FileLedgerStore
from segments.ledger.ledger import LedgerFailed, Recovered
from segments.owner import take_over
from tests.segments.brokering import TOPIC, Cluster
from tests.segments.owner.owner_clients import connected
from tests.waiting import until
from txnstore import keys, records
from txnstore.records import LedgerRecord
from txnstore.store import Commit, Delete, Put


class HangingFences:
    """File ledgers that are never fenced for one segment."""

    def __init__(self, data_dir: Path, segment: str) -> None:
        self._store = FileLedgerStore(data_dir)
        self._segment = segment
        self.waiting = 0

    async def fence(self, segment: str, ledger_id: int) -> Recovered:
        if segment == self._segment:
            self.waiting += 1
            await asyncio.Event().wait()
        return await self._store.fence(segment, ledger_id)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


async def test_a_take_over_whose_disk_hangs_keeps_no_decisions_and_holds_up_no_other_segment(
    memory_cluster: Cluster,
) -> None:
    """▲ It would keep all that the cluster decides, as long as the disk hangs; and no snapshot could be taken of the
    others where nothing is decided."""
    cluster = memory_cluster
    hanging, healthy = await cluster.create_topic(segments=2)
    node = await cluster.start()
    for segment in (hanging, healthy):
        await node.broker.segment(segment)
    await node.crash()
    cluster.make_ledgers = lambda folder: HangingFences(folder, hanging)
    node = await cluster.start()
    ledgers: HangingFences = node.ledgers  # type: ignore[assignment]
    served = await node.broker.segment(healthy)
    await until(lambda: ledgers.waiting)
    for _ in range(20):
        await cluster.commit(await cluster.begin())
    elsewhere = (await cluster.store.commit(Commit(puts=(Put(b"/elsewhere", b""),)))).revision
    async with asyncio.timeout(2):
        await served.wait_followed(elsewhere, patience_s=0.01)
    assert len(node.broker._shared.decisions.early) == 0
    assert hanging in node.broker.taking


class NoFooters(FileLedgerStore):
    """On a disk that has no room for them."""

    async def write_footer(self, segment: str, ledger_id: int, footer: bytes) -> None:
        raise LedgerFailed(f"writing the footer of {ledger_id}: no space left on device")


class NoDeletions(FileLedgerStore):
    async def delete(self, segment: str, ledger_id: int) -> None:
        raise LedgerFailed(f"deleting {ledger_id}: operation not permitted")


async def test_a_disk_without_room_for_a_missing_footer_hinders_no_take_over(
    memory_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """▲ Nobody could read the segment, nor ack or commit there, before the disk has room. The footer of many producers
    is far larger than all else that a take-over writes, and only spares the next one a scan."""
    monkeypatch.setattr(take_over, "FOOTER_AFTER_ENTRIES", 2)
    cluster = memory_cluster
    [segment] = await cluster.create_topic()
    node, client = await connected(cluster)
    producer = await client.producer(segment)
    for value in "abc":
        await producer.send(value)
    await node.crash()
    cluster.make_ledgers = NoFooters
    _, client = await connected(cluster)
    await (await client.reader(segment)).wait(*"abc")


async def test_an_empty_ledger_that_cannot_be_deleted_hinders_no_take_over(memory_cluster: Cluster) -> None:
    cluster = memory_cluster
    [segment] = await cluster.create_topic()
    for _ in range(2):
        node, _ = await connected(cluster)
        await node.broker.segment(segment)
        await node.crash()
    cluster.make_ledgers = NoDeletions
    node, client = await connected(cluster)
    await (await client.producer(segment)).send("a")
    await (await client.reader(segment)).wait("a")
    assert await listed(cluster, segment) == [1, 2, 3]
    await node.crash()
    cluster.make_ledgers = FileLedgerStore
    _, client = await connected(cluster)
    await (await client.reader(segment)).wait("a")
    assert await listed(cluster, segment) == [3, 4]


async def listed(cluster: Cluster, segment: str) -> list[int]:
    key = keys.ledger(segment)
    found = await cluster.store.get(key)
    assert found is not None
    return [info.ledger_id for info in records.decode(LedgerRecord, found.value, key=key).ledgers]


async def test_acks_of_a_subscription_that_is_gone_are_decided_and_cleaned_up_by_the_next_owner(
    memory_cluster: Cluster,
) -> None:
    """▲ Otherwise nobody could serve the segment any more."""
    cluster = memory_cluster
    [path] = await cluster.create_topic()
    client = await cluster.connect(node := await cluster.start())
    _, consumer = await cluster.holding_abc(client, path)
    txn = await cluster.begin()
    await consumer.ack(consumer.messages[0], txn=txn)
    await node.crash()
    await cluster.store.commit(Commit(deletes=(Delete(keys.subscription(TOPIC.path, "sub")),)))
    client = await cluster.connect(await cluster.start())
    await (await client.reader(path)).wait(*"abc")
    await cluster.commit(txn)
    await cluster.wait_no_ops(txn)
