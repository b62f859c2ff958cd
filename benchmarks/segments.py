"""Commit with 1, 16, 64, 256 and 1 024 participating segments, in turn within one run: the decision is one
compare-and-set of one key, so who participates must not matter to who waits for it.

It is taken straight behind the acks of the sends, and again after a rest, the same for all. Straight behind them they
differ in more than who participates: a coordinator that has begun a transaction a millisecond ago commits sooner than
one that has slept while a thousand sends went to a broker on the same cores. The rest makes that one slower, not the
others faster. So there is a control to each: one participating segment, and as many messages sent outside the
transaction to the segments that do not take part.

Before the next one begins, the clean-up of the one before is over: until no op record is left, and then a pause, the
same for all. What is left of it otherwise is work of two cores that has nothing to do with who waits.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from dataclasses import dataclass, field

import txnclient
from benchmarks.harness.cluster import Bench, bench_cluster
from benchmarks.harness.load import VALUE
from benchmarks.harness.machine import cpu_seconds
from benchmarks.harness.result import Result, at_most, percentile
from benchmarks.harness.scale import Scale
from txnclient.connection.topic_layout import TopicLayout
from txnwire.ids import hash_key

TOPICS = [f"topic://public/bench/wide-{number}" for number in range(4)]
SEGMENTS = 256
"""In each topic: as many as one is made with."""

WIDTHS = (1, 16, 64, 256, 1024)
PAUSE_S = 0.03
"""Behind the clean-up, before the next begins."""

SETTLED_S = 0.02
"""From the acks of the sends to the commit, where it is not asked for straight behind them."""

GOAL = 1.1


@dataclass(frozen=True, slots=True)
class Kind:
    """`inside`: segments that participate; `outside`: others that a message is sent to beside the transaction."""

    inside: int
    outside: int = 0
    rest_s: float = 0.0


@dataclass
class Places:
    """A producer and a key for each segment of all topics; the first of them differs from commit to commit."""

    of_each: list[tuple[txnclient.Producer, str]]
    turn: int = 0

    def next(self, number: int) -> list[tuple[txnclient.Producer, str]]:
        self.turn += 1
        begin = self.turn * 37 % len(self.of_each)
        return (self.of_each[begin:] + self.of_each[:begin])[:number]


@dataclass
class Took:
    commits_ms: list[float] = field(default_factory=list)
    cpu_ms: dict[str, float] = field(default_factory=dict)
    """Of each process from the commit to the end of its clean-up, over all rounds."""


async def segments(scale: Scale) -> list[Result]:
    rounds, topics = scale.of(25, 3), scale.of(4, 1)
    widths = [width for width in WIDTHS if width <= topics * SEGMENTS]
    kinds = [
        Kind(inside, outside, rest_s)
        for rest_s in (0.0, SETTLED_S)
        for width in widths
        for inside, outside in ((width, 0), (1, width - 1))[: 1 if width == 1 else 2]
    ]
    took = {kind: Took() for kind in kinds}
    async with bench_cluster() as bench:
        places = await _places(bench.client, TOPICS[:topics])
        for _ in range(scale.of(2, 1)):  # warm-up: channels open, code paths are taken
            for kind in kinds:
                await _commit(bench, places, kind, Took())
        for number in range(rounds):
            for kind in kinds[number % len(kinds) :] + kinds[: number % len(kinds)]:
                await _commit(bench, places, kind, took[kind])
    return [
        result
        for rest_s in (0.0, SETTLED_S)
        for width in widths
        for result in (
            _absolute(took, Kind(1, rest_s=rest_s))
            if width == 1
            else _compared(took, Kind(width, rest_s=rest_s), Kind(1, rest_s=rest_s), Kind(1, width - 1, rest_s))
        )
    ]


def _when(rest_s: float) -> str:
    return f"{rest_s * 1000:.0f} ms behind the acks" if rest_s else "straight behind the acks"


def _absolute(took: dict[Kind, Took], kind: Kind) -> list[Result]:
    name = f"commit p50 with 1 participating segment, {_when(kind.rest_s)}"
    return [Result(name=name, value=percentile(took[kind].commits_ms, 0.5), unit="ms", detail=_told(took[kind]))]


def _compared(took: dict[Kind, Took], many: Kind, one: Kind, beside: Kind) -> list[Result]:
    p50 = {kind: percentile(took[kind].commits_ms, 0.5) for kind in (many, one, beside)}
    name = f"… with {many.inside} to with 1, {_when(many.rest_s)}"
    return [
        at_most(name, p50[many] / p50[one], "x", GOAL, _told(took[many])),
        at_most(
            f"… … to with 1 and {beside.outside} messages sent outside it",
            p50[many] / p50[beside],
            "x",
            GOAL,
            f"that one: {_told(took[beside])}",
        ),
    ]


def _told(took: Took) -> str:
    p50, p99 = percentile(took.commits_ms, 0.5), percentile(took.commits_ms, 0.99)
    cpu = ", ".join(f"{name} {ms / len(took.commits_ms):.1f}" for name, ms in took.cpu_ms.items())
    return f"{len(took.commits_ms)} in turn: p50 {p50:.2f} ms, p99 {p99:.2f} ms; CPU through its clean-up: {cpu} ms"


async def _commit(bench: Bench, places: Places, kind: Kind, took: Took) -> None:
    txn = await bench.client.begin(timeout=60.0)
    chosen = places.next(kind.inside + kind.outside)
    sends = [
        producer.send(VALUE, key=key, txn=txn if number < kind.inside else None)
        for number, (producer, key) in enumerate(chosen)
    ]
    await asyncio.gather(*sends)
    await asyncio.sleep(kind.rest_s)
    before = _cpu_ms(bench)
    asked = time.perf_counter()
    await txn.commit()
    took.commits_ms.append((time.perf_counter() - asked) * 1000)
    await _until_cleaned(bench)
    for name, now in _cpu_ms(bench).items():
        took.cpu_ms[name] = took.cpu_ms.get(name, 0.0) + now - before[name]
    await asyncio.sleep(PAUSE_S)


def _cpu_ms(bench: Bench) -> dict[str, float]:
    return {name: cpu_seconds(pid) * 1000 for name, pid in bench.pids().items()}


async def _until_cleaned(bench: Bench) -> None:
    async with asyncio.timeout(60):
        while (await bench.backlog())["ops"]:
            await asyncio.sleep(PAUSE_S)


async def _places(client: txnclient.Client, topics: list[str]) -> Places:
    found: list[tuple[txnclient.Producer, str]] = []
    for topic in topics:
        layout = await client.create_topic(topic, segments=SEGMENTS)
        producer = await client.producer(topic, compression=None)
        found += [(producer, key) for key in _a_key_for_each_segment(layout)]
    return Places(found)


def _a_key_for_each_segment(layout: TopicLayout) -> list[str]:
    found: dict[int, str] = {}
    for number in itertools.count():
        key = f"key-{number}"
        found.setdefault(layout.segment_of_hash(hash_key(key.encode())).segment_id, key)
        if len(found) == len(layout.active):
            return list(found.values())
    raise RuntimeError("unreachable: every range is met by some key")
