"""Ten minutes at 1 000 transactions/s: etcd's database and every process's memory flat after the first two."""

from __future__ import annotations

import asyncio

from benchmarks.harness.cluster import TOPIC, bench_cluster
from benchmarks.harness.load import Timings, at_rate
from benchmarks.harness.result import Result, at_most, percentile
from benchmarks.harness.scale import Scale

RATE = 1000.0
SETTLED_S = 120.0
SAMPLE_S = 10.0
FLAT = 1.10
"""A tenth more at the end than when settled: what allocators and page rounding need."""


async def soak(scale: Scale) -> list[Result]:
    seconds = scale.of(600.0, 40.0)
    async with bench_cluster() as bench, await bench.client.producer(TOPIC, compression=None) as producer:
        samples: list[dict[str, float]] = []
        timings = Timings()
        load = asyncio.create_task(at_rate(bench.client, producer, per_second=RATE, seconds=seconds, timings=timings))
        while not load.done():
            await asyncio.wait({load}, timeout=SAMPLE_S)
            database = (await asyncio.to_thread(bench.etcd.database_bytes)) / 2**20
            samples.append({**bench.resident_mib(), "etcd database": database})
        rate = await load
    settled = [sample for number, sample in enumerate(samples) if number * SAMPLE_S >= min(SETTLED_S, seconds / 3)]
    third = max(1, len(settled) // 3)
    results = [Result(name="soak", value=rate, unit="1/s", detail=f"{len(timings.commits)} committed in {seconds:g} s")]
    for name in samples[0]:
        first = percentile([sample[name] for sample in settled[:third]], 0.5)
        last = percentile([sample[name] for sample in settled[-third:]], 0.5)
        detail = f"{first:.0f} MiB settled, {last:.0f} MiB at the end"
        results.append(at_most(f"soak: {name}, end to settled", last / first, "x", FLAT, detail))
    return results
