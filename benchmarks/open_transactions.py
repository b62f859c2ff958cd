"""100 000 transactions open at once, each with a write: what that costs in memory, what it costs everyone else, what a
broker that takes over among them needs, and how all of them are aborted when their client is gone."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvloop

import txnclient
from benchmarks.harness.cluster import TOPIC, Bench, bench_cluster
from benchmarks.harness.load import VALUE, Timings, one_transaction
from benchmarks.harness.result import Result, at_most, percentile
from benchmarks.harness.scale import Scale
from benchmarks.recovery import stats_of_the_next_owner
from txnstore.etcd.lifetime import tied_to_parent

TIMEOUT_S = 3000.0
SETTLE_S = 5.0
"""Deadline keys follow a second after the begin; sweeps, garbage collections and etcd's batches settle."""
IDLE_S = 10.5
"""Longer than a broker's pause between two looks at what has been open for long."""
GRACE_S = 3
BEGINNERS = 256
OTHERS = "topic://public/bench/others"


async def open_transactions(scale: Scale) -> list[Result]:
    count, probes = scale.of(100_000, 5_000), scale.of(600, 100)
    async with bench_cluster(segments=4, flags=("--client-grace-s", str(GRACE_S))) as bench:
        await bench.client.create_topic(OTHERS, segments=1)
        async with await bench.client.producer(OTHERS, compression=None) as producer:
            alone = await _commits_ms(bench.client, producer, probes)
            idle = bench.resident_mib()
            began = time.perf_counter()
            async with _holder(bench.cluster.url, count):
                took = time.perf_counter() - began
                await asyncio.sleep(SETTLE_S)
                resident = bench.resident_mib()
                idle_cores = await bench.cores_used(IDLE_S)
                beside = await _commits_ms(bench.client, producer, probes)
                recovered = await _recovered_after_kill(bench, count)
            began = time.perf_counter()
            during = await _transactions_ms_until_aborted(bench, producer)
            aborted = time.perf_counter() - began
            peak = bench.peak_mib()
    return [
        _memory(count, idle, resident, took),
        _beside(probes, alone, beside),
        Result(
            name=f"cores used while {count:,} are open and idle",
            value=sum(idle_cores.values()),
            unit="cores",
            detail=", ".join(f"{name} {cores:.3f}" for name, cores in idle_cores.items()) + f"; over {IDLE_S:g} s",
        ),
        Result(name=f"recovery of all segments with {count:,} open", value=recovered, unit="s", detail="after SIGKILL"),
        _ended(count, aborted, during, peak),
    ]


def _memory(count: int, idle: dict[str, float], resident: dict[str, float], took: float) -> Result:
    total = sum(resident.values())
    each = (total - sum(idle.values())) * 2**20 / count
    shown = ", ".join(f"{name} {idle[name]:.0f} -> {resident[name]:.0f}" for name in resident)
    detail = f"resident, MiB: {shown}; {each:,.0f} bytes a transaction; begun and written in {took:.1f} s"
    return at_most(f"{count:,} open transactions: servers and etcd", total, "MiB", 1.2 * 1024, detail)


def _beside(probes: int, alone: list[float], beside: list[float]) -> Result:
    p50, p50_alone = percentile(beside, 0.5), percentile(alone, 0.5)
    detail = f"{probes} one at a time each; p50 {p50_alone:.2f} ms without, {p50:.2f} ms with them; p99 "
    detail += f"{percentile(alone, 0.99):.2f} and {percentile(beside, 0.99):.2f} ms"
    return Result(name="commit p50 of others beside them, to without", value=p50 / p50_alone, unit="x", detail=detail)


def _ended(count: int, took: float, during: list[float], peak: dict[str, float]) -> Result:
    detail = f"a grace of {GRACE_S} s included; whole transactions of others meanwhile: p50 "
    detail += f"{percentile(during, 0.5):.2f} ms, p99 {percentile(during, 0.99):.1f} ms, highest {max(during):.0f} ms; "
    detail += "most memory each process ever had, MiB: "
    detail += ", ".join(f"{name} {mib:.0f}" for name, mib in peak.items())
    return Result(name=f"{count:,} aborted once their client is gone", value=took, unit="s", detail=detail)


@asynccontextmanager
async def _holder(url: str, count: int) -> AsyncIterator[None]:
    """A client in a process of its own with `count` transactions open; it is killed at the end."""
    command = tied_to_parent([sys.executable, "-m", "benchmarks.open_transactions", url, str(count)])
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        if process.stdout is None or await asyncio.wait_for(process.stdout.readline(), 180) != b"held\n":
            raise RuntimeError(f"the process that holds {count} transactions did not get them")
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def _hold_until_killed(url: str, count: int) -> None:
    async with txnclient.connect(url, timeout=120.0) as client:
        await _hold(client, count)
        print("held", flush=True)
        await asyncio.Event().wait()


async def _hold(client: txnclient.Client, count: int) -> None:
    """`count` transactions with one acked write each."""
    to_begin = iter(range(count))
    async with await client.producer(TOPIC, compression=None) as producer:

        async def begin_some() -> None:
            for _ in to_begin:
                txn = await client.begin(timeout=TIMEOUT_S)
                await producer.send(VALUE, txn=txn)

        async with asyncio.TaskGroup() as group:
            for _ in range(BEGINNERS):
                group.create_task(begin_some())


async def _commits_ms(client: txnclient.Client, producer: txnclient.Producer, count: int) -> list[float]:
    timings = Timings()
    for _ in range(count):
        await one_transaction(client, producer, timings, awaited=True)
    return [seconds * 1000 for seconds in timings.commits[count // 10 :]]


async def _transactions_ms_until_aborted(bench: Bench, producer: txnclient.Producer) -> list[float]:
    timings = Timings()
    ended = asyncio.create_task(bench.until_none_open(TOPIC))
    while not ended.done():
        await one_transaction(bench.client, producer, timings, awaited=True)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(ended), 0.01)
    await ended
    return [seconds * 1000 for seconds in timings.whole]


async def _recovered_after_kill(bench: Bench, count: int) -> float:
    """Seconds until the slowest of the topic's segments was taken over, as its new owner measured it."""
    epoch = max(segment["epoch"] for segment in await stats_of_the_next_owner(bench, 0, count))
    bench.cluster.children["broker-1"].signal(signal.SIGKILL)
    return max(segment["recovery_s"] for segment in await stats_of_the_next_owner(bench, epoch, count))


if __name__ == "__main__":
    uvloop.run(_hold_until_killed(sys.argv[1], int(sys.argv[2])))
