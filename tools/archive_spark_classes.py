"""Writes the classes that Spark's JVM loads, ready to be mapped: `python tools/archive_spark_classes.py FILE`.

With `-XX:SharedArchiveFile=FILE` a JVM that starts Spark needs half of the CPU time. It is of use to the very Java and
Spark that it was made with; any other one passes over it. The tests start some thirty of them (`conftest.py`).
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, SimpleDataSourceStreamReader

QUIET = "-Xlog:disable -Xlog:all=error:stderr"
SMALL = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""As the tests run it: the archive is of use to a JVM with the same collector alone."""


class Numbers(DataSource):
    """Of Python, as txnstore's source is one."""

    @classmethod
    def name(cls) -> str:
        return "numbers"

    def schema(self) -> str:
        return "number bigint, name string"

    def reader(self, schema: object) -> DataSourceReader:
        return Batch()

    def simpleStreamReader(self, schema: object) -> SimpleDataSourceStreamReader:
        return Stream()


def rows(first: int, last: int) -> Iterator[tuple[int, str]]:
    return iter([(number, str(number % 7)) for number in range(first, last)])  # Spark pickles it


class Batch(DataSourceReader):
    def read(self, partition: object) -> Iterator[tuple[int, str]]:
        return rows(0, 100)


class Stream(SimpleDataSourceStreamReader):
    def initialOffset(self) -> dict[str, int]:
        return {"at": 0}

    def read(self, start: dict[str, int]) -> tuple[Iterator[tuple[int, str]], dict[str, int]]:
        return rows(start["at"], 100), {"at": 100}

    def readBetweenOffsets(self, start: dict[str, int], end: dict[str, int]) -> Iterator[tuple[int, str]]:
        return rows(start["at"], end["at"])


def work(spark: SparkSession, folder: Path) -> None:
    """A little of all that the tests do with Spark."""
    spark.dataSource.register(Numbers)
    numbers = spark.read.format("numbers").load()
    numbers.write.mode("overwrite").parquet(str(folder / "parquet"))
    numbers.write.mode("overwrite").csv(str(folder / "csv"), header=True)
    kept = spark.read.parquet(str(folder / "parquet")).persist()
    spark.read.csv(str(folder / "csv"), header=True, inferSchema=True).createOrReplaceTempView("csv")
    kept.join(spark.table("csv"), "number").groupBy("csv.name").sum("number").orderBy("name").collect()
    spark.sql("SELECT name, count(DISTINCT number), max(number) FROM csv GROUP BY name HAVING count(*) > 1").collect()
    spark.createDataFrame([(1, "a")], "number bigint, name string").unionByName(kept.limit(3)).toPandas()

    def write(batch: DataFrame, number: int) -> None:
        batch.groupBy("name").count().write.mode("overwrite").parquet(str(folder / f"batch-{number}"))

    stream = spark.readStream.format("numbers").load()
    for sink in (
        stream.writeStream.foreachBatch(write),
        stream.writeStream.format("parquet").option("path", str(folder / "streamed")),
    ):
        checkpoint = tempfile.mkdtemp(dir=folder)
        query = sink.option("checkpointLocation", checkpoint).start()
        query.processAllAvailable()
        query.stop()


def main(archive: Path) -> int:
    archive.unlink(missing_ok=True)
    # It is written as the JVM ends.
    os.environ["SPARK_SUBMIT_OPTS"] = f"{SMALL} {QUIET} -XX:ArchiveClassesAtExit={archive}"
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    with tempfile.TemporaryDirectory() as folder:
        builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
        builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
        builder = builder.config("spark.sql.shuffle.partitions", "2").config("spark.local.dir", folder)
        spark = builder.config("spark.sql.warehouse.dir", f"{folder}/warehouse").getOrCreate()
        spark.sparkContext.setLogLevel("ERROR")
        work(spark, Path(folder))
        gateway = spark.sparkContext._gateway
        spark.stop()
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait()
    return 0 if archive.exists() else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve()))
