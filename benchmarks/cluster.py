"""A cluster for one benchmark: real processes in a temporary folder, with etcd's fsync, all on this machine's cores."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import txnclient
from benchmarks.machine import EtcdMetrics, resident_bytes
from txnctl.commands.asking import asking
from txnctl.dev import DevCluster, DevSettings

TOPIC = "topic://public/bench/load"


@dataclass
class Bench:
    cluster: DevCluster
    client: txnclient.Client
    etcd: EtcdMetrics
    folder: Path

    def resident_mib(self) -> dict[str, float]:
        """Memory of every process of the cluster, in MiB."""
        pids = {name: child.pid for name, child in self.cluster.children.items()}
        return {name: resident_bytes(pid) / 2**20 for name, pid in pids.items() if pid is not None}

    async def backlog(self) -> dict[str, int]:
        """Op records and headers still in etcd."""
        async with asking(self.cluster.url) as ask:
            answer = await ask.ask("store.counts")
        return {"ops": answer["ops"], "headers": answer["headers"]}


@asynccontextmanager
async def bench_cluster(*, segments: int = 4, flags: Sequence[str] = (), brokers: int = 1) -> AsyncIterator[Bench]:
    with tempfile.TemporaryDirectory(prefix="txnstore-bench-") as folder:
        settings = DevSettings(
            data_dir=Path(folder),
            listen="127.0.0.1:0",
            admin="127.0.0.1:0",
            etcd_port=0,
            brokers=brokers,
            server_flags=flags,
        )
        async with DevCluster(settings) as cluster, txnclient.connect(cluster.url) as client:
            await client.create_topic(TOPIC, segments=segments)
            yield Bench(cluster, client, EtcdMetrics(cluster.etcd_url), Path(folder))
