"""The job export over a real cluster: what is in the folder is what was committed at its newest cut."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from pyarrow import parquet
from pyspark.sql import SparkSession

import txnclient.sync
from pyspark_txnstore.jobs import command_line, export
from pyspark_txnstore.jobs.export_folder import ExportFolder
from tests.spark.service import Service
from tests.waiting import wait_until
from txnclient import Snapshot
from txnstore.etcd.lifetime import tied_to_parent

pytestmark = pytest.mark.timeout(400)
REPOSITORY = Path(__file__).parents[3]


def send(client: txnclient.sync.Client, topic: str, values: list[str], txn: txnclient.sync.Transaction | None) -> None:
    with client.producer(topic) as producer:
        producer.send_many([(value, value.encode()) for value in values], txn=txn)


def rows(folder: Path) -> list[tuple[bytes, str]]:
    tables = [parquet.read_table(file, partitioning=None) for file in folder.glob("increment=*/*.parquet")]
    found = (table.select(["value", "topic"]).to_pylist() for table in tables)
    return sorted((row["value"], row["topic"]) for some in found for row in some)


def read(client: txnclient.sync.Client, cut: Snapshot) -> list[tuple[bytes, str]]:
    with client.reader(list(cut.topics), end=cut) as reader:
        return sorted((message.value, message.topic) for message in reader)


def run(service: Service, folder: Path, *arguments: str) -> int:
    return export.main(["--service", service.url, "--output", str(folder), *arguments])


def test_an_export_grows_from_cut_to_cut_across_a_split(
    spark: SparkSession,
    service: Service,
    sync_client: txnclient.sync.Client,
    topic: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    client, other, folder = sync_client, f"{topic}-other", tmp_path / "export"
    for name in (topic, other):
        client.create_topic(name, segments=2, autoscale="off")
    committed, aborted, late = client.begin(), client.begin(), client.begin(timeout=600)
    for number, txn in enumerate((committed, aborted, late, None)):
        for name in (topic, other):
            send(client, name, [f"{number}-{index}" for index in range(20)], txn)
    committed.commit()
    aborted.abort()
    topics = ("--topics", f"{topic},{other}")

    assert run(service, folder, *topics) == command_line.CLEAN
    first = ExportFolder(str(folder)).last_cut()
    assert first.pending == (late.id,)
    assert rows(folder) == read(client, first)
    assert len(rows(folder)) == 80

    assert run(service, folder, *topics) == command_line.CLEAN
    assert "nothing new since increment 1" in capsys.readouterr().out

    client.split(next(iter(client.describe_topic(topic).active)).path)
    send(client, topic, [f"later-{index}" for index in range(20)], late)
    late.commit()
    assert run(service, folder, *topics, "--files", "1") == command_line.CLEAN
    second = ExportFolder(str(folder)).last_cut()
    assert rows(folder) == read(client, second)
    assert len(rows(folder)) == 140
    counted = spark.read.parquet(str(folder)).groupBy("increment").count().collect()
    assert {row.increment: row["count"] for row in counted} == {1: 80, 2: 60}

    # As of an older snapshot, which was kept: the first one's, from the beginning.
    kept = tmp_path / "cut.json"
    kept.write_text(first.to_json())
    assert run(service, tmp_path / "as-of", "--snapshot", str(kept)) == command_line.CLEAN
    assert rows(tmp_path / "as-of") == read(client, first)

    # What cannot be gone on with is refused, and changes nothing.
    capsys.readouterr()
    assert run(service, folder, "--topics", topic) == command_line.UNDECIDED
    assert f"{other} was exported" in capsys.readouterr().err
    assert run(service, folder, "--snapshot", str(kept)) == command_line.UNDECIDED
    assert "is newer than the end" in capsys.readouterr().err
    assert ExportFolder(str(folder)).last_cut() == second


def test_a_killed_export_is_finished_by_the_next(
    spark: SparkSession, service: Service, sync_client: txnclient.sync.Client, topic: str, tmp_path: Path
) -> None:
    """SIGKILL of the driver and all its children while Parquet is written."""
    sync_client.create_topic(topic, segments=2)
    send(sync_client, topic, [f"a-{index}" for index in range(500)], None)
    assert run(service, tmp_path, "--topics", topic) == command_line.CLEAN
    send(sync_client, topic, [f"b-{index}" for index in range(500)], None)
    before = ExportFolder(str(tmp_path)).last()
    command = [
        sys.executable, "-m", "pyspark_txnstore.jobs.export", "--master", "local[1]",
        "--service", service.url, "--topics", topic, "--output", str(tmp_path),
    ]  # fmt: skip
    environment = {name: value for name, value in os.environ.items() if name != "PYSPARK_GATEWAY_PORT"}
    with subprocess.Popen(tied_to_parent(command), cwd=REPOSITORY, env=environment, start_new_session=True) as process:
        wait_until(
            lambda: list(tmp_path.glob(".making-*")) or process.poll() is not None,
            "the export to write",
            within_s=200.0,
        )
        assert process.poll() is None, "it ended before it could be killed"
        os.killpg(process.pid, signal.SIGKILL)
    assert ExportFolder(str(tmp_path)).last() == before
    assert len(rows(tmp_path)) == 500
    assert run(service, tmp_path, "--topics", topic) == command_line.CLEAN
    expected = [(f"{part}-{index}".encode(), topic) for part in "ab" for index in range(500)]
    assert rows(tmp_path) == sorted(expected)
    assert list(tmp_path.glob(".making-*")) == []


def test_an_export_knows_of_a_split_before_anything_is_sent(
    spark: SparkSession, service: Service, sync_client: txnclient.sync.Client, topic: str, tmp_path: Path
) -> None:
    """▲ Retention may take the parent, all of which was exported, before the next run: that is no loss."""
    sync_client.create_topic(topic, autoscale="off")
    send(sync_client, topic, ["a", "b"], None)
    assert run(service, tmp_path, "--topics", topic) == command_line.CLEAN
    (parent,) = sync_client.describe_topic(topic).active
    sync_client.split(parent.path)
    assert run(service, tmp_path, "--topics", topic) == command_line.CLEAN
    cut = ExportFolder(str(tmp_path)).last_cut()
    bounds = cut.topics[topic]
    children = {path: one for path, one in bounds.segments.items() if path != parent.path}
    trimmed = replace(cut, topics={topic: bounds._replace(segments=children, lost_id=parent.segment_id)})
    assert cut.obstacle(trimmed) is None
    assert rows(tmp_path) == [(b"a", topic), (b"b", topic)]
    assert spark.read.parquet(str(tmp_path)).count() == 2
