"""A cluster for one benchmark: real processes in a temporary folder, with etcd's fsync, all on this machine's cores."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import txnclient
from benchmarks.harness.machine import EtcdMetrics, cpu_seconds, peak_resident_bytes, resident_bytes
from txnctl.commands.shared.asking import asking
from txnctl.launch.dev import DevCluster, DevSettings

TOPIC = "topic://public/bench/load"


@dataclass
class Bench:
    cluster: DevCluster
    client: txnclient.Client
    etcd: EtcdMetrics
    folder: Path

    def resident_mib(self) -> dict[str, float]:
        """Memory of every process of the cluster, in MiB."""
        return {name: resident_bytes(pid) / 2**20 for name, pid in self.pids().items()}

    def peak_mib(self) -> dict[str, float]:
        """The most each process has ever had."""
        return {name: peak_resident_bytes(pid) / 2**20 for name, pid in self.pids().items()}

    def pids(self) -> dict[str, int]:
        """Of the processes that run, by name."""
        pids = {name: child.pid for name, child in self.cluster.children.items()}
        return {name: pid for name, pid in pids.items() if pid is not None}

    async def cores_used(self, seconds: float) -> dict[str, float]:
        """By each process, while nobody asks anything of it."""
        pids = self.pids()
        before = {name: cpu_seconds(pid) for name, pid in pids.items()}
        await asyncio.sleep(seconds)
        return {name: (cpu_seconds(pid) - before[name]) / seconds for name, pid in pids.items()}

    async def until_none_open(self, topic: str, *, timeout_s: float = 300.0) -> None:
        """Until no segment of the topic holds an undecided transaction."""
        async with asyncio.timeout(timeout_s), asking(self.cluster.url) as ask:
            while True:
                segments = (await ask.ask("topics.stats", topic=topic))["segments"]
                if not any("error" in one or one["open_transactions"] for one in segments):
                    return
                await asyncio.sleep(0.25)

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
            await client.create_topic(TOPIC, segments=segments, autoscale="off")
            yield Bench(cluster, client, EtcdMetrics(cluster.etcd_url), Path(folder))
