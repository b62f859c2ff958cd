"""Source and sink without the JVM: `python -m tests.process.spark_pipeline.light RUN.json` calls them as Spark does,
keeps a checkpoint as Spark does, and starts in a second. It never ends by itself, unless `available_now`.

Now and then it begins anew within itself, with other limits: between two batches, or amid one. Of each batch it leaves
the rows of each time it was read, as a whole or in part.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import pickle
import random
import sys
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import CaseInsensitiveDict, WriterCommitMessage
from pyspark.sql.streaming.datasource import ReadAllAvailable

from pyspark_txnstore import DefaultSource
from pyspark_txnstore.shared.options import SinkOptions
from pyspark_txnstore.sink import batch_names
from pyspark_txnstore.sink.attempt import Attempt
from pyspark_txnstore.sink.runs import BatchRun
from pyspark_txnstore.sink.sink import StreamSink
from pyspark_txnstore.source.stream import StreamReader
from tests.process.spark_pipeline.driver import FAILED, DriverRun, marked
from txnclient import TxnError

SINK = "light"
ATTEMPTS = 3
LIMITS = {
    "maxBytesPerTrigger": (1, 2_000, 20_000, 200_000, 2_000_000),
    "maxEntriesPerTrigger": (1, 2, 5, 30, 200),
    "minPartitions": (3, 4, 7, 20),
}
PAUSE_S = 0.02
"""Between two questions for the newest offset."""


class Checkpoint:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        for name in ("offsets", "commits"):
            (folder / name).mkdir(parents=True, exist_ok=True)

    def numbers(self, what: str) -> list[int]:
        return sorted(int(path.name) for path in (self._folder / what).iterdir() if path.name.isdecimal())

    def put(self, what: str, number: int, content: Mapping[str, Any]) -> None:
        """Raises `FileExistsError` where another driver was faster."""
        part = self._folder / what / f"{number}.{os.getpid()}"
        part.write_text(f"v1\n{{}}\n{json.dumps(content)}\n")
        os.link(part, self._folder / what / str(number))
        part.unlink()

    def offset(self, number: int) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self._folder / "offsets" / str(number)).read_text().splitlines()[2])
        return found


class Query:
    def __init__(self, run: DriverRun) -> None:
        self._run = run
        self._seen = Path(run.folder) / "seen"
        self._log = Checkpoint(Path(run.folder) / "first")
        self._random = random.Random(f"{run.number}")
        self._source = run.source
        self._sink = SinkOptions.parse(CaseInsensitiveDict(run.sink), use="stream write")
        self._named = batch_names.stream_sink(SINK, self._sink.topic)
        self._written_by = BatchRun.begin()
        self._attempts = itertools.count()
        self._query_id = str(uuid.uuid5(uuid.NAMESPACE_URL, run.folder))
        self._reader = self._new()
        self._initial = self._reader.initialOffset()
        if run.available_now:
            self._reader.prepareForTriggerAvailableNow()

    def _new(self) -> StreamReader:
        source = DefaultSource(options={**self._source, "columns": "key,value,txn_id"})
        return source.streamReader(source.schema())

    def _restart(self) -> None:
        """With nothing but the checkpoint. ▲ Where a query that has none would begin is another place by now."""
        if not self._run.available_now:
            chance = self._random
            self._source = {name: text for name, text in self._run.source.items() if name not in LIMITS}
            for name, values in LIMITS.items():
                if chance.random() < 0.5:
                    self._source[name] = str(chance.choice(values))
        target = self._reader._target  # of a query that ends there: the end stays
        self._reader = self._new()
        self._reader._target = target
        self._initial = self._reader.initialOffset()

    def run(self) -> None:
        begun, done = self._log.numbers("offsets"), self._log.numbers("commits")
        number = len(begun)
        if len(done) < number:
            self._batch(number - 1)
        while True:
            start = self._start(number)
            limit = self._reader.getDefaultReadLimit()
            if self._random.random() < 0.02:
                limit = ReadAllAvailable()
            end = json.loads(json.dumps(self._reader.latestOffset(start, limit)))
            if end == start:
                if self._run.available_now:
                    return
                time.sleep(PAUSE_S)
                continue
            self._log.put("offsets", number, end)
            if self._random.random() < 0.1:
                self._restart()
            self._batch(number)
            number += 1

    def _start(self, number: int) -> dict[str, Any]:
        return self._log.offset(number - 1) if number else json.loads(json.dumps(self._initial))

    def _batch(self, number: int) -> None:
        if self._random.random() < 0.1:
            self._read(number, 1, share=self._random.random())
            self._restart()
        self._written_by = BatchRun.begin()
        messages: list[WriterCommitMessage | None] = [
            self._task(number, partition) for partition in self._read(number, 0)
        ]
        if self._random.random() < 0.1:
            self._restart()
        StreamSink(self._sink, self._named).commit(messages, number)
        if self._random.random() < 0.2:
            self._restart()
            self._read(number, 2)
        self._log.put("commits", number, {})
        self._reader.commit(self._log.offset(number))

    def _task(self, number: int, rows: list[pa.RecordBatch]) -> WriterCommitMessage:
        """Its attempts, of which one wins: not always the first that has flushed."""
        name = batch_names.micro_batch_name(self._named, self._query_id, number)
        for left in range(ATTEMPTS - 1, -1, -1):
            kind = self._random.random()
            try:
                if kind < 0.1:  # killed in the midst of it
                    self._attempt(name).write(iter(rows[: len(rows) // 2]))
                elif kind < 0.2:  # it was as fast, and was not chosen
                    self._attempt(name).write(iter(rows))
                return self._attempt(name).write(iter(rows))
            except TxnError:
                if not left:
                    raise
        raise AssertionError

    def _attempt(self, name: batch_names.BatchName) -> Attempt:
        return Attempt(self._sink, name, self._written_by, next(self._attempts))

    def _read(self, number: int, again: int, share: float = 1.0) -> list[list[pa.RecordBatch]]:
        """Of each partition what is to be written."""
        parts = self._reader.partitions(self._start(number), self._log.offset(number))
        task = pickle.loads(pickle.dumps(self._new()))
        found = []
        for partition, part in list(enumerate(parts))[: math.ceil(len(parts) * share)]:
            path = self._seen / f"first.{number}.{self._run.number}.{partition}.{again}"
            batches = task.read(pickle.loads(pickle.dumps(part)))
            found.append(list(marked(batches, number, self._run.number, path)))
        return found


def main(path: Path) -> int:
    run = DriverRun.load(path)
    try:
        Query(run).run()
    except (TxnError, FileExistsError) as error:
        print(f"FAILED {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        return FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
