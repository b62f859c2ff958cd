"""The course of every demo: flights are loaded while a job works on them and faults happen, then everything is
restarted and judged.

    read the data file → start a cluster → load, work, inject faults, follow what becomes visible → stop → start → judge

A demo says what its job is (`_work`), what counts as done (`_count`), and who judges (`_judge`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from rich.console import Console

import txnclient
from txnctl.commands.shared.asking import asking
from txnctl.demo.changes import JobProgress, Pause
from txnctl.demo.flights import FLIGHTS, Flight, read_flights
from txnctl.demo.frame import BROKERS, Terminal, cluster_settings
from txnctl.demo.load import SHORTEST_S, batch_size, load
from txnctl.demo.waits import Waits
from txnctl.launch.dev import DevCluster
from txnwire.errors import Timeout


@dataclass(frozen=True, kw_only=True)
class CourseSettings:
    keep: Path | None = None
    flights: int | None = None
    segments: int = 4


@dataclass(frozen=True, kw_only=True)
class CourseReport:
    """Measurements of the run. `worked_s`: while flights were loaded and worked on. `usual_batch_s`: median of the
    loaders' batches."""

    flights: int
    worked_s: float
    pauses: Sequence[Pause]
    batch: int
    usual_batch_s: float


class Judged(Protocol):
    """The verdict that a judge prints. `differences`: the errors, in words; empty is the only good verdict."""

    differences: list[str]


class FaultCourse(Protocol):
    """`pauses`: how long each change delayed the producers, in order."""

    pauses: list[Pause]

    async def run(self, progress: JobProgress) -> None: ...


F = TypeVar("F", bound=Judged)


class DemoCourse(Generic[F]):
    """One demo. `results`: the topic of the job's results. `done`: what the second bar counts. `judged_by`: who judges
    after the restart, in words."""

    results: ClassVar[str]
    done: ClassVar[str]
    judged_by: ClassVar[str]
    work_timeout_s: ClassVar[float]
    stalled_after_s: ClassVar[float]
    shortest_load_s: ClassVar[float] = SHORTEST_S

    def __init__(self, settings: CourseSettings, folder: Path, console: Console) -> None:
        self._segments = settings.segments
        self._limit = settings.flights
        self._folder = folder
        self._console = console
        self._terminal = Terminal(console)
        self._say = self._terminal.say
        self._flights: Sequence[Flight] = ()
        self._progress = JobProgress(0)
        self._waits = Waits(time.monotonic)
        self._pauses: Sequence[Pause] = ()
        self._worked_s = 0.0

    async def run(self) -> int:
        """Returns 0 if every total agrees, 1 on any difference."""
        self._prepare()
        self._flights = list(read_flights(self._limit))
        self._progress = JobProgress(len(self._flights))
        self._say(f"{len(self._flights):,} flights out of New York in 2013 are read from the data file")
        cluster = cluster_settings(self._folder)
        async with DevCluster(cluster) as running:
            self._say(f"started in {self._folder}: etcd, a coordinator, {BROKERS} brokers")
            async with txnclient.connect(running.url) as client:
                for topic in self._topics():
                    await client.create_topic(topic, segments=self._segments, autoscale="off")
                await self._work(client, running)
        self._say(f"everything is stopped; it is started again, and {self.judged_by}")
        async with DevCluster(cluster) as running:
            findings = await self._judge(running.url)
            async with asking(running.url) as admin:
                layout = await admin.ask("topics.describe", topic=FLIGHTS)
        self._print(findings, layout)
        return 1 if findings.differences else 0

    # ---- what a demo says -------------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        raise NotImplementedError

    def _topics(self) -> Sequence[str]:
        raise NotImplementedError

    async def _work(self, client: txnclient.Client, cluster: DevCluster) -> None:
        """Runs the job, and `_load_and_follow` meanwhile."""
        raise NotImplementedError

    def _count(self, messages: Sequence[txnclient.Message]) -> None:
        """Raises `self._progress.done` by what these results stand for."""
        raise NotImplementedError

    async def _judge(self, url: str) -> F:
        raise NotImplementedError

    def _print(self, findings: F, layout: Mapping[str, Any]) -> None:
        raise NotImplementedError

    # ---- the work ---------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _timed(self) -> AsyncIterator[None]:
        started = time.monotonic()
        yield
        self._worked_s = time.monotonic() - started

    async def _load_and_follow(
        self, client: txnclient.Client, faults: FaultCourse, *beside: Coroutine[Any, Any, None]
    ) -> None:
        """Loads all flights while faults happen; returns once all are done. `beside`: raise if the job cannot go on."""
        progress = self._progress
        with self._terminal.bars() as bars:
            loading = bars.add_task("flights loaded", total=progress.total)
            working = bars.add_task(self.done, total=progress.total)

            def loaded(count: int) -> None:
                progress.loaded += count
                progress.moved.set()
                bars.update(loading, completed=progress.loaded)

            async with asyncio.timeout(self.work_timeout_s), asyncio.TaskGroup() as group:
                watching = [group.create_task(one) for one in beside]
                group.create_task(load(client, self._flights, self._waits, loaded, shortest_s=self.shortest_load_s))
                happening = group.create_task(faults.run(progress))
                await self._follow(client, lambda: bars.update(working, completed=progress.done))
                await happening
                for task in watching:
                    task.cancel()
        self._pauses = faults.pauses

    async def _follow(self, client: txnclient.Client, on_progress: Callable[[], None]) -> None:
        """Reads the results as they become visible, until all flights are done."""
        progress = self._progress
        async with await client.reader(self.results, start="earliest") as reader:
            while progress.done < progress.total:
                messages = await reader.receive_many(2000, timeout=self.stalled_after_s)
                if not messages:
                    there = f"{progress.done:,} of {progress.total:,} {self.done}"
                    raise Timeout(f"nothing new became visible for {self.stalled_after_s:g} s; {there}")
                self._count(messages)
                progress.moved.set()
                on_progress()

    def _report(self) -> CourseReport:
        return CourseReport(
            flights=len(self._flights),
            worked_s=self._worked_s,
            pauses=self._pauses,
            batch=batch_size(len(self._flights)),
            usual_batch_s=self._waits.usual_s(),
        )
