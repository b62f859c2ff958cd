"""How long producers wait while the segment they write to is split, and while two are merged, at half load.

Twenty producers write awaited messages of all keys, as many in a second as half of what they reach without a pause.
The topic goes from one segment to two and back again. What each producer waits for the slowest of its sends while a
change is under way is its stall; what waits on no change is told beside it. In the end everything is read back.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

import txnclient
from benchmarks.harness.cluster import TOPIC, bench_cluster
from benchmarks.harness.load import VALUE
from benchmarks.harness.result import Result, at_most, percentile
from benchmarks.harness.scale import Scale
from txnclient.connection.topic_layout import TopicLayout

PRODUCERS = 20
KEYS = 64
CALM_S = 0.4
"""Between two changes, so that each finds everything at rest."""

BEHIND_S = 0.25
"""Sends up to so long behind a change count as made during it: its children are claimed and opened meanwhile."""


@dataclass
class Load:
    """`waits`: of every producer when each of its sends began and how long it took, in seconds; `sent`: of every key
    what was acked, in order."""

    waits: list[list[tuple[float, float]]] = field(default_factory=lambda: [[] for _ in range(PRODUCERS)])
    sent: dict[bytes, list[int]] = field(default_factory=dict)
    over: bool = False


async def split(scale: Scale) -> list[Result]:
    changes = scale.of(20, 2)
    results: list[Result] = []
    for brokers in (1, 2):
        async with bench_cluster(segments=1, brokers=brokers) as bench:
            producers = [await bench.client.producer(TOPIC, compression=None) for _ in range(PRODUCERS)]
            load = Load()
            full = await _reached(producers, load, seconds=scale.of(20, 5) / 10)
            writing = [
                asyncio.ensure_future(_write(number, producer, load, pause_s=2 * PRODUCERS / full))
                for number, producer in enumerate(producers)
            ]
            stalls: dict[str, list[float]] = {"split": [], "merge": [], "neither": []}
            took: dict[str, list[float]] = {"split": [], "merge": []}
            for number in range(changes):
                began = time.perf_counter()
                await asyncio.sleep(CALM_S)
                stalls["neither"] += _stalls(load, began, time.perf_counter())
                kind = "merge" if number % 2 else "split"
                began = time.perf_counter()
                await _change(bench.client)
                took[kind].append((time.perf_counter() - began) * 1000)
                await asyncio.sleep(BEHIND_S)
                stalls[kind] += _stalls(load, began, time.perf_counter())
            load.over = True
            await asyncio.gather(*writing)
            wrong = await _wrong(bench.client, load)
        results += _results(f"{brokers} broker{'s' * (brokers > 1)}", stalls, took, full, wrong)
    return results


def _results(
    where: str, stalls: dict[str, list[float]], took: dict[str, list[float]], full: float, wrong: int
) -> list[Result]:
    found = []
    for kind in ("split", "merge"):
        waits = stalls[kind]
        detail = (
            f"{len(waits)} stalls over {len(took[kind])} changes at {full / 2:.0f} messages/s: p50 "
            f"{percentile(waits, 0.5):.0f}, max {max(waits):.0f} ms; the call itself p50 "
            f"{percentile(took[kind], 0.5):.0f} ms; slowest send with no change p99 "
            f"{percentile(stalls['neither'], 0.99):.0f} ms"
        )
        found.append(
            at_most(f"stall of a producer through a {kind}, p99, {where}", percentile(waits, 0.99), "ms", 300, detail)
        )
    found.append(at_most(f"keys with a message lost, doubled or out of order, {where}", wrong, "keys", 0))
    return found


async def _reached(producers: list[txnclient.Producer], load: Load, *, seconds: float) -> float:
    """Messages a second without a pause."""
    began = time.perf_counter()
    writing = [
        asyncio.ensure_future(_write(number, producer, load, pause_s=0)) for number, producer in enumerate(producers)
    ]
    await asyncio.sleep(seconds)
    load.over = True
    await asyncio.gather(*writing)
    load.over = False
    return sum(map(len, load.waits)) / (time.perf_counter() - began)


async def _write(number: int, producer: txnclient.Producer, load: Load, *, pause_s: float) -> None:
    turn = 0
    due = time.perf_counter()
    while not load.over:
        key = b"%d-%d" % (number, turn % KEYS)
        acked = load.sent.setdefault(key, [])
        began = time.perf_counter()
        await producer.send(b"%d %s" % (len(acked), VALUE), key=key)
        load.waits[number].append((began, time.perf_counter() - began))
        acked.append(len(acked))
        turn += 1
        if pause_s:
            due = max(due + pause_s, time.perf_counter() - 1)
            await asyncio.sleep(max(0.0, due - time.perf_counter()))


def _stalls(load: Load, began: float, ended: float) -> list[float]:
    """Of each producer its slowest send that was under way in this time, in ms."""
    found = []
    for waits in load.waits:
        during = [took for at, took in waits if at < ended and at + took > began]
        if during:
            found.append(max(during) * 1000)
    return found


async def _change(client: txnclient.Client) -> TopicLayout:
    active = [one.name for one in (await client.describe_topic(TOPIC)).active]
    return await (client.split(active[0]) if len(active) == 1 else client.merge(*active))


async def _wrong(client: txnclient.Client, load: Load) -> int:
    found: dict[bytes, list[int]] = {}
    async with client.reader(TOPIC, end="latest") as reader:
        async for message in reader:
            found.setdefault(message.key or b"", []).append(int(message.data.split(b" ", 1)[0]))
    return sum(found.get(key) != acked for key, acked in load.sent.items() if acked)
