"""X1, X2: a workload of every kind goes through Spark from topics to a topic, while topics split and merge, and
brokers, servers, etcd and Spark's driver are killed.

    python -m tests.process.spark_pipeline.run --seed 1 --drivers 6 --strikes 20

Each committed message must be in the output once, no transaction in two micro-batches, and a batch must be the same
whenever it is read. Exit 1 if not, and the folder of the run is kept.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import txnclient
from tests.process.spark_pipeline.driver import FAILED, DriverRun, ident
from tests.process.spark_pipeline.judge import Out, Seen, judge
from tests.process.spark_pipeline.workload import Workload
from tests.processes import kill, process_cluster
from tests.txnclient.producing.channels.test_moving_with_cluster import change_at_random
from txnctl.launch.dev import DevCluster
from txnstore.etcd.lifetime import tied_to_parent

ROOT = Path(__file__).parents[3]
PREFIX = "topic://public/pipeline"
OUTPUTS = {"first": f"{PREFIX}/out-first", "second": f"{PREFIX}/out-second"}
VICTIMS = ("broker-1", "broker-2", "server", "etcd")
CALL_TIMEOUT_S = 90.0
LONGEST_PEACE_S = 60.0
START_TIMEOUT_S = 400.0
"""Until a driver has planned a batch, on a machine that has much else to do."""
END_TIMEOUT_S = 420.0
MOST_ENDS = 6
"""Drivers that end by themselves one after the other, before it is called a hang."""
MARK = "PIPELINE_DRIVER"
STRIKES = ("all", "jvm", "python", "asleep")
"""How a driver is killed: everything of it; its JVM alone, whose Python processes notice later; its main process; or
it sleeps until the next driver is at work, and goes on beside that until it is killed."""


@dataclass
class Verdict:
    """`findings` is empty where nothing is wrong."""

    seed: int
    findings: list[str] = field(default_factory=list)
    kinds: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    committed: int = 0
    messages: int = 0
    batches: int = 0
    again: int = 0
    """Batches that were read more than once."""
    failed: list[str] = field(default_factory=list)
    """What drivers said that ended by themselves."""
    seconds: float = 0.0


class Driver:
    """One start of the driver's process."""

    def __init__(self, run: DriverRun, process: asyncio.subprocess.Process, log: Path) -> None:
        self.run = run
        self.process = process
        self._log = log

    @staticmethod
    async def start(run: DriverRun, module: str) -> Driver:
        folder = Path(run.folder)
        told, log = folder / f"run-{run.number}.json", folder / f"run-{run.number}.log"
        run.save(told)
        search = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
        command = tied_to_parent([sys.executable, "-m", f"tests.process.spark_pipeline.{module}", str(told)])
        with log.open("w") as file:
            process = await asyncio.create_subprocess_exec(
                *command, cwd=ROOT, stdout=file, stderr=file, env={**os.environ, "PYTHONPATH": search, MARK: str(log)},
                start_new_session=True,
            )  # fmt: skip
        return Driver(run, process, log)

    @property
    def is_running(self) -> bool:
        return self.process.returncode is None

    def said(self) -> str:
        lines = [line for line in self._log.read_text(errors="replace").splitlines() if line.strip()]
        told = [line for line in lines if line.startswith("FAILED")]
        return (told or lines or ["nothing"])[-1][:600]

    def signal(self, number: int, *, jvm: bool = True, others: bool = True) -> None:
        """To what is left of it: `jvm`, and its `others`."""
        for pid, command in _members(str(self._log)):
            if jvm if command.startswith("java") else others:
                try:
                    os.kill(pid, number)
                except ProcessLookupError:
                    continue  # it has ended meanwhile

    async def end(self) -> None:
        self.signal(signal.SIGKILL)
        await self.process.wait()


def _members(mark: str) -> list[tuple[int, str]]:
    """Processes, with their commands, that a driver has started: its mark is in their environment. ▲ Not by the number
    of its session, which others may be given once it is over."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for path in Path("/proc").iterdir():
        if path.name.isdecimal():
            try:
                if wanted in (path / "environ").read_bytes().split(b"\0"):
                    found.append((int(path.name), (path / "comm").read_text().strip()))
            except OSError:
                continue  # it has ended meanwhile, or is somebody else's
    return found


class Pipeline:
    def __init__(
        self, cluster: DevCluster, folder: Path, seed: int, *, second: bool, light: bool, strikes: Sequence[str]
    ) -> None:
        self._cluster = cluster
        self._folder = folder
        self._seed = seed
        self._second = second
        self._light = light
        self._strikes = strikes
        self._random = random.Random(f"{seed}/drivers")
        self._topics = [f"{PREFIX}/in-{number}" for number in range(3)]
        self._queries = ["first", "second"] if second else ["first"]
        self._runs = 0
        self._began = time.monotonic()
        self._asleep: Driver | None = None
        self._started: list[Driver] = []
        self.verdict = Verdict(seed)
        (folder / "seen").mkdir(parents=True)

    def _note(self, text: str) -> None:
        print(f"  {time.monotonic() - self._began:6.1f} s  {text}", flush=True)

    # ---- the run ----------------------------------------------------------------------------------------------------

    async def run(self, drivers: int, faults: bool) -> Verdict:
        async with txnclient.connect(self._cluster.url, timeout=CALL_TIMEOUT_S) as client:
            for topic in [*self._topics, *OUTPUTS.values()]:
                await client.create_topic(topic, segments=2, autoscale="off")
            work = Workload(client, self._topics, f"{self._seed}/work", pause_s=0.05)
            async with asyncio.TaskGroup() as group:
                working = group.create_task(work.run(workers=4))
                troubles = [group.create_task(self._change_layouts(client))]
                if faults:
                    troubles.append(group.create_task(self._strike_servers()))
                for number in range(drivers):
                    if number == drivers - 1:
                        # The source reads it as soon as it is there.
                        await client.create_topic(f"{PREFIX}/in-late", segments=1, autoscale="off")
                        self._topics.append(f"{PREFIX}/in-late")
                    await self._drive(self._strikes[number % len(self._strikes)])
                for trouble in troubles:
                    trouble.cancel()
                await self._cluster.wait_ready()
                work.stop()
                await working
            await self._finish()
            async with asyncio.timeout(END_TIMEOUT_S):
                await work.end_open()
            await self._judge(client, work)
        self.verdict.seconds = time.monotonic() - self._began
        return self.verdict

    async def _change_layouts(self, client: txnclient.Client) -> None:
        chance = random.Random(f"{self._seed}/layouts")
        while True:
            await asyncio.sleep(chance.uniform(0.2, 3))
            topic = chance.choice([*self._topics, *OUTPUTS.values()])
            try:
                await change_at_random(client, topic, chance, 1)
                self.verdict.faults["layout"] += 1
            except txnclient.TxnError as error:
                self._note(f"layout of {topic}: {error}")

    async def _strike_servers(self) -> None:
        chance = random.Random(f"{self._seed}/servers")
        while True:
            # As fast as the pipeline bears it: a strike, then a batch at least.
            until, began = self._planned("commits") + (8 if self._light else 1), time.monotonic()
            while self._planned("commits") < until and time.monotonic() < began + LONGEST_PEACE_S:
                await asyncio.sleep(0.05)
            await asyncio.sleep(chance.choice([0.1, 1, 8]) * chance.random())
            victims = chance.sample(VICTIMS, chance.choice([1, 1, 1, 2]))
            self._note(f"kill {', '.join(victims)}")
            self.verdict.faults.update(f"kill {victim}" for victim in victims)
            await kill(self._cluster, *victims)

    # ---- drivers ----------------------------------------------------------------------------------------------------

    def _next(self, *, available_now: bool = False) -> DriverRun:
        self._runs += 1
        chance = self._random
        source = {"service.url": self._cluster.url, "topicsPattern": f"{PREFIX}/in-.*"}
        limits = (
            {"maxBytesPerTrigger": str(chance.choice([1, 2_000, 20_000, 200_000]))} if chance.random() < 0.6 else {}
        )
        if chance.random() < 0.6:
            limits["maxEntriesPerTrigger"] = str(chance.choice([1, 5, 30, 200]))
        if available_now:
            # So that it ends soon whatever there is left.
            limits = chance.choice([{}, {"maxBytesPerTrigger": "300000"}, {"maxEntriesPerTrigger": "400"}])
        if chance.random() < 0.5:
            source["minPartitions"] = str(chance.choice([4, 7]))
        # Rows carry the number of the run that wrote them: one that comes behind the commit of another has others.
        sink = {"service.url": self._cluster.url, "allowDifferentReplay": "true"}
        if not available_now and chance.random() < 0.2:
            # A slow batch is aborted under its tasks, and the query fails; the next driver has more time.
            sink["transactionTimeoutMs"] = "20000"
        return DriverRun(
            number=self._runs,
            folder=str(self._folder),
            source={**source, **limits},
            sink={**sink, "topic": OUTPUTS["first"]},
            second_sink={**sink, "topic": OUTPUTS["second"], "sinkName": "second"} if self._second else None,
            cores=chance.choice([2, 3]),
            available_now=available_now,
        )

    def _planned(self, what: str = "offsets") -> int:
        """Batches that the checkpoints tell of, as begun or (`commits`) as done."""
        total = 0
        for query in self._queries:
            folder = self._folder / query / what
            total += sum(name.isdecimal() for name in os.listdir(folder)) if folder.is_dir() else 0
        return total

    async def _start(self, run: DriverRun) -> Driver:
        driver = await Driver.start(run, "light" if self._light else "driver")
        self._started.append(driver)
        return driver

    async def close(self) -> None:
        """▲ Nothing is left, also of a driver that sleeps, whatever has ended the run."""
        for driver in self._started:
            await driver.end()

    async def _drive(self, strike: str) -> None:
        """Start a driver, and strike it at a moment between two steps of a batch."""
        for _ in range(MOST_ENDS):
            driver = await self._start(self._next())
            self._note(f"driver {driver.run.number}, {driver.run.source}")
            moment = self._random.choice(["offsets", "offsets", "commits", "anytime"])
            batches = self._random.randint(1, 40 if self._light else 4)
            if await self._reached(driver, "commits", 1):
                await self._wake()
                if await self._reached(driver, "offsets" if moment == "anytime" else moment, batches):
                    await asyncio.sleep(self._random.choice([0, 0.05, 0.3, 1, 3]) * self._random.random())
                    if driver.is_running:
                        self._note(f"driver {driver.run.number}: {strike} at {moment} {self._planned()}")
                        self.verdict.faults[f"driver {strike}"] += 1
                        await self._kill(driver, strike)
                        return
            self._ended(driver)
            await driver.end()
        raise txnclient.Timeout(f"hang: {MOST_ENDS} drivers in a row have ended by themselves")

    async def _reached(self, driver: Driver, what: str, more: int) -> bool:
        """Whether so many more batches have got so far, before it ended by itself."""
        until, deadline = self._planned(what) + more, time.monotonic() + START_TIMEOUT_S
        while self._planned(what) < until:
            if not driver.is_running:
                return False
            if time.monotonic() > deadline:
                raise txnclient.Timeout(f"hang: driver {driver.run.number} does not get on: {driver.said()}")
            await asyncio.sleep(0.003)
        return True

    async def _kill(self, driver: Driver, strike: str) -> None:
        if strike == "asleep":
            driver.signal(signal.SIGSTOP, others=self._random.random() < 0.5)
            self._asleep = driver
        elif strike == "jvm":
            driver.signal(signal.SIGKILL, others=False)
            await asyncio.sleep(self._random.uniform(0, 1))
            await driver.end()
        elif strike == "python":
            driver.process.kill()
            await driver.process.wait()
        else:
            await driver.end()

    async def _wake(self) -> None:
        """▲ The driver that slept goes on where it stood, beside the one that has taken over."""
        if self._asleep is not None:
            driver, self._asleep = self._asleep, None
            driver.signal(signal.SIGCONT)
            await asyncio.sleep(self._random.uniform(0.5, 4))
            if driver.is_running is False:
                self._ended(driver)
            await driver.end()

    def _ended(self, driver: Driver) -> None:
        text = f"driver {driver.run.number} ended with {driver.process.returncode}: {driver.said()}"
        self._note(text)
        if driver.process.returncode == FAILED:
            self.verdict.failed.append(text)
        elif driver.process.returncode is not None:
            self.verdict.findings.append(text)

    async def _finish(self) -> None:
        """One driver after the other, until one has read everything."""
        for _ in range(MOST_ENDS):
            driver = await self._start(self._next(available_now=True))
            self._note(f"driver {driver.run.number} to the end, {driver.run.source}")
            if self._asleep is not None:
                await self._reached(driver, "offsets", 1)
                await self._wake()
            try:
                async with asyncio.timeout(END_TIMEOUT_S):
                    code = await driver.process.wait()
            except TimeoutError:
                self.verdict.findings.append(f"hang: the last driver does not end: {driver.said()}")
                return
            finally:
                await driver.end()
            if code == 0:
                return
            self._ended(driver)
        self.verdict.findings.append("no driver could read everything")

    # ---- the judgement ----------------------------------------------------------------------------------------------

    async def _judge(self, client: txnclient.Client, work: Workload) -> None:
        source = [ident(message.value) for topic in self._topics for message in await _read(client, topic)]
        seen = list(self._seen())
        for query in self._queries:
            own = [one for name, one in seen if name == query]
            output = await self._written(client, query)
            replayed = await self._replayed(query)
            found = judge(work.journal, source, output, own, replayed)
            self.verdict.findings += [f"{query}: {text}" for text in found]
            runs: dict[int, dict[tuple[int, int], None]] = {}
            for one in own:
                if one.idents:
                    runs.setdefault(one.batch, {})[one.run, one.again] = None
            self.verdict.again += sum(len(of_batch) > 1 for of_batch in runs.values())
            self.verdict.batches += len(replayed)
        self.verdict.kinds = work.journal.kinds
        self.verdict.committed = len(work.journal.committed)
        self.verdict.messages = len(source)

    async def _written(self, client: txnclient.Client, query: str) -> list[Out]:
        found = []
        for message in await _read(client, OUTPUTS[query]):
            marks = message.properties
            found.append(Out(ident(message.value), int(marks["batch"]), int(marks["run"]), marks["txn"]))
        return found

    def _seen(self) -> Iterator[tuple[str, Seen]]:
        for path in sorted((self._folder / "seen").iterdir()):
            query, batch, run, partition, again = path.name.split(".")
            # ▲ The last line may be half written where its process was killed.
            lines = path.read_text().split("\n")[:-1]
            whole = lines[-1:] == ["whole"]
            rows = [line.split(" ") for line in (lines[:-1] if whole else lines)]
            names, txns = tuple(row[0] for row in rows), tuple(row[1] for row in rows)
            yield (
                query,
                Seen(int(batch), int(run), int(partition), names, txns, whole, int(again) if self._light else 0),
            )

    async def _replayed(self, query: str) -> dict[int, list[str]]:
        told = self._folder / "replay.json"
        told.write_text(json.dumps({"service.url": self._cluster.url, "topicsPattern": f"{PREFIX}/in-.*"}))
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.process.spark_pipeline.replay", str(self._folder / query), str(told),
            cwd=ROOT, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        async with asyncio.timeout(END_TIMEOUT_S):
            text, _ = await process.communicate()
        assert process.returncode == 0
        found: dict[str, Any] = json.loads(text)
        return {int(number): names for number, names in found.items()}


async def _read(client: txnclient.Client, topic: str) -> list[txnclient.Message]:
    async with await client.reader(topic, start="earliest", end="latest") as reader:
        return [message async for message in reader]


async def run(
    folder: Path,
    seed: int,
    *,
    drivers: int,
    second: bool = False,
    light: bool = False,
    faults: bool = True,
    strikes: Sequence[str] = STRIKES,
) -> Verdict:
    async with process_cluster(folder / "cluster", brokers=2) as cluster:
        pipeline = Pipeline(cluster, folder / "pipeline", seed, second=second, light=light, strikes=strikes)
        try:
            return await pipeline.run(drivers, faults)
        finally:
            await pipeline.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--drivers", type=int, default=6, help="that are killed; one more reads to the end")
    parser.add_argument("--second", action="store_true", help="another query, with foreachBatch and writeId")
    parser.add_argument("--light", action="store_true", help="source and sink without Spark")
    parser.add_argument("--calm", action="store_true", help="the cluster's own processes stay alive")
    given = parser.parse_args()
    for seed in range(given.seed, given.seed + given.runs):
        folder = Path(tempfile.mkdtemp(prefix="spark-pipeline-"))
        drawn = random.Random(f"{seed}/strikes").sample(STRIKES, len(STRIKES))
        strikes = ["all", "asleep"] if given.light else drawn
        verdict = asyncio.run(
            run(
                folder,
                seed,
                drivers=given.drivers,
                second=given.second,
                light=given.light,
                faults=not given.calm,
                strikes=strikes,
            )
        )
        for text in verdict.findings:
            print(f"FOUND {text}", flush=True)
        print(
            f"seed {seed}: {len(verdict.findings)} findings, {verdict.committed} transactions and "
            f"{verdict.messages} messages committed, {verdict.batches} batches, {verdict.again} of them read "
            f"several times, {dict(verdict.kinds)}, {dict(verdict.faults)}, {len(verdict.failed)} queries failed, "
            f"{verdict.seconds:.0f} s",
            flush=True,
        )
        if verdict.findings:
            print(f"kept: {folder}")
            return 1
        shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
