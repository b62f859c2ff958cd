"""The order of tests: what takes long comes first.

With `pytest -n 4 --dist worksteal` each worker begins with a stretch of the list, of equal length, and gives away from
its end. So each stretch begins with long tests and ends with short ones, and no worker is left alone with a long one.

Spark's tests take longer than all others, and each process that runs some starts a JVM: half of them begin the first
stretch, half the second. The other long files begin the others, dealt out in turn.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TypeVar

TESTS = Path(__file__).parent
SPARK = "spark"
FIRST = "spark/test_two_hosts.py"
"""Begins Spark's tests: what it sets up takes longer than its tests, and no other worker takes the first ones over."""
LONG = (
    "process",
    "simulation/running",
    "charts",
    "txnctl/demo",
    "txnctl/backup",
    "txnctl/process",
    "examples",
    "simulation/test_seeds.py",
    "simulation/test_fresh.py",
    "simulation/mutants",
    "project/test_wheels.py",
    "project/test_documented_programs.py",
    "test_small_quota.py",
    "layouts/test_layout_machine.py",
    "test_etcd_members.py",
    "test_restored_backup.py",
    "coordinator_v5",
)
"""Folders and files, below `tests`, of tests that take seconds each, longest first."""

SOAKS = (
    "process",
    "simulation/running",
    "simulation/test_seeds.py",
    "simulation/test_fresh.py",
    "spark/jobs/test_audit.py",
    "spark/test_windows_example.py",
    "examples/test_operators_evening.py",
    "txnctl/demo/spark",
    "txnctl/demo/test_demo.py",
)
"""Folders and files of kills under load, whole simulated runs and demos: `make test-soak`. They take as much time as
most of the others together. Single tests elsewhere have the mark themselves."""

T = TypeVar("T")


@cache
def is_soak(path: Path) -> bool:
    return any(path.is_relative_to(TESTS / name) for name in SOAKS)


@cache
def kind_of(path: Path) -> int:
    """0: Spark's; 1 to `len(LONG)`: a long one, by its place in the list; one more: a short one."""
    try:
        below = path.relative_to(TESTS).as_posix()
    except ValueError:
        return len(LONG) + 1
    if below.startswith(f"{SPARK}/"):
        return 0
    for place, name in enumerate(LONG, start=1):
        if below == name or below.startswith(f"{name}/"):
            return place
    return len(LONG) + 1


def ordered(items: Sequence[tuple[T, Path]], workers: int) -> list[T]:
    """The items for this number of workers; `items`: each with the path of its file, in the order of collection."""
    kinds = [(kind_of(path), item, path) for item, path in items]
    sparks = [item for kind, item, path in sorted(kinds, key=lambda one: one[2] != TESTS / FIRST) if kind == 0]
    long = sorted(((kind, path, item) for kind, item, path in kinds if 0 < kind <= len(LONG)), key=lambda one: one[0])
    short = [item for kind, item, _ in kinds if kind > len(LONG)]
    if workers < 2:
        return [*sparks, *(item for _, _, item in long), *short]
    half = (len(sparks) + 1) // 2
    stretches: list[list[T]] = [[] for _ in range(workers)]
    stretches[0] += sparks[:half]
    stretches[1] += sparks[half:]
    takers = stretches[2:] or stretches
    for number, path in enumerate(dict.fromkeys(path for _, path, _ in long)):
        takers[number % len(takers)].extend(item for _, its, item in long if its == path)
    length, more = divmod(len(items), workers)
    _spill(stretches, length)
    left = iter(short)
    for number, stretch in enumerate(stretches):
        wanted = length + (number < more) - len(stretch)
        stretch.extend(item for _, item in zip(range(wanted), left, strict=False))
    return [*(item for stretch in stretches for item in stretch), *left]


def _spill(stretches: list[list[T]], length: int) -> None:
    """Hand what is beyond a stretch's length on to the stretch that is shortest by then."""
    for stretch in stretches:
        while len(stretch) > length:
            shortest = min(stretches, key=len)
            if shortest is stretch or len(shortest) >= length:
                return
            shortest.append(stretch.pop())


def workers_of_run() -> int:
    """How many processes run the tests of this run."""
    return int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
