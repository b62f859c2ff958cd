"""`python -m simulation --seed N [--runs M] [--jobs J]`: one simulated cluster per seed, judged; exit 1 if anything is
wrong. Reduces the faults of failing runs to few. Everything printed replays on the same commit only."""

from __future__ import annotations

import argparse
import asyncio
import json
import shlex
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from simulation.faults.faults import BadSchedule
from simulation.fresh import first_seed
from simulation.running.job import WORK_S, Job, Result, perform, schedule_for
from simulation.running.runner import Failure, commit, run_all, to_reduce
from simulation.running.totals import Totals
from simulation.running.workers import SimulationWorker
from simulation.world import guards

HANG_S = 300.0
QUIET_PROGRESS_S = 30.0
"""Time between progress lines without a terminal."""


def _arguments(given: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m simulation", description=__doc__)
    what = parser.add_argument_group("what is run")
    what.add_argument("--seed", type=int, default=1, help="of the first run")
    what.add_argument(
        "--fresh", action="store_true", help="seeds that belong to this very code: --seed counts from them"
    )
    what.add_argument("--runs", type=int, default=1, help="how many runs, with seeds counting up")
    what.add_argument("--seconds", type=float, default=WORK_S, help="virtual seconds of work under faults")
    what.add_argument("--faults", help="only these kinds, comma-separated; 'all'; 'none'")
    what.add_argument("--schedule", help="these very faults, as they are printed")
    what.add_argument("--only", help="numbers of the schedule, comma-separated: these faults and no others; 'none'")
    what.add_argument("--batch", type=Path, help="a file with one run on each line, as arguments of this command")
    how = parser.add_argument_group("how")
    how.add_argument("--jobs", type=int, default=1, help="processes at once")
    how.add_argument("--hang", type=float, default=HANG_S, help="seconds of wall clock a run may take")
    how.add_argument("--reduce", type=int, default=40, help="runs at most to find fewer faults that fail likewise")
    how.add_argument("--here", action="store_true", help="in this process, for profilers; nothing is reduced")
    how.add_argument("-v", "--verbose", action="store_true", help="a line for each run")
    how.add_argument("--out", type=Path, help="write the totals as JSON")
    how.add_argument("--log", type=Path, help="write what happens, to compare two runs of one seed")
    how.add_argument("--history", type=Path, help="write the history as JSON lines")
    arguments = parser.parse_args(given)
    if arguments.fresh:
        arguments.seed += first_seed()
    return arguments


def _jobs(arguments: argparse.Namespace) -> list[Job]:
    """Raises `BadSchedule`."""
    if arguments.batch is not None:
        lines = (shlex.split(line, comments=True) for line in arguments.batch.read_text().splitlines())
        return [job for line in lines if line for job in _jobs(_arguments(line))]
    only: tuple[int, ...] | None = None
    if arguments.only is not None:
        only = tuple(int(number) for number in arguments.only.split(",") if number and number != "none")
    first = Job(
        seed=arguments.seed,
        work_s=arguments.seconds,
        kinds=arguments.faults,
        schedule=arguments.schedule,
        only=only,
        log=str(arguments.log) if arguments.log else None,
        history=str(arguments.history) if arguments.history else None,
    )
    schedule_for(first)  # refuses what cannot be run before anything runs
    return [first.with_seed(seed) for seed in range(first.seed, first.seed + arguments.runs)]


class Screen:
    """Output while runs go on: a line for each if `verbose`, a line rewritten on a terminal, a line now and then
    without one."""

    def __init__(self, total: int, *, verbose: bool, progress: TextIO = sys.stderr) -> None:
        self._total = total
        self._verbose = verbose
        self._progress = progress
        self._terminal = progress.isatty()
        self._begin = self._shown = time.monotonic()
        self.totals = Totals()
        self.failures: list[tuple[Job, Result]] = []

    @property
    def wall_s(self) -> float:
        return time.monotonic() - self._begin

    def done(self, job: Job, result: Result) -> None:
        self.totals.add(result)
        if result.findings:
            self.failures.append((job, result))
        if self._verbose or result.findings:
            self._clear()
            _show(job, result)
        left_s = self.wall_s / self.totals.seeds * (self._total - self.totals.seeds)
        self.say(
            f"{self.totals.seeds} of {self._total} runs done, {len(self.totals.failed)} failed, "
            f"{int(left_s) // 60}:{int(left_s) % 60:02} to go"
        )

    def say(self, text: str) -> None:
        if self._terminal:
            self._progress.write(f"\r\033[K{text}")
            self._progress.flush()
        elif time.monotonic() - self._shown > QUIET_PROGRESS_S:
            self._shown = time.monotonic()
            print(text, file=self._progress, flush=True)

    def _clear(self) -> None:
        if self._terminal:
            self._progress.write("\r\033[K")
            self._progress.flush()

    def end(self, reduced: list[Failure], *, interrupted: bool) -> None:
        self._clear()
        if interrupted:
            print(f"interrupted after {self.totals.seeds} of {self._total} runs")
        for failure in reduced:
            print("\n".join(failure.lines()))
        if self._total > 1:
            print("\n".join(self.totals.lines(self.wall_s)))


def _show(job: Job, result: Result) -> None:
    done = ", ".join(f"{count} {kind}" for kind, count in sorted(result.operations.items()))
    print(
        f"seed {result.seed}: {'FAILED' if result.findings else 'ok'} {result.digest} "
        f"({result.virtual_s:.0f} virtual s in {result.wall_s:.1f} s, {result.events} events, "
        f"{len(result.numbers)} faults ({result.shape}); {done})"
    )
    print(f"  reached: {', '.join(f'{count} {what}' for what, count in result.reached.items() if count)}")
    for finding in result.findings:
        print(f"  {finding}")
    if result.findings:
        print(f"  again: {job.command()}   (LOG=FILE writes what happens)", flush=True)


def main(given: list[str] | None = None) -> int:
    arguments = _arguments(sys.argv[1:] if given is None else given)
    try:
        jobs = _jobs(arguments)
    except BadSchedule as error:
        print(error, file=sys.stderr)
        return 2
    screen = Screen(len(jobs), verbose=arguments.verbose or len(jobs) == 1)
    if len(jobs) > 1:
        seeds = f"{jobs[0].seed}…{jobs[-1].seed}"
        print(f"{len(jobs)} runs at {commit()}, seeds {seeds}, {arguments.seconds:g} virtual s of work", flush=True)
    if arguments.here:
        for job in jobs:
            screen.done(job, perform(job))
        screen.end([], interrupted=False)
        return 1 if screen.failures else 0
    reduced: list[Failure] = []
    interrupted = asyncio.run(_until_interrupted(arguments, jobs, screen, reduced))
    screen.end(reduced, interrupted=interrupted)
    if arguments.out is not None:
        _write(arguments, screen, reduced)
    return 1 if screen.failures else 130 if interrupted else 0


async def _until_interrupted(
    arguments: argparse.Namespace, jobs: list[Job], screen: Screen, reduced: list[Failure]
) -> bool:
    work = asyncio.ensure_future(_run(arguments, jobs, screen, reduced))
    with _cancelled_by_signals(work):
        await asyncio.wait([work])
    if work.cancelled():
        return True
    work.result()
    return False


async def _run(arguments: argparse.Namespace, jobs: list[Job], screen: Screen, reduced: list[Failure]) -> None:
    parallel = max(1, min(arguments.jobs, len(jobs)))
    await run_all(jobs, parallel=parallel, hang_s=arguments.hang, done=screen.done)
    for failure in to_reduce(screen.failures) if arguments.reduce else []:
        reduced.append(failure)
        async with SimulationWorker(hang_s=arguments.hang) as worker:
            await failure.reduce(worker.perform, budget=arguments.reduce, say=screen.say)


@contextmanager
def _cancelled_by_signals(work: asyncio.Future[None]) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    for sign in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(sign, work.cancel)
    try:
        yield
    finally:
        for sign in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(sign)


def _write(arguments: argparse.Namespace, screen: Screen, reduced: list[Failure]) -> None:
    told = {
        "commit": commit(),
        "first_seed": arguments.seed,
        "work_s": arguments.seconds,
        "jobs": arguments.jobs,
        "wall_s": round(screen.wall_s, 1),
        **screen.totals.as_json(),
        "reduced": [
            {"seed": failure.job.seed, "again": failure.job.command(), "faults": failure.result.told}
            for failure in reduced
        ],
    }
    arguments.out.write_text(json.dumps(told, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    guards.install_guard()
    sys.exit(main())
