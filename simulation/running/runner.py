"""Runs many jobs over worker processes, and reduces the faults of those that fail."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

import msgspec

from simulation.running.job import Job, Result
from simulation.running.reduction import fails_likewise, kinds_of, reduction
from simulation.running.workers import SimulationWorker

ROOT = Path(__file__).resolve().parents[2]
REDUCED_SEEDS = 3
"""Number of failed runs that are reduced: the first of each kind of finding."""


async def run_all(jobs: Iterable[Job], *, parallel: int, hang_s: float, done: Callable[[Job, Result], None]) -> None:
    """Runs every job once, `parallel` at a time. Calls `done` as each ends. Cancelling kills the workers."""
    waiting = iter(jobs)

    async def work() -> None:
        async with SimulationWorker(hang_s=hang_s) as worker:
            for job in waiting:
                done(job, await worker.perform(job))

    async with asyncio.TaskGroup() as workers:
        for _ in range(parallel):
            workers.create_task(work())


class Failure:
    """A run that failed, and the shortest list of its faults found to fail likewise."""

    def __init__(self, job: Job, result: Result) -> None:
        self.job = job
        self.result = result
        self.tries = 0
        self._numbers = len(result.numbers)

    @property
    def reducible(self) -> bool:
        """Hanging runs are not tried again and again."""
        return bool(self.result.digest or self.result.raised)

    async def reduce(
        self, perform: Callable[[Job], Awaitable[Result]], *, budget: int, say: Callable[[str], None]
    ) -> None:
        """Reduces in at most `budget` more runs."""
        kinds = kinds_of(self.result.findings)
        steps = reduction(self.result.numbers)
        numbers = next(steps, None)
        while numbers is not None and self.tries < budget:
            job = msgspec.structs.replace(self.job, only=numbers)
            result = await perform(job)
            self.tries += 1
            fails = fails_likewise(result.findings, kinds)
            if fails:
                self.job, self.result = job, result
            say(
                f"reducing seed {job.seed}: run {self.tries} of {budget}, "
                f"{len(numbers)} faults {'fail as well' if fails else 'do not'}; {len(self.result.numbers)} left"
            )
            try:
                numbers = steps.send(fails)
            except StopIteration:
                numbers = None

    def lines(self) -> list[str]:
        told = self.result.told or self.result.schedule.split("; ")
        left = len(self.result.numbers)
        kept = msgspec.structs.replace(self.job, kinds=None, schedule=self.result.schedule, only=None)
        return [
            f"seed {self.job.seed} at {commit()}",
            *(f"  {finding}" for finding in self.result.findings),
            f"  its faults, {left} of the {self._numbers} drawn, after {self.tries} runs with fewer:",
            *(f"    {fault}" for fault in told if fault),
            f"  again: {self.job.command()}",
            f"  to keep it, in tests/simulation/regression_seeds.txt: {kept.arguments()}",
        ]  # fmt: skip


def to_reduce(failures: Iterable[tuple[Job, Result]]) -> list[Failure]:
    """The first reducible failure of each kind of finding."""
    seen: dict[str, None] = {}
    chosen: list[Failure] = []
    for job, result in failures:
        failure, kinds = Failure(job, result), kinds_of(result.findings)
        if failure.reducible and not any(kind in seen for kind in kinds):
            chosen.append(failure)
        seen |= dict.fromkeys(kinds)
    return chosen[:REDUCED_SEEDS]


def commit() -> str:
    """The commit that was run."""
    try:
        head = _git("rev-parse", "--short=10", "HEAD")
        changed = _git("status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.CalledProcessError):
        return "an unknown commit: there is no git here"
    return f"commit {head}{' with uncommitted changes' if changed else ''}"


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True, timeout=30)
    return done.stdout.strip()
