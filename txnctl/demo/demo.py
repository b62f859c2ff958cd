"""`txnctl demo`: load, work, kill, restart, judge (README, "The main job")."""

from __future__ import annotations

import asyncio
import contextlib
import math
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import txnclient
from txnctl.commands.asking import asking
from txnctl.demo.flights import FLIGHTS, OUTCOMES, TALLIES, Flight, read_flights
from txnctl.demo.journal import ABORTED, COMMITTED, Line, read_lines
from txnctl.demo.lags import lags, unfinished
from txnctl.demo.load import load
from txnctl.demo.verify import Findings
from txnctl.demo.worker import BATCH
from txnctl.dev import DevCluster, DevSettings
from txnctl.supervisor import ChildSpec, Supervisor
from txnstore.lifetime import tied_to_parent
from txnwire.errors import InternalError, NotAllowed, Timeout

WORK_TIMEOUT_S = 600.0
VERIFY_TIMEOUT_S = 180.0
STALLED_AFTER_S = 60.0
LAG_CAPTION = (
    "A committed transaction can be read once all that wrote before it have ended. The first lag holds the wait for "
    "other workers' transactions (a killed one's ends after a grace), the second begins when they had ended. Both hold "
    "the kills and the wait for a core: the reader shares its process with the loaders, and all share this machine."
)
KILL_WORKER_AT = 0.3
KILL_BROKER_AT = 0.5


@dataclass(frozen=True, kw_only=True)
class DemoSettings:
    keep: Path | None = None
    workers: int = 3
    flights: int | None = None
    segments: int = 4


@dataclass
class Followed:
    """What a READ_COMMITTED reader of the outcomes has seen while the job runs. `last_seen_s`: when the last message of
    each transaction was read, by id, on the machine's monotonic clock."""

    outcomes: int = 0
    last_seen_s: dict[str, float] = field(default_factory=dict)


class Demo:
    def __init__(self, settings: DemoSettings, folder: Path, console: Console) -> None:
        self._settings = settings
        self._folder = folder
        self._journals = folder / "journals"
        self._console = console
        self._flights: Sequence[Flight] = ()
        self._followed = Followed()
        self._progressed = asyncio.Event()
        self._worked_s = 0.0
        self._given_up_s: dict[str, float] = {}

    async def run(self) -> int:
        """0 if every total agrees, 1 on any difference."""
        self._journals.mkdir(parents=True, exist_ok=True)
        self._say("reading the flights of 2013 out of New York")
        self._flights = list(read_flights(self._settings.flights))
        cluster = DevSettings(data_dir=self._folder, listen="127.0.0.1:0", admin="127.0.0.1:0", etcd_port=0, brokers=1)
        self._say(f"starting etcd, one server and one broker in {self._folder}")
        async with DevCluster(cluster) as running:
            await self._work(running)
        self._say("everything is stopped; starting it again, and letting another process judge")
        async with DevCluster(cluster) as running:
            findings = await self._judge(running.url)
        self._print_summary(findings)
        return 1 if findings.differences else 0

    async def _work(self, cluster: DevCluster) -> None:
        started = time.monotonic()
        async with txnclient.connect(cluster.url) as client:
            for topic in (FLIGHTS, OUTCOMES, TALLIES):
                await client.create_topic(topic, segments=self._settings.segments)
            async with Supervisor(self._worker_specs(cluster.url)) as workers:
                with self._progress() as progress:
                    await self._work_under_kills(client, cluster, workers, progress)
                self._worked_s = time.monotonic() - started
            await self._ask_what_was_given_up(cluster.url)

    async def _work_under_kills(
        self, client: txnclient.Client, cluster: DevCluster, workers: Supervisor, progress: Progress
    ) -> None:
        total = len(self._flights)
        loading = progress.add_task("flights loaded", total=total)
        working = progress.add_task("outcomes visible", total=total)
        async with asyncio.timeout(WORK_TIMEOUT_S), asyncio.TaskGroup() as group:
            group.create_task(load(client, self._flights, lambda count: progress.advance(loading, count)))
            kills = group.create_task(self._kill(cluster, workers))
            await self._follow(client, lambda: progress.update(working, completed=self._followed.outcomes))
            await kills

    async def _follow(self, client: txnclient.Client, on_progress: Callable[[], None]) -> None:
        """Read the outcomes as they become visible, until there is one for every flight."""
        seen: set[int] = set()
        async with await client.reader(OUTCOMES, start="earliest") as reader:
            while len(seen) < len(self._flights):
                messages = await reader.receive_many(2000, timeout=STALLED_AFTER_S)
                if not messages:
                    there = f"{len(seen)} of {len(self._flights)} are there"
                    raise Timeout(f"no new outcome became visible in {STALLED_AFTER_S:g} s; {there}")
                now = time.monotonic()
                for message in messages:
                    self._followed.last_seen_s[str(message.txn_id)] = now
                    seen.add(msgspec.json.decode(message.value)["row_id"])
                self._followed.outcomes = len(seen)
                self._progressed.set()
                on_progress()

    async def _kill(self, cluster: DevCluster, workers: Supervisor) -> None:
        """SIGKILL a worker, later the broker, in mid-work; their supervisors bring them back, as a cluster would."""
        victims = [(KILL_WORKER_AT, workers.children["worker-1"]), (KILL_BROKER_AT, cluster.children["broker-1"])]
        for share, victim in victims:
            while self._followed.outcomes < share * len(self._flights):
                self._progressed.clear()
                await self._progressed.wait()
            self._say(f"SIGKILL to {victim.spec.name} (pid {victim.pid}) after {self._followed.outcomes:,} outcomes")
            victim.signal(signal.SIGKILL)

    async def _ask_what_was_given_up(self, url: str) -> None:
        """When the coordinator ended what a killed worker had left open, as far as its header is still there."""
        monotonic_of_epoch_s = time.monotonic() - time.time()
        async with asking(url) as cluster:
            for txn_id in unfinished(read_lines(self._journals)):
                header = (await cluster.ask("transactions.describe", txn=txn_id))["header"]
                if header is not None and header["finalized_ms"]:
                    self._given_up_s[txn_id] = header["finalized_ms"] / 1000 + monotonic_of_epoch_s

    def _worker_specs(self, url: str) -> list[ChildSpec]:
        module = [sys.executable, "-m", "txnctl.demo.worker", url]
        names = [f"worker-{number}" for number in range(1, self._settings.workers + 1)]
        return [
            ChildSpec(
                name=name,
                command=[*module, name, str(self._journals / f"{name}.jsonl")],
                log_path=self._folder / "logs" / f"{name}.log",
            )
            for name in names
        ]

    async def _judge(self, url: str) -> Findings:
        command = [sys.executable, "-m", "txnctl.demo.verify", url, str(self._journals), str(len(self._flights))]
        process = await asyncio.create_subprocess_exec(
            *tied_to_parent(command), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        try:
            output, errors = await asyncio.wait_for(process.communicate(), VERIFY_TIMEOUT_S)
        except TimeoutError:
            raise Timeout(f"the judge was not done after {VERIFY_TIMEOUT_S:g} s") from None
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        if process.returncode not in (0, 1) or not output.strip():
            raise InternalError(f"the judge failed with {process.returncode}:\n{errors.decode(errors='replace')}")
        return msgspec.json.decode(output, type=Findings)

    def _print_summary(self, findings: Findings) -> None:
        lines = list(read_lines(self._journals))
        committed = [line for line in lines if line.event == COMMITTED]
        aborted = [line for line in lines if line.event == ABORTED]
        table = Table(title="txnstore demo", show_header=False, caption=LAG_CAPTION, caption_justify="left")
        for name, value in self._rows(committed, aborted, findings):
            table.add_row(name, value)
        good = not findings.differences
        table.add_row("verdict", "[green]exactly once, nothing torn[/]" if good else "[red]DIFFERENCES[/]")
        self._console.print(table)
        for difference in findings.differences:
            self._console.print(f"[red]{difference}[/]")

    def _rows(self, committed: list[Line], aborted: list[Line], findings: Findings) -> list[tuple[str, str]]:
        on_purpose = sum(line.on_purpose for line in aborted)
        total = len(committed) + len(aborted)
        lag = lags(read_lines(self._journals), self._followed.last_seen_s, self._given_up_s)
        return [
            ("flights", f"{len(self._flights):,}"),
            ("outcomes read by the judge", f"{findings.outcomes:,} in {findings.transactions_seen:,} transactions"),
            ("workers' transactions committed", f"{len(committed):,}"),
            ("workers' transactions aborted", f"{len(aborted):,}, {on_purpose:,} of them on purpose"),
            ("left open by a killed worker", f"{len(unfinished(read_lines(self._journals))):,}"),
            ("workers' transactions/s", f"{total / max(self._worked_s, 1e-9):,.1f}, of up to {BATCH:,} flights each"),
            ("flights/s, loaded and worked on", f"{len(self._flights) / max(self._worked_s, 1e-9):,.0f}"),
            ("commit p50 / p99", _milliseconds([line.commit_ms for line in committed])),
            ("commit → all of it read p50 / p99", _milliseconds(lag.since_commit)),
            ("all before it ended → read p50 / p99", _milliseconds(lag.since_free)),
        ]

    def _progress(self) -> Progress:
        return Progress(
            TextColumn("{task.description:>16}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self._console,
        )

    def _say(self, text: str) -> None:
        self._console.print(f"[dim]{time.strftime('%H:%M:%S')}[/] {text}", highlight=False, soft_wrap=True)


def _percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)]


def _milliseconds(values: Sequence[float]) -> str:
    if not values:
        return "none measured"
    return f"{_percentile(values, 0.5):.1f} ms / {_percentile(values, 0.99):.1f} ms"


async def run_demo(settings: DemoSettings) -> int:
    """Exit code of the demo; its folder is removed afterwards unless `keep` names one."""
    console = Console()
    if settings.keep is not None:
        if settings.keep.exists() and (not settings.keep.is_dir() or any(settings.keep.iterdir())):
            raise NotAllowed(f"--keep {settings.keep}: there is something already; name a folder that is new or empty")
        settings.keep.mkdir(parents=True, exist_ok=True)
        code = await Demo(settings, settings.keep, console).run()
        console.print(f"kept in {settings.keep}: run `txnctl dev --data-dir {settings.keep}` to look around")
        return code
    with tempfile.TemporaryDirectory(prefix="txnstore-demo-") as folder:
        return await Demo(settings, Path(folder), console).run()
