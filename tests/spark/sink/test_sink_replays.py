"""Other rows under the name of what is committed, with real Spark: they are never lost in silence (X1, DESIGN §10)."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import txnclient.sync
from tests.spark.service import Service
from tests.spark.sink.test_sink import read_all, save
from tests.spark.sink_lines import Lines


@pytest.fixture
def lines(spark: SparkSession, service: Service, tmp_path: Path) -> Lines:
    return Lines(spark, service.url, tmp_path)


def test_x1_a_checkpoint_that_has_lost_its_newest_batch_fails_instead_of_dropping_rows(
    lines: Lines, sync_client: txnclient.sync.Client, topic: str
) -> None:
    """▲ Its number is given out again, for what it had read and what has come since: found committed, the new rows
    would be counted by Spark and be nowhere. Under another `sinkName` the batch is written, with what it had."""
    sync_client.create_topic(topic)
    lines.add(["a"])
    lines.add(["b", "c"])
    lines.run(topic)
    lines.forget_last_batch()
    lines.add(["d", "e", "f"])
    before = read_all(sync_client, topic)
    for _ in range(2):
        with pytest.raises(PySparkException, match=r"committed with rows=2 .* this run of it has rows=5 "):
            lines.run(topic, tasks=2)
        assert read_all(sync_client, topic) == before
        assert lines.open_transactions(sync_client) == []
    lines.run(topic, tasks=2, sinkName="again")
    assert Counter(read_all(sync_client, topic)) == Counter([*lines.written, b"b", b"c"])


def test_x1_rows_that_differ_on_purpose_are_left_out_where_that_is_allowed(
    lines: Lines, sync_client: txnclient.sync.Client, topic: str
) -> None:
    """A query that makes other rows whenever it runs, whose driver has died between the sink's commit and Spark's."""
    sync_client.create_topic(topic)
    lines.add(["a", "b"])
    lines.run(topic)
    lines.forget_last_commit()
    others = lines.rows(1).selectExpr("concat(value, '-') AS value")
    with pytest.raises(PySparkException, match=r"committed with rows=2 .* has rows=2 "):
        lines.run(topic, rows=others)
    lines.run(topic, rows=others, allowDifferentReplay="true")
    lines.add(["c"])
    lines.run(topic)
    assert Counter(read_all(sync_client, topic)) == Counter(lines.written)


def test_x1_a_batch_that_runs_again_may_divide_its_rows_otherwise(
    lines: Lines, sync_client: txnclient.sync.Client, topic: str
) -> None:
    """And read them in another order, and give its tasks another number of them."""
    sync_client.create_topic(topic)
    lines.add(f"{number}" for number in range(50))
    lines.run(topic, tasks=3)
    lines.forget_last_commit()
    lines.run(topic, rows=lines.rows(2).selectExpr("cast(value AS binary) AS Value", "cast(NULL AS string) AS key"))
    assert Counter(read_all(sync_client, topic)) == Counter(lines.written)


def test_x1_another_write_under_a_write_id_is_refused(
    spark: SparkSession, service: Service, sync_client: txnclient.sync.Client, topic: str
) -> None:
    sync_client.create_topic(topic)
    rows = spark.range(4).selectExpr("string(id) AS value")
    save(rows, service, topic, writeId="day-1")
    for others in (rows.limit(3), rows.where("value != '0'").union(rows.where("value = '1'"))):
        with pytest.raises(PySparkException, match=r"committed with rows=4 .* two writes share a writeId"):
            save(others, service, topic, writeId="day-1")
    save(rows.limit(3), service, topic, writeId="day-1", allowDifferentReplay="true")
    assert sorted(read_all(sync_client, topic)) == [b"0", b"1", b"2", b"3"]


def test_x1_two_frames_of_a_batch_that_name_their_topics_are_two_writes(
    spark: SparkSession, service: Service, sync_client: txnclient.sync.Client, topic: str
) -> None:
    """▲ Both have one `writeId`, as docs/spark.md has it, and no option `topic` tells them apart."""
    topics = [topic, topic + "-b"]
    for name in topics:
        sync_client.create_topic(name)
    rows = spark.createDataFrame([("a",), ("b",)], "value string").coalesce(1)
    frames = [rows.selectExpr("value", f"'{name}' AS topic") for name in topics]
    with pytest.raises(PySparkException, match="give each of them a `sinkName` of its own"):
        save(frames[0], service, writeId="0")
    for _ in range(2):
        for name, frame in zip(topics, frames, strict=True):
            save(frame, service, writeId="0", sinkName=name)
    for name in topics:
        assert sorted(read_all(sync_client, name)) == [b"a", b"b"]
