"""The transactions that are measured: begin, one 100-byte write, commit; and consumers that say when they have them."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

import txnclient

VALUE = bytes(range(100))


@dataclass
class Timings:
    """Seconds, one entry per committed transaction; `answered_s` by transaction id on the monotonic clock."""

    commits: list[float] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)
    answered_s: dict[str, float] = field(default_factory=dict)
    failed: int = 0


async def one_transaction(
    client: txnclient.Client, producer: txnclient.Producer, timings: Timings, *, awaited: bool, remember: bool = False
) -> None:
    """`awaited`: the send is acked before the commit is asked for, so that the commit's time is the commit's alone."""
    began = time.perf_counter()
    txn = await client.begin(timeout=60.0)
    sent = producer.send_nowait(VALUE, txn=txn)
    if awaited:
        await sent
    asked = time.perf_counter()
    await txn.commit()
    answered = time.perf_counter()
    timings.commits.append(answered - asked)
    timings.whole.append(answered - began)
    if remember:
        timings.answered_s[str(txn.id)] = time.monotonic()


async def at_once(
    client: txnclient.Client, producer: txnclient.Producer, *, concurrency: int, seconds: float, timings: Timings
) -> float:
    """`concurrency` loops of transactions for `seconds`; returns committed transactions per second."""
    started = time.perf_counter()
    until = started + seconds

    async def loop() -> None:
        while time.perf_counter() < until:
            await one_transaction(client, producer, timings, awaited=False)

    before = len(timings.commits)
    async with asyncio.TaskGroup() as group:
        for _ in range(concurrency):
            group.create_task(loop())
    return (len(timings.commits) - before) / (time.perf_counter() - started)


async def at_rate(
    client: txnclient.Client,
    producer: txnclient.Producer,
    *,
    per_second: float,
    seconds: float,
    timings: Timings,
    remember: bool = False,
) -> float:
    """Begin transactions at a fixed rate, whatever becomes of those before (an open loop, at most 2 000 at once)."""
    started = time.perf_counter()
    admitted = asyncio.Semaphore(2000)
    before = len(timings.commits)

    async def one() -> None:
        try:
            await one_transaction(client, producer, timings, awaited=False, remember=remember)
        except txnclient.TxnError:
            timings.failed += 1
        finally:
            admitted.release()

    async with asyncio.TaskGroup() as group:
        begun = 0
        while (elapsed := time.perf_counter() - started) < seconds:
            while begun < elapsed * per_second:
                await admitted.acquire()
                group.create_task(one())
                begun += 1
            await asyncio.sleep(0.002)
    return (len(timings.commits) - before) / (time.perf_counter() - started)
