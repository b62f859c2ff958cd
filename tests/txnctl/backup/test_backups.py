"""`txnctl backup` and `restore` over real processes: what was acknowledged before is whole, nothing is half visible."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

import txnclient
from tests.processes import process_cluster, read_all
from tests.txnctl.command_line import Done, start, txnctl
from tests.waiting import until
from txnctl.launch.dev import DevCluster

pytestmark = [pytest.mark.process, pytest.mark.timeout(480)]

TOPICS = ["topic://public/default/left", "topic://public/default/right"]
ROLL = ("--ledger-roll-bytes", str(1024 * 1024), "--header-retention-s", "60")
PADDING = os.urandom(12_000)


class Load:
    """Transactions that write their number into both topics; every fifth is aborted."""

    def __init__(self, client: txnclient.Client) -> None:
        self._client = client
        self.acknowledged: list[int] = []

    async def run(self) -> None:
        left, right = [await self._client.producer(topic) for topic in TOPICS]
        for number in itertools.count():
            txn = await self._client.begin()
            value = b"%d " % number + PADDING
            await asyncio.gather(left.send(value, txn=txn), right.send(value, txn=txn))
            if number % 5 == 4:
                await txn.abort()
            else:
                await txn.commit()
                self.acknowledged.append(number)

    async def wait_for(self, more: int) -> list[int]:
        wanted = len(self.acknowledged) + more
        await until(lambda: len(self.acknowledged) >= wanted, f"{wanted} transactions to be acknowledged")
        return list(self.acknowledged)


@asynccontextmanager
async def under_load(folder: Path) -> AsyncIterator[tuple[DevCluster, Load]]:
    async with process_cluster(folder, flags=ROLL) as cluster, txnclient.connect(cluster.url) as client:
        for topic in TOPICS:
            await client.create_topic(topic, segments=2)
        load = Load(client)
        running = asyncio.create_task(load.run())
        await load.wait_for(50)
        try:
            yield cluster, load
            assert not running.done(), running
        finally:
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running


def backup_words(cluster: DevCluster, folder: Path, to: Path) -> tuple[str, ...]:
    return ("backup", str(to), "--etcd", cluster.etcd_url, "--data-dir", str(folder))


async def backup(cluster: DevCluster, folder: Path, to: Path, *more: str) -> Done:
    done = await txnctl(*backup_words(cluster, folder, to), *more)
    assert done.code == 0, done
    return done


async def expect_restored(folder: Path, acknowledged: list[int]) -> None:
    """What was acknowledged is there, and no transaction in one topic alone, or twice."""
    async with process_cluster(folder) as cluster, txnclient.connect(cluster.url) as client:
        left, right = [[int(value.split(b" ", 1)[0]) for value in await read_all(client, topic)] for topic in TOPICS]
        assert sorted(left) == sorted(right)
        assert len(set(left)) == len(left)
        assert not set(acknowledged) - set(left)
        assert all(number % 5 != 4 for number in left)
        async with client.transaction() as txn, await client.producer(TOPICS[0]) as producer:
            await producer.send(b"1000000", txn=txn)  # it goes on working
        checked = await txnctl("check", "--etcd", cluster.etcd_url, "--data-dir", str(folder))
        assert checked.code == 0, checked


async def test_what_was_acknowledged_before_the_backup_is_whole_and_nothing_is_half_visible(tmp_path: Path) -> None:
    folder, to = tmp_path / "cluster", tmp_path / "backups"
    async with under_load(folder) as (cluster, load):
        first = json.loads((await backup(cluster, folder, to, "-o", "json")).out)
        acknowledged = await load.wait_for(400)  # each segment closes a ledger meanwhile
        second = json.loads((await backup(cluster, folder, to, "-o", "json")).out)
        await load.wait_for(20)
        third = json.loads((await backup(cluster, folder, to, "-o", "json", "--keep", "2")).out)
    assert first["copied_files"] == first["files"]
    assert 0 < third["copied_files"] < third["files"], "closed ledgers were copied again"
    assert second["revision"] < third["revision"]
    listed = await txnctl("backup", str(to), "--verify", "-o", "json")
    assert [row["backup"] for row in listed.json] == [second["backup"], third["backup"]]
    restored = await txnctl("restore", str(to), "--backup", second["backup"], "--to", str(tmp_path / "new"))
    assert restored.code == 0, restored
    assert "begun after the backup" in restored.out
    assert {path.name for path in tmp_path.iterdir()} == {"cluster", "backups", "new"}
    await expect_restored(tmp_path / "new", acknowledged)
    again = await txnctl("restore", str(to), "--to", str(tmp_path / "new"))
    assert (again.code, "holds something" in again.err) == (1, True), again


async def test_a_backup_that_is_killed_counts_as_none_and_is_run_again(tmp_path: Path) -> None:
    folder, to = tmp_path / "cluster", tmp_path / "backups"
    async with under_load(folder) as (cluster, load):
        await load.wait_for(150)
        process = await start(*backup_words(cluster, folder, to))
        await until(lambda: any((to / "ledgers").rglob("*.ledger.*")), "a part of a copy", longest_poll_s=0.001)
        process.kill()
        await process.wait()
        nothing = await txnctl("restore", str(to), "--to", str(tmp_path / "new"))
        assert (nothing.code, "no whole backup" in nothing.err) == (2, True), nothing
        acknowledged = await load.wait_for(1)
        await backup(cluster, folder, to)
    assert len(list((to / "backups").iterdir())) == 1
    assert not list(to.rglob("*.tmp*"))
    restored = await txnctl("restore", str(to), "--to", str(tmp_path / "new"))
    assert restored.code == 0, restored
    await expect_restored(tmp_path / "new", acknowledged)


async def test_a_damaged_backup_is_refused_and_nothing_is_restored(tmp_path: Path) -> None:
    folder, to, new = tmp_path / "cluster", tmp_path / "backups", tmp_path / "new"
    async with under_load(folder) as (cluster, _):
        name = json.loads((await backup(cluster, folder, to, "-o", "json")).out)["backup"]
        inside = await txnctl(*backup_words(cluster, folder, folder / "data" / "backups"))
        assert (inside.code, "another disk" in inside.err) == (2, True), inside
        foreign = tmp_path / "foreign"
        foreign.mkdir()
        (foreign / "photo").write_text("")
        refused = await txnctl(*backup_words(cluster, folder, foreign))
        assert (refused.code, "holds something else" in refused.err) == (1, True), refused
        url = await txnctl(*backup_words(cluster, folder, to)[:1], "s3://bucket/backups")
        assert (url.code, "object stores are not supported yet" in url.err) == (2, True), url
    largest = max((to / "ledgers").rglob("*.ledger.*"), key=lambda path: path.stat().st_size)
    manifest = to / "backups" / name / "manifest.json"
    etcd = to / "backups" / name / "etcd.snapshot"
    for damaged in (largest, etcd, manifest):
        content = damaged.read_bytes()
        flipped = bytearray(content)
        flipped[len(content) // 2] ^= 1
        for wrong in (bytes(flipped), content[:-9]):
            damaged.write_bytes(wrong)
            for words in (("restore", str(to), "--to", str(new)), ("backup", str(to), "--verify")):
                done = await txnctl(*words)
                assert (done.code, str(damaged) in done.err) == (1, True), done
            assert not new.exists()
        damaged.write_bytes(content)
    assert largest.with_name(f"{largest.name}.damaged").exists(), "the next backup would have named it, too"
    largest.unlink()
    done = await txnctl("restore", str(to), "--to", str(new))
    assert (done.code, "is not there" in done.err) == (1, True), done


async def test_ledgers_are_restored_beside_an_etcd_that_was_restored_by_hand(tmp_path: Path) -> None:
    from tests.etcd_members import etcdctl
    from txnstore.etcd.embedded_etcd import EmbeddedEtcd, EtcdCommand, free_port

    folder, to, new = tmp_path / "cluster", tmp_path / "backups", tmp_path / "new"
    async with under_load(folder) as (cluster, load):
        acknowledged = await load.wait_for(1)
        earlier = json.loads((await backup(cluster, folder, to, "-o", "json")).out)["backup"]
        acknowledged = await load.wait_for(20)
        name = json.loads((await backup(cluster, folder, to, "-o", "json")).out)["backup"]
        words = ("restore", str(to), "--data-dir", str(new / "data"), "--etcd")
        live = await txnctl(*words, cluster.etcd_url)
        assert (live.code, "is in use" in live.err) == (1, True), live
    empty = EmbeddedEtcd(EtcdCommand(data_dir=tmp_path / "empty", client_port=free_port()))
    await empty.start()
    refused = await txnctl(*words, empty.url)
    await empty.stop()
    assert (refused.code, "holds nothing of a cluster" in refused.err) == (1, True), refused
    assert not new.exists()
    await etcdctl("snapshot", "restore", str(to / "backups" / name / "etcd.snapshot"), f"--data-dir={new / 'etcd'}")
    restored_etcd = EmbeddedEtcd(EtcdCommand(data_dir=new / "etcd", client_port=free_port()))
    await restored_etcd.start()
    older = await txnctl(*words, restored_etcd.url, "--backup", earlier)
    assert (older.code, "from another backup" in older.err) == (1, True), older
    assert not (new / "data").exists()
    restored = await txnctl(*words, restored_etcd.url)
    await restored_etcd.stop()
    assert restored.code == 0, restored
    shutil.rmtree(folder)
    await expect_restored(new, acknowledged)


async def test_what_was_committed_right_before_a_backup_of_a_quiet_cluster_is_there(tmp_path: Path) -> None:
    """▲ Nothing that was begun later tells the repair that the ledgers are newer than etcd: the mark must say so."""
    folder, to, new = tmp_path / "cluster", tmp_path / "backups", tmp_path / "new"
    async with process_cluster(folder, flags=ROLL) as cluster, txnclient.connect(cluster.url) as client:
        for topic in TOPICS:
            await client.create_topic(topic)
        async with client.transaction() as txn:
            for topic in TOPICS:
                await (await client.producer(topic)).send(b"0 last", txn=txn)
        await backup(cluster, folder, to)
    restored = await txnctl("restore", str(to), "--to", str(new))
    assert restored.code == 0, restored
    await expect_restored(new, [0])
