"""`txnctl demo`: loads, works, kills, restarts, judges (docs/demo.md)."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import Progress as Bars

import txnclient
from txnctl.commands.asking import asking
from txnctl.demo.changes import JobProgress, Pause
from txnctl.demo.demo_faults import DemoFaults
from txnctl.demo.flights import FLIGHTS, OUTCOMES, TALLIES, Flight, read_flights
from txnctl.demo.frame import BROKERS, Terminal, cluster_settings, in_folder, judged
from txnctl.demo.journal import read_lines
from txnctl.demo.lags import lags, unfinished
from txnctl.demo.load import batch_size, load
from txnctl.demo.summary import DemoReport, print_next, print_summary
from txnctl.demo.verify import DemoFindings
from txnctl.demo.waits import Waits
from txnctl.demo.worker import BATCH
from txnctl.launch.dev import DevCluster
from txnctl.launch.supervisor import ChildSpec, Supervisor
from txnwire.errors import Timeout

WORK_TIMEOUT_S = 600.0
VERIFY_TIMEOUT_S = 180.0
STALLED_AFTER_S = 60.0


@dataclass(frozen=True, kw_only=True)
class DemoSettings:
    keep: Path | None = None
    workers: int = 3
    flights: int | None = None
    segments: int = 4


class Demo:
    def __init__(self, settings: DemoSettings, folder: Path, console: Console) -> None:
        self._settings = settings
        self._folder = folder
        self._journals = folder / "journals"
        self._console = console
        self._terminal = Terminal(console)
        self._say = self._terminal.say
        self._flights: Sequence[Flight] = ()
        self._progress = JobProgress(0)
        self._waits = Waits(time.monotonic)
        self._pauses: list[Pause] = []
        self._last_seen_s: dict[str, float] = {}
        """By transaction id: when a READ_COMMITTED reader had read its last message."""
        self._worked_s = 0.0
        self._given_up_s: dict[str, float] = {}

    async def run(self) -> int:
        """Returns 0 if every total agrees, 1 on any difference."""
        self._journals.mkdir(parents=True, exist_ok=True)
        self._flights = list(read_flights(self._settings.flights))
        self._progress = JobProgress(len(self._flights))
        self._say(f"{len(self._flights):,} flights out of New York in 2013 are read from the data file")
        cluster = cluster_settings(self._folder)
        async with DevCluster(cluster) as running:
            self._say(f"started in {self._folder}: etcd, a coordinator, {BROKERS} brokers")
            await self._work(running)
        self._say("everything is stopped; it is started again, and another process judges")
        async with DevCluster(cluster) as running:
            findings = await self._judge(running.url)
            async with asking(running.url) as admin:
                layout = await admin.ask("topics.describe", topic=FLIGHTS)
        print_summary(self._console, self._course(), findings, layout)
        return 1 if findings.differences else 0

    async def _work(self, cluster: DevCluster) -> None:
        started = time.monotonic()
        async with txnclient.connect(cluster.url) as client:
            for topic in (FLIGHTS, OUTCOMES, TALLIES):
                await client.create_topic(topic, segments=self._settings.segments, autoscale="off")
            async with Supervisor(self._worker_specs(cluster.url)) as workers:
                self._say(
                    f"{self._settings.workers} workers make an outcome of each flight, up to {BATCH} in a transaction; "
                    "every tenth aborts"
                )
                with self._terminal.bars() as bars:
                    await self._work_while_it_happens(client, cluster, workers, bars)
                self._worked_s = time.monotonic() - started
                self._say("every flight has its outcome")
            await self._ask_what_was_given_up(cluster.url)

    async def _work_while_it_happens(
        self, client: txnclient.Client, cluster: DevCluster, workers: Supervisor, bars: Bars
    ) -> None:
        progress = self._progress
        loading = bars.add_task("flights loaded", total=progress.total)
        working = bars.add_task("outcomes visible", total=progress.total)
        faults = DemoFaults(client, cluster, workers, self._journals, self._waits, self._say)

        def loaded(count: int) -> None:
            progress.loaded += count
            progress.moved.set()
            bars.update(loading, completed=progress.loaded)

        async with asyncio.timeout(WORK_TIMEOUT_S), asyncio.TaskGroup() as group:
            group.create_task(load(client, self._flights, self._waits, loaded))
            group.create_task(faults.run(progress))
            await self._follow(client, lambda: bars.update(working, completed=progress.done))
        self._pauses = faults.pauses

    async def _follow(self, client: txnclient.Client, on_progress: Callable[[], None]) -> None:
        """Reads the outcomes as they become visible, until there is one for every flight."""
        seen: set[int] = set()
        async with await client.reader(OUTCOMES, start="earliest") as reader:
            while len(seen) < len(self._flights):
                messages = await reader.receive_many(2000, timeout=STALLED_AFTER_S)
                if not messages:
                    there = f"{len(seen)} of {len(self._flights)} are there"
                    raise Timeout(f"no new outcome became visible in {STALLED_AFTER_S:g} s; {there}")
                now = time.monotonic()
                for message in messages:
                    self._last_seen_s[str(message.txn_id)] = now
                    seen.add(msgspec.json.decode(message.value)["row_id"])
                self._progress.done = len(seen)
                self._progress.moved.set()
                on_progress()

    async def _ask_what_was_given_up(self, url: str) -> None:
        """When the coordinator ended the open transactions of a killed worker, as far as their headers still exist."""
        monotonic_of_epoch_s = time.monotonic() - time.time()
        async with asking(url) as cluster:
            for txn_id in unfinished(read_lines(self._journals)):
                header = (await cluster.ask("transactions.describe", txn=txn_id))["header"]
                if header is not None and header["finalized_ms"]:
                    self._given_up_s[txn_id] = header["finalized_ms"] / 1000 + monotonic_of_epoch_s

    def _worker_specs(self, url: str) -> list[ChildSpec]:
        module = [sys.executable, "-P", "-m", "txnctl.demo.worker", url]
        names = [f"worker-{number}" for number in range(1, self._settings.workers + 1)]
        return [
            ChildSpec(
                name=name,
                command=[*module, name, str(self._journals / f"{name}.jsonl")],
                log_path=self._folder / "logs" / f"{name}.log",
            )
            for name in names
        ]

    async def _judge(self, url: str) -> DemoFindings:
        arguments = (url, str(self._journals), str(len(self._flights)))
        return await judged("txnctl.demo.verify", *arguments, answer=DemoFindings, timeout_s=VERIFY_TIMEOUT_S)

    def _course(self) -> DemoReport:
        lines = list(read_lines(self._journals))
        return DemoReport(
            flights=len(self._flights),
            worked_s=self._worked_s,
            lines=lines,
            lags=lags(lines, self._last_seen_s, self._given_up_s),
            pauses=self._pauses,
            batch=batch_size(len(self._flights)),
            usual_batch_s=self._waits.usual_s(),
        )


async def run_demo(settings: DemoSettings) -> int:
    """Returns the demo's exit code; removes its folder afterwards unless `keep` names one."""
    return await in_folder(settings.keep, lambda folder, console: Demo(settings, folder, console).run(), print_next)
