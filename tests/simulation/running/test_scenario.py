"""The production code under faults, from one seed: judged, and the same again every time (DESIGN §13).

Each run is a process of its own: production packages must be imported under the set guard.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from simulation.judges.checker import check
from simulation.judges.history import read_history

ROOT = Path(__file__).resolve().parents[3]
pytestmark = pytest.mark.timeout(600)  # seconds on a free machine; a run that hangs is a finding of the runner itself


def simulate(*arguments: str, hash_seed: str = "0") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "simulation", *arguments],
        cwd=ROOT, env={**os.environ, "PYTHONHASHSEED": hash_seed}, capture_output=True, text=True, timeout=580,
    )  # fmt: skip


def digests(output: str) -> list[str]:
    return re.findall(r"^seed \d+: \w+ ([0-9a-f]{32}) ", output, re.MULTILINE)


def test_the_same_seed_gives_the_same_trace_in_any_process() -> None:
    words = ("--seed", "11", "--runs", "2", "--seconds", "10", "--faults", "all", "-v")
    first = simulate(*words, hash_seed="1")
    second = simulate(*words, "--jobs", "2", hash_seed="4242")
    assert first.returncode == second.returncode == 0, first.stdout + first.stderr
    assert len(dict.fromkeys(digests(first.stdout))) == 2
    assert sorted(digests(first.stdout)) == sorted(digests(second.stdout))


REACHED = (
    "split", "merge", "sealed empty", "drained", "drained taken back", "decided over a seal", "fenced", "sought",
    "sealed segment taken by a later owner", "open ledger taken over", "segment taken by another one first",
    "changed hands with an open transaction in it", "take-over failed and was tried again", "controller deposed",
    "op refused: its transaction was decided", "one of several in a request refused, the others applied",
    "end lost to another end", "end answered with the other outcome", "change of a topic lost to another one",
    "transaction lost a conflict", "aborted at its deadline", "aborted by the next holder of its key",
    "open longer than a second: deadline key", "commit that leaves a writer out", "aborted record of one writer",
    "name begun afresh after an abort", "name took over the outcome of a collected header", "sidecar written",
    "part of an entry acked", "outcome told by the last question alone", "large value in pieces",
)  # fmt: skip
"""Branches that five runs in eight, or more, come to: of the rest so many as stand below."""
REACHED_AT_LEAST = 60


def test_x4_l6_d7_e1_e2_clusters_under_faults_show_no_anomaly_and_reach_rare_branches(tmp_path: Path) -> None:
    """Crashes, lost replies, cuts, pauses, power failures, unknown outcomes of etcd: whatever these seeds draw."""
    path = tmp_path / "totals.json"
    done = simulate("--seed", "1", "--runs", "6", "--seconds", "30", "--faults", "all", "--out", str(path))
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    reached = {what for what, count in json.loads(path.read_text())["reached"].items() if count}
    assert [what for what in REACHED if what not in reached] == []
    assert len(reached) >= REACHED_AT_LEAST, sorted(reached)


def test_s1_s7_s10_k1_layouts_change_under_all_work() -> None:
    """And the rare branches are reached: a green run is green about something."""
    done = simulate("--seed", "2006", "--runs", "3", "--seconds", "20", "--faults", "strike at a change,stop a server")
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    reached = next(line for line in done.stdout.splitlines() if line.startswith("reached: "))
    for what in ("split", "merge", "sealed empty", "drained", "drained taken back", "fenced", "sought"):
        assert re.search(rf"\b[1-9]\d* {what}(,|$)", reached), f"never reached: {what}; {reached}"


@pytest.mark.parametrize(
    "faults", ["kill a server,power failure", "lose replies,reset,etcd unanswered", "pause,cut,early expiry"]
)
def test_l5_l7_p5_r1_kinds_of_faults_one_by_one(faults: str) -> None:
    done = simulate("--seed", "31", "--seconds", "30", "--faults", faults)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"


def test_without_faults_everything_is_committed_or_aborted_on_purpose(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    done = simulate("--seed", "5", "--seconds", "10", "--faults", "none", "--history", str(path))
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    history = read_history(path)
    assert history.drained
    assert check(history) == []
    transactions = [operation for operation in history.operations if operation.name.startswith("txn")]
    unkeyed = [operation for operation in transactions if "keyed" not in operation.process]  # those lives are cut short
    assert len(unkeyed) > 20
    assert all(operation.outcome in ("ok", "failed") for operation in unkeyed)


def test_a_failing_run_says_how_to_run_it_again(tmp_path: Path) -> None:
    """A cluster whose faults never end cannot be drained: the run fails and names its seed."""
    program = (
        "from simulation.world import guards; guards.install_guard()\n"
        "import sys, simulation.__main__ as main, simulation.running.scenario as scenario\n"
        "scenario.Nemesis.heal = lambda nemesis: [nemesis._world.processes[name].keep_down() or "
        "nemesis._world.processes[name].kill() for name in nemesis._brokers]\n"
        "scenario.DRAIN_S = 20.0\n"
        "sys.exit(main.main(['--seed', '3', '--seconds', '2', '--here']))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=580)
    assert done.returncode == 1, done.stderr
    assert "seed 3: FAILED" in done.stdout
    assert "the drain did not end" in done.stdout
    assert "make sim SEED=3" in done.stdout
