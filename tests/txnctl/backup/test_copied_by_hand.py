"""A data folder that was copied by hand before etcd lacks entries that etcd knows: nothing is shown by half."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import pytest

import txnclient
from tests.etcd_members import etcdctl
from tests.processes import process_cluster
from tests.txnctl.backup.test_backups import TOPICS, expect_restored, under_load
from tests.txnctl.command_line import txnctl
from tests.waiting import until_answer
from txnstore import keys
from txnstore.etcd.embedded_etcd import EmbeddedEtcd, EtcdCommand, free_port
from txnstore.etcd.etcd_store import EtcdSettings, EtcdStore
from txnwire.clock import SystemClock, SystemRandom

pytestmark = [pytest.mark.process, pytest.mark.timeout(480)]


def copy_topic(folder: Path, new: Path, topic: str) -> None:
    """The first time with what stands beside the topics."""
    source, target = folder / "data", new / "data"
    for path in ("ledgers/folder-id", "store-mark"):
        if not (target / path).exists():
            (target / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source / path, target / path)
    place = Path("ledgers", "public", "default", topic)
    shutil.copytree(source / place, target / place)


async def repair_copied(snapshot: Path, new: Path) -> str:
    """What the repair said. Before it, `check` says what to do."""
    await etcdctl("snapshot", "restore", str(snapshot), f"--data-dir={new / 'etcd'}")
    etcd = EmbeddedEtcd(EtcdCommand(data_dir=new / "etcd", client_port=free_port()))
    await etcd.start()
    words = ("check", "--etcd", etcd.url, "--data-dir", str(new / "data"))
    checked = await txnctl(*words)
    repaired = await txnctl(*words, "--repair")
    await etcd.stop()
    assert (checked.code, "txnctl check --repair" in checked.out) == (1, True), checked
    assert repaired.code == 0, repaired
    return repaired.out


async def until_none(url: str, prefix: bytes) -> None:
    """Returns once no record of that kind is left."""
    store = await EtcdStore.connect(EtcdSettings(endpoints=(url,)), clock=SystemClock(), random=SystemRandom())
    await until_answer(
        lambda: store.range(prefix, keys.prefix_end(prefix), keys_only=True),
        lambda found: not found.records,
        f"no {prefix.decode()}",
        within_s=30,
        longest_poll_s=0.001,
    )
    await store.close()


@pytest.mark.parametrize("between", [0, 100], ids=["at once", "later"])
async def test_in_the_natural_order_the_repair_leaves_no_half_transaction(tmp_path: Path, between: int) -> None:
    """The left topic's files are copied first, then those of the right one, then etcd, while transactions commit."""
    folder, new = tmp_path / "cluster", tmp_path / "new"
    async with under_load(folder) as (cluster, load):
        for topic in ("left", "right"):
            await asyncio.to_thread(copy_topic, folder, new, topic)
            await load.wait_for(20)
        await load.wait_for(between)
        await etcdctl(f"--endpoints={cluster.etcd_url}", "snapshot", "save", str(tmp_path / "snapshot"))
    assert "missing" in await repair_copied(tmp_path / "snapshot", new)
    await expect_restored(new, [])


async def test_a_transaction_of_the_last_moment_is_not_shown_by_half(tmp_path: Path) -> None:
    """▲ No watermark has passed it yet, and its operation records are gone: etcd does not tell where it had written."""
    folder, new = tmp_path / "cluster", tmp_path / "new"
    async with process_cluster(folder) as cluster, txnclient.connect(cluster.url) as client:
        for topic in TOPICS:
            await client.create_topic(topic)
        left, right = [await client.producer(topic) for topic in TOPICS]
        for number in range(3):
            if number == 2:
                await until_none(cluster.etcd_url, keys.TXN)  # the first two are whole for certain
                copy_topic(folder, new, "left")
            async with client.transaction() as txn:
                await left.send(b"%d " % number, txn=txn)
                await right.send(b"%d " % number, txn=txn)
        copy_topic(folder, new, "right")
        await until_none(cluster.etcd_url, keys.TXN_OP)
        await etcdctl(f"--endpoints={cluster.etcd_url}", "snapshot", "save", str(tmp_path / "snapshot"))
    said = await repair_copied(tmp_path / "snapshot", new)
    assert "1 of them are known to have been committed" in said
    (dropped,) = [json.loads(line) for line in (new / "data" / "dropped-1.jsonl").read_text().splitlines()]
    assert (dropped["because"], dropped["was_committed"]) == ("lost a part", True)
    assert list(dropped["messages"].values()) == [1]
    await expect_restored(new, [0, 1])
