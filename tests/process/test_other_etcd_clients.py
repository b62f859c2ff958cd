"""Others than our own client look at etcd: `etcdctl` reads our records, `etcd3` watches a transaction happen."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster import InProcessCluster

TOPIC = "topic://public/default/witnessed"
WITNESS = Path(__file__).with_name("etcd3_witness.py")


async def etcdctl(cluster: InProcessCluster, *arguments: str) -> str:
    def run() -> str:
        command = ["etcdctl", f"--endpoints={cluster.etcd}", *arguments]
        return subprocess.run(
            command, env={**os.environ, "ETCDCTL_API": "3"}, capture_output=True, text=True, timeout=20, check=True
        ).stdout

    return await asyncio.to_thread(run)


@pytest.mark.skipif(shutil.which("etcdctl") is None, reason="no etcdctl on PATH")
async def test_etcdctl_reads_a_transaction_as_lines_of_json(cluster: InProcessCluster) -> None:
    async with cluster.connect() as client:
        await client.create_topic(TOPIC)
        async with await client.producer(TOPIC) as producer:
            txn = await client.begin()
            await producer.send(b"value", txn=txn)
            prefix = cluster.prefix
            lines = (await etcdctl(cluster, "get", "--prefix", f"{prefix}/txn/")).splitlines()
            assert lines[0] == f"{prefix}/txn/{txn.id}"
            header = json.loads(lines[1])
            assert (header["v"], header["state"]) == (1, "OPEN")
            ops = (await etcdctl(cluster, "get", "--prefix", f"{prefix}/txn-op/{txn.id}/")).splitlines()
            assert "/w/" in ops[0]
            assert json.loads(ops[1])["kind"] == "write"
            await txn.commit()
            lines = (await etcdctl(cluster, "get", "--prefix", f"{prefix}/txn/")).splitlines()
            assert json.loads(lines[1])["state"] == "COMMITTED"
            topic = json.loads(
                await etcdctl(cluster, "get", "--print-value-only", f"{prefix}/topic/public/default/witnessed")
            )
            assert [segment["state"] for segment in topic["segments"]] == ["ACTIVE"]


async def test_etcd3_sees_a_transaction_begin_and_commit(cluster: InProcessCluster) -> None:
    host, _, port = cluster.etcd.removeprefix("http://").rpartition(":")
    witness = await asyncio.create_subprocess_exec(
        sys.executable,
        str(WITNESS),
        host,
        port,
        f"{cluster.prefix}/txn/",
        "2",
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python", "PYTHONWARNINGS": "ignore"},
    )
    assert witness.stdout is not None
    try:
        async with asyncio.timeout(30):
            assert await witness.stdout.readline() == b"watching\n"
            async with cluster.connect() as client, client.transaction() as txn:
                pass
            events = [(await witness.stdout.readline()).decode().split(" ", 1) for _ in range(2)]
            assert await witness.wait() == 0
    finally:
        if witness.returncode is None:
            witness.kill()
            await witness.wait()
    assert [key.rpartition("/")[2] for key, _ in events] == [str(txn.id)] * 2
    assert [json.loads(value)["state"] for _, value in events] == ["OPEN", "COMMITTED"]
