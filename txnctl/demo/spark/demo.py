"""`txnctl demo --spark`: loads, lets Spark count, kills, restarts, judges (docs/demo.md)."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import msgspec
from rich.console import Console

import txnclient
from txnctl.demo.course import CourseSettings, DemoCourse
from txnctl.demo.flights import FLIGHTS, copy_data_files
from txnctl.demo.frame import in_folder, judged
from txnctl.demo.spark.demo_faults import SparkDemoFaults
from txnctl.demo.spark.driver import SparkDriver
from txnctl.demo.spark.places import STATISTICS, Places, expect_spark
from txnctl.demo.spark.summary import SparkDemoReport, print_next, print_summary
from txnctl.demo.spark.totals import SparkDemoFindings
from txnctl.launch.dev import DevCluster

VERIFY_TIMEOUT_S = 600.0


@dataclass(frozen=True, kw_only=True)
class SparkDemoSettings(CourseSettings):
    pass


class FlightIncrement(msgspec.Struct):
    """A message in the topic of statistics: the number of flights that it counts."""

    flights: int


class SparkDemo(DemoCourse[SparkDemoFindings]):
    results: ClassVar = STATISTICS
    done: ClassVar = "flights counted"
    judged_by: ClassVar = "another Spark judges: 20 to 30 s"
    work_timeout_s: ClassVar = 1800.0
    stalled_after_s: ClassVar = 600.0
    """A busy machine with two cores took minutes for a JVM, its first micro-batch, and both again after the kill."""
    shortest_load_s: ClassVar = 20.0
    """Few flights are loaded this slowly: micro-batches take a second or more, and faults must find one at work."""

    def __init__(self, settings: SparkDemoSettings, folder: Path, console: Console) -> None:
        super().__init__(settings, folder, console)
        self._places = Places(folder.resolve())
        self._back_after_s = 0.0

    def _prepare(self) -> None:
        self._places.make()
        copy_data_files(self._places.input, self._limit)

    def _topics(self) -> Sequence[str]:
        return FLIGHTS, STATISTICS

    async def _work(self, client: txnclient.Client, cluster: DevCluster) -> None:
        self._say("Spark is started: a driver with two streaming queries; 10 to 20 s")
        async with SparkDriver(cluster.url, self._places) as driver:
            await driver.wait_running()
            self._say("Spark runs: flights are loaded; each micro-batch is one transaction, for any number of tasks")
            faults = SparkDemoFaults(client, cluster, driver, self._places, self._waits, self._say)
            async with self._timed():
                await self._load_and_follow(client, faults, driver.wait_failed())
            self._back_after_s = faults.back_after_s
            self._say("every flight is counted; Spark finishes the Parquet files and ends")
            await driver.finish()

    def _count(self, messages: Sequence[txnclient.Message]) -> None:
        counted = (msgspec.json.decode(message.value, type=FlightIncrement).flights for message in messages)
        self._progress.done += sum(counted)

    async def _judge(self, url: str) -> SparkDemoFindings:
        arguments = (url, str(self._folder), str(len(self._flights)))
        environment = {**os.environ, **self._places.environment()}
        module = "txnctl.demo.spark.verify"
        return await judged(
            module, *arguments, answer=SparkDemoFindings, timeout_s=VERIFY_TIMEOUT_S, environment=environment
        )

    def _print(self, findings: SparkDemoFindings, layout: Mapping[str, Any]) -> None:
        print_summary(self._console, SparkDemoReport(self._report(), self._back_after_s), findings, layout)


async def run_spark_demo(settings: SparkDemoSettings) -> int:
    """Returns the demo's exit code; removes its folder afterwards unless `keep` names one."""
    expect_spark()
    return await in_folder(
        settings.keep, lambda folder, console: SparkDemo(settings, folder, console).run(), print_next
    )
