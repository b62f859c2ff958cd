"""What a micro-batch costs by being one transaction: beside a sink that commits nothing, in turn with it."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import pyarrow as pa
import pyarrow.parquet as parquet
from pyspark.sql import SparkSession

from benchmarks.harness.cluster import TOPIC, bench_cluster
from benchmarks.harness.result import Result, at_most, percentile
from benchmarks.harness.scale import Scale
from benchmarks.spark.nothing import Nothing
from benchmarks.spark.session import finished, in_thread, spark_session

ROWS = 1000
WARM_UP = 2
"""Batches of each query that are not counted: its workers start with them."""
SINKS = ("nothing", "txnstore", "noop", "parquet")
IN_WORDS = {
    "nothing": "a Python sink that commits nothing",
    "txnstore": "ours",
    "noop": "Spark's noop",
    "parquet": "its files",
}


@dataclass
class Batches:
    """Milliseconds of each batch of one sink, turn by turn: as a whole, and what Spark calls addBatch."""

    whole: list[list[float]] = field(default_factory=list)
    added: list[list[float]] = field(default_factory=list)

    def words(self) -> str:
        every = [one for turn in self.whole for one in turn]
        return f"{percentile(every, 0.5):.0f} (p90 {percentile(every, 0.9):.0f})"


def _more(ours: list[list[float]], others: list[list[float]]) -> list[float]:
    """By how much the median of ours is above that of the others, turn by turn."""
    return [median(one) - median(other) for one, other in zip(ours, others, strict=True)]


async def commits(scale: Scale) -> list[Result]:
    batches, turns = scale.of(14, 4), scale.of(3, 1)
    found = {sink: Batches() for sink in SINKS}
    with tempfile.TemporaryDirectory(prefix="txnstore-bench-spark-") as name:
        folder = Path(name)
        async with bench_cluster(segments=4) as bench, spark_session(folder) as spark:
            await in_thread(_make_files, folder / "source", batches)
            await in_thread(spark.dataSource.register, Nothing)
            for turn in range(turns + 1):  # the first, which compiles and loads, is not counted
                for sink in SINKS[turn % 2 :] + SINKS[: turn % 2]:
                    print(f" {batches} batches into {sink}, turn {turn} of {turns}", flush=True)
                    counted = await in_thread(_query, spark, folder, sink, turn, bench.cluster.url)
                    if turn:
                        found[sink].whole.append([batch["triggerExecution"] for batch in counted])
                        found[sink].added.append([batch["addBatch"] for batch in counted])
    more = _more(found["txnstore"].whole, found["nothing"].whole)
    added = median(_more(found["txnstore"].added, found["nothing"].added))
    detail = f"median of {turns} turns, {min(more):.0f} to {max(more):.0f}; {batches - WARM_UP} batches of {ROWS:,} "
    detail += "100-byte rows of each sink in a turn; p50 of a whole batch, ms: "
    detail += ", ".join(f"{IN_WORDS[sink]} {found[sink].words()}" for sink in SINKS)
    detail += f"; of addBatch alone {added:.0f} ms more"
    return [at_most("a batch into a topic, beyond a sink that commits nothing", median(more), "ms", 50, detail)]


def _make_files(folder: Path, batches: int) -> None:
    folder.mkdir()
    for number in range(batches):
        keys = pa.array([b"key-%d" % row for row in range(ROWS)], pa.binary())
        values = pa.array([os.urandom(100) for _ in range(ROWS)], pa.binary())
        parquet.write_table(pa.table({"key": keys, "value": values}), folder / f"{number:04}.parquet")


def _query(spark: SparkSession, folder: Path, sink: str, turn: int, url: str) -> list[dict[str, float]]:
    """What Spark says of how long the parts of each batch took."""
    source = spark.readStream.schema("key binary, value binary").option("maxFilesPerTrigger", 1)
    writer = source.parquet(str(folder / "source")).writeStream.format(sink).trigger(availableNow=True)
    writer = writer.option("checkpointLocation", str(folder / f"checkpoint-{sink}-{turn}"))
    if sink == "txnstore":
        writer = writer.option("service.url", url).option("topic", TOPIC)
    if sink == "parquet":
        writer = writer.option("path", str(folder / f"files-{turn}"))
    counted = finished(writer.start())[WARM_UP:]
    if not counted:
        raise RuntimeError(f"the query into {sink} had no batch after its first {WARM_UP}")
    return [batch["durationMs"] for batch in counted]
