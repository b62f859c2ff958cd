"""What 500 splits and merges leave behind for those who use the topic: beside a topic that never changed and holds as
much, looking a segment up, describing, sending, and how soon a restarted broker serves.

Three topics, each in a cluster of its own, one after the other, over one etcd: *unchanged*; *kept*, changed 500 times
with data in each generation and no retention, so that every segment there ever was is there still; *pruned*, changed
100 times under a retention of a second, where producers are forgotten after a second too (a week is usual), so that
sealed segments leave the graph. Servers run in this process, which can then look at the broker itself while it
recovers.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import txnclient
from benchmarks.harness.cluster import Bench, bench_cluster
from benchmarks.harness.load import VALUE
from benchmarks.harness.machine import cpu_seconds
from benchmarks.harness.result import Result, at_most, percentile
from benchmarks.harness.scale import Scale
from segments.controller.controller import ControllerSettings
from segments.ledger.file_ledger import FileLedgerStore
from segments.log.settings import BrokerSettings
from txnctl.launch.probe import wait_cluster_ready
from txnctl.process.server import Server
from txnctl.process.settings import ServerSettings
from txnstore.etcd.etcd_store import EtcdSettings, EtcdStore
from txnwire.clock import SystemClock, SystemRandom
from txnwire.ids import hash_key
from txnwire.proto import txn_pb2 as pb
from txnwire.transport.grpc_transport import GrpcTransport

TOPIC = "topic://public/bench/layouts"
MESSAGES = 4
"""Sent in each generation, two to each half of the hash space."""

KEYS = ("key-0", "key-1", "key-2", "key-3")
RESTARTS = 5
LOOKUPS = 20_000
GOAL = 1.5
SOON = BrokerSettings(producer_idle_s=1.0, prune_least_age_ms=0, housekeeping_s=0.5, roll_least_age_ms=200)
PRUNED_WITHIN_S = 20.0
PRUNED_OF = 5
"""So many times fewer changes there: segments leave the graph one after the other, at a few in a second."""


@dataclass
class Found:
    """Of one topic, in units of the names. `segments`: in the topic's record, sealed ones included."""

    segments: int = 0
    changes_s: float = 0.0
    route_us: float = 0.0
    layout_ms: list[float] = field(default_factory=list)
    layout_cpu_ms: float = 0.0
    layout_bytes: int = 0
    describe_ms: list[float] = field(default_factory=list)
    send_ms: list[float] = field(default_factory=list)
    active_ms: list[float] = field(default_factory=list)
    """From the start of a broker until all active segments serve, and `all_ms` until every one does."""
    all_ms: list[float] = field(default_factory=list)
    start_ms: list[float] = field(default_factory=list)
    all_cpu_ms: list[float] = field(default_factory=list)


async def layouts(scale: Scale) -> list[Result]:
    changes = scale.of(500, 20)
    async with bench_cluster() as bench:
        unchanged = await _measure(bench, "unchanged", 0, changes)
        kept = await _measure(bench, "kept", changes, changes)
        pruned = await _measure(bench, "pruned", changes // PRUNED_OF, changes // PRUNED_OF, soon=True)
    return _results(f"{changes} changes, all kept", unchanged, kept) + _results(
        f"{changes // PRUNED_OF} changes, pruned", unchanged, pruned
    )


def _results(name: str, base: Found, found: Found) -> list[Result]:
    rows = [
        ("routing a key", [base.route_us], [found.route_us], "µs"),
        ("answer to WatchLayout", base.layout_ms, found.layout_ms, "ms"),
        ("`topics describe`", base.describe_ms, found.describe_ms, "ms"),
        ("send p50", base.send_ms, found.send_ms, "ms"),
        ("restart until active segments serve", base.active_ms, found.active_ms, "ms"),
        ("restart until all segments serve", base.all_ms, found.all_ms, "ms"),
    ]
    extra = {
        "answer to WatchLayout": f"; {base.layout_bytes:,} and {found.layout_bytes:,} bytes, "
        f"CPU of both ends {base.layout_cpu_ms:.2f} and {found.layout_cpu_ms:.2f} ms",
        "routing a key": f"; {base.segments} and {found.segments} segments in the topic's record, "
        f"changes took {found.changes_s:.1f} s",
        "restart until active segments serve": f"; of them until the broker has started "
        f"{percentile(base.start_ms, 0.5):.0f} and {percentile(found.start_ms, 0.5):.0f} ms",
        "restart until all segments serve": f"; CPU of this process {percentile(base.all_cpu_ms, 0.5):.0f} and "
        f"{percentile(found.all_cpu_ms, 0.5):.0f} ms",
    }
    return [
        at_most(
            f"{name}: {what}, to unchanged",
            percentile(values, 0.5) / percentile(before, 0.5),
            "x",
            GOAL,
            f"{percentile(before, 0.5):.2f} and {percentile(values, 0.5):.2f} {unit}{extra.get(what, '')}",
        )
        for what, before, values, unit in rows
    ]


async def _measure(bench: Bench, name: str, changes: int, generations: int, *, soon: bool = False) -> Found:
    with tempfile.TemporaryDirectory(prefix="txnstore-bench-layouts-") as folder:
        async with _cluster(bench.cluster.etcd_url, f"/{name}", Path(folder), soon=soon) as cluster:
            async with txnclient.connect(cluster.url) as client:
                found = await _prepare(client, changes, generations, soon=soon)
                await _look(client, cluster.url, found)
            for _ in range(RESTARTS):
                await cluster.restart(found)
            return found


async def _prepare(client: txnclient.Client, changes: int, generations: int, *, soon: bool) -> Found:
    retention_ms = 1000 if soon else None
    await client.create_topic(TOPIC, retention_ms=retention_ms, autoscale="off")
    found, began = Found(), time.perf_counter()
    async with await client.producer(TOPIC, compression=None) as producer:
        for number in range(generations):
            for key in KEYS[:MESSAGES]:
                producer.send_nowait(VALUE, key=key)
            await producer.flush()
            if number < changes:
                active = [one.name for one in (await client.describe_topic(TOPIC)).active]
                await (client.split(active[0]) if len(active) == 1 else client.merge(*active))
    found.changes_s = time.perf_counter() - began
    until = time.perf_counter() + PRUNED_WITHIN_S
    while True:
        layout = await client.describe_topic(TOPIC)
        found.segments = len(layout.segments)
        if not soon or found.segments <= 4 or time.perf_counter() > until:
            return found
        await asyncio.sleep(0.2)


async def _look(client: txnclient.Client, url: str, found: Found) -> None:
    layout = await client.describe_topic(TOPIC)
    hashes = [hash_key(f"key-{number}".encode()) for number in range(LOOKUPS)]
    rounds = []
    for _ in range(50):  # others take the cores away meanwhile: the fastest counts
        began = time.perf_counter()
        for key_hash in hashes:
            layout.segment_of_hash(key_hash)
        rounds.append((time.perf_counter() - began) / LOOKUPS * 1e6)
    found.route_us = min(rounds)
    used = cpu_seconds(os.getpid())
    for _ in range(40):
        async with txnclient.connect(url) as fresh:
            await fresh.list_topics()  # connected
            began = time.perf_counter()
            await fresh.describe_topic(TOPIC)
            found.layout_ms.append((time.perf_counter() - began) * 1000)
    found.layout_cpu_ms = (cpu_seconds(os.getpid()) - used) * 1000 / 40
    found.layout_bytes = _bytes_of(layout)
    for _ in range(5):
        began = time.perf_counter()
        await client.admin("topics.describe", topic=TOPIC)
        found.describe_ms.append((time.perf_counter() - began) * 1000)
    async with await client.producer(TOPIC, compression=None) as producer:
        for number in range(320):
            began = time.perf_counter()
            await producer.send(VALUE, key=f"key-{number % 64}")
            if number >= 20:
                found.send_ms.append((time.perf_counter() - began) * 1000)


def _bytes_of(layout: txnclient.TopicLayout) -> int:
    """What it is on the wire."""
    wire = pb.Layout(topic=layout.topic, exists=True, epoch=layout.epoch, topic_revision=layout.revision[0])
    wire.revision = layout.revision[1]
    for one in layout.segments.values():
        lo, hi = one.range
        wire.segments.add(
            segment_id=one.segment_id,
            lo=lo,
            hi=hi,
            state=one.state,
            parents=one.parents,
            children=one.children,
            owner=one.owner,
            owner_address=one.owner_address,
            path=one.path,
        )
    return wire.ByteSize()


@dataclass
class _Cluster:
    etcd: str
    prefix: str
    folder: Path
    soon: bool
    control: _Running
    broker: _Running

    @property
    def url(self) -> str:
        return f"txn://{self.control.server.address}"

    async def restart(self, found: Found) -> None:
        """Let the broker go in good order, and see how long the next one takes."""
        expected = set(self.broker.of_topic())
        await self.broker.stop()
        began, used = time.perf_counter(), cpu_seconds(os.getpid())
        self.broker = await _start(self.etcd, self.prefix, self.folder, "broker", soon=self.soon)
        found.start_ms.append((time.perf_counter() - began) * 1000)
        active_ms: float | None = None
        async with asyncio.timeout(60):
            while True:
                served = self.broker.of_topic()
                topology = self.broker.server.directory.topics().get(TOPIC.partition("://")[2])
                if active_ms is None and topology is not None and all(one in served for one in topology.active_paths):
                    active_ms = (time.perf_counter() - began) * 1000
                # in the pruned topic what is left may shrink meanwhile
                if (
                    active_ms is not None
                    and topology is not None
                    and all(one in served for one in expected if one in topology.paths.values())
                ):
                    break
                await asyncio.sleep(0.001)
        found.active_ms.append(active_ms)
        found.all_ms.append((time.perf_counter() - began) * 1000)
        found.all_cpu_ms.append((cpu_seconds(os.getpid()) - used) * 1000)


@dataclass
class _Running:
    server: Server
    store: EtcdStore
    ledgers: FileLedgerStore

    def of_topic(self) -> list[str]:
        return [] if self.server.broker is None else list(self.server.broker.segments)

    async def stop(self) -> None:
        await self.server.close()
        await self.ledgers.close()
        await self.store.close()


async def _start(etcd: str, prefix: str, folder: Path, roles: str, *, soon: bool) -> _Running:
    clock, random = SystemClock(), SystemRandom()
    settings = ServerSettings(id=roles.partition(",")[0], roles=tuple(roles.split(",")), listen="127.0.0.1:0", tcids=2)
    store = await EtcdStore.connect(EtcdSettings(endpoints=(etcd,), prefix=prefix), clock=clock, random=random)
    ledgers = FileLedgerStore(folder)
    server = Server(
        settings,
        store=store,
        ledgers=ledgers,
        transport=GrpcTransport(clock),
        clock=clock,
        random=random,
        broker_settings=SOON if soon else None,
        controller_settings=ControllerSettings(prune_s=0.2) if soon else None,
    )
    await server.start()
    return _Running(server, store, ledgers)


@asynccontextmanager
async def _cluster(etcd: str, prefix: str, folder: Path, *, soon: bool) -> AsyncIterator[_Cluster]:
    control = await _start(etcd, prefix, folder, "coordinator,controller,admin", soon=soon)
    broker = await _start(etcd, prefix, folder, "broker", soon=soon)
    cluster = _Cluster(etcd, prefix, folder, soon, control, broker)
    try:
        await wait_cluster_ready(control.server.address, brokers=1, coordinators=2, timeout_s=30.0)
        yield cluster
    finally:
        await cluster.broker.stop()
        await control.stop()
