"""Visibility lag: from the commit's answer until a READ_COMMITTED consumer in another process has the message."""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from pathlib import Path

import msgspec

import txnclient
from benchmarks.harness.cluster import TOPIC, bench_cluster
from benchmarks.harness.load import Timings, at_rate
from benchmarks.harness.result import Result, at_most, percentile
from benchmarks.harness.running import until_terminated
from benchmarks.harness.scale import Scale
from txnstore.etcd.lifetime import tied_to_parent

RATE = 1250.0
WARM_UP_S = 10.0
MEASURED_S = 20.0


async def visibility(scale: Scale) -> list[Result]:
    async with bench_cluster() as bench, await bench.client.producer(TOPIC, compression=None) as producer:
        with tempfile.NamedTemporaryFile(prefix="txnstore-seen-") as seen_file:
            command = [sys.executable, "-m", "benchmarks.visibility", bench.cluster.url, seen_file.name]
            consumer = await asyncio.create_subprocess_exec(*tied_to_parent(command), stdout=asyncio.subprocess.PIPE)
            try:
                if consumer.stdout is None or await asyncio.wait_for(consumer.stdout.readline(), 30) != b"ready\n":
                    raise RuntimeError("the consumer process did not start")
                await at_rate(
                    bench.client, producer, per_second=RATE, seconds=scale.of(WARM_UP_S, 1.0), timings=Timings()
                )
                timings = Timings()
                rate = await at_rate(
                    bench.client,
                    producer,
                    per_second=RATE,
                    seconds=scale.of(MEASURED_S, 3.0),
                    timings=timings,
                    remember=True,
                )
                await asyncio.sleep(2.0)  # the last ones are on their way
            finally:
                consumer.terminate()
                await consumer.wait()
            seen = msgspec.json.decode(seen_file.read(), type=dict[str, float])
    lags = [(seen[txn] - answered) * 1000 for txn, answered in timings.answered_s.items() if txn in seen]
    missing = len(timings.answered_s) - len(lags)
    before = sum(lag <= 0 for lag in lags) / max(1, len(lags))
    detail = (
        f"{len(lags)} transactions at {rate:,.0f}/s, {missing} unseen; p99 {percentile(lags, 0.99):.1f} ms; "
        f"{before:.0%} were there before the committing client had its answer (negative lag)"
    )
    return [at_most("visibility lag p50 at half load", percentile(lags, 0.5), "ms", 10, detail)]


async def _consume(url: str, out: Path) -> None:
    """The consumer process: when each transaction was first seen, on the machine's monotonic clock."""
    seen: dict[str, float] = {}
    try:
        async with txnclient.connect(url) as client, await client.consumer(TOPIC, "lag") as consumer:
            print("ready", flush=True)
            while True:
                messages = await consumer.receive_many(1000, timeout=1.0)
                now = time.monotonic()
                for message in messages:
                    seen.setdefault(str(message.txn_id), now)
                if messages:
                    await consumer.ack(messages)
    finally:
        await asyncio.to_thread(out.write_bytes, msgspec.json.encode(seen))


if __name__ == "__main__":
    until_terminated(_consume(sys.argv[1], Path(sys.argv[2])))
