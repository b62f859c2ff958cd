"""Inside the simulation clocks, chance, threads and the order of sets raise; outside nothing changes."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import secrets
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from simulation.world import guards
from simulation.world.loop import Nondeterminism, SimLoop

ROOT = Path(__file__).resolve().parents[3]

FORBIDDEN: dict[str, Callable[[], object]] = {
    "time.time": lambda: time.time(),
    "time.time_ns": lambda: time.time_ns(),
    "time.monotonic": lambda: time.monotonic(),
    "time.perf_counter": lambda: time.perf_counter(),
    "time.sleep": lambda: time.sleep(0),
    "random.random": lambda: random.random(),
    "random.shuffle": lambda: random.shuffle([1]),
    "random.Random()": lambda: random.Random(),
    "SystemRandom": lambda: random.SystemRandom(),
    "uuid4": lambda: uuid.uuid4(),
    "urandom": lambda: os.urandom(1),
    "secrets": lambda: secrets.token_hex(),
    "Thread.start": lambda: threading.Thread(target=print).start(),
    "Popen": lambda: subprocess.Popen(["true"]),
}


@pytest.mark.parametrize("name", FORBIDDEN)
def test_it_raises_inside(name: str) -> None:
    with guards.forbidden(lambda: 5.0), pytest.raises(Nondeterminism):
        FORBIDDEN[name]()
    assert isinstance(time.time(), float)


def test_log_records_get_virtual_time() -> None:
    with guards.forbidden(lambda: 5.0):
        assert logging.makeLogRecord({}).created == 5.0
        assert random.Random("seeded").random() == random.Random("seeded").random()


def outcome(source: str) -> Any:
    """The value of `result` after running `source` as production code inside the simulation."""
    namespace = guards.guard_namespace({})
    code = guards.guard_source(source, "planted.py")
    with guards.forbidden(lambda: 5.0):
        exec(code, namespace)
    return namespace.get("result")


@pytest.mark.parametrize(
    "source",
    [
        "for x in {1, 2}: pass",
        "list({1, 2})",
        "[x for x in set([1, 2])]",
        "dict.fromkeys({x for x in (1, 2)})",
        "','.join({'a', 'b'})",
        "set([1, 2]).pop()",
        "list(frozenset((1, 2)))",
        "list({1, 2} | {3})",
        "list({1: 1, 2: 2}.keys() & {1: 1, 2: 2}.keys())",
        "a, b = {1, 2}",
        "import datetime; datetime.datetime.now()",
        "from datetime import datetime; datetime.utcnow()",
    ],
)
def test_unordered_iteration_and_wall_clocks_in_production_code_raise(source: str) -> None:
    with pytest.raises(Nondeterminism):
        outcome(source)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("result = sorted({3, 1, 2})", [1, 2, 3]),
        ("result = (len({1, 2}), 2 in {1, 2}, min({4, 3}), max(set([4, 3])), any({0, 1}))", (2, True, 3, 4, True)),
        ("result = sorted({1, 2} - {2}) + sorted({1} ^ {2}) + sorted({1: 0}.keys() | {2})", [1, 1, 2, 1, 2]),
        ("result = [x for x in {7}]", [7]),
        ("s = set(); s.add(2); s |= {1}; result = sorted(s)", [1, 2]),
        ("result = sorted({1, 2} - {1: 0}.keys()) + sorted({1: 0, 3: 0}.keys() - {1})", [2, 3]),
        ("result = sorted({1, 2, 3} & {1: 0, 3: 0}.keys()) + sorted({1: 0, 3: 0}.keys() & {3, 2})", [1, 3, 3]),
        ("result = {1, 2} == frozenset([2, 1])", True),
        ("import datetime; result = datetime.datetime(2020, 1, 1).year", 2020),
    ],
)
def test_what_does_not_depend_on_order_stays_allowed(source: str, expected: object) -> None:
    assert outcome(source) == expected


def test_a_clock_imported_by_name_is_refused_at_import() -> None:
    with pytest.raises(Nondeterminism, match="import the module instead"):
        guards.guard_source("from time import monotonic", "planted.py")


def test_outside_the_simulation_guarded_sets_are_sets() -> None:
    assert list(guards.GuardedSet([1])) == [1]
    assert len(list(guards.GuardedSet([1, 2]))) == 2


def test_task_groups_and_waits_are_ordered_inside() -> None:
    async def scenario() -> None:
        async with asyncio.TaskGroup() as group:
            assert isinstance(group._tasks, dict)  # type: ignore[attr-defined]
            tasks = [group.create_task(asyncio.sleep(0)) for _ in range(2)]
            done, _ = await asyncio.wait(tasks)
        with pytest.raises(Nondeterminism):
            list(done)
        assert all(task in done for task in tasks)

    loop = SimLoop(1)
    with guards.forbidden(loop.time):
        loop.run_until_complete(scenario())
    loop.close()


def test_production_packages_are_imported_guarded() -> None:
    program = (
        "from simulation.world import guards; guards.install_guard()\n"
        "import txnstore.access.grouping as module\n"
        "assert module.set is guards.GuardedSet\n"
        "import txnwire.proto.txn_pb2\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_guarded_code_is_kept_and_never_taken_for_plain_code(tmp_path: Path) -> None:
    """Nor plain code for guarded code; and code that has changed is guarded anew."""
    (tmp_path / "txnwire").mkdir()
    (tmp_path / "txnwire" / "__init__.py").touch()
    source = tmp_path / "txnwire" / "displays.py"
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}", "PYTHONPYCACHEPREFIX": str(tmp_path / "kept")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    guarded = (
        "from simulation.world import guards; guards.install_guard(); guard, done = guards.guard_source, []\n"
        "guards.guard_source = lambda source, path: done.append(path) or guard(source, path)\n"
        "from txnwire.displays import FOUND; print(type(FOUND).__name__, len(FOUND), len(done))\n"
    )
    plain = "from txnwire.displays import FOUND; print(type(FOUND).__name__, len(FOUND))"

    def told(program: str) -> str:
        command = [sys.executable, "-c", program]
        return subprocess.run(
            command, check=True, timeout=60, env=environment, cwd=tmp_path, capture_output=True, text=True
        ).stdout.strip()

    source.write_text("FOUND = {1, 2}\n")
    assert [told(plain), told(guarded), told(guarded), told(plain)] == [
        "set 2", "GuardedSet 2 2", "GuardedSet 2 0", "set 2",
    ]  # fmt: skip
    source.write_text("FOUND = {1, 2, 3}\n")
    assert told(guarded) == "GuardedSet 3 1"
