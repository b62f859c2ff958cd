"""A checkpoint that only Spark's JVM can open, as one in an object store: Hadoop's `viewfs` over a folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

import txnclient.sync
from tests.spark.service import Service
from tests.spark.sink_lines import Lines
from tests.waiting import wait_until

LOCATION = "viewfs://store/checkpoints/copy"
LONG_MS = "600000"
"""Behind the end of every test: what is aborted is not by its deadline."""


@pytest.fixture
def lines(spark: SparkSession, service: Service, tmp_path: Path) -> Iterator[Lines]:
    """`checkpoint` is what lies behind LOCATION, for the test to look at."""
    mounted = "fs.viewfs.mounttable.store.link./checkpoints"
    (tmp_path / "store").mkdir()
    spark.conf.set(mounted, f"file://{tmp_path}/store")
    lines = Lines(spark, service.url, tmp_path)
    lines.checkpoint = tmp_path / "store" / "copy"
    yield lines
    spark.conf.unset(mounted)


def test_a_query_whose_checkpoint_is_not_a_folder_of_the_driver_writes_exactly_once(
    spark: SparkSession, service: Service, sync_client: txnclient.sync.Client, topic: str, lines: Lines
) -> None:
    source = topic + "-source"
    sync_client.create_topic(source, segments=2)
    sync_client.create_topic(topic)
    rows = spark.readStream.format("txnstore").options(**{"service.url": service.url, "topic": source}).load()
    rows = rows.select("key", "value")
    sent: list[bytes] = []

    def send(*values: str) -> None:
        with sync_client.producer(source) as producer:
            producer.send_many([(value, value.encode()) for value in values])
        sent.extend(value.encode() for value in values)

    def copied() -> list[bytes]:
        with sync_client.reader(topic, end=sync_client.snapshot(topic)) as reader:
            return sorted(message.value for message in reader)

    send("a", "b", "c")
    lines.run(topic, rows=rows, checkpoint=LOCATION)
    assert copied() == sent
    lines.forget_last_commit()
    lines.run(topic, rows=rows, checkpoint=LOCATION)
    assert copied() == sent
    send("d", "e")
    with pytest.raises(StreamingQueryException, match="is ABORTED"):
        lines.run(topic, rows=rows, checkpoint=LOCATION, fault="abort before commit")
    assert copied() == sent[:3]
    lines.run(topic, rows=rows, checkpoint=LOCATION)
    assert copied() == sent
    listed = sync_client.admin("transactions.list", state="OPEN", limit=10_000)["transactions"]
    assert [one["name"] for one in listed if lines.query_id in (one["name"] or "")] == []


def outcomes(lines: Lines, client: txnclient.sync.Client) -> list[str]:
    """Of the transactions of which a task has told that it wrote in them."""
    written = {mark.name.removeprefix("written-").rpartition("-")[0] for mark in lines.marks.glob("written-*")}
    return list(client.admin("transactions.outcomes", txns=sorted(written))["outcomes"].values())


def test_x1_a_query_that_is_stopped_has_aborted_its_batch_though_its_checkpoint_is_remote(
    sync_client: txnclient.sync.Client, topic: str, lines: Lines
) -> None:
    """One of its tasks has written all of its rows, another one waits amid its own."""
    sync_client.create_topic(topic)
    lines.add(["a", "b", "c", "d"])
    options = {"checkpointLocation": LOCATION, "transactionTimeoutMs": LONG_MS}
    query = lines.start(topic, lines.rows(2), "stall last", **options)
    try:
        wait_until(lambda: (lines.marks / "stalled").exists() or not query.isActive, "a task to wait", within_s=100.0)
        wait_until(
            lambda: any(lines.marks.glob("written-*")) or not query.isActive,
            "the other to have written",
            within_s=100.0,
        )
        query.stop()
    finally:
        (lines.marks / "go").touch()
    assert query.exception() is None
    assert outcomes(lines, sync_client) == ["ABORTED"]
    assert lines.open_transactions(sync_client) == []


def test_x1_a_batch_that_fails_is_aborted_at_once_though_its_checkpoint_is_remote(
    sync_client: txnclient.sync.Client, topic: str, lines: Lines
) -> None:
    """▲ A task has written when another one has failed as often as Spark lets it."""
    sync_client.create_topic(topic)
    lines.add(["a", "b", "c", "d"])
    with pytest.raises(StreamingQueryException, match="a fault behind another task"):
        lines.run(topic, tasks=2, fault="fail last", checkpoint=LOCATION, transactionTimeoutMs=LONG_MS)
    assert outcomes(lines, sync_client) == ["ABORTED"]
    assert lines.open_transactions(sync_client) == []
    lines.run(topic, tasks=2, checkpoint=LOCATION)
    with sync_client.reader(topic, end=sync_client.snapshot(topic)) as reader:
        assert sorted(message.value for message in reader) == lines.written
