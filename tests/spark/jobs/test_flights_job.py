"""The flights job on a real cluster: what is there, then what came since, each once. Kills are the demo's."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import txnclient.sync
from pyspark_txnstore.jobs import flights as job
from tests.spark.service import Service

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]

AIRLINES = "carrier,name\nUA,United\nB6,JetBlue\n"
PLANES = "tailnum,year,seats\nN1,1999,100\nN2,NA,NA\n"


def flights(first: int, last: int) -> list[bytes]:
    """Flight `n` is `n` minutes late; every tenth never arrives."""
    return [
        json.dumps(
            {
                "row_id": number,
                "carrier": ("UA", "B6")[number % 2],
                "tailnum": ("N1", "N2", None)[number % 3],
                "dest": "ORD",
                "arr_delay": None if number % 10 == 0 else float(number),
            }
        ).encode()
        for number in range(first, last + 1)
    ]


def sums(rows: Sequence[dict[str, Any]]) -> dict[str, int]:
    return {
        name: sum(row[name] for row in rows) for name in ("flights", "arrived", "delay_minutes", "seats", "row_ids")
    }


def expected(last: int) -> dict[str, int]:
    numbers = range(1, last + 1)
    arrived = [number for number in numbers if number % 10]
    return {
        "flights": last,
        "arrived": len(arrived),
        "delay_minutes": sum(arrived),
        "seats": sum(100 for number in numbers if number % 3 == 0),
        "row_ids": sum(numbers),
    }


def test_statistics_go_on_from_the_checkpoint_exactly_once_to_the_topic_and_to_parquet(
    spark: SparkSession, service: Service, sync_client: txnclient.sync.Client, topic: str, tmp_path: Path
) -> None:
    statistics, parquet = f"{topic}-statistics", tmp_path / "statistics.parquet"
    for name in (topic, statistics):
        sync_client.create_topic(name, segments=2)
    for name, text in (("airlines", AIRLINES), ("planes", PLANES)):
        (tmp_path / name).write_text(text)
    words = ["--service", service.url, "--flights", topic, "--statistics", statistics, "--parquet", str(parquet)]
    words += ["--airlines", str(tmp_path / "airlines"), "--planes", str(tmp_path / "planes")]
    words += ["--checkpoint", str(tmp_path / "checkpoint"), "--available-now"]
    loaded = 0
    for until in (60, 100):
        with sync_client.producer(topic) as producer:
            txn = sync_client.begin()
            producer.send_many(flights(loaded + 1, until), txn=txn)
            txn.commit()
        loaded = until
        assert job.main(words) == 0
        with sync_client.reader(statistics, start="earliest", end="latest") as reader:
            messages = list(reader)
        rows = [json.loads(message.value) for message in messages]
        assert sums(rows) == expected(loaded)
        assert {(row["carrier"], row["airline"]) for row in rows} == {("UA", "United"), ("B6", "JetBlue")}
        assert {message.key for message in messages} == {b"UA/ORD", b"B6/ORD"}
        kept = [row.asDict() for row in spark.read.parquet(str(parquet)).collect()]
        assert sums(kept) == expected(loaded)
        by_transaction = sorted(str(message.txn_id) for message in messages)
        assert sorted(row["txn_id"] for row in kept) == by_transaction
    assert len(set(by_transaction)) == 2  # one for each micro-batch


def test_a_query_that_fails_ends_the_job_with_what_it_said(
    spark: SparkSession,
    service: Service,
    sync_client: txnclient.sync.Client,
    topic: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    sync_client.create_topic(topic, segments=1)
    with sync_client.producer(topic) as producer:
        producer.send(flights(1, 1)[0])
    for name, text in (("airlines", AIRLINES), ("planes", PLANES)):
        (tmp_path / name).write_text(text)
    words = ["--service", service.url, "--flights", topic, "--statistics", f"{topic}-missing", "--available-now"]
    words += ["--airlines", str(tmp_path / "airlines"), "--planes", str(tmp_path / "planes")]
    words += ["--checkpoint", str(tmp_path / "checkpoint"), "--parquet", str(tmp_path / "parquet")]
    assert job.main(words) == 2
    assert "TopicNotFound" in capfd.readouterr().err
