"""The driver of the pipeline, a process to be killed: `python -m tests.process.spark_pipeline.driver RUN.json`.

    topics ──► rows, marked with their batch ──► sink, a transaction for each micro-batch
                     └─► a file for each task attempt that saw some

With `second` another query reads the same, and writes by `foreachBatch` with a `writeId` for each batch. Exit 3 and the
error's last lines where a query ended by itself; 0 where it read everything (`available_now`).
"""

from __future__ import annotations

import json
import os
import sys
import uuid
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

OUTGOING = "key binary, value binary, properties map<string,string>"
PROPERTIES = pa.map_(pa.string(), pa.string())
FAILED = 3


@dataclass(frozen=True)
class DriverRun:
    """What one start is told. `source`, `sink`: options; `folder`: of checkpoints and of what was seen."""

    number: int
    folder: str
    source: dict[str, str]
    sink: dict[str, str]
    second_sink: dict[str, str] | None
    cores: int
    available_now: bool

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))

    @staticmethod
    def load(path: Path) -> DriverRun:
        return DriverRun(**json.loads(path.read_text()))


def ident(value: bytes) -> str:
    """What names a message, in front of what fills it."""
    return value.partition(b"|")[0].decode()


def marked(batches: Iterator[pa.RecordBatch], number: int, run: int, path: Path) -> Iterator[pa.RecordBatch]:
    """Rows as they are to be written, each with its batch; and the file `path` of what this attempt has seen."""
    with path.open("w") as seen:
        for batch in batches:
            values, txns = (batch.column(name).to_pylist() for name in ("value", "txn_id"))
            seen.writelines(f"{ident(value)} {txn or ''}\n" for value, txn in zip(values, txns, strict=True))
            seen.flush()
            marks = [[("batch", str(number)), ("run", str(run)), ("txn", txn or "")] for txn in txns]
            columns = [batch.column("key"), batch.column("value"), pa.array(marks, PROPERTIES)]
            yield pa.RecordBatch.from_arrays(columns, ["key", "value", "properties"])
        seen.write("whole\n")


def marking(query: str, run: int, folder: Path) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """For `mapInArrow`."""

    def mark(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        number = int(context.getLocalProperty("streaming.sql.batchId") or "")
        path = folder / f"{query}.{number}.{run}.{context.partitionId()}.{uuid.uuid4().hex}"
        yield from marked(batches, number, run, path)

    return mark


def start(spark: SparkSession, run: DriverRun, query: str) -> StreamingQuery:
    folder = Path(run.folder)
    read = spark.readStream.format("txnstore").options(**run.source, columns="key,value,txn_id").load()
    marked = read.mapInArrow(marking(query, run.number, folder / "seen"), OUTGOING)
    if query == "first":
        writer = marked.writeStream.format("txnstore").options(**run.sink)
    else:
        assert run.second_sink is not None
        options = run.second_sink

        def write(batch: DataFrame, number: int) -> None:
            batch.write.format("txnstore").mode("append").options(**options, writeId=f"batch-{number}").save()

        writer = marked.writeStream.foreachBatch(write)
    writer = writer.option("checkpointLocation", str(folder / query)).queryName(query)
    return (writer.trigger(availableNow=True) if run.available_now else writer).start()


def session(run: DriverRun) -> SparkSession:
    folder = Path(run.folder)
    return (
        SparkSession.builder.master(f"local[{run.cores},3]")
        .appName("pipeline")
        .config("spark.driver.memory", "768m")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.local.dir", str(folder / "local"))
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.sql.streaming.minBatchesToRetain", "100000")
        .getOrCreate()
    )


def main(path: Path) -> int:
    run = DriverRun.load(path)
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    spark = session(run)
    spark.sparkContext.setLogLevel("ERROR")
    queries = [start(spark, run, name) for name in ("first", "second")[: 1 if run.second_sink is None else 2]]
    try:
        if run.available_now:
            for query in queries:
                query.awaitTermination()
        else:
            spark.streams.awaitAnyTermination()
    except StreamingQueryException as error:
        print(f"FAILED {error}", file=sys.stderr, flush=True)
        return FAILED
    finally:
        for query in queries:
            query.stop()
        spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
