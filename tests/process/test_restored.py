"""E8 over real processes: whoever runs when a backup is put back ends, whoever starts refuses, and after the repair all
that was sent plainly is there."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import txnclient
from tests.etcd_members import etcdctl
from tests.processes import process_cluster, read_all
from tests.txnctl.command_line import txnctl
from tests.waiting import until
from txnctl.process.store_mark import StoreMark
from txnstore.etcd.embedded_etcd import EmbeddedEtcd, EtcdCommand, free_port

pytestmark = [pytest.mark.process, pytest.mark.timeout(180)]

TOPIC = "topic://public/default/put-back"
SAME_MEMBER = ("--initial-cluster=default=http://localhost:2380", "--initial-advertise-peer-urls=http://localhost:2380")


async def until_told(logs: list[Path], text: str) -> None:
    await until(lambda: all(text in log.read_text(errors="replace") for log in logs), within_s=60)


async def test_e8_processes_end_and_refuse_until_the_repair(tmp_path: Path) -> None:
    async with process_cluster(tmp_path) as cluster:
        async with txnclient.connect(cluster.url) as client:
            await client.create_topic(TOPIC)
            async with await client.producer(TOPIC) as producer:
                await producer.send(b"before")
                await etcdctl(f"--endpoints={cluster.etcd_url}", "snapshot", "save", str(tmp_path / "backup"))
                await producer.send(b"after")
                async with client.transaction() as txn:
                    await producer.send(b"lost", txn=txn)
            assert await read_all(client, TOPIC) == [b"before", b"after", b"lost"]
        mark = StoreMark(tmp_path / "data").read()
        assert mark is not None
        etcd = cluster.children["etcd"]
        await etcd.stop()
        shutil.rmtree(tmp_path / "etcd")
        await etcdctl("snapshot", "restore", str(tmp_path / "backup"), f"--data-dir={tmp_path / 'etcd'}", *SAME_MEMBER)
        await etcd.start()
        logs = [tmp_path / "logs" / name for name in ("server.log", "broker-1.log")]
        await until_told(logs, "restored from a backup")
        await until(lambda: all(cluster.children[name].restarts for name in ("server", "broker-1")), within_s=60)
    alone = EmbeddedEtcd(EtcdCommand(data_dir=tmp_path / "etcd", client_port=free_port()))
    await alone.start()
    try:
        repaired = await txnctl("check", "--repair", "--etcd", alone.url, "--data-dir", str(tmp_path))
        assert repaired.code == 0, repaired
        assert "1 transactions with 1 messages were begun after the backup" in repaired.out
    finally:
        await alone.stop()
    async with process_cluster(tmp_path) as cluster, txnclient.connect(cluster.url) as client:
        assert await read_all(client, TOPIC) == [b"before", b"after"]
        assert StoreMark(tmp_path / "data").read() != mark
