"""What the sink does about other runs of a batch: earlier, dead, rival ones, those of a copied checkpoint (X1, C8)."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import txnclient.sync
from pyspark_txnstore.shared.options import SinkOptions
from pyspark_txnstore.shared.process_client import close_clients
from pyspark_txnstore.sink import attempt, batch_names, sink
from pyspark_txnstore.sink.attempt import Attempt
from pyspark_txnstore.sink.batch_names import BatchName
from pyspark_txnstore.sink.runs import BatchRun
from pyspark_txnstore.sink.winners import BatchCommit, Repeat, Written, to_commit
from tests.spark.service import REPOSITORY, Service
from tests.spark.sink.test_sink import read_all, stored
from tests.spark.sink_lines import Lines
from tests.waiting import wait_until
from txnstore.etcd.lifetime import tied_to_parent
from txnwire.errors import ConnectionLost, InvalidTxnState, TopicNotFound, TxnError

OLDER, NEWER = (BatchRun(time_ms.to_bytes(6, "big") + bytes(6)) for time_ms in (1_700_000_000_000, 1_700_000_000_001))


@pytest.fixture
def lines(spark: SparkSession, service: Service, tmp_path: Path) -> Lines:
    return Lines(spark, service.url, tmp_path)


@pytest.fixture
def options(service: Service, sync_client: txnclient.sync.Client, topic: str) -> Iterator[SinkOptions]:
    """Of a sink of the test's topic, in this process."""
    sync_client.create_topic(topic)
    yield SinkOptions.parse({"service.url": service.url, "topic": topic}, use="stream write")
    close_clients()


def write(options: SinkOptions, name: BatchName, run: BatchRun, task: int, *values: bytes) -> Written:
    return Attempt(options, name, run, task).write(iter([pa.record_batch({"value": pa.array(values)})]))


def test_x1_a_producer_that_has_failed_fails_no_later_task_of_its_process(
    options: SinkOptions, sync_client: txnclient.sync.Client, topic: str
) -> None:
    """▲ It is kept from task to task: of a topic that is made again it would fail for ever."""
    sink_of_topic = batch_names.batch_sink(None, topic)
    commit(options, write(options, batch_names.write_name(sink_of_topic, "one"), NEWER, 90, b"lost"))
    sync_client.delete_topic(topic, force=True)
    sync_client.create_topic(topic)
    for task in range(91, 100):
        try:
            written = write(options, batch_names.write_name(sink_of_topic, "two"), NEWER, task, b"kept")
        except TxnError:
            continue  # the one that finds out
        break
    else:
        raise AssertionError("every task fails")
    assert task < 93
    commit(options, written)
    assert read_all(sync_client, topic) == [b"kept"]


def commit(options: SinkOptions, *written: Written) -> BatchCommit | Repeat | None:
    decided = to_commit(written)
    sink._commit(options, decided)
    return decided


# ---- a copied checkpoint --------------------------------------------------------------------------------------------


def test_x1_a_checkpoint_that_was_copied_for_another_topic_writes_there(
    lines: Lines, sync_client: txnclient.sync.Client, topic: str
) -> None:
    """▲ Blue and green: query and batches are the same, what is written to is not."""
    green, copied = topic + "-green", lines.folder / "green"
    for name in (topic, green):
        sync_client.create_topic(name)
    lines.add(["a", "b"])
    lines.run(topic)
    shutil.copytree(lines.checkpoint, copied)
    lines.add(["c", "d"])
    lines.run(topic)
    lines.run(green, checkpoint=copied)
    assert sorted(read_all(sync_client, topic)) == [b"a", b"b", b"c", b"d"]
    assert sorted(read_all(sync_client, green)) == [b"c", b"d"]


# ---- names of earlier versions --------------------------------------------------------------------------------------


def test_x1_what_an_earlier_version_committed_is_not_written_again(
    lines: Lines, sync_client: txnclient.sync.Client, topic: str
) -> None:
    """▲ Its driver died between its commit and Spark's; the name that it gave the batch lacks the topic. A transaction
    that it has left open is aborted, and the batch is written."""
    sync_client.create_topic(topic)
    lines.add(["a"])
    lines.run(topic)
    lines.add(["b", "c"])
    former = sync_client.begin(name=f"spark/{lines.query_id}/1")
    with sync_client.producer(topic) as producer:
        for value in (b"b", b"c"):
            producer.send(value, txn=former)
        former.commit(writers=[former.writer_id])
        lines.add(["d"])
        left = sync_client.begin(name=f"spark/{lines.query_id}/2")
        producer.send(b"d", txn=left)
        left.flush()
    lines.run(topic)
    assert Counter(read_all(sync_client, topic)) == Counter(lines.written)
    assert sync_client.outcomes([left.id]) == {left.id: "ABORTED"}
    assert lines.open_transactions(sync_client) == []


class CommitsBehindTheLook:
    """A client; what another driver commits lands right behind the first look at its transaction."""

    def __init__(self, client: txnclient.sync.Client, former: txnclient.sync.Transaction) -> None:
        self._client = client
        self._former: txnclient.sync.Transaction | None = former

    def admin(self, request: str, **named: Any) -> Any:
        found = self._client.admin(request, **named)
        if self._former is not None:
            former, self._former = self._former, None
            former.commit(writers=[former.writer_id])
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)


def test_x1_what_an_earlier_version_commits_while_its_name_is_looked_at_is_not_written_again(
    options: SinkOptions, sync_client: txnclient.sync.Client, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """▲ Its commit may be on its way; aborting what it has left open then says that it has come."""
    former = sync_client.begin(name="former")
    with sync_client.producer(topic) as producer:
        producer.send(b"a", txn=former)
    written = write(options, BatchName("job/7", "former"), NEWER, 1, b"a")
    client = CommitsBehindTheLook(sync_client, former)
    monkeypatch.setattr(sink, "client_of", lambda *_, **__: client)
    commit(options, written)
    assert read_all(sync_client, topic) == [b"a"]
    assert sync_client.outcomes([former.id]) == {former.id: "COMMITTED"}


# ---- what is stopped leaves nothing open ----------------------------------------------------------------------------


def test_x1_a_batch_that_is_stopped_is_aborted_at_once_wherever_its_checkpoint_is(
    spark: SparkSession, lines: Lines, sync_client: txnclient.sync.Client, topic: str
) -> None:
    """▲ Readers would wait for its deadline. No task can tell where it wrote; what another query has open under the
    same sink, at a batch of the same number, stays open."""
    sync_client.create_topic(topic)
    lines.add(["a", "b"])
    sink_name = batch_names.stream_sink(None, topic)
    other = sync_client.begin(name=batch_names.micro_batch_name(sink_name, str(uuid.uuid4()), 0).text, timeout=300)
    spark.conf.set("spark.sql.streaming.checkpointLocation", str(lines.folder / "checkpoints"))
    try:
        query = lines.start(topic, lines.rows(1), "stall", queryName="stopped")
        wait_until(lambda: (lines.marks / "stalled").exists() or not query.isActive, "the batch", within_s=100.0)
        name = batch_names.micro_batch_name(sink_name, query.id, 0).text
        begun = sync_client.begin(name=name)
        assert begun.joined
        query.stop()
    finally:
        spark.conf.unset("spark.sql.streaming.checkpointLocation")
        (lines.marks / "go").touch()
    assert set(sync_client.outcomes([begun.id]).values()) == {"ABORTED"}
    assert sync_client.admin("transactions.describe", txn=str(other.id))["outcome"] == "OPEN"
    other.abort()


# ---- what is left out is told ---------------------------------------------------------------------------------------


@pytest.mark.process
@pytest.mark.timeout(300)
def test_x1_a_driver_that_finds_its_batch_committed_tells_how_many_rows_it_leaves_out(
    lines: Lines, service: Service, sync_client: txnclient.sync.Client, topic: str
) -> None:
    """In the log of the driver, by a driver of its own."""
    sync_client.create_topic(topic)
    lines.add(f"{number}" for number in range(7))
    lines.run(topic)
    lines.forget_last_commit()
    command = [sys.executable, "-m", "tests.spark.sink_lines", str(lines.folder), service.url, topic, "2", "none"]
    done = subprocess.run(
        tied_to_parent(command),
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = [line for line in done.stderr.splitlines() if "left out" in line]
    assert len(told) == 1
    assert lines.name(0, topic) in told[0]
    assert "the 7 rows of this run are left out" in told[0]
    assert Counter(read_all(sync_client, topic)) == Counter(lines.written)


def test_x1_a_repeated_write_tells_how_many_rows_it_leaves_out(
    options: SinkOptions, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    name = BatchName(f"{topic}/told", "")
    commit(options, write(options, name, OLDER, 11, b"a", b"b", b"c"))
    assert caplog.messages == []
    repeated = commit(options, write(options, name, NEWER, 12, b"c"), write(options, name, NEWER, 13, b"b", b"a"))
    assert isinstance(repeated, Repeat)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert name.text in caplog.text
    assert "the 3 rows of this run are left out" in caplog.text


# ---- an attempt that is stopped and comes back -----------------------------------------------------------------------


@pytest.mark.process
def test_x1_an_attempt_that_is_stopped_and_comes_back_behind_the_commit_does_not_count(
    options: SinkOptions, sync_client: txnclient.sync.Client, topic: str, tmp_path: Path
) -> None:
    """▲ Its task was given to another one meanwhile. It has sent half of its rows, and sends the other half."""
    name = BatchName(f"{topic}/stopped", "")
    arguments = [options.url, topic, name.text, NEWER.stamp.hex(), str(tmp_path)]
    command = tied_to_parent([sys.executable, "-m", "tests.spark.attempt_process", *arguments])
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    with subprocess.Popen(
        command, cwd=REPOSITORY, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            wait_until(lambda: (tmp_path / "half").exists() or process.poll() is not None, "its rows", within_s=100.0)
            os.killpg(process.pid, signal.SIGSTOP)
            winner = write(options, name, NEWER, 2, b"a", b"b")
            commit(options, winner)
            (tmp_path / "go").touch()
            os.killpg(process.pid, signal.SIGCONT)
            told, _ = process.communicate(timeout=100)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    assert told.split() == [winner.txn_id, "True", "2"]
    assert sorted(read_all(sync_client, topic)) == [b"a", b"b"]
    assert stored(sync_client, topic) == 3


# ---- runs -----------------------------------------------------------------------------------------------------------


def test_x1_a_newer_run_begins_anew_with_all_of_its_time(
    options: SinkOptions, sync_client: txnclient.sync.Client, topic: str
) -> None:
    """▲ What a dead driver has left open ends at its own deadline, and with it whoever had joined it. None of the rows
    of its tasks counts, also of those that come late."""
    name = BatchName(f"{topic}/runs", "")
    dead = write(options, name, OLDER, 21, b"dead")
    first, second = (write(options, name, NEWER, task, b"%d" % task) for task in (22, 23))
    assert first.txn_id == second.txn_id != dead.txn_id
    late = write(options, name, OLDER, 24, b"late")
    assert late.txn_id == first.txn_id
    assert dead.txn_id is not None
    assert set(sync_client.outcomes([dead.txn_id]).values()) == {"ABORTED"}
    with pytest.raises(InvalidTxnState, match="ABORTED, its rows do not count"):
        commit(options, dead)
    commit(options, first, second)
    assert sorted(read_all(sync_client, topic)) == [b"22", b"23"]


def test_x1_an_older_run_joins_a_newer_one_and_one_of_them_counts(
    options: SinkOptions, sync_client: txnclient.sync.Client, topic: str
) -> None:
    """Two drivers on one checkpoint, or a clock that is behind: whoever commits first. With the same rows the other one
    goes on; here it is told that its own are not written."""
    name = BatchName(f"{topic}/rivals", "")
    newer = write(options, name, NEWER, 31, b"newer")
    older = write(options, name, OLDER, 32, b"older")
    assert older.txn_id == newer.txn_id
    commit(options, older)
    with pytest.raises(InvalidTxnState, match="other rows"):
        commit(options, newer)
    assert read_all(sync_client, topic) == [b"older"]


def test_x1_an_older_run_that_fails_aborts_nothing_of_the_newer_one(
    options: SinkOptions, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """▲ The older one fails because the newer one has aborted its transaction. A task of it that was tried again has
    joined the newer one's. Were that aborted in return, neither of two drivers on a checkpoint would go on."""
    monkeypatch.setattr(sink, "STRAGGLERS_S", 0.0)
    stream = batch_names.stream_sink(None, topic)
    name = batch_names.micro_batch_name(stream, str(uuid.uuid4()), 7)
    older = write(options, name, OLDER, 71, b"older")
    newer = write(options, name, NEWER, 72, b"newer")
    tried_again = write(options, name, OLDER, 73, b"older")
    with pytest.raises(InvalidTxnState, match="parted by an abort"):
        commit(options, older, tried_again)
    sink.StreamSink(options, stream).abort([older, tried_again, None], 7)
    assert isinstance(commit(options, newer), BatchCommit)


def test_x1_a_run_that_fails_aborts_what_it_has_begun(
    options: SinkOptions, sync_client: txnclient.sync.Client, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the name that a task has told, or by the mark of its query. ▲ So nothing that is newer: it may run again."""
    monkeypatch.setattr(sink, "STRAGGLERS_S", 0.0)
    stream = batch_names.stream_sink(None, topic)
    named, untold, again = (batch_names.micro_batch_name(stream, str(uuid.uuid4()), 7) for _ in range(3))
    mark = b"the mark"
    failed = write(options, named, NEWER, 81, b"a")
    without_rows = Attempt(options, named, NEWER, 84).write(iter([]))
    others = [str(sync_client.begin(name=f"{topic}/{number}").id) for number in range(9)]
    left = write(options, untold, BatchRun(NEWER.stamp + mark), 82, b"a")
    running = write(options, again, BatchRun(b"\xff" * 12 + mark), 83, b"a")
    sink.StreamSink(options, stream, mark).abort([None, without_rows], 7)
    sink.StreamSink(options, stream, mark).abort([None], 7)
    asked = [*(one.txn_id for one in (failed, left, running)), *others]
    assert [*sync_client.outcomes(asked).values()] == ["ABORTED", "ABORTED", *["OPEN"] * 10]
    commit(options, running)


def test_what_a_task_begins_when_nothing_was_found_open_yet_is_aborted(
    options: SinkOptions, sync_client: txnclient.sync.Client, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """▲ Readers would wait for its deadline: Spark fails a batch while other tasks of it are still starting."""
    monkeypatch.setattr(sink, "STRAGGLERS_S", 60.0)
    name = BatchName(f"{topic}/late", "")
    looks: list[int] = []
    late: list[Written] = []

    def look() -> list[sink._OpenTransaction]:
        found = sink._open_one(options, name.text)
        looks.append(len(found))
        if len(looks) == 2:
            late.append(write(options, name, OLDER, 85, b"late"))
        if found:
            monkeypatch.setattr(sink, "STRAGGLERS_S", 0.0)
        return found

    sink._abort(options, OLDER, look)
    assert looks == [0, 0, 1]
    outcomes = sync_client.admin("transactions.outcomes", txns=[one.txn_id for one in late])
    assert list(outcomes["outcomes"].values()) == ["ABORTED"]


def test_a_failed_batch_fails_with_its_own_error_where_what_it_left_open_cannot_be_asked_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    options = SinkOptions.parse({"service.url": "txn://127.0.0.1:1"}, use="stream write")

    def look() -> list[sink._OpenTransaction]:
        raise ConnectionLost("no server answers")

    sink._abort(options, OLDER, look)
    assert "its deadline aborts it: no server answers" in caplog.text


def test_x1_a_run_that_comes_behind_the_commit_of_an_older_one_finds_it(
    options: SinkOptions, sync_client: txnclient.sync.Client, topic: str
) -> None:
    name = BatchName(f"{topic}/committed", "")
    written = write(options, name, OLDER, 41, b"a")
    commit(options, written)
    again = write(options, name, NEWER, 42, b"a")
    assert (again.txn_id, again.committed) == (written.txn_id, True)
    assert read_all(sync_client, topic) == [b"a"]


def test_x1_what_somebody_else_has_begun_is_joined(
    options: SinkOptions, sync_client: txnclient.sync.Client, topic: str
) -> None:
    """Not of a run: nobody knows whether it is an older one's."""
    name = BatchName(f"{topic}/else", "")
    shared = sync_client.begin(name=name.text)
    assert write(options, name, NEWER, 51, b"a").txn_id == str(shared.id)


def write_to(options: SinkOptions, task: int, *topics: str) -> Written:
    batch = pa.record_batch({"value": pa.array([b"a"] * len(topics)), "topic": pa.array(topics)})
    return Attempt(options, BatchName(f"{topics[0]}/{task}", ""), NEWER, task).write(iter([batch]))


def test_x1_rows_for_a_topic_that_cannot_be_written_fail_their_task_though_others_were_sent(
    options: SinkOptions, topic: str
) -> None:
    """▲ Those of its other topics are stored by then: it would report them all as written."""
    with pytest.raises(TopicNotFound):
        write_to(options, 62, topic, f"{topic}-nowhere")


def test_x1_of_a_task_that_fails_no_producer_is_kept(
    options: SinkOptions, sync_client: txnclient.sync.Client, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even where none of them can be closed; and the task fails with its own error."""

    def closed(_: object) -> None:
        raise ConnectionLost("nobody answers")

    monkeypatch.setattr(attempt, "_producers", {})
    sync_client.create_topic(f"{topic}-too")
    write_to(options, 67, topic, f"{topic}-too")
    assert len(attempt._producers) == 2
    monkeypatch.setattr(txnclient.sync.Producer, "close", closed)
    with pytest.raises(TopicNotFound):
        write_to(options, 68, topic, f"{topic}-too", f"{topic}-nowhere")
    assert not attempt._producers


def test_x1_a_write_of_this_version_under_a_former_name_is_another_one(
    options: SinkOptions, sync_client: txnclient.sync.Client, topic: str
) -> None:
    """▲ Taken for what an earlier version has committed of the batch, its rows would be left out."""
    former = BatchName(f"{topic}/former", "")
    commit(options, write(options, former, OLDER, 63, b"of another write"))
    commit(options, write(options, BatchName(f"{topic}/new", former.text), NEWER, 64, b"of the batch"))
    assert sorted(read_all(sync_client, topic)) == [b"of another write", b"of the batch"]


class CommitsFor:
    """A client whose commits are noted with the time that they are given."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self.given_s: list[float] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def attach(self, *args: Any, **named: Any) -> Any:
        return CommitsFor.of(self, self._client.attach(*args, **named))

    def commit(self, *, timeout: float, **named: Any) -> Any:
        self.given_s.append(timeout)
        return self._client.commit(timeout=timeout, **named)

    @staticmethod
    def of(client: CommitsFor, txn: Any) -> CommitsFor:
        found = CommitsFor(txn)
        found.given_s = client.given_s
        return found


def test_x1_a_commit_is_asked_for_again_for_longer_than_a_request_may_take(
    options: SinkOptions, sync_client: txnclient.sync.Client, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """▲ Of a batch write without a name of its own nobody could find out later whether it is committed."""
    written = write(options, BatchName(f"{topic}/slow", ""), NEWER, 65, b"a")
    client = CommitsFor(sync_client)
    monkeypatch.setattr(sink, "client_of", lambda *_, **__: client)
    for timeout_s in (1.0, 500.0):
        sink._commit(replace(options, timeout_s=timeout_s), to_commit([written]))
    assert client.given_s == [sink.COMMIT_TIMEOUT_S, 500.0]


def test_x1_one_that_has_committed_keeps_no_other_of_a_failed_batch_open(
    options: SinkOptions, sync_client: txnclient.sync.Client, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """▲ Between the look at what is open and the abort of it."""
    monkeypatch.setattr(sink, "STRAGGLERS_S", 0.0)
    committed, left = (write(options, BatchName(f"{topic}/{name}", ""), OLDER, 66, b"a") for name in "ab")
    commit(options, committed)
    seen = [sink._OpenTransaction(one.name, str(one.txn_id), OLDER.stamp.hex()) for one in (committed, left)]
    sink._abort(options, OLDER, lambda: [seen[0]._replace(txn_id="0001-" + 16 * "e"), *seen])  # nobody knows it
    outcomes = sync_client.admin("transactions.outcomes", txns=[one.txn_id for one in (committed, left)])
    assert list(outcomes["outcomes"].values()) == ["COMMITTED", "ABORTED"]


def test_a_number_that_was_given_lately_is_remembered_for_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempt, "MAX_WRITERS_KEPT", 2)
    monkeypatch.setattr(attempt, "_writers", {})
    assert [attempt._given_once(number) for number in (1, 2, 3, 3, 2, 1)] == [1, 2, 3, None, None, 1]


def test_two_attempts_of_one_number_are_two_writers(
    options: SinkOptions, sync_client: txnclient.sync.Client, topic: str
) -> None:
    """▲ With one id the rows of both would count."""
    name = BatchName(f"{topic}/twice", "")
    first, second = (write(options, name, NEWER, 61, b"a") for _ in range(2))
    assert first.writer_id != second.writer_id
    commit(options, second)
    assert read_all(sync_client, topic) == [b"a"]
