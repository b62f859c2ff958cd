"""One run of chaos: work under faults, then everything heals, everyone gets on again, and all is judged."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.process.chaos.cluster import ChaosCluster, child_of, stop_all
from tests.process.chaos.faults import Fault, schedule
from tests.process.chaos.journal import JournalReader
from tests.process.chaos.judging import Judgement
from tests.process.chaos.moments import Moments
from tests.process.chaos.striking import Striking
from tests.process.chaos.witness import Witness
from tests.process.chaos.works import STEADY, WORKS
from txnctl.launch.supervisor import Child
from txnwire.errors import TxnError

TOLD_EVERY_S = 10.0
PROGRESS_TRANSACTIONS = 5
PROGRESS_WITHIN_S = 90.0
"""After healing. Nobody needs that long but on a machine that has far more to do."""


@dataclass
class Verdict:
    """`findings` is empty where nothing is wrong."""

    seed: int
    findings: list[str] = field(default_factory=list)
    operations: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    reached: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    healed_s: float = 0.0
    """From healing until everyone had got on."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """`pace_s`, `kinds`, `only`: see `schedule`."""

    seed: int
    seconds: float
    pace_s: float | None = None
    kinds: Sequence[str] | None = None
    only: Sequence[int] | None = None

    def faults(self) -> list[Fault]:
        return schedule(self.seed, self.seconds, tuple(WORKS), pace_s=self.pace_s, kinds=self.kinds, only=self.only)


class Chaos:
    def __init__(self, cluster: ChaosCluster, settings: Settings) -> None:
        self._cluster = cluster
        self._settings = settings
        self._began = time.monotonic()
        self._workers = {name: self._worker(name) for name in WORKS}
        self._journals = {name: JournalReader(cluster.folder / f"{name}.jsonl") for name in STEADY}
        self._committed: Counter[str] = Counter()
        self.verdict = Verdict(settings.seed)

    def _worker(self, name: str) -> Child:
        return child_of(
            name, self._cluster.folder, "tests.process.chaos.worker",
            "--url", self._cluster.url, "--name", name, "--seed", str(self._settings.seed),
            "--journal", str(self._cluster.folder),
        )  # fmt: skip

    async def run(self) -> Verdict:
        verdict = self.verdict
        async with Witness(self._cluster.etcd_urls) as witness:
            try:
                await self._cluster.start_servers()
                self._note("the cluster is ready")
                judgement = Judgement(self._cluster, verdict.seed, self._find)
                await self._work(witness.moments)
                await judgement.of_what_stands()
                await judgement.of_what_happened(witness)
            finally:
                await asyncio.gather(*(worker.stop(signal.SIGKILL) for worker in self._workers.values()))
        for text in await self._cluster.stop():
            self._find(f"hang: {text}")
        self._note("stopped")
        judgement.of_what_was_seen(witness)
        judgement.of_logs()
        verdict.operations, verdict.errors = judgement.operations(), judgement.errors_met()
        verdict.reached = Counter(
            {
                **witness.layouts.counts,
                **judgement.did,
                "holders of a key that committed": sum(
                    len(dict.fromkeys(epochs)) for epochs in witness.keys.commits.values()
                ),
            }
        )
        verdict.seconds = time.monotonic() - self._began
        return verdict

    def _note(self, text: str) -> None:
        now = time.monotonic()
        print(f"  {time.strftime('%H:%M:%S')} {now - self._began:6.1f} s ({now:.3f}) {text}", flush=True)

    def _find(self, text: str) -> None:
        self._note(f"FOUND {text}"[:2000])
        self.verdict.findings.append(text)

    # ---- work under faults ------------------------------------------------------------------------------------------

    async def _work(self, moments: Moments) -> None:
        for worker in self._workers.values():
            await worker.start()
        telling = asyncio.create_task(self._tell(), name="telling")
        try:
            await self._trouble(moments)
            await self._progress()
            for text in await stop_all(list(self._workers.values())):
                self._find(f"hang: {text}")
        finally:
            telling.cancel()
            await asyncio.wait([telling])

    async def _trouble(self, moments: Moments) -> None:
        """Faults as they were drawn; several may last at a time."""
        begin = time.monotonic()
        striking = Striking(self._cluster, self._workers, moments, self._note)
        async with asyncio.TaskGroup() as lasting:
            for fault in self._settings.faults():
                await asyncio.sleep(max(0.0, begin + fault.at_s - time.monotonic()))
                self.verdict.faults[fault.kind] += 1
                lasting.create_task(striking.strike(fault))
            await asyncio.sleep(max(0.0, begin + self._settings.seconds - time.monotonic()))
            self._note("healing")
            striking.heal()

    async def _progress(self) -> None:
        """Everybody goes on: each client that should commits some transactions after everything has healed."""
        healed = time.monotonic()
        try:
            await self._cluster.wait_ready()
        except TxnError as error:
            self._find(f"hang: the cluster is not ready: {error}")
        self._read_journals()
        wanted = {name: self._committed[name] + PROGRESS_TRANSACTIONS for name in STEADY}
        waiting = list(STEADY)
        while waiting and time.monotonic() < healed + PROGRESS_WITHIN_S:
            await asyncio.sleep(0.25)
            self._read_journals()
            waiting = [name for name in waiting if self._committed[name] < wanted[name]]
        for name in waiting:
            self._find(
                f"hang: {name} committed less than {PROGRESS_TRANSACTIONS} transactions in {PROGRESS_WITHIN_S:g} s"
            )
        self.verdict.healed_s = time.monotonic() - healed
        self._note(f"everyone has got on {self.verdict.healed_s:.1f} s after healing")

    def _read_journals(self) -> None:
        for name, journal in self._journals.items():
            self._committed[name] += sum(
                1 for operation in journal.read_on() if operation.name.startswith("txn") and operation.outcome == "ok"
            )

    async def _tell(self) -> None:
        """How it goes, now and then."""
        while True:
            await asyncio.sleep(TOLD_EVERY_S)
            self._read_journals()
            restarts = sum(child.restarts for child in (*self._cluster.children.values(), *self._workers.values()))
            load = os.getloadavg()[0]
            self._note(
                f"{self._committed.total()} transactions committed, {self.verdict.faults.total()} faults, "
                f"{restarts} restarts, load {load:.1f}"
            )


async def run(folder: Path, settings: Settings) -> Verdict:
    async with ChaosCluster(folder) as cluster:
        return await Chaos(cluster, settings).run()
