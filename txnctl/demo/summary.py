"""Prints the demo's summary: numbers, the verdict, the topic's segments, what to try next."""

from __future__ import annotations

import math
import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from txnctl.commands.shared.drawing import draw
from txnctl.demo.changes import LEASE_TTL_S, TAKE_OVER
from txnctl.demo.course import CourseReport
from txnctl.demo.journal import ABORTED, COMMITTED, JournalLine
from txnctl.demo.lags import Lags, unfinished
from txnctl.demo.verify import DemoFindings


@dataclass(frozen=True, slots=True)
class DemoReport:
    """`lines`: of the workers' journals."""

    course: CourseReport
    lines: Sequence[JournalLine]
    lags: Lags


def print_summary(console: Console, report: DemoReport, findings: DemoFindings, layout: Mapping[str, Any]) -> None:
    print_layout(console, layout)
    print_rows(console, rows(report, findings))
    print_verdict(
        console,
        findings.differences,
        "exactly once, nothing torn, in order",
        "Each flight has one outcome. The carriers' tallies are those of the data file. Nothing of",
        f"an aborted transaction is there. All of {findings.aircraft:,} aircraft have their outcomes in order.",
    )


def print_layout(console: Console, layout: Mapping[str, Any]) -> None:
    console.print()
    for line in draw(_at_rest(layout), everything=True):
        console.print(escape(line), soft_wrap=True, highlight=False)
    console.print()


def print_rows(console: Console, named: Iterable[tuple[str, str]]) -> None:
    table = Table(box=box.SIMPLE_HEAD, show_header=False, padding=(0, 2, 0, 0), pad_edge=False, show_edge=False)
    for name, value in named:
        table.add_row(name, value)
    console.print(table, highlight=False)
    console.print()


def print_verdict(console: Console, differences: Sequence[str], good: str, *lines: str) -> None:
    """Prints `good` and `lines` if there are no differences."""
    for difference in differences:
        console.print(f"[red]{escape(difference)}[/]", soft_wrap=True, highlight=False)
    if differences:
        console.print("[bold red]verdict: DIFFERENCES[/], above", highlight=False)
        return
    console.print(f"[bold green]verdict: {good}[/]", highlight=False)
    for line in lines:
        console.print(f"  {line}", highlight=False, soft_wrap=True)


def rows(report: DemoReport, findings: DemoFindings) -> Iterator[tuple[str, str]]:
    committed = [line for line in report.lines if line.event == COMMITTED]
    aborted = [line for line in report.lines if line.event == ABORTED]
    course = report.course
    rate = course.flights / max(course.worked_s, 1e-9)
    yield "outcomes", f"{findings.outcomes:,} of {course.flights:,} flights, {rate:,.0f}/s loaded and worked on"
    yield (
        "workers' transactions",
        f"{len(committed):,} committed, {len(aborted):,} aborted ({sum(line.on_purpose for line in aborted):,} on "
        f"purpose), {len(unfinished(report.lines)):,} cut off by a kill",
    )
    yield "commit, p50 / p99", _milliseconds([line.commit_ms for line in committed])
    yield "commit to read, p50 / p99", _milliseconds(report.lags.since_commit)
    yield "… not behind others", _milliseconds(report.lags.since_free)
    yield from loading_rows(course)


def loading_rows(course: CourseReport) -> Iterator[tuple[str, str]]:
    usual_ms = course.usual_batch_s * 1000
    yield f"loading {course.batch:,} flights", f"{usual_ms:,.0f} ms p50, begin to commit; the slowest:"
    for pause in course.pauses:
        slowest = "none was on its way"
        if pause.longest_s is not None:
            about = f", most of it a dead broker's lease: {LEASE_TTL_S} s (default 10)" * (pause.what == TAKE_OVER)
            slowest = f"{pause.longest_s * 1000:,.0f} ms{about}"
        yield f"… through the {pause.what}", slowest


def print_next(console: Console, kept: Path | None) -> None:
    """Prints commands that work without changes."""
    print_commands(console, next_commands(kept))


def print_commands(console: Console, commands: Sequence[tuple[str, str]]) -> None:
    console.print("\nTry next (`dev` in a terminal of its own):", highlight=False)
    width = max(len(command) for command, _ in commands)
    for command, about in commands:
        console.print(f"  {escape(f'{command:<{width}}')}  [dim]# {about}[/]", soft_wrap=True, highlight=False)


def _at_rest(layout: Mapping[str, Any]) -> dict[str, Any]:
    """Without loads, which are from the minute before everything was stopped."""
    return {**layout, "policies": {}, "segments": [{**segment, "load": None} for segment in layout["segments"]]}


def next_commands(kept: Path | None) -> list[tuple[str, str]]:
    txnctl = called()
    if kept is None:
        folder = "flights-demo"
        return [
            (f"{txnctl} demo --keep {folder}", "once more, and keep its cluster"),
            (f"{txnctl} dev --data-dir {folder} --brokers 2", "then continue with that cluster"),
            (f"{txnctl} topics describe topic://public/nyc/flights", "and look around in it"),
        ]
    return [
        (f"{txnctl} dev --data-dir {kept} --brokers 2", "the cluster as the demo left it"),
        (f"{txnctl} topics describe topic://public/nyc/flights", "the segments, as above"),
        (f"{txnctl} consume topic://public/nyc/tallies --subscription me --count 5", "five tallies"),
        (f"{txnctl} brokers list", "how many segments each broker serves"),
        (f"{txnctl} check --data-dir {kept / 'data'}", "every invariant of the stored records"),
    ]


def called() -> str:
    """How this program was called, as the shortest command that works from here."""
    program = Path(sys.argv[0])
    if program.name != "txnctl":
        return f"{os.path.relpath(sys.executable)} -m txnctl"
    found = shutil.which("txnctl")
    return "txnctl" if found and Path(found).samefile(program) else os.path.relpath(program)


def _percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)]


def _milliseconds(values: Sequence[float]) -> str:
    if not values:
        return "none measured"
    return f"{_percentile(values, 0.5):,.1f} ms / {_percentile(values, 0.99):,.1f} ms"
