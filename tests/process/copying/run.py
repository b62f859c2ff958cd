"""X3: messages are copied from one topic to another, every third transaction aborted, while servers, brokers and
copiers are killed and stopped in turn, both topics are split and merged, and a READ_COMMITTED reader follows the copy.

    python -m tests.process.copying.run --messages 100000 --seed 1

All must be copied once, in order per key, each transaction whole or not at all; the follower is given each of them
once. Exit 1 if not, and the folder of the run is kept.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import txnclient
from tests.process.copying.cluster import SERVERS, add_second_server, url
from tests.process.copying.journal import Ended, read_journal
from tests.process.copying.judge import Copied, judge
from tests.process.copying.schedule import Fault, schedule
from tests.processes import process_cluster
from tests.waiting import until
from txnctl.launch.dev import DevCluster
from txnctl.launch.supervisor import Child, ChildSpec

ROOT = Path(__file__).parents[3]
SOURCE, TARGET = "topic://public/copying/source", "topic://public/copying/target"
KEYS = 97
SEGMENTS = 4
MOST_SEGMENTS = 8
BATCH = 750
COPIERS = ("copier-1", "copier-2")
BROKERS = ("broker-1", "broker-2")
AHEAD = 0.5
"""What share of all messages may be in the source and not yet in the copy: the rest is written as the copy goes on."""
SLICE = 1000
STALLED_AFTER_S = 90.0
CALL_TIMEOUT_S = 60.0
OPEN_GONE_WITHIN_S = 45.0
PROGRESS_EVERY_S = 5.0

ALARM = re.compile(rb"(?m)^(?:.*\[error.*|.*\[critical.*|.*Traceback .*|.*never retrieved.*)$")


@dataclass
class Verdict:
    """`findings` is empty where nothing is wrong."""

    seed: int
    findings: list[str] = field(default_factory=list)
    messages: int = 0
    copying_s: float = 0.0
    """From the first copier's start until the follower had everything."""
    longest_silence_s: float = 0.0
    """In which the follower was given nothing, though there was something to copy."""
    faults: Counter[str] = field(default_factory=Counter)
    """By kind and group, such as `kill broker`."""
    ended: list[Ended] = field(default_factory=list)
    stored: int = 0

    def transactions(self, outcome: str) -> int:
        return sum(1 for one in self.ended if one.outcome == outcome)


class Copying:
    def __init__(self, cluster: DevCluster, url: str, folder: Path, seed: int, messages: int, batch: int) -> None:
        self._cluster = cluster
        self._url = url
        self._folder = folder
        self._messages = messages
        self._batch = batch
        self._chance = random.Random(f"{seed}/layouts")
        self._faults = schedule(
            seed, messages, {"broker": BROKERS, "server": SERVERS, "copier": COPIERS}, (SOURCE, TARGET)
        )
        self._copiers = {name: Child(self._copier_spec(name)) for name in COPIERS}
        self._followed: list[Copied] = []
        self._numbers: set[int] = set()
        self._began = self._last = time.monotonic()
        self.verdict = Verdict(seed, messages=messages)

    def _copier_spec(self, name: str) -> ChildSpec:
        command = [
            sys.executable,
            "-m",
            "tests.process.copying.copier",
            "--url",
            self._url,
            "--batch",
            str(self._batch),
        ]
        command += ["--source", SOURCE, "--target", TARGET, "--journal", str(self._journal(name))]
        search = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
        log_path = self._folder / "logs" / f"{name}.log"
        return ChildSpec(name=name, command=command, log_path=log_path, environment={"PYTHONPATH": search})

    def _journal(self, name: str) -> Path:
        return self._folder / f"{name}.journal"

    async def run(self) -> Verdict:
        async with txnclient.connect(self._url, timeout=CALL_TIMEOUT_S) as client:
            for topic in (SOURCE, TARGET):
                await client.create_topic(topic, segments=SEGMENTS, autoscale="off")
            try:
                await self._copy(client)
            finally:
                await asyncio.gather(*(copier.stop() for copier in self._copiers.values()))
            self.verdict.ended = [one for name in COPIERS for one in read_journal(self._journal(name))]
            if not self.verdict.findings:
                await self._judge(client)
        return self.verdict

    def _note(self, text: str) -> None:
        seconds = time.monotonic() - self._began
        print(f"  {seconds:6.1f} s {len(self._followed):>7} of {self._messages + KEYS} copied  {text}", flush=True)

    def _find(self, text: str) -> None:
        self._note(text)
        self.verdict.findings.append(text)

    # ---- copying ----------------------------------------------------------------------------------------------------

    async def _copy(self, client: txnclient.Client) -> None:
        self._began = self._last = time.monotonic()
        for copier in self._copiers.values():
            await copier.start()
        try:
            async with client.producer(SOURCE) as producer, asyncio.TaskGroup() as group:
                watching = [group.create_task(one) for one in (self._follow(client), self._tell_progress())]
                await asyncio.gather(self._load(producer), self._trouble(client))
                await self._cluster.wait_ready()
                # Behind these nothing of before can come any more: the last ones of all keys end the run.
                await self._send(producer, self._messages, KEYS)
                await self._wait_followed(self._messages + KEYS)
                self.verdict.copying_s = time.monotonic() - self._began
                for task in watching:
                    task.cancel()
        except* txnclient.TxnError as errors:
            for error in _leaves(errors):
                self._find(f"{type(error).__name__}: {error}")

    async def _load(self, producer: txnclient.Producer) -> None:
        for first in range(0, self._messages, SLICE):
            await self._wait_followed(first - int(AHEAD * self._messages))
            await self._send(producer, first, min(SLICE, self._messages - first))

    async def _send(self, producer: txnclient.Producer, first: int, count: int) -> None:
        numbers = range(first, first + count)
        await producer.send_many([(b"key-%d" % (number % KEYS), b"%d" % number) for number in numbers])

    async def _follow(self, client: txnclient.Client) -> None:
        async with client.reader(TARGET, start="earliest") as reader:
            while True:
                found = [_copied(message) for message in await reader.receive_many(1000)]
                if found:
                    now = time.monotonic()
                    self.verdict.longest_silence_s = max(self.verdict.longest_silence_s, now - self._last)
                    self._last = now
                    self._followed += found
                    self._numbers.update(one.number for one in found)

    async def _wait_followed(self, count: int) -> None:
        """Raises `Timeout` where nothing comes any more."""
        while len(self._numbers) < count:
            if time.monotonic() > self._last + STALLED_AFTER_S:
                raise txnclient.Timeout(f"hang: nothing was copied for {STALLED_AFTER_S:.0f} s")
            await asyncio.sleep(0.01)

    async def _tell_progress(self) -> None:
        while True:
            await asyncio.sleep(PROGRESS_EVERY_S)
            self._note("")

    # ---- faults -----------------------------------------------------------------------------------------------------

    async def _trouble(self, client: txnclient.Client) -> None:
        async with asyncio.TaskGroup() as changes:
            for fault in self._faults:
                await self._wait_followed(fault.at_message)
                await asyncio.sleep(fault.after_s)
                if fault.target in (SOURCE, TARGET):
                    changes.create_task(self._change_layout(client, fault))
                else:
                    await self._strike(fault)

    async def _strike(self, fault: Fault) -> None:
        child = self._copiers.get(fault.target) or self._cluster.children[fault.target]
        await until(lambda: child.pid is not None)
        self._note(str(fault))
        child.signal(signal.SIGKILL if fault.kind == "kill" else signal.SIGTERM)
        self.verdict.faults[f"{fault.kind} {fault.target.partition('-')[0]}"] += 1

    async def _change_layout(self, client: txnclient.Client, fault: Fault) -> None:
        """What is refused, since a segment has just been changed or its owner is gone, is asked for again."""
        until = time.monotonic() + STALLED_AFTER_S
        while True:
            segments = (await client.describe_topic(fault.target)).active
            number = self._chance.randrange(len(segments))
            split = len(segments) == 1 or (fault.kind == "split" and len(segments) < MOST_SEGMENTS)
            try:
                if split:
                    await client.split(segments[number].name)
                else:
                    number = min(number, len(segments) - 2)
                    await client.merge(segments[number].name, segments[number + 1].name)
            except txnclient.TxnError as error:
                if time.monotonic() > until:
                    raise
                self._note(f"{fault} was refused: {type(error).__name__}")
                continue
            kind = "split" if split else "merge"
            self._note(f"{kind} {fault.target}")
            self.verdict.faults[kind] += 1
            return

    # ---- judging ----------------------------------------------------------------------------------------------------

    async def _judge(self, client: txnclient.Client) -> None:
        await self._wait_nothing_open(client)
        read = await _read(client, "read_committed")
        stored = await _read(client, "read_uncommitted")
        self.verdict.stored = len(stored)
        for text in judge(self._messages + KEYS, self._followed, read, stored, self.verdict.ended):
            self._find(text)
        await self._check_records()
        for path in sorted((self._folder / "logs").glob("*.log")):
            if path.stem != "etcd":
                for line, count in Counter(ALARM.findall(path.read_bytes())).items():
                    self._find(f"log of {path.stem}: {line.decode(errors='replace')} ({count} times)")

    async def _wait_nothing_open(self, client: txnclient.Client) -> None:
        until = time.monotonic() + OPEN_GONE_WITHIN_S
        while (answer := await client.admin("transactions.list", state="OPEN"))["transactions"]:
            if time.monotonic() > until:
                self._find(f"hang: still open after {OPEN_GONE_WITHIN_S} s: {answer['transactions']}")
                return
            await asyncio.sleep(0.1)

    async def _check_records(self) -> None:
        command = [sys.executable, "-m", "txnctl", "check", "--etcd", self._cluster.etcd_url]
        process = await asyncio.create_subprocess_exec(
            *command, "--data-dir", str(self._folder / "data"), stdout=asyncio.subprocess.PIPE
        )
        output, _ = await asyncio.wait_for(process.communicate(), 60)
        if process.returncode:
            self._find(f"records: {output.decode()}")


def _leaves(errors: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in errors.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error


async def _read(client: txnclient.Client, isolation: str) -> list[Copied]:
    async with client.reader(TARGET, start="earliest", end="latest", isolation=isolation) as reader:
        return [_copied(message) async for message in reader]


def _copied(message: txnclient.Message[bytes]) -> Copied:
    return Copied(message.key or b"", int(message.value), str(message.txn_id))


# ---- the cluster and the command ------------------------------------------------------------------------------------


async def run(folder: Path, seed: int, messages: int, batch: int = BATCH) -> Verdict:
    async with process_cluster(folder, brokers=len(BROKERS), before_start=add_second_server) as cluster:
        return await Copying(cluster, url(cluster), folder, seed, messages, batch).run()


def _tell(verdict: Verdict) -> None:
    outcome = "FAILED" if verdict.findings else "ok: each copied once, in order per key, by whole transactions"
    print(f"seed {verdict.seed}: {outcome}")
    if verdict.copying_s:
        rate = verdict.messages / verdict.copying_s
        print(f"    {verdict.messages} messages in {verdict.copying_s:.0f} s, {rate:.0f} a second")
        print(f"    the longest time without any was {verdict.longest_silence_s:.1f} s")
    ended = ", ".join(f"{verdict.transactions(one)} {one}" for one in ("committed", "aborted", "failed"))
    print(f"    transactions: {ended}; {verdict.stored} messages stand in the log")
    print("    " + ", ".join(f"{count} {kind}" for kind, count in sorted(verdict.faults.items())))
    for finding in verdict.findings:
        print(f"    {finding}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.process.copying.run", description=__doc__)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix=f"copying-{given.seed}-"))
    verdict = asyncio.run(run(folder, given.seed, given.messages))
    _tell(verdict)
    if verdict.findings:
        print(f"    kept: {folder}; again: make copy-test MESSAGES={given.messages} SEED={given.seed}", flush=True)
        return 1
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
