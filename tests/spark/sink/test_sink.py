"""The sink with real Spark, a real cluster and real processes (SCENARIOS X1, DESIGN §10)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import BinaryType, StructField, StructType

import txnclient.sync
from pyspark_txnstore.shared.options import SinkOptions
from pyspark_txnstore.shared.process_client import close_clients
from pyspark_txnstore.sink import batch_names, sink
from pyspark_txnstore.sink.attempt import Attempt
from pyspark_txnstore.sink.batch_names import BatchName
from pyspark_txnstore.sink.content import total
from pyspark_txnstore.sink.runs import BatchRun
from pyspark_txnstore.sink.winners import Repeat, to_commit
from tests.spark.service import REPOSITORY, Service
from tests.spark.sink_lines import Lines
from tests.waiting import wait_until
from txnstore.etcd.lifetime import tied_to_parent
from txnwire.errors import TxnNotFound
from txnwire.protocol import MIB


@pytest.fixture
def lines(spark: SparkSession, service: Service, tmp_path: Path) -> Lines:
    return Lines(spark, service.url, tmp_path)


def read_all(client: txnclient.sync.Client, topic: str) -> list[bytes]:
    """What is committed by now."""
    with client.reader(topic, end=client.snapshot(topic)) as reader:
        return [message.value for message in reader]


def stored(client: txnclient.sync.Client, topic: str) -> int:
    """Messages in the topic, of whatever transaction."""
    with client.reader(topic, isolation="read_uncommitted", end="latest") as reader:
        return sum(1 for _ in reader)


def save(frame: DataFrame, service: Service, topic: str | None = None, **options: str) -> None:
    if topic is not None:
        options["topic"] = topic
    frame.write.format("txnstore").options(**{"service.url": service.url, **options}).mode("append").save()


def test_x1_a_stream_is_written_once_and_a_batch_that_runs_again_writes_nothing(
    lines: Lines, sync_client: txnclient.sync.Client, topic: str
) -> None:
    """The last file of the commit log is deleted before a restart: Spark runs the batch again."""
    sync_client.create_topic(topic, segments=2)
    for batch in range(2):
        lines.add(f"{batch}-{number}" for number in range(20))
    lines.run(topic, tasks=3)
    assert Counter(read_all(sync_client, topic)) == Counter(lines.written)
    before = stored(sync_client, topic)
    lines.forget_last_commit()
    lines.add(["new"])
    lines.run(topic, tasks=3)
    assert Counter(read_all(sync_client, topic)) == Counter(lines.written)
    assert stored(sync_client, topic) == before + 1
    assert lines.open_transactions(sync_client) == []


def test_x1_a_restart_that_spells_its_checkpoint_otherwise_writes_nothing_twice(
    lines: Lines, sync_client: txnclient.sync.Client, topic: str
) -> None:
    """▲ A batch is named by its query's id, which stands in the checkpoint, and not by where that lies."""
    sync_client.create_topic(topic)
    lines.add(["a", "b"])
    lines.run(topic)
    lines.forget_last_commit()
    lines.run(topic, checkpoint=Path(os.path.relpath(lines.checkpoint)))
    assert Counter(read_all(sync_client, topic)) == Counter(lines.written)


@pytest.mark.parametrize("fault", ["fail midway", "kill after flush", "duplicate"])
def test_x1_attempts_that_do_not_win_never_happened(
    lines: Lines, sync_client: txnclient.sync.Client, topic: str, fault: str
) -> None:
    """A task that fails in mid-write or is killed after its flush is tried again; a speculative one is one too many."""
    sync_client.create_topic(topic, segments=2)
    lines.add(f"{number}" for number in range(30))
    lines.run(topic, tasks=2, fault=fault)
    assert Counter(read_all(sync_client, topic)) == Counter(lines.written)
    assert stored(sync_client, topic) > len(lines.written)
    assert lines.open_transactions(sync_client) == []


def test_x1_an_empty_batch_begins_nothing(lines: Lines, sync_client: txnclient.sync.Client, topic: str) -> None:
    sync_client.create_topic(topic)
    lines.add(["a", "no"])
    lines.add(["no", "no"])
    lines.add(["b"])
    lines.run(topic, rows=lines.rows(2).where("value != 'no'"), sinkName="empties")
    assert sorted(read_all(sync_client, topic)) == [b"a", b"b"]
    for batch in (0, 2):
        found = sync_client.admin("transactions.describe", name=lines.name(batch, topic, "empties"))
        assert found["outcome"] == "COMMITTED"
    with pytest.raises(TxnNotFound):
        sync_client.admin("transactions.describe", name=lines.name(1, topic, "empties"))


def test_x1_state_before_the_sink_goes_on_when_a_batch_was_found_committed(
    lines: Lines, sync_client: txnclient.sync.Client, topic: str
) -> None:
    sync_client.create_topic(topic)
    lines.add(["a", "b", "a"])
    distinct = lines.rows(1).dropDuplicates(["value"])
    lines.run(topic, rows=distinct)
    lines.forget_last_commit()
    lines.add(["b", "c"])
    lines.run(topic, rows=distinct)
    assert Counter(read_all(sync_client, topic)) == Counter([b"a", b"b", b"c"])


def test_x1_an_attempt_at_a_committed_batch_takes_all_its_rows_and_sends_none(
    service: Service, sync_client: txnclient.sync.Client, topic: str
) -> None:
    """▲ Or what keeps state before the sink would not have been read to its end, and have nothing to go on from. The
    batch is committed before the attempt begins, or by another driver while it writes."""
    sync_client.create_topic(topic)
    options = SinkOptions.parse({"service.url": service.url, "topic": topic}, use="stream write")
    batches = [pa.record_batch({"value": pa.array([b"%d" % number])}) for number in range(4)]
    taken: list[int] = []

    def rows(committer: txnclient.sync.Transaction | None) -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(batches):
            if committer is not None and number == 2:
                committer.commit(writers=[])
            taken.append(number)
            yield batch

    name = BatchName(f"{topic}/committed", "")
    run = BatchRun.begin()
    try:
        shared = sync_client.begin(name=name.text)
        late = Attempt(options, name, run, 1).write(rows(shared))
        again = Attempt(options, name, run, 2).write(rows(None))
    finally:
        close_clients()
    assert taken == [0, 1, 2, 3] * 2
    for written in (late, again):
        assert (written.txn_id, written.content.rows, written.committed) == (str(shared.id), 4, True)
    assert late.content == again.content
    assert to_commit([late, again]) == Repeat(name.text, str(shared.id), total([late.content, again.content]))
    assert stored(sync_client, topic) == 2
    assert read_all(sync_client, topic) == []


def test_x1_that_a_batch_is_committed_is_known_until_a_newer_one_is(
    service: Service, sync_client: txnclient.sync.Client, topic: str
) -> None:
    """▲ A query may come back after a year. A write that nobody can repeat is not remembered for ever."""
    sync_client.create_topic(topic)
    options = SinkOptions.parse({"service.url": service.url, "topic": topic}, use="stream write")
    query = "8c1f3c0e-5d3f-4f86-9c43-0b0f6a1f5a10"
    names = [
        batch_names.micro_batch_name(batch_names.stream_sink(None, topic), query, 3),
        batch_names.write_name(batch_names.batch_sink(None, topic), "day-1"),
        sink.batch_sink(options, StructType([StructField("value", BinaryType())]), overwrite=False).batch_name,
    ]
    kept = []
    try:
        for number, name in enumerate(names):
            rows = pa.record_batch({"value": pa.array([b"%d" % number])})
            Attempt(options, name, BatchRun.begin(), number).write(iter([rows]))
            told = sync_client.admin("transactions.describe", name=name.text)
            kept.append(told["keep_newest"])
            assert told["keep_ms"] == 30 * 86_400_000, "not the week of the service"
            sync_client.begin(name=name.text).abort()
    finally:
        close_clients()
    assert kept == [True, True, False]


@pytest.mark.process
@pytest.mark.timeout(300)
def test_x1_a_commit_outlives_the_servers_that_were_to_make_it(
    lines: Lines, service: Service, sync_client: txnclient.sync.Client, topic: str
) -> None:
    """Coordinator, store and a broker are killed when all tasks have flushed and the driver is about to commit."""
    sync_client.create_topic(topic, segments=2)
    lines.add(f"{number}" for number in range(20))

    def kill() -> None:
        wait_until((lines.marks / "held").exists, "the commit", within_s=150.0)
        service.kill("server", "etcd", "broker-1")
        (lines.marks / "go").touch()

    with ThreadPoolExecutor(1) as pool:
        killed = pool.submit(kill)
        lines.run(topic, tasks=2, fault="hold commit")
        killed.result()
    assert Counter(read_all(sync_client, topic)) == Counter(lines.written)
    assert stored(sync_client, topic) == len(lines.written)


def test_x1_a_fresh_checkpoint_under_an_old_sink_name_skips_nothing(
    lines: Lines, sync_client: txnclient.sync.Client, topic: str
) -> None:
    """It is another query, which has everything to write again: batch 0 is not taken for the old one's."""
    sync_client.create_topic(topic)
    lines.add(["a", "b"])
    lines.run(topic, sinkName="old")
    lines.run(topic, sinkName="old", checkpoint=lines.folder / "fresh")
    assert Counter(read_all(sync_client, topic)) == Counter(lines.written * 2)


def test_x1_a_transaction_that_times_out_in_mid_batch_fails_the_batch_which_then_runs_again(
    lines: Lines, sync_client: txnclient.sync.Client, topic: str
) -> None:
    """One task has written in the transaction that is aborted then, the other one writes in its successor."""
    sync_client.create_topic(topic)
    lines.add(f"{number}" for number in range(10))
    with pytest.raises(PySparkException, match="transactionTimeoutMs"):
        lines.run(topic, tasks=2, fault="outlive", transactionTimeoutMs="1500")
    assert read_all(sync_client, topic) == []
    assert lines.open_transactions(sync_client) == []
    lines.run(topic, tasks=2)
    assert Counter(read_all(sync_client, topic)) == Counter(lines.written)


def test_x1_what_was_aborted_before_its_commit_is_not_taken_for_written(
    lines: Lines, sync_client: txnclient.sync.Client, topic: str
) -> None:
    """▲ The driver ends what its tasks have written in. Had it begun the name to commit, that would be a fresh
    transaction, and the batch would be passed over without a row."""
    sync_client.create_topic(topic)
    lines.add(f"{number}" for number in range(10))
    with pytest.raises(PySparkException, match="ABORTED, its rows do not count: run the batch again"):
        lines.run(topic, tasks=2, fault="abort before commit")
    assert read_all(sync_client, topic) == []
    lines.run(topic, tasks=2)
    assert Counter(read_all(sync_client, topic)) == Counter(lines.written)


def test_x1_rows_name_their_topic(lines: Lines, sync_client: txnclient.sync.Client, topic: str) -> None:
    topics = [topic, topic + "-b"]
    for name in topics:
        sync_client.create_topic(name)
    lines.add(f"{number}" for number in range(20))
    target = f"if(int(value) % 2 = 0, '{topics[0]}', if(int(value) > 10, '{topics[1]}', NULL))"
    lines.run(topics[1], rows=lines.rows(2).selectExpr("value", f"{target} AS topic"))
    for remainder, name in enumerate(topics):
        assert sorted(read_all(sync_client, name), key=int) == [b"%d" % i for i in range(20) if i % 2 == remainder]


@contextmanager
def other_driver(folder: Path, service: Service, topic: str) -> Iterator[subprocess.Popen[bytes]]:
    """A driver of its own on the checkpoint in `folder`, when it has come to its first commit, which it holds."""
    command = [sys.executable, "-m", "tests.spark.sink_lines", str(folder), service.url, topic, "2", "hold commit"]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    with subprocess.Popen(
        tied_to_parent(command), cwd=REPOSITORY, env=environment, start_new_session=True, stderr=subprocess.DEVNULL
    ) as process:
        try:
            wait_until(
                lambda: (folder / "marks" / "held").exists() or process.poll() is not None, "the driver", within_s=200.0
            )
            assert process.poll() is None, "the driver has ended before it came to its commit"
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.process
@pytest.mark.timeout(600)
def test_x1_a_driver_killed_before_its_commit_is_succeeded_by_one_that_writes_the_batch_once(
    lines: Lines, service: Service, sync_client: txnclient.sync.Client, topic: str
) -> None:
    """Killed with its JVM when all tasks had flushed; the next one joins the same transaction, and only its rows
    count."""
    sync_client.create_topic(topic, segments=2)
    lines.add(f"{number}" for number in range(20))
    with other_driver(lines.folder, service, topic) as driver:
        os.killpg(driver.pid, signal.SIGKILL)
    assert read_all(sync_client, topic) == []
    assert len(lines.open_transactions(sync_client)) == 1
    lines.run(topic, tasks=2)
    assert Counter(read_all(sync_client, topic)) == Counter(lines.written)
    assert stored(sync_client, topic) == 2 * len(lines.written)
    assert lines.open_transactions(sync_client) == []


@pytest.mark.process
@pytest.mark.timeout(600)
def test_x1_of_two_drivers_on_one_checkpoint_one_writes(
    lines: Lines, service: Service, sync_client: txnclient.sync.Client, topic: str
) -> None:
    """The other one comes to its commit when the batch is committed, and goes on behind it if it can."""
    sync_client.create_topic(topic, segments=2)
    lines.add(f"{number}" for number in range(20))
    with other_driver(lines.folder, service, topic) as driver:
        lines.run(topic, tasks=2)
        assert Counter(read_all(sync_client, topic)) == Counter(lines.written)
        (lines.marks / "go").touch()
        driver.wait(200.0)
    assert Counter(read_all(sync_client, topic)) == Counter(lines.written)
    assert stored(sync_client, topic) == 2 * len(lines.written)
    lines.add(["more"])
    lines.run(topic)
    assert Counter(read_all(sync_client, topic)) == Counter(lines.written)
    assert lines.open_transactions(sync_client) == []


# ---- batch writes ---------------------------------------------------------------------------------------------------


def test_x1_a_batch_write_appears_as_a_whole(
    spark: SparkSession, service: Service, sync_client: txnclient.sync.Client, topic: str
) -> None:
    sync_client.create_topic(topic, segments=2)
    save(spark.range(10, numPartitions=3).selectExpr("string(id) AS value", "string(id) AS key"), service, topic)
    assert sorted(read_all(sync_client, topic)) == sorted(b"%d" % number for number in range(10))


def test_x1_a_write_with_an_id_is_made_once_however_often_it_is_repeated(
    spark: SparkSession, service: Service, sync_client: txnclient.sync.Client, topic: str
) -> None:
    sync_client.create_topic(topic)
    rows = spark.range(4).selectExpr("string(id) AS value")
    for write_id in ("day-1", "day-1", "day-2"):
        save(rows, service, topic, writeId=write_id)
    save(rows, service, topic)
    assert Counter(read_all(sync_client, topic)) == Counter({b"%d" % number: 3 for number in range(4)})


def test_x1_updates_are_written_once_by_write_ids(
    spark: SparkSession, service: Service, lines: Lines, sync_client: txnclient.sync.Client, topic: str
) -> None:
    """Spark gives Python's sinks no update mode: each batch is a write of its own, as docs/spark.md has it."""
    sync_client.create_topic(topic)
    lines.add(["a", "b", "a"])
    lines.add(["a"])

    def write(rows: DataFrame, batch: int) -> None:
        query = rows.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        assert query == lines.query_id
        save(rows, service, topic, writeId=f"{query}/{batch}")

    counts = lines.rows(1).groupBy("value").count().selectExpr("value AS key", "string(count) AS value")
    writer = counts.writeStream.outputMode("update").foreachBatch(write).trigger(availableNow=True)
    for run in range(2):
        query = writer.option("checkpointLocation", str(lines.checkpoint)).start()
        assert query.awaitTermination(100)
        assert sorted(read_all(sync_client, topic)) == [b"1", b"2", b"3"]
        if not run:
            lines.forget_last_commit()


def test_x1_a_write_that_fails_leaves_nothing_and_no_transaction(
    spark: SparkSession, service: Service, sync_client: txnclient.sync.Client, topic: str, tmp_path: Path
) -> None:
    """One task has written its rows, the other one fails for good; and a write of which every task fails."""
    sync_client.create_topic(topic)
    for wrong, name in (("id = 1", "partly"), ("id < 9", "wholly")):
        rows = spark.range(2, numPartitions=2).selectExpr(
            "explode(array('ok', if(%s, NULL, 'ok'))) AS value" % wrong  # noqa: UP031
        )
        with pytest.raises(PySparkException, match="null `value`"):
            save(rows, service, topic, sinkName=name)
        listed = sync_client.admin("transactions.list", state="OPEN")["transactions"]
        assert [one["name"] for one in listed if (one["name"] or "").startswith(name)] == []
    assert read_all(sync_client, topic) == []


def _aborted(client: txnclient.sync.Client, ids: list[txnclient.TxnId]) -> bool:
    return set(client.outcomes(ids).values()) == {"ABORTED"}


def test_x1_what_a_task_begins_when_its_batch_has_failed_already_is_aborted(
    service: Service, sync_client: txnclient.sync.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark fails a batch with the first of its tasks, and kills the other ones while they go on."""
    monkeypatch.setattr(sink, "STRAGGLERS_S", 100.0)
    options = SinkOptions.parse({"service.url": service.url}, use="write")
    with ThreadPoolExecutor() as pool:
        failed = pool.submit(sink.BatchSink(options, BatchName("late/1", "")).abort, [None])
        try:
            for _ in range(2):
                late = [sync_client.begin(name="late/1", timeout=60).id]
                wait_until(partial(_aborted, sync_client, late), "it to be aborted")
        finally:
            monkeypatch.setattr(sink, "STRAGGLERS_S", 0.0)
        failed.result(timeout=60)


def test_a_large_value_is_sent_in_pieces_with_its_batch(
    spark: SparkSession, service: Service, sync_client: txnclient.sync.Client, topic: str
) -> None:
    sync_client.create_topic(topic)
    lengths = [1, 6 * MIB, 2]
    rows = spark.createDataFrame([("k", number) for number in lengths], "key string, length int").coalesce(1)
    save(rows.selectExpr("key", "repeat('x', length) AS value"), service, topic)
    assert [len(value) for value in read_all(sync_client, topic)] == lengths


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ("id", {}, "no column `value`"),
        ("string(id) AS value, id AS key", {}, "`key` is bigint"),
        ("string(id) AS value, id AS other", {}, "`other` is not written"),
        ("string(id) AS value", {"topic": "topic://public/spark/nowhere"}, "creates no topics"),
        ("string(id) AS value", {"topic": "nowhere"}, "expected topic://"),
        ("string(id) AS value", {"transactionTimeoutMs": "3600001"}, "maximum of 3600000 ms"),
        ("string(id) AS value", {"sinkName": "x" * 301}, "sinkName has 301 bytes"),
        ("string(id) AS value, 'nowhere' AS topic", {}, "expected topic://"),
    ],
)
def test_what_cannot_be_written_says_why(
    spark: SparkSession,
    service: Service,
    sync_client: txnclient.sync.Client,
    topic: str,
    columns: str,
    options: dict[str, str],
    message: str,
) -> None:
    sync_client.create_topic(topic)
    with pytest.raises(PySparkException, match=message):
        save(spark.range(1).selectExpr(*columns.split(", ")), service, **{"topic": topic, **options})


def test_nothing_is_overwritten(
    spark: SparkSession, service: Service, sync_client: txnclient.sync.Client, topic: str
) -> None:
    sync_client.create_topic(topic)
    writer = spark.range(1).selectExpr("string(id) AS value").write.format("txnstore")
    with pytest.raises(PySparkException, match=r"use mode\('append'\)"):
        writer.options(**{"service.url": service.url, "topic": topic}).mode("overwrite").save()
