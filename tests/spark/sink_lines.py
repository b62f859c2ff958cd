"""Files of lines as a stream of rows, and queries that write them to a topic. As a program: a driver of its own.

python -m tests.spark.sink_lines FOLDER URL TOPIC TASKS FAULT
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import txnclient.sync
from pyspark_txnstore.sink import batch_names
from tests.spark.faulty_sink import FaultySource
from tests.spark.sessions import local_session

QUERY_TIMEOUT_S = 100


class Lines:
    """Files of lines as a stream of rows, and queries that write them: one file is one micro-batch."""

    def __init__(self, spark: SparkSession, url: str, folder: Path) -> None:
        spark.dataSource.register(FaultySource)
        self._spark = spark
        self._url = url
        self.folder = folder
        self.checkpoint = folder / "checkpoint"
        self.marks = folder / "marks"
        self.written: list[bytes] = []
        (folder / "lines").mkdir(exist_ok=True)
        self.marks.mkdir(exist_ok=True)

    def add(self, lines: Iterable[str]) -> None:
        lines = list(lines)
        number = len(list((self.folder / "lines").iterdir()))
        name = f"{number:03d}.txt"
        (self.folder / name).write_text("".join(line + "\n" for line in lines))
        os.utime(self.folder / name, (1_700_000_000 + number,) * 2)  # by which Spark orders them
        (self.folder / name).rename(self.folder / "lines" / name)
        self.written += [line.encode() for line in lines]

    def rows(self, tasks: int) -> DataFrame:
        lines = self._spark.readStream.option("maxFilesPerTrigger", "1").text(str(self.folder / "lines"))
        return lines.repartition(tasks) if tasks > 1 else lines

    def run(
        self,
        topic: str | None,
        *,
        rows: DataFrame | None = None,
        tasks: int = 1,
        fault: str | None = None,
        checkpoint: Path | str | None = None,
        **options: str,
    ) -> None:
        """Until all files are written. Raises what the query fails with."""
        options["checkpointLocation"] = str(checkpoint or self.checkpoint)
        query = self.start(topic, self.rows(tasks) if rows is None else rows, fault, **options)
        try:
            assert query.awaitTermination(QUERY_TIMEOUT_S), "the query has not ended"
        finally:
            query.stop()

    def start(self, topic: str | None, rows: DataFrame, fault: str | None, **options: str) -> StreamingQuery:
        if topic is not None:
            options["topic"] = topic
        if fault is not None:
            options |= {"fault": fault, "fault.folder": str(self.marks)}
        writer = rows.writeStream.options(**{"service.url": self._url, **options})
        return writer.format("txnstore" if fault is None else "txnstore_faulty").trigger(availableNow=True).start()

    @property
    def query_id(self) -> str:
        id_: str = json.loads((self.checkpoint / "metadata").read_text())["id"]
        return id_

    def name(self, batch: int, topic: str, sink: str | None = None) -> str:
        """Of a micro-batch's transaction."""
        return batch_names.micro_batch_name(batch_names.stream_sink(sink, topic), self.query_id, batch).text

    def open_transactions(self, client: txnclient.sync.Client) -> list[str]:
        """Names of those that this query has left open."""
        listed = client.admin("transactions.list", state="OPEN", limit=10_000)["transactions"]
        return [one["name"] for one in listed if self.query_id in (one["name"] or "")]

    def forget_last_commit(self) -> None:
        """As if the driver had died between the sink's commit and Spark's."""
        self._forget_last("commits")

    def forget_last_batch(self) -> None:
        """As if the checkpoint's disk had lost what was written to it last."""
        for log in ("offsets", "commits"):
            self._forget_last(log)

    def _forget_last(self, log: str) -> None:
        folder = self.checkpoint / log
        last = max(int(path.name) for path in folder.iterdir() if path.name.isdecimal())
        (folder / str(last)).unlink()
        (folder / f".{last}.crc").unlink()


def main(folder: str, url: str, topic: str, tasks: str, fault: str) -> None:
    session = local_session(Path(folder), master="local[2]", memory="512m")
    Lines(session, url, Path(folder)).run(topic, tasks=int(tasks), fault=fault)


if __name__ == "__main__":
    main(*sys.argv[1:])
