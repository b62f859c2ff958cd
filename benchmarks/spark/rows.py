"""Rows through Spark into a topic and out of it again, in turn with Spark's own Parquet: the same rows, one run."""

from __future__ import annotations

import os
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import pyarrow as pa
import pyarrow.parquet as parquet
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from benchmarks.harness.cluster import Bench, bench_cluster
from benchmarks.harness.result import Result, at_least
from benchmarks.harness.scale import Scale
from benchmarks.spark.session import CORES, consumed, finished, in_thread, spark_session

SEGMENTS = 4
KEYS = 10_000
PIECE = 50_000
SLICES = 4
"""Of each kind; the first warms Spark's compiler and workers up and is not counted."""


@dataclass
class Slices:
    """Rows a second, one number for each slice, by what was measured."""

    rates: dict[str, list[float]] = field(default_factory=dict)

    def add(self, what: str, rows: int, seconds: float) -> None:
        self.rates.setdefault(what, []).append(rows / seconds)
        print(f"  {what}: {rows / seconds:,.0f} rows/s", flush=True)

    def median(self, what: str) -> float:
        return median(self.rates[what][1:])

    def spread(self, what: str) -> str:
        counted = self.rates[what][1:]
        return f"{min(counted):,.0f} to {max(counted):,.0f}"


async def rows(scale: Scale) -> list[Result]:
    sizes = {100: scale.of(1_000_000, 20_000), 1024: scale.of(200_000, 5_000)}
    found = list[Result]()
    with tempfile.TemporaryDirectory(prefix="txnstore-bench-spark-") as name:
        folder = Path(name)
        async with bench_cluster(segments=1) as bench, spark_session(folder) as spark:
            for size, count in sizes.items():
                measured = _OfOneSize(spark, bench, folder, size=size, count=count)
                found += await measured.results(scale.of(SLICES, 2))
    return found


@dataclass
class _OfOneSize:
    spark: SparkSession
    bench: Bench
    folder: Path
    size: int
    count: int
    slices: Slices = field(default_factory=Slices)

    @property
    def label(self) -> str:
        return "1 KiB" if self.size == 1024 else f"{self.size}-byte"

    async def results(self, slices: int) -> list[Result]:
        source = self.folder / f"rows-{self.size}"
        await in_thread(_make_rows, source, size=self.size, count=self.count)
        for number in range(slices):
            print(f" {self.label} rows, slice {number + 1} of {slices}", flush=True)
            topic = f"topic://public/bench/rows-{self.size}-{number}"
            await self.bench.client.create_topic(topic, segments=SEGMENTS, autoscale="off")
            await in_thread(self._slice, source, topic, number)
        return [self._out(), self._in(), *self._other_ways()]

    def _slice(self, source: Path, topic: str, number: int) -> None:
        files = self.folder / f"written-{self.size}-{number}"
        rows = self.spark.read.parquet(str(source))
        self.slices.add("Parquet out", self.count, _written(rows, files))
        self.slices.add("topic out", self.count, self._sent(rows, topic))
        self.slices.add("Parquet in", self.count, consumed(self.spark.read.parquet(str(files))))
        everything = self._topic(topic)
        self.slices.add("topic in", self.count, consumed(everything))
        self.slices.add("topic in, key and value", self.count, consumed(self._topic(topic, columns="key,value")))
        self._stream(topic, number)
        if number == 0:
            _expect_equal(rows, everything)

    def _topic(self, topic: str, **options: str) -> DataFrame:
        url = self.bench.cluster.url
        return self.spark.read.format("txnstore").options(**options).option("service.url", url).load(topic=topic)

    def _sent(self, rows: DataFrame, topic: str) -> float:
        writer = rows.write.format("txnstore").option("service.url", self.bench.cluster.url).option("topic", topic)
        began = time.perf_counter()
        writer.mode("append").save()
        return time.perf_counter() - began

    def _stream(self, topic: str, number: int) -> None:
        """The batch's own time: what Spark needs to start a query is left out."""
        stream = self.spark.readStream.format("txnstore").option("service.url", self.bench.cluster.url)
        query = (
            stream.option("topic", topic)
            .load()
            .writeStream.format("noop")
            .option("checkpointLocation", str(self.folder / f"checkpoint-{self.size}-{number}"))
            .trigger(availableNow=True)
            .start()
        )
        batches = finished(query)
        read = sum(batch["numInputRows"] for batch in batches)
        if read != self.count:
            raise RuntimeError(f"{self.count} rows were written and the stream read {read}")
        self.slices.add("topic in, stream", read, sum(batch["durationMs"]["addBatch"] for batch in batches) / 1000)

    def _detail(self, what: str) -> str:
        return f"{self.slices.spread(what)}; {self.count:,} rows of random bytes with keys, {CORES} tasks at once"

    def _out(self) -> Result:
        detail = f"{self._detail('topic out')}, {SEGMENTS} segments, one transaction; {self._beside('out')}"
        name, rate = f"{self.label} rows from Spark to a topic", self.slices.median("topic out")
        return at_least(name, rate, "/s", 100_000, detail) if self.size == 100 else _plain(name, rate, detail)

    def _in(self) -> Result:
        detail = f"{self._detail('topic in')}, all columns; {self._beside('in')}"
        name, rate = f"{self.label} rows from a topic to Spark", self.slices.median("topic in")
        return at_least(name, rate, "/s", 200_000, detail) if self.size == 100 else _plain(name, rate, detail)

    def _beside(self, way: str) -> str:
        return f"Spark's Parquet with the same rows {self.slices.median(f'Parquet {way}'):,.0f} /s"

    def _other_ways(self) -> list[Result]:
        ways = {
            "topic in, key and value": "… option columns=key,value",
            "topic in, stream": "… as one batch of a stream, all columns",
        }
        return [_plain(name, self.slices.median(what), self.slices.spread(what)) for what, name in ways.items()]


def _plain(name: str, rate: float, detail: str) -> Result:
    return Result(name=name, value=rate, unit="/s", detail=detail)


def _written(rows: DataFrame, files: Path) -> float:
    began = time.perf_counter()
    rows.write.parquet(str(files))
    return time.perf_counter() - began


def _make_rows(folder: Path, *, size: int, count: int) -> None:
    """As many files as there are cores: nobody can compress random bytes."""
    folder.mkdir()
    schema = pa.schema([("key", pa.binary()), ("value", pa.binary())])
    for number in range(CORES):
        with parquet.ParquetWriter(folder / f"{number}.parquet", schema) as writer:
            for first in range(number * PIECE, count, CORES * PIECE):
                some = range(first, min(first + PIECE, count))
                keys = pa.array([b"key-%d" % (row % KEYS) for row in some], pa.binary())
                values = pa.array([os.urandom(size) for _ in some], pa.binary())
                writer.write_table(pa.Table.from_arrays([keys, values], schema=schema))


def _expect_equal(written: DataFrame, read: DataFrame) -> None:
    """Each row is there once: equal numbers, and equal sums of hashes."""

    def digest(frame: DataFrame) -> tuple[int, int]:
        row = frame.agg(f.count("*"), f.sum(f.xxhash64("key", "value").cast("decimal(38,0)"))).collect()[0]
        return row[0], row[1]

    if digest(written) != digest(read):
        raise RuntimeError(f"{digest(written)} was written and {digest(read)} read")
