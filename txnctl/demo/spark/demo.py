"""`txnctl demo --spark`: loads, lets Spark count, kills, restarts, judges (docs/demo.md)."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import Progress as Bars

import txnclient
from txnctl.commands.asking import asking
from txnctl.demo.changes import JobProgress
from txnctl.demo.flights import FLIGHTS, Flight, copy_data_files, read_flights
from txnctl.demo.frame import BROKERS, Terminal, cluster_settings, in_folder, judged
from txnctl.demo.load import batch_size, load
from txnctl.demo.spark.demo_faults import SparkDemoFaults
from txnctl.demo.spark.driver import SparkDriver
from txnctl.demo.spark.places import STATISTICS, Places, expect_spark
from txnctl.demo.spark.summary import SparkDemoReport, print_next, print_summary
from txnctl.demo.spark.totals import SparkDemoFindings
from txnctl.demo.waits import Waits
from txnctl.launch.dev import DevCluster
from txnwire.errors import Timeout

WORK_TIMEOUT_S = 1800.0
VERIFY_TIMEOUT_S = 600.0
STALLED_AFTER_S = 600.0
"""A busy machine with two cores took minutes for a JVM, its first micro-batch, and both again after the kill."""
SHORTEST_S = 20.0
"""Few flights are loaded this slowly: micro-batches take a second or more, and faults must find one at work."""


@dataclass(frozen=True, kw_only=True)
class SparkDemoSettings:
    keep: Path | None = None
    flights: int | None = None
    segments: int = 4


class FlightIncrement(msgspec.Struct):
    """What a message in the topic of statistics counts of the flights."""

    flights: int


class SparkDemo:
    def __init__(self, settings: SparkDemoSettings, folder: Path, console: Console) -> None:
        self._settings = settings
        self._folder = folder
        self._places = Places(folder.resolve())
        self._console = console
        self._terminal = Terminal(console)
        self._say = self._terminal.say
        self._flights: Sequence[Flight] = ()
        self._progress = JobProgress(0)
        self._waits = Waits(time.monotonic)
        self._faults: SparkDemoFaults | None = None
        self._worked_s = 0.0

    async def run(self) -> int:
        """Returns 0 if every total agrees, 1 on any difference."""
        self._places.make()
        copy_data_files(self._places.input, self._settings.flights)
        self._flights = list(read_flights(self._settings.flights))
        self._progress = JobProgress(len(self._flights))
        self._say(f"{len(self._flights):,} flights out of New York in 2013 are read from the data file")
        cluster = cluster_settings(self._folder)
        async with DevCluster(cluster) as running:
            self._say(f"started in {self._folder}: etcd, a coordinator, {BROKERS} brokers")
            await self._work(running)
        self._say("everything is stopped; it is started again, and another Spark judges: 20 to 30 s")
        async with DevCluster(cluster) as running:
            findings = await self._judge(running.url)
            async with asking(running.url) as admin:
                layout = await admin.ask("topics.describe", topic=FLIGHTS)
        print_summary(self._console, self._course(), findings, layout)
        return 1 if findings.differences else 0

    async def _work(self, cluster: DevCluster) -> None:
        async with txnclient.connect(cluster.url) as client:
            for topic in (FLIGHTS, STATISTICS):
                await client.create_topic(topic, segments=self._settings.segments, autoscale="off")
            self._say("Spark is started: a driver with two streaming queries; 10 to 20 s")
            async with SparkDriver(cluster.url, self._places) as driver:
                await driver.wait_running()
                self._say("Spark runs: flights are loaded; each micro-batch is one transaction, whoever wrote in it")
                started = time.monotonic()
                with self._terminal.bars() as bars:
                    await self._work_while_it_happens(client, cluster, driver, bars)
                self._worked_s = time.monotonic() - started
                self._say("every flight is counted; Spark finishes the Parquet files and ends")
                await driver.finish()

    async def _work_while_it_happens(
        self, client: txnclient.Client, cluster: DevCluster, driver: SparkDriver, bars: Bars
    ) -> None:
        progress = self._progress
        loading = bars.add_task("flights loaded", total=progress.total)
        counting = bars.add_task("flights counted", total=progress.total)
        faults = SparkDemoFaults(client, cluster, driver, self._places, self._waits, self._say)
        self._faults = faults

        def loaded(count: int) -> None:
            progress.loaded += count
            progress.moved.set()
            bars.update(loading, completed=progress.loaded)

        async with asyncio.timeout(WORK_TIMEOUT_S), asyncio.TaskGroup() as group:
            failing = group.create_task(driver.wait_failed())
            group.create_task(load(client, self._flights, self._waits, loaded, shortest_s=SHORTEST_S))
            happening = group.create_task(faults.run(progress))
            await self._follow(client, lambda: bars.update(counting, completed=progress.done))
            await happening
            failing.cancel()

    async def _follow(self, client: txnclient.Client, on_progress: Callable[[], None]) -> None:
        """Reads the statistics as they become visible, until they count all flights."""
        progress = self._progress
        async with await client.reader(STATISTICS, start="earliest") as reader:
            while progress.done < progress.total:
                messages = await reader.receive_many(2000, timeout=STALLED_AFTER_S)
                if not messages:
                    there = f"{progress.done:,} of {progress.total:,} flights are counted"
                    raise Timeout(f"no new statistics became visible in {STALLED_AFTER_S:g} s; {there}")
                for message in messages:
                    progress.done += msgspec.json.decode(message.value, type=FlightIncrement).flights
                progress.moved.set()
                on_progress()

    async def _judge(self, url: str) -> SparkDemoFindings:
        arguments = (url, str(self._folder), str(len(self._flights)))
        environment = {**os.environ, **self._places.environment()}
        module = "txnctl.demo.spark.verify"
        return await judged(
            module, *arguments, answer=SparkDemoFindings, timeout_s=VERIFY_TIMEOUT_S, environment=environment
        )

    def _course(self) -> SparkDemoReport:
        return SparkDemoReport(
            flights=len(self._flights),
            worked_s=self._worked_s,
            back_after_s=0.0 if self._faults is None else self._faults.back_after_s,
            pauses=() if self._faults is None else self._faults.pauses,
            batch=batch_size(len(self._flights)),
            usual_batch_s=self._waits.usual_s(),
        )


async def run_spark_demo(settings: SparkDemoSettings) -> int:
    """Returns the demo's exit code; removes its folder afterwards unless `keep` names one."""
    expect_spark()
    return await in_folder(
        settings.keep, lambda folder, console: SparkDemo(settings, folder, console).run(), print_next
    )
