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
    slices, pieces = scale.of(9, 2), scale.of(64, 16)
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


class Slices:
    """Of one kind: their rates, and what each process used for them."""

    def __init__(self) -> None:
        self.megabytes_per_s: list[float] = []
        self.cpu_s: dict[str, float] = {}

    async def add(
        self, bench: Bench, producer: txnclient.Producer, messages: list[bytes], pieces: int, *, in_transactions: bool
    ) -> None:
        before = _cpu(bench)
        rate = await _sent_per_s(bench.client, producer, messages, pieces, in_transactions=in_transactions)
        for name, used in _cpu(bench).items():
            self.cpu_s[name] = self.cpu_s.get(name, 0.0) + used - before[name]
        self.megabytes_per_s.append(rate * 1024 / 1e6)

    def cpu(self, pieces: int) -> str:
        megabytes = len(self.megabytes_per_s) * pieces * PIECE * 1024 / 1e6
        return (
            ", ".join(f"{name} {used * 1000 / megabytes:.2f}" for name, used in self.cpu_s.items()) + " ms of CPU a MB"
        )


async def _kib(bench: Bench, slices: int, pieces: int) -> list[Result]:
    """Nobody can compress random bytes. A slice in transactions follows each plain one, and is compared with that."""
    messages = [os.urandom(1024) for _ in range(PIECE)]
    plain, transactional = Slices(), Slices()
    async with await bench.client.producer(KIB_TOPIC, batch_bytes=BATCH_BYTES, buffer_bytes=BUFFER_BYTES) as producer:
        await _sent_per_s(bench.client, producer, messages, pieces // 2, in_transactions=True)  # warm-up
        for _ in range(slices):
            await plain.add(bench, producer, messages, pieces, in_transactions=False)
            await transactional.add(bench, producer, messages, pieces, in_transactions=True)
    rates = plain.megabytes_per_s
    shares = [100 * with_txn / without for with_txn, without in zip(transactional.megabytes_per_s, rates, strict=True)]
    detail = (
        f"random bytes, {BATCH_BYTES // 1024} KiB batches, {SENDERS} calls of send_many of 4 MiB at once; median of "
    )
    detail += (
        f"{slices} slices of {pieces * PIECE // 1024} MiB, {min(rates):.0f} to {max(rates):.0f}; {plain.cpu(pieces)}"
    )
    beside = (
        f"median of the pairs, {min(shares):.0f} to {max(shares):.0f}; {median(transactional.megabytes_per_s):.0f} "
    )
    beside += f"MB/s, a transaction for each 4 MiB; {transactional.cpu(pieces)}"
    return [
        at_least("1 KiB messages, plain", median(rates), "MB/s", 100, detail),
        at_least("1 KiB messages in transactions, of plain", median(shares), "%", 90, beside),
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
