"""Commit with 1 and with 64 participating segments, in turn within one run: the decision is one compare-and-set of one
key, so who participates must not matter to who waits for it.

A commit that follows 64 sends finds a coordinator that has slept meanwhile, and cores that have done something else. So
there is a third kind: one participating segment, and as many messages sent to the others outside the transaction.
"""

from __future__ import annotations

import asyncio
import itertools
import time

import txnclient
from benchmarks.cluster import bench_cluster
from benchmarks.load import VALUE
from benchmarks.result import Result, at_most, percentile
from benchmarks.scale import Scale
from txnclient.topic_layout import TopicLayout
from txnwire.ids import hash_key

TOPIC = "topic://public/bench/wide"
SEGMENTS = 64
PAUSE_S = 0.05
"""After each, so that neither is measured while the participants of the other clean up."""


async def segments(scale: Scale) -> list[Result]:
    rounds = scale.of(200, 20)
    async with bench_cluster() as bench:
        layout = await bench.client.create_topic(TOPIC, segments=SEGMENTS)
        keys = _a_key_for_each_segment(layout)
        one: list[float] = []
        beside: list[float] = []
        all_of_them: list[float] = []
        async with await bench.client.producer(TOPIC, compression=None) as producer:
            for _ in range(rounds // 10):  # warm-up: channels open, code paths are taken
                await _commit_ms(bench.client, producer, keys, [])
            for number in range(rounds):
                only = [keys[number % SEGMENTS]]
                one.append(await _commit_ms(bench.client, producer, only, []))
                all_of_them.append(await _commit_ms(bench.client, producer, keys, []))
                beside.append(await _commit_ms(bench.client, producer, only, keys))
    return [
        _compared(f"commit p50 with {SEGMENTS} participating segments, to with 1", all_of_them, one),
        _compared("… to with 1 and as many messages sent outside it", all_of_them, beside),
    ]


def _compared(name: str, all_of_them: list[float], one: list[float]) -> Result:
    share = percentile(all_of_them, 0.5) / percentile(one, 0.5)
    detail = f"{len(one)} in turn, sends acked before: p50 {percentile(one, 0.5):.2f} ms with 1, "
    detail += f"{percentile(all_of_them, 0.5):.2f} ms with {SEGMENTS}; p99 {percentile(one, 0.99):.2f} and "
    detail += f"{percentile(all_of_them, 0.99):.2f} ms"
    return at_most(name, share, "x", 1.2, detail)


async def _commit_ms(
    client: txnclient.Client, producer: txnclient.Producer, keys: list[str], outside: list[str]
) -> float:
    txn = await client.begin(timeout=60.0)
    inside = [producer.send(VALUE, key=key, txn=txn) for key in keys]
    await asyncio.gather(*inside, *(producer.send(VALUE, key=key) for key in outside))
    asked = time.perf_counter()
    await txn.commit()
    took = (time.perf_counter() - asked) * 1000
    await asyncio.sleep(PAUSE_S)
    return took


def _a_key_for_each_segment(layout: TopicLayout) -> list[str]:
    found: dict[int, str] = {}
    for number in itertools.count():
        key = f"key-{number}"
        found.setdefault(layout.segment_of_hash(hash_key(key.encode())).segment_id, key)
        if len(found) == len(layout.active):
            return list(found.values())
    raise RuntimeError("unreachable: every range is met by some key")
