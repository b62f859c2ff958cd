"""Which tests run a line: a run of all tests in one process each, under coverage, says so.

Kept in the environment's folder. A module that has changed since then is known by its tests, not by line.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import coverage

PACKAGES: Final = (
    "txnwire", "txnstore", "watchers", "segments", "coordinator_v5", "txnclient", "pyspark_txnstore", "txnctl",
)  # fmt: skip
FOLDERS: Final = (
    "tests/txnwire", "tests/txnstore", "tests/watchers", "tests/segments", "tests/coordinator_v5", "tests/txnclient",
    "tests/txnctl", "tests/spark", "tests/reads", "tests/layouts",
)  # fmt: skip
"""And the files beside them. Those of whole programs run our code in other processes."""
AT_LEAST: Final = 5
"""So many tests a mutant is shown to, however long they take."""
UNTESTED: Final = ("_pb2", "/sync/", "/memory/")
"""Parts of the paths of generated modules, and of what serves tests alone."""
MOST_UNTRACED: Final = 0.1
"""Share of tests that need not run a line of ours: those of the tests' own helpers."""
SOME_FAILED: Final = 1
"""pytest's exit code."""
NEAR: Final = 30
"""A statement's own line is at most so many above one of its lines."""


@dataclass(frozen=True)
class Tests:
    """`quick` come first: those of the module's own room, then what takes least. Node ids of pytest."""

    quick: tuple[str, ...]
    rest: tuple[str, ...]
    seconds: float


class Covering:
    """What a run has recorded in `folder`."""

    def __init__(self, root: Path, folder: Path) -> None:
        self._root = root
        self._data = coverage.CoverageData(str(folder / "coverage"))
        self._data.read()
        kept = json.loads((folder / "run.json").read_text())
        self._seconds: dict[str, float] = kept["seconds"]
        self._hashes: dict[str, str] = kept["hashes"]
        self._by_line: dict[str, dict[int, list[str]]] = {}

    def modules(self) -> list[str]:
        """Paths that some test runs."""
        return [path for path in modules(self._root) if self._lines(path)]

    def tests(self, path: str, line: int, budget_s: float, first: int) -> Tests:
        """The tests that run `line`: `first` of them, then as many as take `budget_s` in all."""
        lines = self._lines(path)
        names: set[str] = set()
        if self._hashes.get(path) == _hash(self._root / path):
            for number in range(line, max(line - NEAR, 0), -1):
                names = _named(lines.get(number, ()))
                if names or number in lines:
                    break
        # A line that runs at import only, and each line of a changed module: what runs any line of it.
        names = names or set().union(*(_named(some) for some in lines.values()))
        names &= self._seconds.keys()
        room = "tests/" + path.removesuffix(".py").replace("pyspark_txnstore", "spark")
        ordered = sorted(names, key=lambda name: (-_shared(room, name), self._seconds.get(name, 0.0), name))
        chosen, total = [], 0.0
        for name in ordered:
            seconds = self._seconds.get(name, 0.0)
            if total + seconds <= budget_s or len(chosen) < AT_LEAST:
                chosen.append(name)
                total += seconds
        return Tests(tuple(chosen[:first]), tuple(chosen[first:]), total)

    def _lines(self, path: str) -> dict[int, list[str]]:
        if path not in self._by_line:
            self._by_line[path] = self._data.contexts_by_lineno(str(self._root / path))
        return self._by_line[path]


def modules(root: Path) -> list[str]:
    paths = (str(path.relative_to(root)) for name in PACKAGES for path in (root / name).rglob("*.py"))
    return sorted(path for path in paths if not any(part in path for part in UNTESTED))


def record(root: Path, folder: Path, python: str, jobs: int) -> None:
    """Runs the tests, which takes some fifteen minutes. One that fails is shown to no mutant. Raises
    `CalledProcessError` if they cannot be run, `RuntimeError` if a part of them left no trace."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("coverage*"):
        old.unlink()
    settings = folder / "coveragerc"
    settings.write_text(f"[run]\ndata_file = {folder / 'coverage'}\nsource = {','.join(PACKAGES)}\n")
    timed = folder / "seconds.json"
    words = [python, "-P", "-m", "pytest", "-n", str(jobs), "--dist", "worksteal", "-q", "-m", "not soak"]
    words += ["-p", "tools.mutation.in_one_process", f"--seconds-to={timed}"]
    words += ["--cov", f"--cov-config={settings}", "--cov-context=test", "--cov-report=", *FOLDERS]
    words += [str(path.relative_to(root)) for path in sorted((root / "tests").glob("test_*.py"))]
    done = subprocess.run(words, cwd=root, check=False)
    if done.returncode != SOME_FAILED:
        done.check_returncode()
    kept = {
        "seconds": json.loads(timed.read_text()),
        "hashes": {path: _hash(root / path) for path in modules(root)},
    }
    # ▲ A test that takes the trace function away, and does not put it back, hides all that its process runs behind it.
    data = coverage.CoverageData(str(folder / "coverage"))
    data.read()
    traced = _named(data.measured_contexts())
    untraced = [name for name in kept["seconds"] if name not in traced]
    if len(untraced) > MOST_UNTRACED * len(kept["seconds"]):
        raise RuntimeError(f"{len(untraced)} tests were run and not traced, as {untraced[0]}")
    (folder / "run.json").write_text(json.dumps(kept))


def _named(contexts: Iterable[str]) -> set[str]:
    """`tests/…::test_…|run` → the node id."""
    return {context.rpartition("|")[0] for context in contexts if "|" in context}


def _shared(room: str, name: str) -> int:
    """How many folders of a test's path are those of a module."""
    pairs = zip(room.split("/"), name.partition("::")[0].split("/"), strict=False)
    return sum(1 for one, other in pairs if one == other)


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
