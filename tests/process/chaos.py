"""Real processes under kills and pauses, judged by the history checker (X4, with the faults one machine can plant).

    python -m tests.process.chaos --seconds 60 --seed 1 [--runs 5]

etcd, a server with the coordinators and the controller, two brokers and some workers with several clients each do the
simulation's workload, while SIGKILL, SIGTERM and SIGSTOP befall them as the seed decides. Then all heals, everyone must
make progress again, the workers end, everything is read, and whatever the clients saw is judged, like the records in
etcd and the ledgers. Exit 1 and the folder of the run is kept if anything is wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import txnclient
from simulation.checker import check
from simulation.history import Operation, write_history
from simulation.recorder import Recorder
from simulation.workload import Drain, Plan
from tests.process.chaos_faults import Fault, schedule
from tests.process.chaos_journal import draft_of, read_journal
from tests.process.chaos_worker import UNEXPECTED, client_name, real_ports
from tests.processes import process_cluster
from txnctl.dev import DevCluster
from txnctl.supervisor import Child, ChildSpec

ROOT = Path(__file__).parents[2]
WORKERS = ("worker-1", "worker-2")
CLIENTS = 2
PACE_S = 4.0
PROGRESS_TRANSACTIONS = 5
PROGRESS_WITHIN_S = 45.0
OPEN_GONE_WITHIN_S = 45.0
DRAIN_WITHIN_S = 150.0
SLOW_STOP_S = 14.0

ALARM = re.compile(
    rb"(?m)^(?:.*\[error.*|.*\[critical.*|.*Traceback .*|%b.*|.*never retrieved.*)$" % UNEXPECTED.encode()
)
MET = re.compile(r"(?m)^\S+ \S+ met (\w+):(?:.*\(reason: (\w+)\))?")


@dataclass
class Verdict:
    """`findings` is empty where nothing is wrong."""

    seed: int
    findings: list[str]
    operations: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    """What clients met, with the reason where a transaction had been aborted."""
    seconds: float = 0.0


class Chaos:
    def __init__(self, cluster: DevCluster, folder: Path, seed: int, seconds: float, pace_s: float) -> None:
        self._cluster = cluster
        self._folder = folder
        self._seed = seed
        self._seconds = seconds
        self._pace_s = pace_s
        self._began = time.monotonic()
        self._workers = {name: Child(self._worker_spec(name)) for name in WORKERS}
        self._names = [client_name(worker, number) for worker in WORKERS for number in range(CLIENTS)]
        self.verdict = Verdict(seed, [])

    def _worker_spec(self, name: str) -> ChildSpec:
        command = [sys.executable, "-m", "tests.process.chaos_worker", "--url", self._cluster.url, "--name", name]
        command += ["--seed", str(self._seed), "--clients", str(CLIENTS), "--journal", str(self._folder)]
        search = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
        log_path = self._folder / "logs" / f"{name}.log"
        return ChildSpec(name=name, command=command, log_path=log_path, environment={"PYTHONPATH": search})

    async def run(self) -> Verdict:
        for worker in self._workers.values():
            await worker.start()
        try:
            await self._trouble()
            await self._progress()
        finally:
            await self._stop_workers()
        await self._judge()
        self.verdict.seconds = time.monotonic() - self._began
        return self.verdict

    def _note(self, text: str) -> None:
        now = time.monotonic()
        print(f"  {time.strftime('%H:%M:%S')} {now - self._began:6.1f} s ({now:.3f}) {text}", flush=True)

    def _find(self, text: str) -> None:
        self._note(text)
        self.verdict.findings.append(text)

    # ---- faults -----------------------------------------------------------------------------------------------------

    async def _trouble(self) -> None:
        begin = time.monotonic()
        async with asyncio.TaskGroup() as pauses:
            for fault in schedule(self._seed, self._seconds, WORKERS, pace_s=self._pace_s):
                await asyncio.sleep(max(0.0, begin + fault.at_s - time.monotonic()))
                self._note(str(fault))
                self.verdict.faults[fault.kind] += 1
                self._hit(fault, pauses)
            await asyncio.sleep(max(0.0, begin + self._seconds - time.monotonic()))
        self._note("healed")

    def _hit(self, fault: Fault, pauses: asyncio.TaskGroup) -> None:
        for name in fault.targets:
            child = self._workers.get(name) or self._cluster.children[name]
            if fault.kind == "pause":
                pauses.create_task(_pause(child, fault.for_s))
            else:
                child.signal(signal.SIGKILL if fault.kind == "kill" else signal.SIGTERM)

    async def _progress(self) -> None:
        """Everybody goes on: each client commits some transactions after everything has healed."""
        healed = time.monotonic()
        try:
            await self._cluster.wait_ready()
        except txnclient.TxnError as error:
            self._find(f"hang: the cluster is not ready: {error}")
        waiting = list(self._names)
        while waiting and time.monotonic() < healed + PROGRESS_WITHIN_S:
            await asyncio.sleep(1.0)
            waiting = [name for name in waiting if self._committed_since(name, healed) < PROGRESS_TRANSACTIONS]
        for name in waiting:
            self._find(
                f"hang: {name} committed less than {PROGRESS_TRANSACTIONS} transactions in {PROGRESS_WITHIN_S} s"
            )

    def _committed_since(self, name: str, since: float) -> int:
        return sum(
            1
            for operation in read_journal(self._journal(name))
            if operation.name.startswith("txn") and operation.outcome == "ok" and (operation.completed or 0.0) > since
        )

    def _journal(self, name: str) -> Path:
        return self._folder / f"{name}.jsonl"

    async def _stop_workers(self) -> None:
        begin = time.monotonic()
        await asyncio.gather(*(worker.stop() for worker in self._workers.values()))
        if time.monotonic() - begin > SLOW_STOP_S:
            self._find("hang: the workers did not stop in time")

    # ---- judging ----------------------------------------------------------------------------------------------------

    async def _judge(self) -> None:
        ports = real_ports("drain", self._seed)
        plan = Plan(self._cluster.url, Recorder(ports.clock.monotonic))
        plan.recorder.drafts += [draft_of(one) for name in self._names for one in read_journal(self._journal(name))]
        self._count([draft.operation() for draft in plan.recorder.drafts])
        await self._wait_nothing_open()
        drain = Drain(ports, plan)
        try:
            async with asyncio.timeout(DRAIN_WITHIN_S):
                await drain.run()
        except (TimeoutError, txnclient.TxnError) as error:
            self._find(f"hang: the drain did not end: {error!r}")
        history = plan.recorder.history(drained=drain.finished)
        write_history(self._folder / "history.jsonl", history)
        for anomaly in check(history):
            self._find(f"anomaly: {anomaly}")
        for text in plan.unexpected:
            self._find(f"unexpected: {text}")
        await self._check_records()
        self._read_logs()

    def _count(self, operations: list[Operation]) -> None:
        self.verdict.operations.update(f"{one.name.partition(' ')[0]} {one.outcome}" for one in operations)

    async def _wait_nothing_open(self) -> None:
        """Whoever is gone has had its transactions aborted by the service."""
        async with txnclient.connect(self._cluster.url) as client:
            until = time.monotonic() + OPEN_GONE_WITHIN_S
            while (answer := await client.admin("transactions.list", state="OPEN"))["transactions"]:
                if time.monotonic() > until:
                    self._find(f"hang: still open after {OPEN_GONE_WITHIN_S} s: {answer['transactions']}")
                    return
                await asyncio.sleep(0.5)

    async def _check_records(self) -> None:
        command = [sys.executable, "-m", "txnctl", "check", "--etcd", self._cluster.etcd_url]
        process = await asyncio.create_subprocess_exec(
            *command, "--data-dir", str(self._folder / "data"), stdout=asyncio.subprocess.PIPE
        )
        output, _ = await asyncio.wait_for(process.communicate(), 60)
        if process.returncode:
            self._find(f"records: {output.decode()}")

    def _read_logs(self) -> None:
        for path in sorted((self._folder / "logs").glob("*.log")):
            for kind, reason in MET.findall(path.read_text(errors="replace")):
                self.verdict.errors[f"{kind} {reason}".strip()] += 1
            if path.stem != "etcd":
                for line, count in Counter(ALARM.findall(path.read_bytes())).items():
                    self._find(f"log of {path.stem}: {line.decode(errors='replace')} ({count} times)")


async def _pause(child: Child, for_s: float) -> None:
    pid = child.pid
    child.signal(signal.SIGSTOP)
    await asyncio.sleep(for_s)
    if pid is not None and child.pid == pid:
        os.kill(pid, signal.SIGCONT)


async def run(folder: Path, seed: int, seconds: float, pace_s: float = PACE_S) -> Verdict:
    """`pace_s`: mean time between two faults."""
    async with process_cluster(folder, brokers=2) as cluster:
        return await Chaos(cluster, folder, seed, seconds, pace_s).run()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.process.chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="of work under faults, a run")
    parser.add_argument("--seed", type=int, default=1, help="of the first run")
    parser.add_argument("--runs", type=int, default=1, help="how many runs, with seeds counting up")
    parser.add_argument("--pace", type=float, default=PACE_S, help="mean seconds between two faults")
    arguments = parser.parse_args()
    failed: list[int] = []
    for seed in range(arguments.seed, arguments.seed + arguments.runs):
        folder = Path(tempfile.mkdtemp(prefix=f"chaos-{seed}-"))
        verdict = asyncio.run(run(folder, seed, arguments.seconds, arguments.pace))
        done = ", ".join(f"{count} {kind}" for kind, count in sorted(verdict.operations.items()))
        print(f"seed {seed}: {'FAILED' if verdict.findings else 'ok'} ({verdict.seconds:.0f} s; {done})", flush=True)
        print("    met " + (", ".join(f"{count} {kind}" for kind, count in verdict.errors.most_common()) or "no error"))
        for finding in verdict.findings:
            print(f"    {finding}")
        if verdict.findings:
            failed.append(seed)
            print(f"    kept: {folder}", flush=True)
        else:
            shutil.rmtree(folder)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
