"""Checks after each test that everything it opened is closed and left nothing; `simulation.judges.leftovers` is the
judge.

A test that leaves something on purpose names it by `@pytest.mark.leaves("tasks", "why")`, with the kinds below.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from coordinator_v5.coordinator import Coordinator
from segments.broker.broker import Broker
from segments.controller.controller import Controller
from segments.ledger.file_ledger import FileLedgerStore
from simulation.judges.leftovers import files_left, leases_left, left_in, tasks_left
from simulation.world.loop import ProcessLife, SimLoop
from txnclient.client import Client
from txnctl.process.server import Server
from txnstore.memory.memory_etcd import MemoryEtcd

KINDS = ("tasks", "files", "budgets", "leases")
JUDGED = (Server, Broker, Controller, Coordinator, Client, FileLedgerStore)
AT_MOST = 50
"""Most objects kept for the judge: a property makes them by the thousand."""
TURNS = 20
"""Turns of the loop that end the tasks cancelled last."""


class Judged:
    """The objects that the present test has made."""

    def __init__(self) -> None:
        self.made: deque[object] = deque(maxlen=AT_MOST)
        self.etcds: deque[MemoryEtcd] = deque(maxlen=AT_MOST)
        self.crashed: dict[int, None] = {}
        """Brokers abandoned as if they had died: their answers never come."""
        self.deaths = 0
        """Of those, and of processes that were killed: who dies leaves its lease to expire."""

    def clear(self) -> None:
        self.made.clear()
        self.etcds.clear()
        self.crashed.clear()
        self.deaths = 0

    def findings(self) -> Iterator[str]:
        for one in self.made:
            if id(one) not in self.crashed:
                yield from left_in(one)

    def leases(self) -> Iterator[str]:
        for etcd in () if self.deaths else self.etcds:
            yield from leases_left(etcd)


judged = Judged()


def _watch(cls: type[Any], kept: deque[Any]) -> None:
    make: Callable[..., None] = cls.__init__

    def made(self: object, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        kept.append(self)

    cls.__init__ = made


def _watch_crashes() -> None:
    close = Broker.close

    async def closed(self: Broker, *, graceful: bool = True) -> None:
        if not graceful:
            judged.crashed[id(self)] = None
            judged.deaths += 1
        await close(self, graceful=graceful)

    kill = SimLoop.kill

    def killed(self: SimLoop, owner: ProcessLife) -> None:
        judged.deaths += 1
        kill(self, owner)

    Broker.close = closed  # type: ignore[method-assign]
    SimLoop.kill = killed  # type: ignore[method-assign]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", f"leaves(kind, why): leaves something behind on purpose, one of {KINDS}")
    for cls in JUDGED:
        _watch(cls, judged.made)
    _watch(MemoryEtcd, judged.etcds)
    _watch_crashes()


def _is_judged(request: pytest.FixtureRequest, kind: str) -> bool:
    return all(marker.args[0] != kind for marker in request.node.iter_markers("leaves"))


@pytest.fixture
async def _no_task_left(request: pytest.FixtureRequest) -> AsyncIterator[None]:
    """Set up before all other fixtures of the loop, so it checks after they have closed theirs."""
    yield
    for _ in range(TURNS):
        await asyncio.sleep(0)
    left = sorted(tasks_left(asyncio.all_tasks()))
    assert not (left and _is_judged(request, "tasks")), left


@pytest.fixture(autouse=True)
def nothing_left(request: pytest.FixtureRequest) -> Iterator[None]:
    judged.clear()
    known = list(files_left())
    if inspect.iscoroutinefunction(getattr(request, "function", None)):
        request.getfixturevalue("_no_task_left")
    yield
    left = list(judged.findings()) if _is_judged(request, "budgets") else []
    left += list(judged.leases()) if _is_judged(request, "leases") else []
    judged.clear()
    if _is_judged(request, "files"):
        left += [file for file in files_left() if file not in known]
    assert left == []
