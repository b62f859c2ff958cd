"""One run as ordered from a worker process, and its result; both pass through pipes as JSON."""

from __future__ import annotations

import shlex
import time
import traceback
from contextlib import ExitStack
from pathlib import Path

import msgspec

from simulation.faults.faults import Schedule, expect_kinds, parse_faults

WORK_S = 60.0
"""Default virtual seconds of work under faults."""


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """`kinds`: names of kinds of faults, instead of the seed's choice; `schedule`: the faults themselves, as
    `str(schedule)` prints them; `only`: numbers of the schedule. `log`, `history`: files to write."""

    seed: int
    work_s: float = WORK_S
    kinds: str | None = None
    schedule: str | None = None
    only: tuple[int, ...] | None = None
    log: str | None = None
    history: str | None = None

    def with_seed(self, seed: int) -> Job:
        return msgspec.structs.replace(self, seed=seed)

    def arguments(self) -> str:
        """Arguments of `python -m simulation`, without the files."""
        words = ["--seed", str(self.seed)]
        if self.work_s != WORK_S:
            words += ["--seconds", f"{self.work_s:g}"]
        if self.kinds is not None:
            words += ["--faults", self.kinds]
        if self.schedule is not None:
            words += ["--schedule", self.schedule]
        if self.only is not None:
            words += ["--only", ",".join(map(str, self.only)) or "none"]
        return shlex.join(words)

    def command(self) -> str:
        """The command that replays it."""
        words = [f"SEED={self.seed}"]
        if self.work_s != WORK_S:
            words.append(f"SECONDS={self.work_s:g}")
        if self.kinds is not None:
            words.append(f"FAULTS='{self.kinds}'")
        if self.schedule is not None:
            words.append(f"SCHEDULE='{self.schedule}'")
        if self.only is not None:
            words.append(f"ONLY={','.join(map(str, self.only)) or 'none'}")
        return f"make sim {' '.join(words)}"


class Result(msgspec.Struct, kw_only=True):
    """`findings` is empty if nothing is wrong. `numbers`: of the faults in its schedule; `told`: its faults in words;
    `operations`: by kind and outcome."""

    seed: int
    wall_s: float
    digest: str = ""
    virtual_s: float = 0.0
    events: int = 0
    shape: str = ""
    schedule: str = ""
    numbers: tuple[int, ...] = ()
    told: list[str] = []
    faults: dict[str, int] = {}
    operations: dict[str, int] = {}
    errors: dict[str, int] = {}
    reached: dict[str, int] = {}
    settled: dict[str, float] = {}
    """How long each kind of work went on after everything had healed, in virtual seconds."""
    findings: list[str] = []
    raised: bool = False
    """Whether the simulation ended with an exception."""

    @property
    def transactions(self) -> int:
        """All judged transactions, whatever their outcome."""
        return sum(count for kind, count in self.operations.items() if kind.startswith("txn "))


def schedule_for(job: Job) -> Schedule:
    """Raises `BadSchedule`. Imports production code: see `guards.install_guard`."""
    from simulation.faults.nemesis import KINDS, schedule_of

    if job.schedule is not None:
        schedule = Schedule(job.seed, "as given", parse_faults(job.schedule))
        expect_kinds((fault.kind for fault in schedule.faults), KINDS)
    else:
        schedule = schedule_of(job.seed, work_s=job.work_s, faults=job.kinds)
    return schedule if job.only is None else schedule.only(job.only)


def perform(job: Job) -> Result:
    """Runs it in this process. An exception of the simulation is a finding, with its traceback."""
    from simulation.judges.history import write_history
    from simulation.running.scenario import run

    begin = time.perf_counter()
    schedule = schedule_for(job)
    result = Result(
        seed=job.seed,
        wall_s=0.0,
        shape=schedule.shape,
        schedule=str(schedule),
        numbers=tuple(fault.number for fault in schedule.faults),
    )
    try:
        with ExitStack() as stack:
            log = stack.enter_context(Path(job.log).open("w")) if job.log else None
            report = run(job.seed, work_s=job.work_s, schedule=schedule, log=log)
    except Exception as error:  # noqa: BLE001 a run that raises is a finding
        result.raised = True
        result.findings = [f"raised {type(error).__name__}: {error}\n{traceback.format_exc()}"]
    else:
        result.digest, result.virtual_s, result.events = report.digest, report.virtual_s, report.events
        result.told, result.faults, result.operations = report.told, report.faults, report.operations
        result.errors, result.reached, result.findings = report.errors, report.reached, report.findings
        result.settled = report.settled
        if job.history:
            write_history(Path(job.history), report.history)
    result.wall_s = time.perf_counter() - begin
    return result
