"""Owners whose disk or data folder fails (L5, C12)."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from tests.segments.brokering import Cluster
from tests.segments.gates import GatedStore, gate_stores
from tests.segments.owner.owner_clients import connected
from tests.waiting import until
from txnstore import keys, records
from txnstore.memory.memory_etcd import DEFAULT_QUOTA_BYTES, MemoryEtcd
from txnstore.records import LedgerRecord
from txnstore.store import Commit, CommitVerdict
from txnwire.errors import OutcomeUnknown, StoreFull, StoreUnavailable, Timeout, TxnError
from txnwire.tasks import Tasks


async def test_c12_a_data_folder_that_goes_and_comes_back_costs_nothing_that_was_acked(cluster: Cluster) -> None:
    [segment] = await cluster.create_topic()
    node, client = await connected(cluster)
    await cluster.start("b2")
    producer = await client.producer(segment)
    for number in range(3):
        await producer.send(f"{number}")
    folder, away = cluster.data_dir / "ledgers", cluster.data_dir / "away"
    folder.rename(away)
    owner = (await node.broker.segment(segment)).epoch
    await node.crash()
    other = cluster.nodes[0]

    async def tried() -> bool:
        found = await cluster.store.get(keys.owner(segment))
        return found is not None and found.create_revision > owner

    await until(tried, "another owner to try", within_s=20.0)
    assert not folder.exists()
    found = await cluster.store.get(keys.ledger(segment))
    assert found is not None
    assert records.decode(LedgerRecord, found.value, key=found.key).ledgers[0].closed_length is None
    away.rename(folder)
    await until(lambda: segment in other.broker._owned.serving, within_s=20.0)
    reader = await (await cluster.connect(other)).reader(segment)
    await reader.wait("0", "1", "2")


async def test_l5_an_owner_whose_disk_takes_nothing_any_more_records_the_end_before_it_gives_up(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    [segment] = await cluster.create_topic()
    _, client = await connected(cluster)
    producer = await client.producer(segment)
    await producer.send("a")

    def fails(*_: object) -> None:
        raise OSError(errno.EIO, "input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fdatasync", fails)
        patched.setattr(os, "link", fails)
        with pytest.raises(TxnError):
            await producer.send("lost")

        async def closed() -> bool:
            found = await cluster.store.get(keys.ledger(segment))
            assert found is not None
            return records.decode(LedgerRecord, found.value, key=found.key).ledgers[0].closed_length == 1

        await until(closed, "the end of the ledger to be recorded", within_s=20.0)


@pytest.fixture
def dead_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Call it, and from then on the disk stores nothing any more, nor takes note of where a ledger ends."""

    def fails(*_: object) -> None:
        raise OSError(errno.EIO, "input/output error")

    with monkeypatch.context() as patched:

        def die() -> None:
            for call in ("fdatasync", "link"):
                patched.setattr(os, call, fails)

        yield die


@pytest.mark.parametrize("etcd_is", ["full", "mute"])
@pytest.mark.parametrize("ends", ["once etcd takes it", "as the broker closes"])
async def test_l5_no_segment_is_given_back_before_etcd_has_taken_the_end_of_its_ledger(
    memory_cluster: Cluster, memory_etcd: MemoryEtcd, dead_disk: Callable[[], None], etcd_is: str, ends: str
) -> None:
    """▲ A full one takes the deletion of the owner's key all the same, and the next owner is who asks first."""
    cluster = memory_cluster
    cluster.settings = replace(cluster.settings, hand_over_s=0.3)
    gate_stores(cluster)
    [segment] = await cluster.create_topic()
    node, client = await connected(cluster)
    store: GatedStore = node.store  # type: ignore[assignment]
    producer = await client.producer(segment)
    await producer.send("a")
    owner = await cluster.store.get(keys.owner(segment))
    dead_disk()
    if etcd_is == "full":
        memory_etcd.quota_bytes = 0
    else:
        store.hold(lambda commit: any(put.key == keys.ledger(segment) for put in commit.puts))
    with capture_logs() as logs:
        with pytest.raises(TxnError):
            await producer.send("lost")
        await asyncio.sleep(4 * cluster.settings.hand_over_s)
        assert await cluster.store.get(keys.owner(segment)) == owner
        if ends == "as the broker closes":
            async with asyncio.timeout(5.0):
                await node.close()
            return
        memory_etcd.quota_bytes, memory_etcd.no_space = DEFAULT_QUOTA_BYTES, False
        store.open()
        await until(lambda: list_of(memory_etcd, segment).ledgers[0].closed_length == 1)
    assert not [one for one in logs if one["log_level"] == "error"]


async def test_l5_a_broker_that_closes_waits_for_the_ends_of_all_its_ledgers_together(
    memory_cluster: Cluster, dead_disk: Callable[[], None]
) -> None:
    """▲ Not for the second one for ever: the process would not end."""
    cluster = memory_cluster
    cluster.settings = replace(cluster.settings, hand_over_s=0.3)
    gate_stores(cluster)
    segments = await cluster.create_topic(segments=3)
    tasks = Tasks()
    with tasks.in_charge():
        node, client = await connected(cluster)
    store: GatedStore = node.store  # type: ignore[assignment]
    producers = [await client.producer(segment) for segment in segments]
    store.hold(lambda commit: any(put.key.startswith(keys.LEDGER) for put in commit.puts))
    dead_disk()
    for producer in producers:
        with pytest.raises(TxnError):
            await producer.send("lost")
    await until(lambda: store.waiting == 3)
    async with asyncio.timeout(10.0):
        await node.close()
    assert tasks.failures == {}, "it is no defect"


@pytest.mark.parametrize("error", [OutcomeUnknown, StoreFull, StoreUnavailable, Timeout])
async def test_l5_the_end_of_a_ledger_is_recorded_however_the_first_tries_fail(
    memory_cluster: Cluster,
    memory_etcd: MemoryEtcd,
    dead_disk: Callable[[], None],
    error: type[TxnError],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """▲ Given back with the end unrecorded, the next owner could count what only the page cache holds."""
    cluster = memory_cluster
    [segment] = await cluster.create_topic()
    node, client = await connected(cluster)
    producer = await client.producer(segment)
    await producer.send("a")
    owner, commit, tries = await cluster.store.get(keys.owner(segment)), node.store.commit, 0

    async def failing(one: Commit, *, timeout_s: float = 10.0) -> CommitVerdict:
        nonlocal tries
        if any(put.key == keys.ledger(segment) for put in one.puts) and tries < 2:
            tries += 1
            assert await cluster.store.get(keys.owner(segment)) == owner
            raise error("planned by the test")
        return await commit(one, timeout_s=timeout_s)

    monkeypatch.setattr(node.store, "commit", failing)
    dead_disk()
    with pytest.raises(TxnError):
        await producer.send("lost")
    await until(lambda: tries == 2 and list_of(memory_etcd, segment).ledgers[0].closed_length == 1)


def list_of(etcd: MemoryEtcd, segment: str) -> LedgerRecord:
    found = etcd.mvcc.get(keys.ledger(segment), 0)
    assert found is not None
    return records.decode(LedgerRecord, found.value, key=found.key)
