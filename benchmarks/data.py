"""Bulk data through one broker, acked after fdatasync: 1 KiB messages plain and in transactions, in turn within one
run; 100-byte messages; and both read again."""

from __future__ import annotations

import asyncio
import os
import time
from statistics import median

import txnclient
from benchmarks.harness.cluster import Bench, bench_cluster
from benchmarks.harness.machine import cpu_seconds
from benchmarks.harness.result import Result, at_least
from benchmarks.harness.scale import Scale

KIB_TOPIC = "topic://public/bench/kib"
SMALL_TOPIC = "topic://public/bench/small"
BATCH_BYTES = 128 * 1024
BUFFER_BYTES = 128 * 1024 * 1024
PIECE = 4096
"""Messages a call of `send_many`: 4 MiB."""
LARGE = 8
"""Calls in each of the larger transactions, one after the other: 32 MiB."""
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
        self, bench: Bench, producer: txnclient.Producer, messages: list[bytes], pieces: int, *, calls: int
    ) -> None:
        before = _cpu(bench)
        rate = await _sent_per_s(bench.client, producer, messages, pieces, calls=calls)
        for name, used in _cpu(bench).items():
            self.cpu_s[name] = self.cpu_s.get(name, 0.0) + used - before[name]
        self.megabytes_per_s.append(rate * 1024 / 1e6)

    def cpu(self, pieces: int) -> str:
        megabytes = len(self.megabytes_per_s) * pieces * PIECE * 1024 / 1e6
        return (
            ", ".join(f"{name} {used * 1000 / megabytes:.2f}" for name, used in self.cpu_s.items()) + " ms of CPU a MB"
        )


async def _kib(bench: Bench, slices: int, pieces: int) -> list[Result]:
    """Nobody can compress random bytes. After each plain slice comes one in transactions of 4 MiB and one in those of
    32 MiB; both are compared with that."""
    messages = [os.urandom(1024) for _ in range(PIECE)]
    plain, small, large = Slices(), Slices(), Slices()
    async with await bench.client.producer(KIB_TOPIC, batch_bytes=BATCH_BYTES, buffer_bytes=BUFFER_BYTES) as producer:
        await _sent_per_s(bench.client, producer, messages, pieces // 2, calls=1)  # warm-up
        for _ in range(slices):
            await plain.add(bench, producer, messages, pieces, calls=0)
            await small.add(bench, producer, messages, pieces, calls=1)
            await large.add(bench, producer, messages, pieces, calls=LARGE)
    rates = plain.megabytes_per_s
    detail = (
        f"random bytes, {BATCH_BYTES // 1024} KiB batches, {SENDERS} calls of send_many of 4 MiB at once; median of "
    )
    detail += (
        f"{slices} slices of {pieces * PIECE // 1024} MiB, {min(rates):.0f} to {max(rates):.0f}; {plain.cpu(pieces)}"
    )
    at_once = min(SENDERS, pieces // LARGE)
    return [
        at_least("1 KiB messages, plain", median(rates), "MB/s", 100, detail),
        _share("1 KiB messages in transactions of 4 MiB, of plain", small, plain, pieces, "a call in each"),
        _share(
            "1 KiB messages in transactions of 32 MiB, of plain",
            large,
            plain,
            pieces,
            f"{LARGE} calls in each, one after the other, {at_once} transactions at once",
        ),
    ]


def _share(name: str, transactional: Slices, plain: Slices, pieces: int, what: str) -> Result:
    rates = zip(transactional.megabytes_per_s, plain.megabytes_per_s, strict=True)
    shares = [100 * with_txn / without for with_txn, without in rates]
    detail = f"median of the pairs, {min(shares):.0f} to {max(shares):.0f}; "
    detail += f"{median(transactional.megabytes_per_s):.0f} MB/s, {what}; {transactional.cpu(pieces)}"
    return at_least(name, median(shares), "%", 90, detail)


async def _small(bench: Bench, slices: int, pieces: int) -> Result:
    messages = [os.urandom(100) for _ in range(4 * PIECE)]
    async with await bench.client.producer(SMALL_TOPIC, batch_bytes=BATCH_BYTES, buffer_bytes=BUFFER_BYTES) as producer:
        await _sent_per_s(bench.client, producer, messages, pieces // 2, calls=0)
        rates = [await _sent_per_s(bench.client, producer, messages, pieces, calls=0) for _ in range(slices)]
    detail = (
        f"random bytes, {SENDERS} calls of send_many of {4 * PIECE} at once; {min(rates):,.0f} to {max(rates):,.0f}"
    )
    return at_least("100-byte messages by send_many", median(rates), "/s", 200_000, detail)


async def _sent_per_s(
    client: txnclient.Client, producer: txnclient.Producer, messages: list[bytes], pieces: int, *, calls: int
) -> float:
    """Messages stored a second; with so many `calls` in a transaction, also committed (0: outside of transactions)."""
    to_send = iter(range(pieces // max(calls, 1)))

    async def send() -> None:
        for _ in to_send:
            if calls:
                async with client.transaction() as txn:
                    for _ in range(calls):
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
