"""`txnctl spark checkpoint` and checkpoints that Spark has written, of our source and our sink."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from typer.testing import CliRunner

import txnclient.sync
from tests.spark.service import Service
from tests.spark.sink.test_sink import read_all
from tests.spark.sink_lines import Lines
from txnctl.cli import app


@pytest.fixture
def lines(spark: SparkSession, service: Service, tmp_path: Path) -> Lines:
    return Lines(spark, service.url, tmp_path)


def told(lines: Lines, service: Service, *words: str) -> str:
    command = ["spark", "checkpoint", f"file://{lines.checkpoint}", "--url", service.url, *words]
    found = CliRunner().invoke(app, command)
    assert found.exit_code == 0, found
    return found.output


def restarted(lines: Lines, service: Service, *words: str) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(told(lines, service, *words, "-o", "json"))["restart"]
    return answer


@pytest.mark.parametrize("form", ["1", "2"])
def test_what_is_told_of_a_restart_is_what_it_does(
    lines: Lines, spark: SparkSession, service: Service, sync_client: txnclient.sync.Client, topic: str, form: str
) -> None:
    source, setting = f"{topic}-source", "spark.sql.streaming.offsetLog.formatVersion"
    for name in (topic, source):
        sync_client.create_topic(name)

    def rows() -> DataFrame:
        options = {"service.url": service.url, "topic": source}
        return spark.readStream.format("txnstore").options(**options).load().select("key", "value")

    def send(value: bytes) -> None:
        with sync_client.producer(source) as producer:
            producer.send(value)

    spark.conf.set(setting, form)
    try:
        for value in (b"a", b"b"):
            send(value)
            lines.run(topic, rows=rows())
    finally:
        spark.conf.unset(setting)
    done = json.loads(told(lines, service, "--topic", topic, "-o", "json"))
    assert done["query_id"] == lines.query_id
    assert [(one["batch"], one["spark_commit"], one["outcome"]) for one in done["batches"]] == [
        (0, True, "COMMITTED"),
        (1, True, "COMMITTED"),
    ]
    assert done["batches"][1]["transaction"] == lines.name(1, topic)
    [first], [second] = (one["offsets"] for one in done["batches"])
    assert (first["topic"], second["begin"], second["end"] > second["begin"]) == (source, first["end"], True)
    assert (done["restart"]["batch"], done["restart"]["again"], done["restart"]["outcome"]) == (2, False, None)

    lines.forget_last_commit()
    again = restarted(lines, service, "--topic", topic)
    assert (again["batch"], again["again"], again["outcome"]) == (1, True, "COMMITTED")
    assert "its rows are left out, nothing is written twice" in told(lines, service, "--topic", topic)
    assert restarted(lines, service, "--topic", f"{topic}-other")["outcome"] is None
    assert "was never begun: the batch is written" in told(lines, service, "--sink-name", "another")
    lines.run(topic, rows=rows())
    assert sorted(read_all(sync_client, topic)) == [b"a", b"b"]
