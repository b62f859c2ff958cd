"""What the jobs share: their arguments, and that a failure is never taken for an answer."""

from __future__ import annotations

import argparse
import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from pyspark_txnstore.jobs import command_line
from pyspark_txnstore.jobs.command_line import (
    JobFailed,
    add_cut,
    add_service,
    caches_by_size,
    job_parser,
    run_job,
    spark_session,
)
from txnclient.reading.snapshot import Snapshot, TopicBounds
from txnwire.errors import Timeout

JOBS = Path(command_line.__file__).parent
URL = "txn://127.0.0.1:6650"


def parser() -> argparse.ArgumentParser:
    made = job_parser("example", "What it does.")
    add_service(made)
    add_cut(made)
    return made


def parsed(*arguments: str) -> argparse.Namespace:
    return parser().parse_args(["--service", URL, *arguments])


def test_topics_are_full_names_each_once() -> None:
    args = parsed("--topics", "topic://b/b/b, topic://a/a/a,topic://b/b/b")
    assert args.topics == ["topic://b/b/b", "topic://a/a/a"]
    assert (args.service, args.timeout_s, args.master) == (URL, 30.0, None)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--service", URL], "one of the arguments --topics --topics-pattern --snapshot is required"),
        (["--service", URL, "--topics", "topic://a/b/c", "--topics-pattern", "x"], "not allowed with argument"),
        (["--service", "http://x", "--topics", "topic://a/b/c"], "expected txn://host:port"),
        (["--service", URL, "--topics", "flights"], "--topics"),
        (["--service", URL, "--topics-pattern", "("], "--topics-pattern"),
        *(
            (["--service", URL, "--topics", "topic://a/b/c", "--timeout", text], "not a positive number of seconds")
            for text in ("0", "-1", "inf", "nan")
        ),
        (["--service", URL, "--topics", "topic://a/b/c", "--timeout", "soon"], "could not convert"),
        (["--service", URL, "--topics", "topic://a/b/c,flights"], "topic 'flights'"),
        (["--service", URL, "--snapshot", "/nowhere/cut.json"], "No such file"),
        (["--topics", "topic://a/b/c"], "--service"),
    ],
)
def test_what_is_wrong_with_an_argument_is_said_and_ends_with_2(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        run_job(parser(), lambda _: 0, arguments)
    assert ended.value.code == command_line.UNDECIDED
    assert said in capsys.readouterr().err


def test_a_snapshot_is_read_from_a_file_or_the_file_is_named(tmp_path: Path) -> None:
    cut, path = Snapshot(7, {"topic://a/b/c": TopicBounds(1, {})}), tmp_path / "cut.json"
    path.write_text(cut.to_json())
    assert parsed("--snapshot", str(path)).snapshot == cut
    path.write_text("{}")
    with pytest.raises(ValueError, match=r"cut\.json: not a snapshot"):
        command_line.snapshot_of_file(str(path))


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (JobFailed("there is nothing to judge"), "example.py: there is nothing to judge\n"),
        (Timeout("no server answered"), "example.py: Timeout: no server answered\n"),
        (FileNotFoundError(2, "No such file", "cut.json"), "FileNotFoundError: [Errno 2] No such file: 'cut.json'"),
        (KeyboardInterrupt(), "example.py: interrupted\n"),
        (ZeroDivisionError("a bug"), "a bug"),
        (AnalysisException("no such table\nat line 1"), "example.py: no such table\n"),
        (AnalysisException("\n \nno such table\nat line 1"), "example.py: no such table\n"),
        (AnalysisException(" \n"), "example.py: AnalysisException\n"),
        (
            AnalysisException("txnclient.Timeout: slow\n\tat x\ntxnclient.DataTrimmed: gone\n\tat y"),
            "example.py: DataTrimmed: gone\n",
        ),
        (
            AnalysisException("Task 3 failed\ntxnwire.errors.DataTrimmed: what is left begins behind 4:0\n\tat x"),
            "example.py: DataTrimmed: what is left begins behind 4:0\n",
        ),
        (
            AnalysisException("Task 3 failed\ntxnclient.DataTrimmed: what is left begins behind 4:0\n\tat x"),
            "example.py: DataTrimmed: what is left begins behind 4:0\n",
        ),
    ],
)
def test_whatever_goes_wrong_ends_with_2_and_in_words(
    error: BaseException, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_: argparse.Namespace) -> int:
        raise error

    assert run_job(parser(), fail, ["--service", URL, "--topics", "topic://a/b/c"]) == command_line.UNDECIDED
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(("text", "expected"), [("1", 1), ("0", None), ("-1", None), ("1.5", None), ("", None)])
def test_a_count_is_a_positive_whole_number(text: str, expected: int | None) -> None:
    if expected is not None:
        assert command_line.count(text) == expected
        return
    with pytest.raises(argparse.ArgumentTypeError):
        command_line.argument(command_line.count)(text)


def test_what_a_job_found_is_its_exit_code() -> None:
    for code in (command_line.CLEAN, command_line.FINDINGS):
        found = code
        assert run_job(parser(), lambda _, found=found: found, ["--service", URL, "--topics", "topic://a/b/c"]) == code


def test_a_session_that_runs_is_used_and_goes_on(spark: SparkSession) -> None:
    with spark_session("example") as session:
        assert session is spark
        with command_line.exact_times(session):
            assert session.conf.get("spark.sql.parquet.outputTimestampType") == "TIMESTAMP_MICROS"
    assert spark.range(3).count() == 3


@pytest.mark.parametrize("name", sorted(path.stem for path in JOBS.glob("*.py") if "\ndef main(" in path.read_text()))
def test_every_job_explains_itself_when_run_as_a_file(name: str) -> None:
    """As spark-submit runs it: from any folder, by its path; the package is what is installed."""
    environment = os.environ | {"PYTHONPATH": str(JOBS.parents[1])}
    shown = subprocess.run(
        [sys.executable, str(JOBS / f"{name}.py"), "--help"],
        cwd="/", env=environment, capture_output=True, text=True, timeout=100, check=True,
    ).stdout  # fmt: skip
    described = importlib.import_module(f"pyspark_txnstore.jobs.{name}").__doc__
    assert described is not None
    assert described.strip() in shown
    assert f"usage: {name}.py" in shown


def persisted_in(spark: SparkSession, *, rows: int) -> int:
    """Partitions of what is persisted of a shuffle."""
    counted = spark.range(rows).selectExpr("id % 3 as remainder").groupBy("remainder").count().persist()
    try:
        assert counted.count() == 3
        return counted.rdd.getNumPartitions()
    finally:
        counted.unpersist()


def test_what_is_persisted_is_parted_by_its_size(spark: SparkSession) -> None:
    name = "spark.sql.shuffle.partitions"
    before = spark.conf.get(name)
    assert before is not None
    spark.conf.set(name, "20")
    try:
        with caches_by_size(spark):
            assert persisted_in(spark, rows=10) < 20
        assert persisted_in(spark, rows=11) == 20  # the session is as it was
    finally:
        spark.conf.set(name, before)
