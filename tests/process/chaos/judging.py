"""After a run: everything is read to its end, and what clients saw, what etcd went through, what stands in the records
and what the processes logged is judged, by the simulation's judges."""

from __future__ import annotations

import asyncio
import re
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import txnclient
from simulation.clients.plan import SUBSCRIPTION, TOPICS, Plan
from simulation.clients.recorder import Recorder
from simulation.judges.checker import check
from simulation.judges.history import History, write_history
from simulation.seeking.seek_work import SeekDrain
from simulation.workloads.acking_work import AckingDrain
from simulation.workloads.dead_work import DeadDrain
from simulation.workloads.keyed_work import SUBSCRIPTION as KEYED_SUBSCRIPTION
from simulation.workloads.keyed_work import TOPIC as KEYED_TOPIC
from simulation.workloads.large_work import LargeDrain
from simulation.workloads.layout_work import placed
from simulation.workloads.obedient_work import ObedientDrain, ObedientLog
from simulation.workloads.passing_work import PassingDrain
from simulation.workloads.queue_work import QueueDrain, QueueLog
from simulation.workloads.workload import Drain
from tests.process.chaos.cluster import ChaosCluster
from tests.process.chaos.journal import JournalReader, draft_of
from tests.process.chaos.kept import LOGS, read_kept, read_taken
from tests.process.chaos.witness import Witness
from tests.process.chaos.worker import UNEXPECTED
from tests.process.chaos.works import WORKS, RealPorts, real_ports
from txnctl.checking.picture import take_picture

DRAINS: dict[str, Callable[[Any, Plan, Any], Any]] = {
    "passing": PassingDrain,
    "seeking": SeekDrain,
    "acking": AckingDrain,
    "large": LargeDrain,
    "dead": DeadDrain,
}
OPEN_GONE_WITHIN_S = 60.0
"""After healing: the longest time limit of the workload, the client grace, and a sweep, on a busy machine."""
DRAIN_WITHIN_S = 240.0
CHECK_WITHIN_S = 120.0
CLEANED_UP_WITHIN_S = 60.0

ALARM = re.compile(
    rb"(?m)^(?:.*\[error.*|.*\[critical.*|.*Traceback .*|%b.*|.*never retrieved.*|.*never awaited.*|"
    rb"txnctl: (?!(?:StoreUnavailable|StoreFull|Timeout|OutcomeUnknown): ).*)$" % UNEXPECTED.encode()
)
"""Lines of logs that are findings. A server may end because its roles could not be taken up while faults went on."""
MET = re.compile(r"(?m)^\S+ \S+ met (\w+):(?:.*\(reason: (\w+)\))?")

RECORDED = tuple(
    client
    for clients in WORKS.values()
    for client in clients
    if client.partition("-")[0] in ("history", "keyed", "leaving")
)
"""Clients whose journal is a part of the history."""


class DrainAtOnce(Drain):
    """Of all subscriptions at a time, for here time is real."""

    async def run(self) -> None:
        ports = self._ports
        async with txnclient.connect(
            self._plan.url, timeout=30.0, transport=ports.transport, clock=ports.clock, random=ports.random
        ) as client:
            await self._ask_outcomes(client)
            drains = (self._drain_subscription(client, *one) for one in self._plan.subscriptions)
            await asyncio.gather(self._read_all(client), *drains)
        self.finished = True


class Judgement:
    """`find` is told of everything that is wrong."""

    def __init__(self, cluster: ChaosCluster, seed: int, find: Callable[[str], None]) -> None:
        self._cluster = cluster
        self._folder = cluster.folder
        self._seed = seed
        self._find = find
        ports = real_ports("drain", seed)
        self._ports = ports
        self.plan = Plan(
            cluster.url,
            Recorder(ports.clock.monotonic),
            subscriptions=((TOPICS[0], SUBSCRIPTION), (KEYED_TOPIC, KEYED_SUBSCRIPTION)),
        )
        self._history = History(operations=[])
        self.did: dict[str, int] = {}
        """How much of what is not in the history was done."""

    async def of_what_stands(self) -> None:
        """While the cluster runs, and no worker does."""
        for client in RECORDED:
            reader = JournalReader(self._folder / f"{client}.jsonl")
            reader.read_on()
            self.plan.recorder.drafts += map(draft_of, reader.operations)
        await self._in_time("transactions to be ended", OPEN_GONE_WITHIN_S, self._nothing_open())
        await self._drain()
        await self._check_records()

    async def _in_time(self, what: str, within_s: float, work: Awaitable[None]) -> bool:
        try:
            async with asyncio.timeout(within_s):
                await work
        except TimeoutError:
            self._find(f"hang: {what}: not within {within_s:g} s")
            return False
        except txnclient.TxnError as error:
            self._find(f"{what}: {error!r}")
            return False
        return True

    async def _nothing_open(self) -> None:
        """Whoever is gone has had its transactions aborted by the service."""
        async with txnclient.connect(self._cluster.url, timeout=30.0) as client:
            while (await client.admin("transactions.list", state="OPEN"))["transactions"]:
                await asyncio.sleep(0.5)

    async def _drain(self) -> None:
        """All at once: none of them reads what another one acks."""
        queue = QueueLog()
        for client in (one for clients in WORKS.values() for one in clients if one.startswith("queue")):
            queue.taken += read_taken(self._folder / f"{client}.taken.jsonl")
        logs = {kind: read_kept(self._folder / f"{kind}.json", log) for kind, log in LOGS.items()}
        copies = ObedientLog()
        drain = DrainAtOnce(self._ports, self.plan)
        works: dict[str, tuple[Awaitable[None], Callable[[], Iterable[str]]]] = {
            "history": (drain.run(), lambda: ()),
            "queue": (QueueDrain(self._of("queue"), self.plan, queue).run(), queue.findings),
            "copies": (ObedientDrain(self._of("copies"), self.plan, copies).run(), copies.findings),
        }
        for kind, log in logs.items():
            works[kind] = (DRAINS[kind](self._of(kind), self.plan, log).run(), log.findings)

        async def end(kind: str) -> None:
            work, findings = works[kind]
            if await self._in_time(f"the drain of {kind}", DRAIN_WITHIN_S, work):
                for text in findings():
                    self._find(text)

        await asyncio.gather(*map(end, works))
        self._count(queue, logs)
        self.did["copies of clients that know the flags alone"] = len(copies.copies)
        for text in self.plan.unexpected:
            self._find(f"unexpected: {text}")
        self._history = self.plan.recorder.history(drained=drain.finished)
        write_history(self._folder / "history.jsonl", self._history)

    def _count(self, queue: QueueLog, logs: Mapping[str, Any]) -> None:
        self.did = {
            "acks of a queue": len(queue.taken),
            "topics that passed": len(logs["passing"].generations),
            "transactions on them": len(logs["passing"].attempts),
            "seeks": logs["seeking"].seeks,
            "acks against each other": len(logs["acking"].within) + len(logs["acking"].outside),
            "values in pieces": logs["large"].in_pieces,
            "acked before dead letters": len(logs["dead"].acked),
        }

    def _of(self, what: str) -> RealPorts:
        return real_ports(f"drain of {what}", self._seed)

    async def _check_records(self) -> None:
        command = [sys.executable, "-m", "txnctl", "check", "--etcd", ",".join(self._cluster.etcd_urls)]
        process = await asyncio.create_subprocess_exec(
            *command, "--data-dir", str(self._folder / "data"),
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        output, _ = await asyncio.wait_for(process.communicate(), CHECK_WITHIN_S)
        if process.returncode:
            self._find(f"records: {output.decode()}")

    async def of_what_happened(self, witness: Witness) -> None:
        """Also while the cluster runs: of every revision of etcd. Nothing may be left of transactions by now."""

        async def nothing_left() -> None:
            while (await take_picture(witness.store)).ops:
                await asyncio.sleep(1.0)

        if not await self._in_time("op records to be cleaned up", CLEANED_UP_WITHIN_S, nothing_left()):
            for txn_id, segment, subscription in (await take_picture(witness.store)).ops:
                self._find(f"left behind: op records of {txn_id} in {segment} {subscription or ''}")
        await self._in_time("the judges to see what there is", CHECK_WITHIN_S, witness.catch_up())
        for text in witness.findings:
            self._find(text)

    def of_what_was_seen(self, witness: Witness) -> None:
        """Of what clients saw. Takes its time, in which nothing else goes on here."""
        for anomaly in check(self._history):
            self._find(f"anomaly: {anomaly}")
        for text in witness.layouts.misplaced(placed(self._history)):
            self._find(f"layout: {text}")

    def of_logs(self) -> None:
        for path in self._logs():
            for line, count in Counter(ALARM.findall(path.read_bytes())).items():
                self._find(f"log of {path.stem}: {line.decode(errors='replace')[:1000]} ({count} times)")

    def _logs(self) -> Iterator[Path]:
        return (path for path in sorted((self._folder / "logs").glob("*.log")))

    def errors_met(self) -> Counter[str]:
        """What clients met, with the reason where a transaction had been aborted."""
        found: Counter[str] = Counter()
        for path in self._logs():
            for kind, reason in MET.findall(path.read_text(errors="replace")):
                found[f"{kind} {reason}".strip()] += 1
        return found

    def operations(self) -> Counter[str]:
        return Counter(f"{one.name.partition(' ')[0]} {one.outcome}" for one in self._history.operations)
