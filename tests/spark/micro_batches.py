"""A streaming query without its JVM: the calls Spark makes to the source, in its order, over text and pickles.

What hangs on offsets, cuts and reading is tested so, in a fraction of the time; `test_source.py` has real Spark.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable

import txnclient.sync
from pyspark_txnstore import DefaultSource
from pyspark_txnstore.source.stream import StreamReader

Row = dict[str, Any]


class MicroBatches:
    """`offsets`: the log of a checkpoint, in text as Spark keeps it, behind the initial one, which Spark does not keep.
    A batch is its rows, in no certain order."""

    def __init__(self, url: str, options: Mapping[str, str]) -> None:
        self._options = {"service.url": url, **options}
        self.offsets: list[str] = []
        self.reader = self._new()
        self._limited = False

    def _new(self) -> StreamReader:
        source = DefaultSource(options=self._options)
        return source.streamReader(source.schema())

    def restart(self, **options: str) -> None:
        """As a driver that goes on from its checkpoint, maybe with other options."""
        self._options |= options
        self.reader = self._new()

    def available_now(self) -> list[list[Row]]:
        """All batches up to what there is now."""
        self.reader.prepareForTriggerAvailableNow()
        batches = []
        while (batch := self.next()) is not None:
            batches.append(batch)
        return batches

    def next(self) -> list[Row] | None:
        """The next one; None where there is nothing new. What has come is looked for anew, also where it has not yet
        been told to a query that is at rest: see `test_idle.py`."""
        self.reader.look_again()
        if len(self.offsets) < 2:
            self.offsets = [json.dumps(self.reader.initialOffset())]
            assert json.dumps(self.reader.initialOffset()) == self.offsets[0]
        start = json.loads(self.offsets[-1])
        limit = self.reader.getDefaultReadLimit()
        end = json.dumps(self.reader.latestOffset(start, limit))
        if end == json.dumps(start):
            return None
        self.offsets.append(end)
        batch = self.replay(len(self.offsets) - 2)
        self.reader.commit(json.loads(end))
        return batch

    def all_at_once(self) -> list[Row] | None:
        """The next one, of a trigger that takes everything whatever the limits."""
        start = json.loads(self.offsets[-1])
        self.offsets.append(json.dumps(self.reader.latestOffset(start, ReadAllAvailable())))
        return self.replay(len(self.offsets) - 2)

    def partitions(self, number: int) -> list[InputPartition]:
        """Of batch `number`."""
        start, end = (json.loads(offset) for offset in self.offsets[number : number + 2])
        if number == 0:
            start = json.loads(json.dumps(self.reader.initialOffset()))  # not in a checkpoint: asked for anew
        return [pickle.loads(pickle.dumps(one)) for one in self.reader.partitions(start, end)]

    def replay(self, number: int) -> list[Row]:
        """Batch `number` from its offsets alone, read by a reader of its own as in a task."""
        task = pickle.loads(pickle.dumps(self._new()))
        return [row for one in self.partitions(number) for batch in task.read(one) for row in batch.to_pylist()]


def values(rows: Iterable[Row] | None) -> list[bytes]:
    """In order of their bytes."""
    assert rows is not None
    return sorted(row["value"] for row in rows)


Start = Callable[..., MicroBatches]
"""Of a query: its options, which name the test's topic unless they name others."""


def send(
    client: txnclient.sync.Client, topic: str, some: Iterable[bytes], txn: txnclient.sync.Transaction | None = None
) -> None:
    """Each in an entry of its own, with itself as the key."""
    with client.producer(topic) as producer:
        for value in some:
            producer.send(value, key=value, txn=txn)


def commit(client: txnclient.sync.Client, topics: Iterable[str], some: Iterable[bytes]) -> None:
    """All of them to each of the topics, in one transaction."""
    some = list(some)
    with client.transaction() as txn:
        for topic in topics:
            send(client, topic, some, txn)


def numbered(prefix: str, count: int) -> list[bytes]:
    return [f"{prefix}{number:03d}".encode() for number in range(count)]
