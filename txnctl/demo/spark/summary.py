"""Prints the Spark demo's summary: numbers, the verdict, what to try next."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from txnctl.demo.course import CourseReport
from txnctl.demo.flights import FLIGHTS
from txnctl.demo.spark.places import STATISTICS
from txnctl.demo.spark.totals import SparkDemoFindings
from txnctl.demo.summary import called, loading_rows, print_commands, print_layout, print_rows, print_verdict


@dataclass(frozen=True, slots=True)
class SparkDemoReport:
    """`back_after_s`: from the driver's SIGKILL to the next readable micro-batch."""

    course: CourseReport
    back_after_s: float


def print_summary(
    console: Console, report: SparkDemoReport, findings: SparkDemoFindings, layout: Mapping[str, Any]
) -> None:
    print_layout(console, layout)
    print_rows(console, rows(report, findings))
    print_verdict(
        console,
        findings.differences,
        "exactly once, in the topic and in Parquet",
        "The totals of Spark's micro-batches, through a split, a merge, a dead broker and its own death, are equal,",
        f"to the last flight, to those that it computes from the data file: {findings.groups:,} totals, each the same "
        "three times.",
    )


def rows(report: SparkDemoReport, findings: SparkDemoFindings) -> Iterator[tuple[str, str]]:
    course = report.course
    rate = course.flights / max(course.worked_s, 1e-9)
    yield "flights", f"{course.flights:,}, {rate:,.0f}/s loaded and counted, the time without Spark included"
    yield (
        "statistics",
        f"{findings.increments:,} increments in {findings.transactions:,} micro-batches, one transaction each",
    )
    yield "Spark killed", f"{report.back_after_s:.1f} s until the next micro-batch was committed"
    yield from loading_rows(course)


def print_next(console: Console, kept: Path | None) -> None:
    """Prints commands that work without changes."""
    print_commands(console, next_commands(kept))


def next_commands(kept: Path | None) -> list[tuple[str, str]]:
    txnctl, python = called(), os.path.relpath(sys.executable)
    if kept is None:
        folder = "flights-demo"
        return [
            (f"{txnctl} demo --spark --keep {folder}", "once more, and keep its cluster"),
            (f"{txnctl} dev --data-dir {folder} --brokers 2", "then continue with that cluster"),
            (f"{txnctl} consume {STATISTICS} --subscription me --count 5", "five increments"),
            (f"{txnctl} demo", "the same flights without Spark, by plain workers"),
        ]
    return [
        (f"{txnctl} dev --data-dir {kept} --brokers 2", "the cluster as the demo left it"),
        (f"{txnctl} topics describe {FLIGHTS}", "the segments, as above"),
        (f"{txnctl} consume {STATISTICS} --subscription me --count 5", "five increments"),
        (
            f"{python} -m pyspark_txnstore.jobs.audit --service txn://127.0.0.1:6650 --topics {STATISTICS}",
            "is any transaction torn?",
        ),
        (f"{txnctl} check --data-dir {kept / 'data'}", "every invariant of the stored records"),
    ]
