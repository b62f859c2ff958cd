"""Whole transactions through all roles: throughput at 256 at once, commit latency one at a time, mutations each."""

from __future__ import annotations

import asyncio

from benchmarks.harness.cluster import TOPIC, Bench, bench_cluster
from benchmarks.harness.load import Timings, at_once, at_rate, one_transaction
from benchmarks.harness.machine import cpu_seconds
from benchmarks.harness.result import Result, at_least, at_most, percentile
from benchmarks.harness.scale import Scale
from txnstore.etcd.etcd_store import EtcdSettings, EtcdStore
from txnstore.store import StoreWatch
from txnwire.clock import SystemClock, SystemRandom

CONCURRENCY = 256
WARM_UP_S = 75.0
"""Longer than headers are retained, so that collection is part of what is measured."""
MEASURED_S = 45.0
SEQUENTIAL = 1000
COUNTED = 2000


async def throughput(scale: Scale) -> list[Result]:
    """The backlog is read before and after the measured span, with collection running: steady state or not."""
    warm_up_s, measured_s = scale.of(WARM_UP_S, 3.0), scale.of(MEASURED_S, 5.0)
    async with bench_cluster() as bench, await bench.client.producer(TOPIC, compression=None) as producer:
        timings = Timings()
        await at_once(bench.client, producer, concurrency=CONCURRENCY, seconds=warm_up_s, timings=timings)
        before, cpu_before = await bench.backlog(), _cpu(bench)
        timings = Timings()
        rate = await at_once(bench.client, producer, concurrency=CONCURRENCY, seconds=measured_s, timings=timings)
        after, cpu_after = await bench.backlog(), _cpu(bench)
        used = {name: f"{(cpu_after[name] - cpu_before[name]) / measured_s:.2f}" for name in cpu_after}
        detail = (
            f"{CONCURRENCY} at once for {measured_s:g} s after {warm_up_s:g} s; ops {before['ops']} -> {after['ops']}, "
            f"headers {before['headers']} -> {after['headers']}; cores used by {used}"
        )
        p50, p99 = percentile(timings.whole, 0.5) * 1000, percentile(timings.whole, 0.99) * 1000
        return [
            at_least("committed transactions", rate, "1/s", 2500, detail),
            Result(name="whole transaction p50, 256 at once", value=p50, unit="ms", detail=f"p99 {p99:.1f} ms"),
        ]


def _cpu(bench: Bench) -> dict[str, float]:
    pids = {name: child.pid for name, child in bench.cluster.children.items()}
    return {name: cpu_seconds(pid) for name, pid in pids.items() if pid is not None}


async def latency(scale: Scale) -> list[Result]:
    async with bench_cluster() as bench, await bench.client.producer(TOPIC, compression=None) as producer:
        timings = Timings()
        for _ in range(scale.of(SEQUENTIAL, 100)):
            await one_transaction(bench.client, producer, timings, awaited=True)
        commits = [seconds * 1000 for seconds in timings.commits[len(timings.commits) // 10 :]]
        detail = f"{len(commits)} one after another, sends acked before; p99 {percentile(commits, 0.99):.2f} ms"
        return [at_most("commit p50, one at a time", percentile(commits, 0.5), "ms", 3, detail)]


async def mutations(scale: Scale) -> list[Result]:
    """Every key etcd puts or deletes for a number of transactions, from begin to collection, counted by a watch."""
    async with bench_cluster(flags=("--header-retention-s", "5")) as bench:
        store = await EtcdStore.connect(
            EtcdSettings(endpoints=(bench.cluster.etcd_url,), development=True),
            clock=SystemClock(),
            random=SystemRandom(),
        )
        async with await bench.client.producer(TOPIC, compression=None) as producer:
            await at_rate(bench.client, producer, per_second=500, seconds=2, timings=Timings())
            await _until_clean(bench)
            start = (await store.range(b"/gc-horizon", b"/gc-horizon\0")).revision
            counted: list[int] = [0]
            watch = store.watch(b"/", b"0", from_revision=start + 1)
            counting = asyncio.create_task(_count(watch, counted))
            timings = Timings()
            await at_rate(bench.client, producer, per_second=500, seconds=scale.of(COUNTED, 250) / 500, timings=timings)
            await _until_clean(bench)
            counting.cancel()
            await asyncio.gather(counting, return_exceptions=True)
            await watch.close()
        await store.close()
        done = len(timings.commits)
        detail = f"{counted[0]} keys put or deleted for {done} transactions, collection included, at 500/s"
        return [at_most("etcd mutations per transaction", counted[0] / max(done, 1), "", 8, detail)]


async def _count(watch: StoreWatch, counted: list[int]) -> None:
    async for batch in watch:
        counted[0] += len(batch.events)


async def _until_clean(bench: Bench) -> None:
    async with asyncio.timeout(120):
        while any((await bench.backlog()).values()):
            await asyncio.sleep(0.5)
