"""Commit with 1 and with 64 participating segments, in turn within one run: the decision is one compare-and-set of one
key, so who participates must not matter to who waits for it."""

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
    pairs = scale.of(250, 20)
    async with bench_cluster() as bench:
        layout = await bench.client.create_topic(TOPIC, segments=SEGMENTS)
        keys = _a_key_for_each_segment(layout)
        one: list[float] = []
        all_of_them: list[float] = []
        async with await bench.client.producer(TOPIC, compression=None) as producer:
            for _ in range(pairs // 10):  # warm-up: channels open, code paths are taken
                await _commit_ms(bench.client, producer, keys)
            for number in range(pairs):
                one.append(await _commit_ms(bench.client, producer, [keys[number % SEGMENTS]]))
                all_of_them.append(await _commit_ms(bench.client, producer, keys))
    share = percentile(all_of_them, 0.5) / percentile(one, 0.5)
    detail = f"{pairs} pairs in turn, sends acked before: p50 {percentile(one, 0.5):.2f} ms with 1, "
    detail += f"{percentile(all_of_them, 0.5):.2f} ms with {SEGMENTS}; p99 {percentile(one, 0.99):.2f} and "
    detail += f"{percentile(all_of_them, 0.99):.2f} ms"
    return [at_most(f"commit p50 with {SEGMENTS} participating segments, to with 1", share, "x", 1.2, detail)]


async def _commit_ms(client: txnclient.Client, producer: txnclient.Producer, keys: list[str]) -> float:
    txn = await client.begin(timeout=60.0)
    await asyncio.gather(*(producer.send(VALUE, key=key, txn=txn) for key in keys))
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
