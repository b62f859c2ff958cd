"""The production code under faults, from one seed: judged, and the same again every time (DESIGN §13).

Each run is a process of its own: production packages must be imported under the set guard.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from simulation.checker import check
from simulation.history import read_history

ROOT = Path(__file__).resolve().parents[2]


def simulate(*arguments: str, hash_seed: str = "0") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "simulation", *arguments],
        cwd=ROOT, env={**os.environ, "PYTHONHASHSEED": hash_seed}, capture_output=True, text=True, timeout=110,
    )  # fmt: skip


def digests(output: str) -> list[str]:
    return re.findall(r"^seed \d+: \w+ ([0-9a-f]{32}) ", output, re.MULTILINE)


def test_the_same_seed_gives_the_same_trace_in_any_process() -> None:
    first = simulate("--seed", "11", "--runs", "3", hash_seed="1")
    second = simulate("--seed", "11", "--runs", "3", hash_seed="4242")
    assert first.returncode == second.returncode == 0, first.stdout + first.stderr
    assert len(dict.fromkeys(digests(first.stdout))) == 3
    assert digests(first.stdout) == digests(second.stdout)


@pytest.mark.parametrize("seed", [1, 101])
def test_l6_d7_e1_e2_clusters_under_faults_show_no_anomaly(seed: int) -> None:
    """Crashes, lost replies, cuts, pauses, power failures, unknown outcomes of etcd: whatever these seeds draw."""
    done = simulate("--seed", str(seed), "--runs", "4")
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"


@pytest.mark.parametrize(
    "faults", ["kill a server,power failure", "lose replies,reset,etcd unanswered", "pause,cut,early expiry"]
)
def test_l5_l7_p5_r1_kinds_of_faults_one_by_one(faults: str) -> None:
    done = simulate("--seed", "31", "--runs", "3", "--seconds", "40", "--faults", faults)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"


def test_without_faults_everything_is_committed_or_aborted_on_purpose(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    done = simulate("--seed", "5", "--seconds", "10", "--faults", "", "--history", str(path))
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    history = read_history(path)
    assert history.drained
    assert check(history) == []
    transactions = [operation for operation in history.operations if operation.name.startswith("txn")]
    assert len(transactions) > 20
    assert all(operation.outcome in ("ok", "failed") for operation in transactions)


def test_a_failing_run_says_how_to_run_it_again(tmp_path: Path) -> None:
    """A cluster whose faults never end cannot be drained: the run fails and names its seed."""
    program = (
        "from simulation import guards; guards.install_guard()\n"
        "import sys, simulation.__main__ as main, simulation.scenario as scenario\n"
        "scenario.Nemesis.heal = lambda nemesis: nemesis._world.processes['broker-1'].kill()\n"
        "scenario.DRAIN_S = 20.0\n"
        "main.guards.install_guard = lambda: None\n"
        "sys.argv = ['simulation', '--seed', '3', '--seconds', '2']\n"
        "sys.exit(main.main())\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1, done.stderr
    assert "seed 3: FAILED" in done.stdout
    assert "the drain did not end" in done.stdout
    assert "make sim SEED=3" in done.stdout
