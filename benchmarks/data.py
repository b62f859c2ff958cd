"""Bulk data through one broker, acked after fdatasync: 1 KiB messages plain and in transactions, in turn within one
run; 100-byte messages; and both read again."""

from __future__ import annotations

import asyncio
import os
import time
from statistics import median

import txnclient
from benchmarks.cluster import Bench, bench_cluster
from benchmarks.machine import cpu_seconds
from benchmarks.result import Result, at_least
from benchmarks.scale import Scale

KIB_TOPIC = "topic://public/bench/kib"
SMALL_TOPIC = "topic://public/bench/small"
BATCH_BYTES = 128 * 1024
BUFFER_BYTES = 128 * 1024 * 1024
PIECE = 4096
"""Messages a call of `send_many`: 4 MiB, and of a transaction."""
SENDERS = 16
"""Calls under way at once."""


async def data(scale: Scale) -> list[Result]:
    slices, pieces = scale.of(9, 2), scale.of(32, 8)
    async with bench_cluster(segments=1) as bench:
        for topic in (KIB_TOPIC, SMALL_TOPIC):
            await bench.client.create_topic(topic, segments=4)
        kib = await _kib(bench, slices, pieces)
        small = await _small(bench, slices, pieces)
        kib_read = await _read(bench, KIB_TOPIC, scale.of(200_000, 20_000))
        small_read = await _read(bench, SMALL_TOPIC, scale.of(400_000, 20_000))
    megabytes = kib_read * 1024 / 1e6
    return [
        *kib,
        small,
        Result(name="1 KiB messages consumed", value=megabytes, unit="MB/s", detail=f"{kib_read:,.0f} messages/s"),
        Result(name="100-byte messages consumed", value=small_read, unit="/s", detail="receive_many, one consumer"),
    ]


async def _kib(bench: Bench, slices: int, pieces: int) -> list[Result]:
    """Nobody can compress random bytes; a slice of one kind follows a slice of the other, medians of both."""
    messages = [os.urandom(1024) for _ in range(PIECE)]
    plain: list[float] = []
    transactional: list[float] = []
    async with await bench.client.producer(KIB_TOPIC, batch_bytes=BATCH_BYTES, buffer_bytes=BUFFER_BYTES) as producer:
        await _sent_per_s(bench.client, producer, messages, pieces // 2, in_transactions=True)  # warm-up
        cpu, began = _cpu(bench), time.perf_counter()
        for _ in range(slices):
            plain.append(await _sent_per_s(bench.client, producer, messages, pieces, in_transactions=False))
            transactional.append(await _sent_per_s(bench.client, producer, messages, pieces, in_transactions=True))
        took = time.perf_counter() - began
        used = {name: f"{(after - cpu[name]) / took:.2f}" for name, after in _cpu(bench).items()}
    rate, in_transactions = median(plain) * 1024 / 1e6, median(transactional) * 1024 / 1e6
    detail = (
        f"random bytes, {BATCH_BYTES // 1024} KiB batches, {SENDERS} calls of send_many of 4 MiB at once; median of "
    )
    detail += f"{slices} slices of {pieces * PIECE // 1024} MiB, {min(plain) * 1024 / 1e6:.0f} to "
    detail += f"{max(plain) * 1024 / 1e6:.0f}; cores used by {used}"
    beside = f"{in_transactions:.0f} MB/s, a transaction for each 4 MiB; slices in turn with the plain ones"
    return [
        at_least("1 KiB messages, plain", rate, "MB/s", 100, detail),
        at_least("1 KiB messages in transactions, of plain", 100 * in_transactions / rate, "%", 90, beside),
    ]


async def _small(bench: Bench, slices: int, pieces: int) -> Result:
    messages = [os.urandom(100) for _ in range(4 * PIECE)]
    async with await bench.client.producer(SMALL_TOPIC, batch_bytes=BATCH_BYTES, buffer_bytes=BUFFER_BYTES) as producer:
        await _sent_per_s(bench.client, producer, messages, pieces // 2, in_transactions=False)
        rates = [
            await _sent_per_s(bench.client, producer, messages, pieces, in_transactions=False) for _ in range(slices)
        ]
    detail = (
        f"random bytes, {SENDERS} calls of send_many of {4 * PIECE} at once; {min(rates):,.0f} to {max(rates):,.0f}"
    )
    return at_least("100-byte messages by send_many", median(rates), "/s", 200_000, detail)


async def _sent_per_s(
    client: txnclient.Client,
    producer: txnclient.Producer,
    messages: list[bytes],
    pieces: int,
    *,
    in_transactions: bool,
) -> float:
    """Messages stored a second; with transactions also committed."""
    to_send = iter(range(pieces))

    async def send() -> None:
        for _ in to_send:
            if in_transactions:
                async with client.transaction() as txn:
                    await producer.send_many(messages, txn=txn)
            else:
                await producer.send_many(messages)

    began = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(SENDERS):
            group.create_task(send())
    return pieces * len(messages) / (time.perf_counter() - began)


async def _read(bench: Bench, topic: str, count: int) -> float:
    """Messages received a second by one consumer that acks nothing."""
    async with await bench.client.consumer(topic, "reading", prefetch=20_000) as consumer:
        got = len(await consumer.receive_many(1000, timeout=10.0))
        began, first = time.perf_counter(), got
        while got < count:
            messages = await consumer.receive_many(5000, timeout=5.0)
            if not messages:
                break
            got += len(messages)
        return (got - first) / (time.perf_counter() - began)


def _cpu(bench: Bench) -> dict[str, float]:
    """Seconds used so far by every process, this one (`client`) among them."""
    return {"client": time.process_time(), **{name: cpu_seconds(pid) for name, pid in bench.pids().items()}}
