"""Consume-transform-produce, exactly once: each transaction takes messages from a queue, and commits what it makes of
them together with having taken them. Here and on PostgreSQL 15, in turn within one run.

Both run in this process with as many workers, both make every commit durable before they answer. On PostgreSQL the
queue is a table: `DELETE … FOR UPDATE SKIP LOCKED … RETURNING`, an `INSERT` of all results, `COMMIT`.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from statistics import median
from typing import Any

import txnclient
from benchmarks.harness.cluster import Bench, bench_cluster
from benchmarks.harness.postgres import postgres, why_missing
from benchmarks.harness.result import Result
from benchmarks.harness.scale import Scale

INPUT, OUTPUT = "topic://public/bench/input", "topic://public/bench/output"
SUBSCRIPTION = "transform"
WORKERS = 16
SIZES = (1, 10, 100)
"""Messages a transaction."""
VALUE = bytes(range(100))
LOADED = {1: 20_000, 10: 60_000, 100: 200_000}
"""Messages that lie ready for one slice; one that has taken all of them ends early."""

Work = Callable[[int, float], Awaitable[tuple[int, int, float]]]
"""(messages a transaction, seconds) → messages, transactions and the seconds it took."""


def transform(value: bytes) -> bytes:
    return value[::-1]


async def transform_benchmark(scale: Scale) -> list[Result]:
    rounds, slice_s = scale.of(3, 1), scale.of(2.0, 0.5)
    missing = why_missing()
    rates: dict[tuple[str, int], list[float]] = {}
    sizes: dict[tuple[str, int], list[float]] = {}
    async with AsyncExitStack() as stack:
        bench = await stack.enter_async_context(bench_cluster())
        sides: dict[str, Work] = {"txnstore": await _our_side(bench, stack)}
        if missing is None:
            sides["PostgreSQL 15"] = await _postgres_side(stack)
        for size in SIZES:
            for _ in range(rounds):
                for name, work in sides.items():
                    messages, transactions, took = await work(size, slice_s)
                    rates.setdefault((name, size), []).append(messages / took)
                    sizes.setdefault((name, size), []).append(messages / max(1, transactions))
    results: list[Result] = []
    for size in SIZES:
        ours = median(rates["txnstore", size])
        theirs = median(rates["PostgreSQL 15", size]) if missing is None else math.nan
        detail = f"{WORKERS} workers, median of {rounds} slices of {slice_s:g} s in turn; "
        if missing is None:
            detail += f"PostgreSQL 15: {theirs:,.0f}/s; {ours / theirs:.2f} times as many here"
        else:
            detail += f"PostgreSQL 15 not measured: {missing}"
        name = f"consume-transform-produce, {size} a transaction"
        got = median(sizes["txnstore", size])
        if got < 0.95 * size:
            detail += f"; {got:.1f} were there for a transaction on average"
        results.append(Result(name=name, value=ours, unit="messages/s", detail=detail))
        results.append(Result(name="… on PostgreSQL 15", value=theirs, unit="messages/s", detail=missing or ""))
    return results


async def _together(workers: Sequence[Callable[[float], Awaitable[tuple[int, int]]]], seconds: float) -> Any:
    began = time.perf_counter()
    done = await asyncio.gather(*(worker(began + seconds) for worker in workers))
    took = time.perf_counter() - began
    return sum(messages for messages, _ in done), sum(transactions for _, transactions in done), took


# ---- here ----


async def _our_side(bench: Bench, stack: AsyncExitStack) -> Work:
    client = bench.client
    for topic in (INPUT, OUTPUT):
        await client.create_topic(topic, segments=4)
    source = await stack.enter_async_context(await client.producer(INPUT))
    sink = await stack.enter_async_context(await client.producer(OUTPUT))
    consumers = [
        await stack.enter_async_context(await client.consumer(INPUT, SUBSCRIPTION, type="queue", prefetch=400))
        for _ in range(WORKERS)
    ]

    async def work(size: int, seconds: float) -> tuple[int, int, float]:
        await source.send_many([VALUE] * LOADED[size])

        async def one(consumer: txnclient.Consumer, until: float) -> tuple[int, int]:
            messages = transactions = 0
            while time.perf_counter() < until:
                taken = await consumer.receive_many(size, timeout=0.2)
                if not taken:
                    break
                async with client.transaction() as txn:
                    sending = asyncio.ensure_future(sink.send_many([transform(one.value) for one in taken], txn=txn))
                    await asyncio.gather(sending, consumer.ack(taken, txn=txn))
                messages, transactions = messages + len(taken), transactions + 1
            return messages, transactions

        return await _together([lambda until, c=consumer: one(c, until) for consumer in consumers], seconds)

    return work


# ---- on PostgreSQL ----

_TAKE = """
DELETE FROM input WHERE id IN (SELECT id FROM input ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED) RETURNING value
"""
_PUT = "INSERT INTO output (value) SELECT * FROM unnest($1::bytea[])"


async def _postgres_side(stack: AsyncExitStack) -> Work:
    import asyncpg

    host = await stack.enter_async_context(postgres())
    connections = []
    for _ in range(WORKERS):
        connection = await asyncpg.connect(host=host, user="postgres", database="postgres")
        stack.push_async_callback(connection.close)
        connections.append(connection)
    first = connections[0]
    for table in ("input", "output"):
        await first.execute(f"CREATE TABLE {table} (id bigserial PRIMARY KEY, value bytea NOT NULL)")

    async def work(size: int, seconds: float) -> tuple[int, int, float]:
        await first.execute("TRUNCATE input, output")
        await first.copy_records_to_table("input", records=[(VALUE,)] * LOADED[size], columns=["value"])
        await first.execute("ANALYZE input")

        async def one(connection: Any, until: float) -> tuple[int, int]:
            messages = transactions = 0
            while time.perf_counter() < until:
                async with connection.transaction():
                    taken = await connection.fetch(_TAKE, size)
                    if not taken:
                        break
                    await connection.execute(_PUT, [transform(row["value"]) for row in taken])
                messages, transactions = messages + len(taken), transactions + 1
            return messages, transactions

        return await _together([lambda until, c=connection: one(c, until) for connection in connections], seconds)

    return work
