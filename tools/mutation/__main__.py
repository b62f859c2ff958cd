"""`make mutate [FILES=…] [N=200] [SEED=1] [JOBS=2]`: samples mutants, runs their tests, prints what survives.

FILES are modules or folders; without them, all modules that some test runs. With --write the score of each package
goes into docs/testing.md.
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

from tools.mutation.covering import Covering, Tests, modules, record
from tools.mutation.operators import KINDS
from tools.mutation.places import Mutant, mutants

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
PAGE = ROOT / "docs" / "testing.md"
BEGIN, END = "<!-- written by make mutate -->\n", "<!-- end -->\n"
KEPT = ROOT / ".venv" / "mutation" / "covering"
FIRST = 40
"""So many tests are run first: most mutants are caught by one of them."""
SLOWER = 5.0
"""A mutant that takes so many times as long as the code does hangs."""
LEAST_S = 60.0


@dataclass(frozen=True)
class Outcome:
    """`verdict`: caught, survived, equivalent."""

    mutant: Mutant
    verdict: str


class Tree:
    """A copy of the project, the process that runs tests in it, and their etcd."""

    def __init__(self, folder: Path, python: str) -> None:
        self.folder = folder
        self._passing: dict[tuple[str, ...], bool] = {}
        listed = subprocess.run(
            ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
            cwd=ROOT, check=True, capture_output=True, text=True,
        )  # fmt: skip
        for name in filter(None, listed.stdout.split("\0")):
            if (ROOT / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, folder / name)
        (folder / ".venv").symlink_to(ROOT / ".venv")
        # ▲ By content: a mutant written within the second of the last one would run the other one's bytecode.
        words = ["-m", "compileall", "-q", "--invalidation-mode", "checked-hash", str(folder)]
        subprocess.run([python, *words], check=True)
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("TXN_", "PYTHON"))}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self._etcd = subprocess.Popen(
            [python, "-P", "-m", "tools.mutation.etcd"], env=environment | {"PYTHONPATH": str(ROOT)}, **pipes
        )
        assert self._etcd.stdout is not None
        url = self._etcd.stdout.readline().strip()
        self._worker = subprocess.Popen(
            [python, "-P", str(HERE / "worker.py")],
            env=environment | {"PYTHONPATH": str(folder), "TXN_TEST_ETCD": url},
            **pipes,
        )

    def run(self, tests: Sequence[str], timeout_s: float) -> tuple[str, str]:
        """The worker's word, and the first test that fails."""
        assert self._worker.stdin is not None
        assert self._worker.stdout is not None
        request = {"tree": str(self.folder), "tests": list(tests), "timeout_s": timeout_s}
        self._worker.stdin.write(json.dumps(request) + "\n")
        self._worker.stdin.flush()
        answer = json.loads(self._worker.stdout.readline())
        return answer["verdict"], answer["failed"]

    def judge(self, mutant: Mutant, tests: Tests) -> str:
        """`caught` or `survived`, by the tests that pass without the mutant."""
        file = self.folder / mutant.path
        original = file.read_text()
        timeout_s = max(LEAST_S, SLOWER * tests.seconds)
        for some in (tests.quick, tests.rest):
            if not some:
                continue
            file.write_text(mutant.code)
            try:
                verdict, failed = self.run(some, timeout_s)
            finally:
                file.write_text(original)
            if verdict == "passed":
                continue
            if self._passes(failed, some, timeout_s):
                return "caught"
            print(f"{verdict} with {mutant.path}:{mutant.line}, and without: {failed or some}", flush=True)
        return "survived"

    def _passes(self, failed: str, some: Sequence[str], timeout_s: float) -> bool:
        """▲ Whether the code passes what a mutant does not: a test that fails by itself catches nothing."""
        tests = (failed,) if "::" in failed else tuple(some)
        if tests not in self._passing:
            # Once more where it fails: on a busy machine a test may.
            self._passing[tests] = any(self.run(tests, timeout_s)[0] == "passed" for _ in range(2))
        return self._passing[tests]

    def close(self) -> None:
        for process in (self._worker, self._etcd):
            assert process.stdin is not None
            process.stdin.close()
            process.wait(30)


def main() -> int:
    asked = _arguments()
    every = modules(ROOT)
    if missing := [file for file in asked.files if not any(_is_below(path, file) for path in every)]:
        print(f"no module of the product is called or stands below {', '.join(missing)}", file=sys.stderr)
        return 2
    if asked.record or not (KEPT / "run.json").exists():
        print("running the tests once, to learn which of them run which line: some fifteen minutes", flush=True)
        record(ROOT, KEPT, asked.python, asked.jobs)
    covering = Covering(ROOT, KEPT)
    known = covering.modules()
    paths = [path for path in known if not asked.files or any(_is_below(path, file) for file in asked.files)]
    unknown = [file for file in asked.files if not any(_is_below(path, file) for path in known)]
    if unknown:
        print(f"no test runs any line of {', '.join(unknown)}; RECORD=1 learns of new modules", file=sys.stderr)
        return 2
    sample = mutants(ROOT, paths, asked.count, asked.seed, asked.kinds)
    print(f"{len(sample)} mutants of {len(paths)} modules, seed {asked.seed}", flush=True)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutation-") as scratch:
        outcomes = _judged(sample, covering, Path(scratch), asked)
    _tell(outcomes, time.monotonic() - began)
    if asked.write:
        _write(outcomes, asked)
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.mutation")
    parser.add_argument("files", nargs="*", help="modules or folders; default: all that some test runs")
    parser.add_argument("-n", "--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=15.0, help="no mutant is begun behind that")
    parser.add_argument("--budget", type=float, default=20.0, help="seconds of tests for one mutant")
    parser.add_argument("--kinds", nargs="*", choices=[kind.name for kind in KINDS], help="of our own operators, only")
    parser.add_argument("--record", action="store_true", help="learn anew which tests run which line")
    parser.add_argument("--python", default=str(ROOT / ".venv" / "bin" / "python"), help="which runs the tests")
    parser.add_argument("--write", action="store_true", help="the scores go into docs/testing.md")
    return parser.parse_args()


def _is_below(path: str, file: str) -> bool:
    return path == file or path.startswith(file.rstrip("/") + "/")


def _equivalent() -> set[tuple[str, str, str]]:
    table = tomllib.loads((HERE / "equivalent.toml").read_text())
    return {(row["path"], row["before"], row["after"]) for row in table.get("mutant", [])}


def _judged(sample: list[Mutant], covering: Covering, scratch: Path, asked: argparse.Namespace) -> list[Outcome]:
    waiting: queue.SimpleQueue[tuple[int, Mutant]] = queue.SimpleQueue()
    for number, mutant in enumerate(sample):
        waiting.put((number, mutant))
    equivalent, found, lock = _equivalent(), dict[int, Outcome](), threading.Lock()
    give_up_at = time.monotonic() + 60 * asked.minutes

    def work(tree: Tree) -> None:
        while time.monotonic() < give_up_at:
            try:
                number, mutant = waiting.get_nowait()
            except queue.Empty:
                return
            began = time.monotonic()
            verdict = "equivalent"
            if (mutant.path, mutant.before, mutant.after) not in equivalent:
                with lock:  # coverage's records are one connection to SQLite
                    tests = covering.tests(mutant.path, mutant.line, asked.budget, FIRST)
                verdict = tree.judge(mutant, tests)
            found[number] = Outcome(mutant, verdict)
            took = time.monotonic() - began
            shown = f"survived, {took:.1f} s: {mutant.diff}" if verdict == "survived" else f"{verdict}, {took:.1f} s"
            print(f"{len(found)}: {mutant.path}:{mutant.line} {mutant.operator} {shown}", flush=True)

    trees = [Tree(scratch / str(number), asked.python) for number in range(asked.jobs)]
    threads = [threading.Thread(target=work, args=(tree,)) for tree in trees]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for tree in trees:
        tree.close()
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
    for package, counted, count, caught, equivalent in _scores(outcomes):
        share = f"{caught / count:.0%}" if count else "-"
        print(f"{package}: {counted} modules, {caught} of {count} caught ({share}), {equivalent} equivalent")
    print(f"{len(outcomes)} mutants in {seconds:.0f} s")


def _write(outcomes: list[Outcome], asked: argparse.Namespace) -> None:
    rows = ["| Package | Modules | Mutants | Caught | | Equivalent besides |", "|---|---|---|---|---|---|"]
    for package, counted, count, caught, equivalent in _scores(outcomes):
        share = f"{caught / count:.0%}" if count else "-"
        rows.append(f"| `{package}` | {counted} | {count} | {caught} | {share} | {equivalent} |")
    asked_for = f"`make mutate N={asked.count} SEED={asked.seed}`, {len(outcomes)} run:\n\n"
    text = PAGE.read_text()
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    PAGE.write_text(f"{head}{BEGIN}{asked_for}" + "\n".join(rows) + f"\n{END}{tail}")


if __name__ == "__main__":
    raise SystemExit(main())
