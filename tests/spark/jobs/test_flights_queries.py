"""How the flights job runs its two queries, and what it says of them. Spark's part is played."""

from __future__ import annotations

import argparse
import threading
from dataclasses import dataclass, field
from typing import Any

import pytest

from pyspark_txnstore.jobs import flights
from pyspark_txnstore.jobs.flights import FlightsQueries


@dataclass
class Query:
    """Of Spark's. `active`: how often it is seen at work."""

    name: str
    said: list[str]
    active: int = 1
    failure: Exception | None = None
    recentProgress: list[dict[str, Any]] = field(default_factory=list)

    @property
    def isActive(self) -> bool:
        self.active -= 1
        return self.active >= 0

    def exception(self) -> Exception | None:
        return self.failure

    def processAllAvailable(self) -> None:
        self.said.append(f"all of {self.name}")
        self.recentProgress.append(progress(len(self.recentProgress), 7))

    def stop(self) -> None:
        self.said.append(f"stop {self.name}")


@dataclass
class Writer:
    query: Query

    def trigger(self, **when: Any) -> Writer:
        self.query.said.append(f"{self.query.name}: {when}")
        return self

    def start(self) -> Query:
        self.query.said.append(f"start {self.query.name}")
        return self.query


def progress(batch: int, rows: int, *, took_ms: int | None = 1_500) -> dict[str, Any]:
    return {
        "batchId": batch,
        "numInputRows": rows,
        "durationMs": {} if took_ms is None else {"triggerExecution": took_ms},
    }


class Played(FlightsQueries):
    """The job's queries, whose writers are not Spark's."""

    def __init__(self, *, available_now: bool = False) -> None:
        super().__init__(None, argparse.Namespace(available_now=available_now, every_s=0.5))  # type: ignore[arg-type]
        self.said: list[str] = []
        self.first, self.second = (Query(name, self.said) for name in ("statistics", "parquet"))

    def statistics(self) -> Any:
        return Writer(self.first)

    def parquet(self) -> Any:
        return Writer(self.second)


def told(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [line.partition(" s  ")[2] for line in capsys.readouterr().err.splitlines()]


def test_a_job_that_is_stopped_finishes_both_queries_in_the_order_of_their_messages(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """▲ What the first still writes is the second's input."""
    job, stopping = Played(), threading.Event()
    stopping.set()
    job.run(stopping)
    every = "{'processingTime': '500 milliseconds'}"
    assert job.said == [
        f"statistics: {every}", "start statistics", f"parquet: {every}", "start parquet",
        "all of statistics", "all of parquet", "stop statistics", "stop parquet",
    ]  # fmt: skip
    assert told(capsys)[2:] == [f"{name}: micro-batch 0 of 7 messages took 1.5 s" for name in ("statistics", "parquet")]


def test_of_what_is_there_the_second_query_begins_when_the_first_has_ended(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(flights, "POLL_S", 0.0)
    job = Played(available_now=True)
    job.first.active = 3
    job.first.recentProgress = [progress(0, 5)]
    job.run_available()
    now = "{'availableNow': True}"
    assert job.said == [f"statistics: {now}", "start statistics", f"parquet: {now}", "start parquet"]
    assert told(capsys) == ["statistics: micro-batch 0 of 5 messages took 1.5 s"]


def test_each_batch_of_each_query_that_has_messages_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    job = Played()
    job.first.recentProgress = [progress(3, 1_000), progress(4, 0), progress(5, 2, took_ms=None)]
    job.second.recentProgress = [progress(0, 1)]
    for _ in range(2):
        job._tell([job.first, job.second])  # type: ignore[list-item]
    job.second.recentProgress += [progress(1, 4), progress(1, 4)]
    job._tell([job.first, job.second])  # type: ignore[list-item]
    assert told(capsys) == [
        "statistics: micro-batch 3 of 1,000 messages took 1.5 s",
        "statistics: micro-batch 5 of 2 messages took 0.0 s",
        "parquet: micro-batch 0 of 1 messages took 1.5 s",
        "parquet: micro-batch 1 of 4 messages took 1.5 s",
    ]


@pytest.mark.parametrize("failed", [0, 1])
def test_a_query_that_has_failed_ends_the_job_with_its_error(monkeypatch: pytest.MonkeyPatch, failed: int) -> None:
    monkeypatch.setattr(flights, "POLL_S", 0.0)
    job = Played()
    (job.first, job.second)[failed].failure = ValueError("the query has failed")
    with pytest.raises(ValueError, match="the query has failed"):
        job.run(threading.Event())
    assert not [line for line in job.said if line.startswith("all of")]
    job = Played(available_now=True)
    (job.first, job.second)[failed].failure = ValueError("the query has failed")
    with pytest.raises(ValueError, match="the query has failed"):
        job.run_available()
    assert ("start parquet" in job.said) == (failed == 1)


@pytest.mark.parametrize("failed", [0, 1])
def test_a_query_that_failed_before_it_was_first_looked_at_ends_the_job_too(failed: int) -> None:
    job = Played(available_now=True)
    (job.first, job.second)[failed].failure = ValueError("failed right behind its start")
    job.first.active = job.second.active = 0
    with pytest.raises(ValueError, match="failed right behind its start"):
        job.run_available()
    assert ("start parquet" in job.said) == (failed == 1)


def test_the_last_batch_of_a_query_that_ends_between_two_looks_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    job = Played(available_now=True)
    job.first.active = job.second.active = 0
    job.first.recentProgress = [progress(0, 5)]
    job.run_available()
    assert told(capsys) == ["statistics: micro-batch 0 of 5 messages took 1.5 s"]
