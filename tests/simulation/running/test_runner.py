"""Runs in worker processes: several at once, and what hangs or dies is a finding. Schedules, exit codes and totals."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from simulation.faults.nemesis import schedule_of
from simulation.running.job import Job, Result
from simulation.running.runner import run_all
from simulation.running.totals import Totals
from simulation.running.workers import SimulationWorker
from tests.waiting import until

ROOT = Path(__file__).resolve().parents[3]
pytestmark = pytest.mark.timeout(600)  # seconds on a free machine
SHORT = Job(seed=5, work_s=1.0, kinds="none")
"""The least a run can be; nearly all of it is the time to settle."""


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "simulation", *arguments]


def simulate(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*arguments), cwd=ROOT, capture_output=True, text=True, timeout=580)


async def test_a_run_that_hangs_is_a_finding_that_says_where_and_the_next_one_is_run() -> None:
    async with SimulationWorker(hang_s=0.05) as worker:
        result = await worker.perform(SHORT)
        assert result.findings[0].startswith("hung: not done after 0.05 s of wall clock")
        worker._hang_s = 60.0
        assert (await worker.perform(SHORT)).findings == []


async def test_a_run_whose_process_dies_is_a_finding() -> None:
    async with SimulationWorker(hang_s=60.0) as worker:
        performed = asyncio.create_task(worker.perform(SHORT))
        await until(lambda: worker._process is not None, "the process of the worker")
        assert worker._process is not None
        os.kill(worker._process.pid, signal.SIGKILL)
        assert (await performed).findings[0].startswith("died: its process ended with -9")


async def test_every_job_is_run_once_whoever_runs_it() -> None:
    jobs, done = [SHORT.with_seed(seed) for seed in range(3)], dict[int, Result]()
    await run_all(jobs, parallel=2, hang_s=60.0, done=lambda job, result: done.update({job.seed: result}))
    assert sorted(done) == [0, 1, 2]
    assert all(result.digest and not result.findings for result in done.values())


def test_a_schedule_is_replayed_as_drawn_or_as_written_or_in_part(tmp_path: Path) -> None:
    """The same faults at the same times, from the seed or from the text that is printed: the same digest."""
    schedule = schedule_of(3, work_s=4.0, faults="reset,cut,pause")
    assert len(schedule.faults) >= 2
    batch = tmp_path / "batch"
    batch.write_text(
        "# as drawn, as written, in part\n--seed 3 --seconds 4 --faults reset,cut,pause\n\n"
        f"--seed 3 --seconds 4 --schedule '{schedule}'  # a comment\n"
        f"--seed 3 --seconds 4 --schedule '{schedule}' --only 2\n"
    )
    done = simulate("--batch", str(batch), "-v")
    assert done.returncode == 0, done.stdout + done.stderr
    shown = re.findall(r"^seed 3: ok (\w+) .* (\d+) faults \((.*?)[,;)]", done.stdout, re.MULTILINE)
    (drawn, count, _), (written, as_many, shape), (part, one, _) = shown
    assert drawn == written != part
    assert (int(count), as_many, one) == (len(schedule.faults), count, "1")
    assert shape == "as given"


@pytest.mark.parametrize(
    ("arguments", "refusal"),
    [
        (["--faults", "flood"], "no kind of fault is called 'flood'"),
        (["--faults", "cut", "--only", "999"], "no fault #999"),
        (["--schedule", "kill them all"], "not a fault: 'kill them all'"),
        (["--schedule", "#1 at 2.000 s: flood"], "no kind of fault is called 'flood'"),
    ],
)
def test_what_cannot_be_run_is_refused_before_anything_runs(arguments: list[str], refusal: str) -> None:
    done = simulate(*arguments)
    assert done.returncode == 2
    assert refusal in done.stderr
    assert done.stdout == ""


def test_ctrl_c_ends_with_what_was_found_so_far_and_leaves_nothing_behind(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    arguments = command("--runs", "500", "--seconds", "1", "--faults", "none", "-v", "--jobs", "2", "--out", str(out))
    with subprocess.Popen(
        arguments, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        while not process.stdout.readline().startswith("seed "):
            assert process.poll() is None
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: the workers get it too
        rest, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert re.search(r"^interrupted after \d+ of 500 runs$", rest, re.MULTILINE)
    assert "never reached: " in rest
    assert "Traceback" not in errors
    assert json.loads(out.read_text())["seeds"] < 500
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)


def test_totals_are_sums_and_name_what_was_never_reached() -> None:
    totals = Totals()
    counts = {"operations": {"txn ok": 3, "read ok": 1}, "faults": {"cut": 1}}
    totals.add(
        Result(seed=1, wall_s=2.0, virtual_s=1800.0, numbers=(1,), shape="all", reached={"a": 1, "b": 0}, **counts)
    )
    totals.add(Result(seed=2, wall_s=5.0, virtual_s=1800.0, shape="calm", reached={"a": 2, "b": 0}, findings=["x"]))
    told = totals.as_json()
    assert (told["seeds"], told["failed"], told["calm"], told["transactions"]) == (2, {"2": ["x"]}, 1, 3)
    assert (told["virtual_s"], told["faults"], told["slowest"]) == (3600.0, {"cut": 1}, {"seconds": 5.0, "seed": 2})
    text = "\n".join(totals.lines(4.0))
    assert "1 of 2 runs ok; failed seeds: 2" in text
    assert "1.00 virtual hours in 4 s" in text
    assert "\nreached: 3 a\nnever reached: b" in text
