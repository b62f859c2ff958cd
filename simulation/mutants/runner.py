"""Runs mutants in copies of the tree until something catches them.

A catch is a finding of a seed that is clean without the mutant. A finding that is an accident of the mutant's text (a
name that does not exist, a wrong call) proves nothing about the rule and is an error of the table.
"""

from __future__ import annotations

import json
import os
import re
import selectors
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import NamedTuple

from simulation.mutants.mutant import Mutant

ROOT = Path(__file__).resolve().parents[2]
COPIED = (
    "txnwire", "txnstore", "watchers", "segments", "coordinator_v5", "txnclient", "pyspark_txnstore", "txnctl",
    "pytest_txnstore", "charts", "simulation", "tests", "tools", "conftest.py", "pyproject.toml",
)  # fmt: skip
ACCIDENT = re.compile(
    r"\b(NameError|ImportError|ModuleNotFoundError|SyntaxError|IndentationError|UnboundLocalError|Nondeterminism)\b"
)
SEED_S = 300.0
"""Of wall-clock time; a run that takes longer hangs."""
TESTS_S = 600.0
ERRORS = "probe.errors"
SUMMARY_COLUMNS = "1000"
"""pytest cuts its summary at the terminal's width, and with it the error's name behind a long name of a test."""


@dataclass(frozen=True, slots=True)
class MutantOutcome:
    """What became of one mutant. `verdict`: caught, survived or error."""

    name: str
    verdict: str
    by: str
    """The seed, or the tests."""
    findings: tuple[str, ...]
    seconds: float
    seeds_run: int = 0
    passed_over: tuple[int, ...] = ()
    """Seeds that are not clean without the mutant either."""


class SimulationRun(NamedTuple):
    """A run of the simulation, as it is asked for."""

    seed: int
    work_s: float
    faults: str

    def __str__(self) -> str:
        return f"--seed {self.seed} --seconds {self.work_s:g} --faults {self.faults!r}"


@dataclass(frozen=True, slots=True)
class SeedRun:
    seed: int
    findings: tuple[str, ...]


class ProbeFailed(Exception):
    """The simulation could not be run in the copy."""


@dataclass
class Runner:
    """Mutants of one tree. `first_seed` to `first_seed + seeds - 1`; `workers` may call `run` at once."""

    scratch: Path
    seeds: int = 500
    first_seed: int = 1
    told: Callable[[str], None] = lambda _: None
    _plain: dict[SimulationRun, tuple[str, ...]] = field(default_factory=dict)
    _plain_tests: dict[tuple[str, ...], bool] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    def __post_init__(self) -> None:
        self.original = self.scratch / "original"
        copy_tree(ROOT, self.original)

    def run(self, mutant: Mutant) -> MutantOutcome:
        begin = time.monotonic()
        tree = self.scratch / mutant.name
        try:
            copy_tree(self.original, tree)
            mutant.apply(tree)
            outcome = self._by_tests(mutant, tree) if mutant.tests else self._by_seeds(mutant, tree)
        except ProbeFailed as failed:
            outcome = MutantOutcome(mutant.name, "error", "the simulation did not run", (str(failed),), 0.0)
        finally:
            shutil.rmtree(tree, ignore_errors=True)
        return _timed(outcome, time.monotonic() - begin)

    # ---- seeds ----

    def _by_seeds(self, mutant: Mutant, tree: Path) -> MutantOutcome:
        first, last, run, passed_over = self.first_seed, self.first_seed + self.seeds - 1, 0, list[int]()
        while first <= last:
            found = self._first_finding(mutant, tree, first, last)
            run += (last if found is None else found.seed) - first + 1
            if found is None:
                break
            asked = SimulationRun(found.seed, mutant.work_s, mutant.faults)
            if any(ACCIDENT.search(text) for text in found.findings):
                return MutantOutcome(mutant.name, "error", str(asked), found.findings, 0.0, run)
            if not self._findings_without(asked):
                return MutantOutcome(mutant.name, "caught", str(asked), found.findings, 0.0, run, tuple(passed_over))
            passed_over.append(found.seed)
            first = found.seed + 1
        return MutantOutcome(mutant.name, "survived", f"{run} seeds", (), 0.0, run, tuple(passed_over))

    def _first_finding(self, mutant: Mutant, tree: Path, first: int, last: int) -> SeedRun | None:
        for run in probe(tree, SimulationRun(first, mutant.work_s, mutant.faults), last):
            self.told(f"{mutant.name}: seed {run.seed} {'has findings' if run.findings else 'is clean'}")
            if run.findings:
                return run
        return None

    def _findings_without(self, asked: SimulationRun) -> tuple[str, ...]:
        with self._lock:
            if asked not in self._plain:
                (run,) = probe(self.original, asked, asked.seed)
                self._plain[asked] = run.findings
            return self._plain[asked]

    # ---- tests ----

    def _by_tests(self, mutant: Mutant, tree: Path) -> MutantOutcome:
        with self._lock:
            if mutant.tests not in self._plain_tests:
                self._plain_tests[mutant.tests] = not run_tests(self.original, mutant.tests)
        if not self._plain_tests[mutant.tests]:
            return MutantOutcome(mutant.name, "error", "its tests fail without the mutant too", mutant.tests, 0.0)
        failures = run_tests(tree, mutant.tests)
        if not failures:
            return MutantOutcome(mutant.name, "survived", f"{len(mutant.tests)} tests", (), 0.0)
        if any(ACCIDENT.search(text) for text in failures):
            return MutantOutcome(mutant.name, "error", "an accident, not the rule", failures, 0.0)
        return MutantOutcome(mutant.name, "caught", "tests", failures, 0.0)


def _timed(outcome: MutantOutcome, seconds: float) -> MutantOutcome:
    return MutantOutcome(
        outcome.name, outcome.verdict, outcome.by, outcome.findings, round(seconds, 1), outcome.seeds_run,
        outcome.passed_over,
    )  # fmt: skip


def copy_tree(source: Path, target: Path) -> None:
    """What the simulation and the tests need, without compiled files: those of the original must not be run."""
    target.mkdir(parents=True)
    for name in COPIED:
        if (source / name).is_dir():
            shutil.copytree(source / name, target / name, ignore=shutil.ignore_patterns("__pycache__"))
        elif (source / name).exists():
            shutil.copy(source / name, target / name)


def environment(tree: Path) -> dict[str, str]:
    """▲ The copy alone, before whatever is installed: an editable install leads to the original."""
    return {
        **os.environ, "PYTHONPATH": str(tree), "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1",
        "COLUMNS": SUMMARY_COLUMNS,
    }  # fmt: skip


def probe(tree: Path, asked: SimulationRun, last: int) -> Iterator[SeedRun]:
    """Runs of the simulation in `tree`, with seeds counting up to `last`, or to the first one with findings. A run that
    hangs is one with a finding."""
    first = asked.seed
    command = [
        sys.executable,
        "-m",
        "simulation.mutants.probe",
        *map(str, (tree, first, last)),
        str(asked.work_s),
        asked.faults,
    ]
    with _process(command, tree) as process:
        seed = first
        for line in _lines(process, SEED_S):
            if line is None:
                yield SeedRun(seed, (f"hangs: no end of the run within {SEED_S:g} s of wall-clock time",))
                return
            told = json.loads(line)
            yield SeedRun(told["seed"], tuple(told["findings"]))
            seed = told["seed"] + 1
        if process.wait() != 0:
            raise ProbeFailed((tree / ERRORS).read_text(errors="replace")[-2000:])


@contextmanager
def _process(command: list[str], tree: Path) -> Iterator[subprocess.Popen[bytes]]:
    with (tree / ERRORS).open("wb") as errors:
        process = subprocess.Popen(command, cwd=tree, env=environment(tree), stdout=subprocess.PIPE, stderr=errors)
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def _lines(process: subprocess.Popen[bytes], within_s: float) -> Iterator[str | None]:
    """Lines as they come; None, and no more, where one takes longer than `within_s`."""
    assert process.stdout is not None
    os.set_blocking(process.stdout.fileno(), False)
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        rest, until = b"", time.monotonic() + within_s
        while True:
            if not selector.select(max(0.0, until - time.monotonic())):
                yield None
                return
            data = os.read(process.stdout.fileno(), 65536)
            if not data:
                return
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                yield line.decode()
                until = time.monotonic() + within_s


def run_tests(tree: Path, tests: tuple[str, ...]) -> tuple[str, ...]:
    """What fails, as pytest's short summary says it; empty where all pass."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-rfE", *tests]
    try:
        done = subprocess.run(
            command, cwd=tree, env=environment(tree), capture_output=True, text=True, timeout=TESTS_S, check=False
        )
    except subprocess.TimeoutExpired:
        return (f"hangs: no end of the tests within {TESTS_S:g} s",)
    if done.returncode == 0:
        return ()
    summary = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return tuple(summary) or (done.stdout[-1000:] + done.stderr[-1000:],)
