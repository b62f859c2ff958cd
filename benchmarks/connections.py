"""1 000 clients at one server and one broker, each with a producer and a consumer: what they cost while they are idle,
and what one more client sees of them."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import uvloop

import txnclient
from benchmarks.harness.cluster import TOPIC, bench_cluster
from benchmarks.harness.load import VALUE, Timings, one_transaction
from benchmarks.harness.result import Result, percentile
from benchmarks.harness.scale import Scale
from txnstore.etcd.lifetime import tied_to_parent

OTHERS = "topic://public/bench/others"
SUBSCRIPTIONS = 20
PROCESSES = 2
AT_ONCE = 20
IDLE_S = 5.0


async def connections(scale: Scale) -> list[Result]:
    count, probes = scale.of(1000, 60), scale.of(400, 100)
    async with bench_cluster(segments=4) as bench:
        await bench.client.create_topic(OTHERS, segments=1)
        async with await bench.client.producer(OTHERS, compression=None) as producer:
            alone = await _transactions_ms(bench.client, producer, probes)
            before = bench.resident_mib()
            began = time.perf_counter()
            async with _clients(bench.cluster.url, count):
                took = time.perf_counter() - began
                resident = bench.resident_mib()
                idle_cores = await bench.cores_used(IDLE_S)
                beside = await _transactions_ms(bench.client, producer, probes)
                joined = await _one_more_s(bench.cluster.url)
    grown = {name: (resident[name] - before[name]) * 1024 / count for name in ("server", "broker-1")}
    shown = ", ".join(f"{name} {before[name]:.0f} -> {resident[name]:.0f} MiB" for name in grown)
    p50, p50_alone = percentile(beside, 0.5), percentile(alone, 0.5)
    return [
        Result(
            name=f"{count:,} clients with a producer and a consumer each: memory of server and broker",
            value=sum(grown.values()),
            unit="KiB a client",
            detail=f"{shown}; all connected, subscribed and one message stored each in {took:.1f} s",
        ),
        Result(
            name="cores used for them while idle",
            value=sum(idle_cores.values()),
            unit="cores",
            detail=", ".join(f"{name} {cores:.3f}" for name, cores in idle_cores.items()) + f"; over {IDLE_S:g} s",
        ),
        Result(
            name="whole transaction of one more beside them, to without",
            value=p50 / p50_alone,
            unit="x",
            detail=f"p50 {p50_alone:.2f} ms without, {p50:.2f} ms with them, p99 {percentile(alone, 0.99):.2f} and "
            f"{percentile(beside, 0.99):.2f} ms; one more client connected and had stored a message in {joined:.2f} s",
        ),
    ]


async def _transactions_ms(client: txnclient.Client, producer: txnclient.Producer, count: int) -> list[float]:
    timings = Timings()
    for _ in range(count):
        await one_transaction(client, producer, timings, awaited=True)
    return [seconds * 1000 for seconds in timings.whole[count // 10 :]]


async def _one_more_s(url: str) -> float:
    began = time.perf_counter()
    async with txnclient.connect(url) as client, await client.producer(OTHERS) as producer:
        await producer.send(VALUE)
        return time.perf_counter() - began


# ---- the clients, in processes of their own ----


@asynccontextmanager
async def _clients(url: str, count: int) -> AsyncIterator[None]:
    processes = []
    try:
        for number in range(PROCESSES):
            arguments = [url, str(count // PROCESSES), str(number)]
            command = tied_to_parent([sys.executable, "-m", "benchmarks.connections", *arguments])
            processes.append(await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE))
        for process in processes:
            if process.stdout is None or await asyncio.wait_for(process.stdout.readline(), 120) != b"connected\n":
                raise RuntimeError(f"not all of {count} clients connected")
        yield
    finally:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


async def _connect_and_wait(url: str, count: int, process: int) -> None:
    admitted = asyncio.Semaphore(AT_ONCE)
    async with AsyncExitStack() as stack:

        async def connect(number: int) -> None:
            async with admitted:
                client = await stack.enter_async_context(txnclient.connect(url, timeout=60.0))
                producer = await stack.enter_async_context(await client.producer(TOPIC))
                await producer.send(VALUE)
                name = f"s{number % SUBSCRIPTIONS}"
                await stack.enter_async_context(await client.consumer(TOPIC, name, start="latest", prefetch=10))

        async with asyncio.TaskGroup() as group:
            for number in range(count):
                group.create_task(connect(process * count + number))
        print("connected", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(_connect_and_wait(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
