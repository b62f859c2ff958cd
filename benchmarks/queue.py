"""Queue consumers' latency with and without a transaction that stays open on the same segment, in turn within one run:
a queue flows around it (V8)."""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from pathlib import Path

import msgspec

import txnclient
from benchmarks.harness.cluster import bench_cluster
from benchmarks.harness.result import Result, at_most, percentile
from benchmarks.harness.running import until_terminated
from benchmarks.harness.scale import Scale
from txnstore.etcd.lifetime import tied_to_parent

TOPIC = "topic://public/bench/jobs"
SUBSCRIPTION = "workers"
CONSUMERS = 4
RATE = 500.0
UNCHANGED = 1.1
"""p99 of a few thousand messages moves by a tenth from one span to the next by itself."""
FILLING = b"." * 84
WARM_UP, WITHOUT, WITH = range(3)


async def queue(scale: Scale) -> list[Result]:
    spans, span_s = scale.of(8, 2), scale.of(3.0, 1.0)
    async with bench_cluster() as bench:
        await bench.client.create_topic(TOPIC, segments=1)
        with tempfile.NamedTemporaryFile(prefix="txnstore-latencies-") as found:
            command = [sys.executable, "-m", "benchmarks.queue", bench.cluster.url, found.name]
            consumers = await asyncio.create_subprocess_exec(*tied_to_parent(command), stdout=asyncio.subprocess.PIPE)
            try:
                if consumers.stdout is None or await asyncio.wait_for(consumers.stdout.readline(), 30) != b"ready\n":
                    raise RuntimeError("the consumers' process did not start")
                async with await bench.client.producer(TOPIC, compression=None) as producer:
                    sent = await _produce(bench.client, producer, spans, span_s)
                await asyncio.sleep(1.0)  # the last ones are on their way
            finally:
                consumers.terminate()
                await consumers.wait()
            spans_ms = msgspec.json.decode(found.read(), type=list[tuple[int, list[float]]])
    return [_compared(spans_ms, sent)]


def _compared(spans_ms: list[tuple[int, list[float]]], sent: int) -> Result:
    p50: dict[int, float] = {}
    p99: dict[int, float] = {}
    for kind in (WITHOUT, WITH):
        of_kind = [latencies for what, latencies in spans_ms if what == kind]
        p50[kind] = percentile([percentile(latencies, 0.5) for latencies in of_kind], 0.5)
        p99[kind] = percentile([percentile(latencies, 0.99) for latencies in of_kind], 0.5)
    received = sum(len(latencies) for _, latencies in spans_ms)
    detail = f"medians over the spans, from send to received by one of {CONSUMERS} consumers in another process: p99 "
    detail += f"{p99[WITHOUT]:.2f} ms without, {p99[WITH]:.2f} ms with, p50 {p50[WITHOUT]:.2f} and {p50[WITH]:.2f} ms; "
    detail += f"{sent} messages at {RATE:g}/s, {sent - received} not received"
    return at_most("queue p99 with an open transaction, to without", p99[WITH] / p99[WITHOUT], "x", UNCHANGED, detail)


async def _produce(client: txnclient.Client, producer: txnclient.Producer, spans: int, span_s: float) -> int:
    """How many messages were sent outside the open transactions."""
    sent = await _at_rate(producer, WARM_UP, 0, span_s)
    for number in range(1, 2 * spans, 2):
        sent += await _at_rate(producer, WITHOUT, number, span_s)
        txn = await client.begin(timeout=60.0)
        await producer.send(FILLING, txn=txn)
        sent += await _at_rate(producer, WITH, number + 1, span_s)
        await txn.abort()
    return sent


async def _at_rate(producer: txnclient.Producer, kind: int, span: int, seconds: float) -> int:
    """Plain messages that carry their kind, their span and when they were sent, at `RATE`."""
    began, sent = time.perf_counter(), list[asyncio.Future[txnclient.MessageId]]()
    while (elapsed := time.perf_counter() - began) < seconds:
        while len(sent) < elapsed * RATE:
            stamp = f"{kind} {span} {time.monotonic_ns()} ".encode()
            sent.append(producer.send_nowait(stamp + FILLING))
        await asyncio.sleep(0.001)
    await asyncio.gather(*sent)
    return len(sent)


# ---- the consumers, in a process of their own ----


async def _consume(url: str, out: Path) -> None:
    spans: dict[tuple[int, int], list[float]] = {}
    try:
        async with txnclient.connect(url) as client, asyncio.TaskGroup() as group:
            opened = [await client.consumer(TOPIC, SUBSCRIPTION, type="queue", prefetch=100) for _ in range(CONSUMERS)]
            for consumer in opened:
                group.create_task(_receive(consumer, spans))
            print("ready", flush=True)
    finally:
        found = [(kind, latencies) for (kind, _), latencies in spans.items()]
        await asyncio.to_thread(out.write_bytes, msgspec.json.encode(found))


async def _receive(consumer: txnclient.Consumer, spans: dict[tuple[int, int], list[float]]) -> None:
    while True:
        messages = await consumer.receive_many(100, timeout=1.0)
        now = time.monotonic_ns()
        for message in messages:
            kind, span, sent_ns, _ = message.value.split(b" ", 3)
            spans.setdefault((int(kind), int(span)), []).append((now - int(sent_ns)) / 1e6)
        if messages:
            await consumer.ack(messages)


if __name__ == "__main__":
    until_terminated(_consume(sys.argv[1], Path(sys.argv[2])))
