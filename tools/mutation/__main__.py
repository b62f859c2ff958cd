"""`make mutate [FILES=…] [N=200] [SEED=1] [JOBS=2]`: samples mutants, runs their tests, prints what survives.

With --write, and without FILES, the score of each package goes into docs/testing.md.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.mutation.places import Mutant, mutants

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
PAGE = ROOT / "docs" / "testing.md"
BEGIN, END = "<!-- written by make mutate -->\n", "<!-- end -->\n"
COPIED = (
    "txnwire", "txnstore", "watchers", "segments", "coordinator_v5", "txnclient", "txnctl", "simulation", "tests",
    "conftest.py", "pyproject.toml",
)  # fmt: skip
SLOWER = 5.0
"""A mutant that takes so many times as long as the code does hangs."""
LEAST_S = 60.0


@dataclass(frozen=True)
class Outcome:
    """`verdict`: caught, survived, equivalent."""

    mutant: Mutant
    verdict: str


Target = tuple[tuple[str, ...], tuple[str, ...]]
"""Test files of a module, and the slow ones, which only what survives the former is shown to."""


class Tree:
    """A copy of the project, and the process that runs tests in it."""

    def __init__(self, folder: Path, python: str) -> None:
        self.folder = folder
        ignored = shutil.ignore_patterns("__pycache__", ".hypothesis")
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, folder / name, ignore=ignored)
            else:
                folder.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, folder / name)
        environment = {name: value for name, value in os.environ.items() if not name.startswith("TXN_")}
        self._worker = subprocess.Popen(
            [python, "-P", str(HERE / "worker.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment | {"PYTHONPATH": str(folder)},
        )

    def run(self, tests: Sequence[str], timeout_s: float) -> tuple[str, float]:
        assert self._worker.stdin is not None
        assert self._worker.stdout is not None
        request = {"tree": str(self.folder), "tests": list(tests), "timeout_s": timeout_s}
        self._worker.stdin.write(json.dumps(request) + "\n")
        self._worker.stdin.flush()
        answer = json.loads(self._worker.stdout.readline())
        return answer["verdict"], answer["seconds"]

    def close(self) -> None:
        assert self._worker.stdin is not None
        self._worker.stdin.close()
        self._worker.wait(30)


def main() -> int:
    asked = _arguments()
    targets = {
        path: (tuple(row["tests"]), tuple(row.get("models", ())))
        for row in _table("targets.toml")["target"]
        for path in row["modules"]
    }
    unknown = [path for path in asked.files if path not in targets]
    if unknown:
        print(f"no tests are named for {', '.join(unknown)} in tools/mutation/targets.toml", file=sys.stderr)
        return 2
    paths = asked.files or list(targets)
    sample = mutants(ROOT, paths, asked.count, asked.seed)
    print(f"{len(sample)} mutants of {len(paths)} modules, seed {asked.seed}", flush=True)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutation-") as scratch:
        outcomes = _judged(sample, targets, Path(scratch), asked)
    _tell(outcomes, time.monotonic() - began)
    if asked.write:
        _write(outcomes, asked)
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.mutation")
    parser.add_argument("files", nargs="*", help="modules, as they stand in targets.toml; default: all of those")
    parser.add_argument("-n", "--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=15.0, help="no mutant is begun behind that")
    parser.add_argument("--python", default=str(ROOT / ".venv" / "bin" / "python"), help="which runs the tests")
    parser.add_argument("--write", action="store_true", help="the scores go into docs/testing.md")
    return parser.parse_args()


def _table(name: str) -> dict[str, list[dict[str, list[str]]]]:
    return tomllib.loads((HERE / name).read_text())


def _judged(
    sample: list[Mutant], targets: dict[str, Target], scratch: Path, asked: argparse.Namespace
) -> list[Outcome]:
    waiting: queue.SimpleQueue[tuple[int, Mutant, int]] = queue.SimpleQueue()
    for number, mutant in enumerate(sample):
        waiting.put((number, mutant, 0))
    equivalent = {(row["path"], row["before"], row["after"]) for row in _table("equivalent.toml").get("mutant", [])}
    found: dict[int, Outcome] = {}
    plain: dict[tuple[str, ...], float] = {}
    lock, failed = threading.Lock(), list[str]()
    give_up_at = time.monotonic() + 60 * asked.minutes

    def work(tree: Tree) -> None:
        """The tests of each mutant first; behind all of them, while there is time, the models of those that survive."""
        while time.monotonic() < give_up_at and not failed:
            try:
                number, mutant, stage = waiting.get_nowait()
            except queue.Empty:
                return
            if (mutant.path, mutant.before, mutant.after) in equivalent:
                found[number] = Outcome(mutant, "equivalent")
                continue
            tests = targets[mutant.path][stage]
            if tests not in plain:
                verdict, seconds = tree.run(tests, 600)
                if verdict != "passed":
                    failed.append(f"{' '.join(tests)}: {verdict} without a mutant")
                    return
                with lock:
                    plain[tests] = seconds
            file = tree.folder / mutant.path
            original = file.read_text()
            file.write_text(mutant.code)
            try:
                verdict, seconds = tree.run(tests, max(LEAST_S, SLOWER * plain[tests]))
            finally:
                file.write_text(original)
            found[number] = Outcome(mutant, "survived" if verdict == "passed" else "caught")
            print(f"{len(found)}: {mutant.path}:{mutant.line} {found[number].verdict}, {seconds} s", flush=True)
            if verdict == "passed" and stage == 0 and targets[mutant.path][1]:
                waiting.put((number, mutant, 1))

    trees = [Tree(scratch / str(number), asked.python) for number in range(asked.jobs)]
    threads = [threading.Thread(target=work, args=(tree,)) for tree in trees]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for tree in trees:
        tree.close()
    if failed:
        raise SystemExit("\n".join(failed))
    return [found[number] for number in sorted(found)]


def _scores(outcomes: list[Outcome]) -> list[tuple[str, int, int, int, int]]:
    """Package → modules, mutants that change something, of these caught, and besides equivalent ones."""
    by_package: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        by_package[outcome.mutant.path.partition("/")[0]].append(outcome)
    rows = []
    for package, some in sorted(by_package.items()):
        verdicts = [outcome.verdict for outcome in some]
        equivalent, caught = verdicts.count("equivalent"), verdicts.count("caught")
        modules = len({outcome.mutant.path for outcome in some})
        rows.append((package, modules, len(some) - equivalent, caught, equivalent))
    return rows


def _tell(outcomes: list[Outcome], seconds: float) -> None:
    for outcome in outcomes:
        if outcome.verdict == "survived":
            print(f"survived: {outcome.mutant.diff}")
    for package, modules, count, caught, equivalent in _scores(outcomes):
        share = f"{caught / count:.0%}" if count else "-"
        print(f"{package}: {modules} modules, {caught} of {count} caught ({share}), {equivalent} equivalent")
    print(f"{len(outcomes)} mutants in {seconds:.0f} s")


def _write(outcomes: list[Outcome], asked: argparse.Namespace) -> None:
    rows = ["| Package | Modules | Mutants | Caught | | Equivalent besides |", "|---|---|---|---|---|---|"]
    for package, modules, count, caught, equivalent in _scores(outcomes):
        share = f"{caught / count:.0%}" if count else "-"
        rows.append(f"| `{package}` | {modules} | {count} | {caught} | {share} | {equivalent} |")
    asked_for = f"`make mutate N={asked.count} SEED={asked.seed}`, {len(outcomes)} run:\n\n"
    text = PAGE.read_text()
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    PAGE.write_text(f"{head}{BEGIN}{asked_for}" + "\n".join(rows) + f"\n{END}{tail}")


if __name__ == "__main__":
    raise SystemExit(main())
