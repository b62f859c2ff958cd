"""Tasks that Spark tries a second time while the first attempt runs, and an executor that stands still meanwhile (X1).

On a cluster of two hosts (`two_hosts.py`), started once for all of these.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

import txnclient.sync
from tests.spark.service import REPOSITORY, Service
from tests.spark.sink.test_sink import read_all, stored
from tests.spark.two_hosts import ROWS, TASKS
from txnstore.etcd.lifetime import tied_to_parent

TOPIC = "topic://public/spark/two-hosts"
WRITES = ("frame", "stream", "stopped")
RUN_TIMEOUT_S = 400
EXPECTED = sorted(b"%d" % number for number in range(ROWS))

pytestmark = [pytest.mark.process, pytest.mark.timeout(RUN_TIMEOUT_S + 60)]


class Attempt(NamedTuple):
    """At partition 0 of a write. `executor`: the process of its JVM; `found_committed`: as it told at its end."""

    number: int
    task_attempt: int
    executor: int
    found_committed: bool | None


@pytest.fixture(scope="module")
def ran(service: Service, sync_client: txnclient.sync.Client, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the driver, which has done all its writes."""
    for write in WRITES:
        sync_client.create_topic(f"{TOPIC}-{write}")
    folder = tmp_path_factory.mktemp("two-hosts")
    command = tied_to_parent([sys.executable, "-m", "tests.spark.two_hosts", str(folder), service.url, TOPIC])
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    with subprocess.Popen(
        command, cwd=REPOSITORY, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            _, told = process.communicate(timeout=RUN_TIMEOUT_S)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, told
    return folder


def attempts(ran: Path, write: str) -> list[Attempt]:
    found = []
    for begun in sorted((ran / write).glob("begun-*")):
        number, task_attempt, *processes = json.loads(begun.read_text())
        ended = ran / write / f"ended-{number}"
        found.append(Attempt(number, task_attempt, processes[-1], json.loads(ended.read_text())))
    return found


@pytest.mark.parametrize("write", ["frame", "stream"])
def test_x1_a_task_that_spark_speculates_on_is_stored_once(
    ran: Path, sync_client: txnclient.sync.Client, write: str
) -> None:
    """▲ Both attempts have written all of their rows and flushed them before one of them is committed."""
    first, second = attempts(ran, write)
    assert (first.number, second.number) == (0, 1)
    assert first.task_attempt != second.task_attempt
    assert first.executor != second.executor
    assert sorted(read_all(sync_client, f"{TOPIC}-{write}")) == EXPECTED
    assert stored(sync_client, f"{TOPIC}-{write}") >= ROWS + ROWS // TASKS


def test_x1_an_executor_that_is_stopped_and_comes_back_behind_the_commit_does_not_count(
    ran: Path, sync_client: txnclient.sync.Client
) -> None:
    """▲ Its task had sent one row, and goes on when the attempt that Spark began beside it is committed. The executor
    runs tasks again: its driver waited for that."""
    first, second = attempts(ran, "stopped")
    assert first.executor != second.executor
    assert (first.found_committed, second.found_committed) == (True, False)
    assert sorted(read_all(sync_client, f"{TOPIC}-stopped")) == EXPECTED
    assert stored(sync_client, f"{TOPIC}-stopped") > ROWS
