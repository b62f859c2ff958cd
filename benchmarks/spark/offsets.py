"""How large a stream's offset is while 10 000 transactions are open, each with a write, over 64 segments."""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from random import Random

from pyspark.sql import SparkSession

import txnclient
from benchmarks.harness.cluster import Bench, bench_cluster
from benchmarks.harness.load import VALUE
from benchmarks.harness.result import Result, at_most
from benchmarks.harness.scale import Scale
from benchmarks.spark.session import finished, in_thread, spark_session
from pyspark_txnstore.shared.offsets import encode_offset
from txnclient.reading.snapshot import Snapshot
from txnctl.process.settings import ServerSettings
from txnwire.ids import TxnId

HELD = "topic://public/bench/held"
SEGMENTS = 64
BEGINNERS = 256
BEGUN_FOR_EACH = 3
"""Of so many that were begun one stays open, by chance, and the others commit: ids that stand in a row take no room."""
FAR_APART = 1 << 20
TIMEOUT_S = 600.0
GOAL_KIB = 64


async def offsets(scale: Scale) -> list[Result]:
    count = scale.of(10_000, 500)
    with tempfile.TemporaryDirectory(prefix="txnstore-bench-spark-") as name:
        folder = Path(name)
        async with bench_cluster(segments=1) as bench:
            await bench.client.create_topic(HELD, segments=SEGMENTS, autoscale="off")
            print(
                f" {count:,} transactions stay open of {BEGUN_FOR_EACH * count:,}, over {SEGMENTS} segments", flush=True
            )
            began = time.perf_counter()
            await _hold(bench.client, count)
            took = time.perf_counter() - began
            asked = time.perf_counter()
            cut = await bench.client.snapshot([HELD])
            snapshot_ms = (time.perf_counter() - asked) * 1000
            if len(cut.pending) != count:
                raise RuntimeError(
                    f"{count} transactions are open and the snapshot holds {len(cut.pending)} as pending"
                )
            print(" a query that writes such an offset into its checkpoint", flush=True)
            async with spark_session(folder) as spark:
                written = await in_thread(_in_checkpoint, spark, bench, folder, committed=(BEGUN_FOR_EACH - 1) * count)
    far = replace(cut, pending=_far_apart(count))
    detail = f"the line in the query's checkpoint; {SEGMENTS} segments; one open of {BEGUN_FOR_EACH} begun, which took "
    detail += (
        f"{took:.0f} s; the snapshot's own JSON {len(cut.to_json()) / 1024:.0f} KiB, taken in {snapshot_ms:.0f} ms; "
    )
    detail += f"were their ids 0 to {2 * FAR_APART:,} apart, which none can tell in less: {_kib(far):.1f} KiB"
    return [at_most(f"offset with {count:,} transactions open", written / 1024, "KiB", GOAL_KIB, detail)]


def _kib(cut: Snapshot) -> float:
    return len(json.dumps(encode_offset(cut), separators=(",", ":"))) / 1024


def _far_apart(count: int) -> tuple[TxnId, ...]:
    chance, found = Random(1), list[TxnId]()
    for tcid in range(tcids := ServerSettings().tcids):
        counter = 0
        for _ in range(count // tcids):
            counter += chance.randint(1, 2 * FAR_APART)
            found.append(TxnId(tcid, counter))
    return tuple(found)


async def _hold(client: txnclient.Client, count: int) -> None:
    """`count` transactions with an acked write each among others that commit; and a message outside of them, for a
    batch not to be empty."""
    numbers = range(BEGUN_FOR_EACH * count)
    held, to_begin = set(Random(1).sample(numbers, count)), iter(numbers)
    async with await client.producer(HELD, compression=None) as producer:

        async def begin_some() -> None:
            for number in to_begin:
                txn = await client.begin(timeout=TIMEOUT_S)
                await producer.send(VALUE, key=str(number), txn=txn)
                if number not in held:
                    await txn.commit()

        async with asyncio.TaskGroup() as group:
            for _ in range(BEGINNERS):
                group.create_task(begin_some())
        await producer.send(VALUE, key="outside")


def _in_checkpoint(spark: SparkSession, bench: Bench, folder: Path, *, committed: int) -> int:
    """Bytes of the first batch's offset, as Spark has written it."""
    checkpoint = folder / "checkpoint"
    stream = spark.readStream.format("txnstore").option("service.url", bench.cluster.url).option("topic", HELD)
    writer = stream.load().writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    rows = sum(batch["numInputRows"] for batch in finished(writer.trigger(availableNow=True).start()))
    if rows != committed + 1:
        raise RuntimeError(f"{committed} transactions and a message outside were committed, and the query read {rows}")
    return len((checkpoint / "offsets" / "0").read_bytes().splitlines()[-1])
