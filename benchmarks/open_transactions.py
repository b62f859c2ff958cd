"""100 000 transactions open at once, each with a write: what that costs in memory, what it costs everyone else, and
what a broker that takes over among them needs."""

from __future__ import annotations

import asyncio
import signal
import time

import txnclient
from benchmarks.cluster import TOPIC, Bench, bench_cluster
from benchmarks.load import VALUE, Timings, one_transaction
from benchmarks.recovery import stats_of_the_next_owner
from benchmarks.result import Result, at_most, percentile
from benchmarks.scale import Scale

TIMEOUT_S = 3000.0
SETTLE_S = 8.0
"""Deadline keys follow a second after the begin; sweeps, garbage collections and etcd's batches settle."""
BEGINNERS = 256
OTHERS = "topic://public/bench/others"


async def open_transactions(scale: Scale) -> list[Result]:
    count, probes = scale.of(100_000, 5_000), scale.of(600, 100)
    async with bench_cluster(segments=4) as bench:
        await bench.client.create_topic(OTHERS, segments=1)
        async with await bench.client.producer(OTHERS, compression=None) as producer:
            alone = await _commits_ms(bench.client, producer, probes)
            idle = bench.resident_mib()
            began = time.perf_counter()
            async with txnclient.connect(bench.cluster.url, timeout=120.0) as holder:
                held = await _hold(holder, count)
                took = time.perf_counter() - began
                await asyncio.sleep(SETTLE_S)
                resident = bench.resident_mib()
                beside = await _commits_ms(bench.client, producer, probes)
                recovered = await _recovered_after_kill(bench, count)
                await asyncio.gather(*(txn.abort(timeout=120.0) for txn in held[:100]))
    total, before = sum(resident.values()), sum(idle.values())
    shown = ", ".join(f"{name} {idle[name]:.0f} -> {resident[name]:.0f}" for name in resident)
    each = (total - before) * 2**20 / count
    p50, p50_alone = percentile(beside, 0.5), percentile(alone, 0.5)
    commits = f"{probes} one at a time each; p50 {p50_alone:.2f} ms without, {p50:.2f} ms with them; p99 "
    commits += f"{percentile(alone, 0.99):.2f} and {percentile(beside, 0.99):.2f} ms"
    return [
        at_most(
            f"{count:,} open transactions: servers and etcd",
            total,
            "MiB",
            1.2 * 1024,
            f"resident, MiB: {shown}; {each:,.0f} bytes a transaction; begun and written in {took:.1f} s",
        ),
        Result(name="commit p50 of others beside them, to without", value=p50 / p50_alone, unit="x", detail=commits),
        Result(name=f"recovery of all segments with {count:,} open", value=recovered, unit="s", detail="after SIGKILL"),
    ]


async def _hold(client: txnclient.Client, count: int) -> list[txnclient.Transaction]:
    """`count` transactions with one acked write each."""
    held: list[txnclient.Transaction] = []
    to_begin = iter(range(count))
    async with await client.producer(TOPIC, compression=None) as producer:

        async def begin_some() -> None:
            for _ in to_begin:
                txn = await client.begin(timeout=TIMEOUT_S)
                held.append(txn)
                await producer.send(VALUE, txn=txn)

        async with asyncio.TaskGroup() as group:
            for _ in range(BEGINNERS):
                group.create_task(begin_some())
    return held


async def _commits_ms(client: txnclient.Client, producer: txnclient.Producer, count: int) -> list[float]:
    timings = Timings()
    for _ in range(count):
        await one_transaction(client, producer, timings, awaited=True)
    return [seconds * 1000 for seconds in timings.commits[count // 10 :]]


async def _recovered_after_kill(bench: Bench, count: int) -> float:
    """Seconds until the slowest of the topic's segments was taken over, as its new owner measured it."""
    epoch = max(segment["epoch"] for segment in await stats_of_the_next_owner(bench, 0, count))
    bench.cluster.children["broker-1"].signal(signal.SIGKILL)
    return max(segment["recovery_s"] for segment in await stats_of_the_next_owner(bench, epoch, count))
