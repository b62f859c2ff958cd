"""Injects the demo's faults: kills a worker and splits a segment it had; kills a broker and brings it back; merges two
segments."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import txnclient
from txnctl.commands.shared.asking import Asking, asking
from txnctl.demo.changes import Changes, JobProgress, Pause, Say
from txnctl.demo.flights import FLIGHTS
from txnctl.demo.journal import BEGUN, read_journal
from txnctl.demo.waits import Waits
from txnctl.demo.worker import SUBSCRIPTION
from txnctl.launch.dev import DevCluster
from txnctl.launch.supervisor import Supervisor

KILL_WORKER_AT, KILL_BROKER_AT, MERGE_AT = 0.1, 0.3, 0.8
WORKER = "worker-1"
JOURNAL_POLL_S = 0.002


class DemoFaults:
    """`pauses`: how long each change delayed the producers, in order."""

    def __init__(
        self,
        client: txnclient.Client,
        cluster: DevCluster,
        workers: Supervisor,
        journals: Path,
        waits: Waits,
        say: Say,
    ) -> None:
        self._client = client
        self._cluster = cluster
        self._workers = workers
        self._journals = journals
        self._waits = waits
        self._say = say
        self.pauses: list[Pause] = []

    async def run(self, progress: JobProgress) -> None:
        async with asking(self._cluster.url) as admin:
            changes = Changes(self._client, self._cluster, admin, self._waits, self._say)
            self.pauses = changes.pauses
            await progress.reached(KILL_WORKER_AT, lambda: progress.done)
            segment = await self._kill_worker(admin, progress)
            upper = await changes.split(segment, ", which it was reading")
            await changes.kill_broker_and_merge(progress, upper, kill_at=KILL_BROKER_AT, merge_at=MERGE_AT)

    async def _kill_worker(self, admin: Asking, progress: JobProgress) -> txnclient.SegmentInfo:
        """Kills a worker in the middle of a transaction, which the coordinator aborts once its client has been gone for
        a grace. Returns a segment that the worker was reading: until then no other worker can finish it."""
        described = await admin.ask("subscriptions.describe", topic=FLIGHTS, subscription=SUBSCRIPTION)
        held = [row["segment"] for row in described["segments"] if str(row["assigned_to"]).startswith(f"{WORKER}@")]
        journal = self._journals / f"{WORKER}.jsonl"
        told = list(read_journal(journal))
        while not told or told[-1].event != BEGUN:
            await asyncio.sleep(JOURNAL_POLL_S)
            told = list(read_journal(journal))
        self._workers.children[WORKER].signal(signal.SIGKILL)
        there = f"after {progress.done:,} outcomes"
        self._say(f"SIGKILL to {WORKER} in a transaction, {there}; it is started again")
        active = (await self._client.describe_topic(FLIGHTS)).active
        return next((one for one in active if one.path in held), active[0])
