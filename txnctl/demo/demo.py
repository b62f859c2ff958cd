"""`txnctl demo`: loads, works, kills, restarts, judges (docs/demo.md)."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import msgspec
from rich.console import Console

import txnclient
from txnctl.commands.shared.asking import asking
from txnctl.demo.course import CourseSettings, DemoCourse
from txnctl.demo.demo_faults import DemoFaults
from txnctl.demo.flights import FLIGHTS, OUTCOMES, TALLIES
from txnctl.demo.frame import in_folder, judged
from txnctl.demo.journal import read_lines
from txnctl.demo.lags import lags, unfinished
from txnctl.demo.summary import DemoReport, print_next, print_summary
from txnctl.demo.verify import DemoFindings
from txnctl.demo.worker import BATCH
from txnctl.launch.dev import DevCluster
from txnctl.launch.supervisor import ChildSpec, Supervisor

VERIFY_TIMEOUT_S = 180.0


@dataclass(frozen=True, kw_only=True)
class DemoSettings(CourseSettings):
    workers: int = 3


class Demo(DemoCourse[DemoFindings]):
    results: ClassVar = OUTCOMES
    done: ClassVar = "outcomes visible"
    judged_by: ClassVar = "another process judges"
    work_timeout_s: ClassVar = 600.0
    stalled_after_s: ClassVar = 60.0

    def __init__(self, settings: DemoSettings, folder: Path, console: Console) -> None:
        super().__init__(settings, folder, console)
        self._workers = settings.workers
        self._journals = folder / "journals"
        self._seen: set[int] = set()
        self._last_seen_s: dict[str, float] = {}
        """By transaction id: when a READ_COMMITTED reader had read its last message."""
        self._given_up_s: dict[str, float] = {}

    def _prepare(self) -> None:
        self._journals.mkdir(parents=True, exist_ok=True)

    def _topics(self) -> Sequence[str]:
        return FLIGHTS, OUTCOMES, TALLIES

    async def _work(self, client: txnclient.Client, cluster: DevCluster) -> None:
        async with self._timed(), Supervisor(self._worker_specs(cluster.url)) as workers:
            self._say(
                f"{self._workers} workers make an outcome of each flight, up to {BATCH} in a transaction; "
                "every tenth aborts"
            )
            faults = DemoFaults(client, cluster, workers, self._journals, self._waits, self._say)
            await self._load_and_follow(client, faults)
            self._say("every flight has its outcome")
        await self._ask_what_was_given_up(cluster.url)

    def _count(self, messages: Sequence[txnclient.Message]) -> None:
        now = time.monotonic()
        for message in messages:
            self._last_seen_s[str(message.txn_id)] = now
            self._seen.add(msgspec.json.decode(message.value)["row_id"])
        self._progress.done = len(self._seen)

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
        names = [f"worker-{number}" for number in range(1, self._workers + 1)]
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

    def _print(self, findings: DemoFindings, layout: Mapping[str, Any]) -> None:
        lines = list(read_lines(self._journals))
        report = DemoReport(self._report(), lines, lags(lines, self._last_seen_s, self._given_up_s))
        print_summary(self._console, report, findings, layout)


async def run_demo(settings: DemoSettings) -> int:
    """Returns the demo's exit code; removes its folder afterwards unless `keep` names one."""
    return await in_folder(settings.keep, lambda folder, console: Demo(settings, folder, console).run(), print_next)
