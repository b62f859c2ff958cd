"""Two loads in one query: Spark asks each for its end by itself, so each has a cut of its own (X2).

One load of both topics has one cut, also where its rows are parted and joined again: this is the way that the
documentation shows. Spark gives a Python source no sign of the query that it belongs to, nor of the query's other
sources, each of which has a process of its own.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.streaming.query import StreamingQuery

import txnclient.sync
from pyspark_txnstore import DefaultSource
from pyspark_txnstore.shared.options import SourceOptions
from pyspark_txnstore.source.stream import StreamReader
from tests.spark.micro_batches import commit
from tests.spark.service import Service
from tests.waiting import wait_until

FORMAT = "txnstore_gated"


class GatedReader(StreamReader):
    """Says that it is asked for an end, and waits for the test before it answers; the first time only."""

    def __init__(self, options: SourceOptions, schema: Any, folder: Path) -> None:
        super().__init__(options, schema)
        self._folder = folder

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        (self._folder / f"asked-{os.getpid()}").touch()
        if len(list(self._folder.glob("asked-*"))) == int((self._folder / "sources").read_text()):
            wait_until((self._folder / "go").exists, "the test to let the last source go")
        return super().latestOffset(start, limit)


class GatedSource(DefaultSource):
    @classmethod
    def name(cls) -> str:
        return FORMAT

    def streamReader(self, schema: Any) -> StreamReader:
        folder = Path(self.options.pop("gate"))
        return GatedReader(SourceOptions.parse(self.options, use="stream read"), schema, folder)


class Batches:
    """What each micro-batch of a query showed: (batch id, topic) → values."""

    def __init__(self) -> None:
        self.shown: dict[tuple[int, str], list[str]] = defaultdict(list)

    def __call__(self, rows: DataFrame, batch: int) -> None:
        for row in rows.select("topic", "value").collect():
            self.shown[batch, row["topic"]].append(row["value"].decode())

    def of(self, value: str) -> list[tuple[int, str]]:
        return sorted(key for key, values in self.shown.items() if value in values)


@contextmanager
def running(rows: DataFrame, batches: Callable[[DataFrame, int], None], folder: Path) -> Iterator[StreamingQuery]:
    writer = rows.writeStream.foreachBatch(batches).option("checkpointLocation", str(folder / "checkpoint"))
    query = writer.start()
    try:
        yield query
    finally:
        query.stop()


@pytest.fixture
def load(spark: SparkSession, service: Service, tmp_path: Path) -> Callable[..., DataFrame]:
    spark.dataSource.register(GatedSource)

    def loaded(**options: str) -> DataFrame:
        options |= {"service.url": service.url, "gate": str(tmp_path), "startingOffsets": "latest"}
        return spark.readStream.format(FORMAT).options(**options).load()

    return loaded


def wait(query: StreamingQuery, condition: Callable[[], object], what: str) -> None:
    """As long as the query runs."""
    wait_until(lambda: condition() or not query.isActive, what, within_s=100.0)
    if (error := query.exception()) is not None:
        raise error


def commit_between(
    query: StreamingQuery, client: txnclient.sync.Client, topics: list[str], folder: Path, sources: int
) -> None:
    """A transaction to both topics, when all sources but the last have told their end. The query's others have been
    asked before it, whichever it is."""
    wait(query, lambda: len(list(folder.glob("asked-*"))) == sources, "the last source to be asked")
    commit(client, topics, [b"both"])
    (folder / "go").touch()


def test_x2_two_loads_have_two_cuts_and_may_show_a_transaction_in_two_batches(
    load: Callable[..., DataFrame], sync_client: txnclient.sync.Client, topic: str, tmp_path: Path
) -> None:
    """What Spark's interface does not allow, so the documentation says it."""
    topics = [topic, topic + "-b"]
    for name in topics:
        sync_client.create_topic(name)
    (tmp_path / "sources").write_text("2")
    batches = Batches()
    with running(load(topic=topics[0]).union(load(topic=topics[1])), batches, tmp_path) as query:
        commit_between(query, sync_client, topics, tmp_path, 2)
        wait(query, lambda: len(batches.of("both")) == 2, "the transaction")
    (first, _), (second, _) = batches.of("both")
    assert first < second, "half of it in one batch, half in the next: if this fails, Spark has one cut for both"


@pytest.mark.parametrize("how", ["as it is", "parted and put together", "joined with itself"])
def test_x2_one_load_of_both_topics_has_one_cut(
    load: Callable[..., DataFrame], sync_client: txnclient.sync.Client, topic: str, tmp_path: Path, how: str
) -> None:
    """▲ However often the one DataFrame is used in the query."""
    topics = [topic, topic + "-b"]
    for name in topics:
        sync_client.create_topic(name)
    (tmp_path / "sources").write_text("1")
    both = load(topics=",".join(topics))
    one, other = (both.where(both["topic"] == name) for name in topics)
    if how == "parted and put together":
        both = one.union(other)
    elif how == "joined with itself":
        left = one.select("value", "topic")
        right = other.selectExpr("value AS same")
        both = left.join(right, left["value"] == right["same"])
    batches = Batches()
    with running(both, batches, tmp_path) as query:
        commit_between(query, sync_client, topics, tmp_path, 1)
        expected = topics if how != "joined with itself" else topics[:1]
        wait(query, lambda: len(batches.of("both")) == len(expected), "the transaction")
    assert len({batch for batch, _ in batches.of("both")}) == 1
