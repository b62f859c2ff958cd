"""Seeds that once showed something, and seeds that change with the code (`make sim-fresh` for more of them)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
REGRESSION_SEEDS = Path(__file__).with_name("regression_seeds.txt")
FRESH = 3
FIRST = 1001
"""Behind those of `make sim-fresh`: a seed begins likewise, however long it works."""
WORK_S = "15"
"""In place of the 60 s of `make sim`: most of what so short a run costs is the settling behind it, which is the same.
A seed took 4 s of CPU so on a busy machine. CI runs 16 whole ones besides."""


def simulate(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "simulation", *arguments],
        cwd=ROOT, env={**os.environ, "PYTHONHASHSEED": "0"}, capture_output=True, text=True, timeout=840,
    )  # fmt: skip


@pytest.mark.timeout(900)
def test_seeds_that_once_showed_something_show_nothing() -> None:
    done = simulate("--batch", str(REGRESSION_SEEDS), "--reduce", "0")
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"


@pytest.mark.timeout(900)
def test_fresh_seeds_show_nothing() -> None:
    """Others whenever the code changes: what fails is printed with its seed, its faults, reduced, and how to run it
    again."""
    done = simulate("--fresh", "--seed", str(FIRST), "--runs", str(FRESH), "--seconds", WORK_S, "--reduce", "15")
    assert done.returncode == 0, f"fresh seeds:\n{done.stdout}{done.stderr}"
