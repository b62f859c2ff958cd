"""What one, two and three broker processes take of the same load, and which process is the limit.

All of it runs on this machine: brokers share its cores with etcd, the coordinator and the client, so what is told
beside each figure, cores used by each process, says where it flattens. Twelve segments, so that each broker has as many
as any other.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from benchmarks.harness.cluster import TOPIC, Bench, bench_cluster
from benchmarks.harness.load import VALUE, Timings, at_once
from benchmarks.harness.machine import cpu_seconds
from benchmarks.harness.result import Result
from benchmarks.harness.scale import Scale

SEGMENTS = 12
BROKERS = (1, 2, 3)
CALLS_AT_ONCE = 256
KEYS = 96
PIECE = 4096
"""1 KiB messages a call of `send_many`."""
BULK_CALLS = 16
PARTS = ("client", "broker", "server", "etcd")
"""Names of processes begin so; all brokers count as one."""


@dataclass
class Kind:
    name: str
    unit: str
    each: str
    run: Callable[[Bench, float], Awaitable[float]]
    """What was done a second, over so many seconds."""


async def brokers(scale: Scale) -> list[Result]:
    seconds = scale.of(10.0, 2.0)
    kinds = [
        Kind("sends of 100 bytes, awaited", "/s", "one", _sends),
        Kind("bulk of 1 KiB messages", "MB/s", "a MB", _bulk),
        Kind("transactions with one write", "/s", "one", _transactions),
    ]
    results: list[Result] = []
    for number in BROKERS:
        async with bench_cluster(segments=SEGMENTS, brokers=number) as bench:
            for kind in kinds:
                await kind.run(bench, seconds / 5)  # warm-up
                before = _cpu(bench)
                value = await kind.run(bench, seconds)
                used = {name: (now - before[name]) / seconds for name, now in _cpu(bench).items()}
                detail = "cores used: " + ", ".join(f"{name} {cores:.2f}" for name, cores in used.items())
                detail += f"; together {sum(used.values()):.2f} of {os.cpu_count()}; CPU of {kind.each}: "
                each = {part: sum(used[name] for name in used if name.startswith(part)) / value for part in PARTS}
                detail += ", ".join(f"{part} {cores * 1e6:,.0f}" for part, cores in each.items()) + " µs"
                name = f"{kind.name}, {number} broker{'s' if number > 1 else ''}"
                results.append(Result(name=name, value=value, unit=kind.unit, detail=detail))
    return sorted(results, key=lambda result: [kind.name for kind in kinds].index(result.name.rpartition(", ")[0]))


def _cpu(bench: Bench) -> dict[str, float]:
    """Seconds used so far, by process; the client is this one."""
    return {name: cpu_seconds(pid) for name, pid in bench.pids().items()} | {"client": cpu_seconds(os.getpid())}


async def _sends(bench: Bench, seconds: float) -> float:
    done = 0
    async with await bench.client.producer(TOPIC, compression=None) as producer:
        until = (began := time.perf_counter()) + seconds

        async def loop(number: int) -> None:
            nonlocal done
            while time.perf_counter() < until:
                await producer.send(VALUE, key=f"key-{number % KEYS}")
                done += 1

        async with asyncio.TaskGroup() as group:
            for number in range(CALLS_AT_ONCE):
                group.create_task(loop(number))
        return done / (time.perf_counter() - began)


async def _bulk(bench: Bench, seconds: float) -> float:
    messages = [os.urandom(1024) for _ in range(PIECE)]
    done = 0
    async with await bench.client.producer(
        TOPIC, batch_bytes=128 * 1024, buffer_bytes=128 * 1024 * 1024, compression=None
    ) as producer:
        until = (began := time.perf_counter()) + seconds

        async def loop() -> None:
            nonlocal done
            while time.perf_counter() < until:
                await producer.send_many(messages)
                done += 1

        async with asyncio.TaskGroup() as group:
            for _ in range(BULK_CALLS):
                group.create_task(loop())
        return done * PIECE * 1024 / 1e6 / (time.perf_counter() - began)


async def _transactions(bench: Bench, seconds: float) -> float:
    async with await bench.client.producer(TOPIC, compression=None) as producer:
        return await at_once(bench.client, producer, concurrency=CALLS_AT_ONCE, seconds=seconds, timings=Timings())
