"""One measured number, and the table and file they end in."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """`goal` in words, as the issue states it ("" where there is none); `met` None where there is no goal;
    `value` NaN where it could not be measured, and `detail` then says why."""

    name: str
    value: float
    unit: str
    goal: str = ""
    met: bool | None = None
    detail: str = ""


def at_least(name: str, value: float, unit: str, goal: float, detail: str = "") -> Result:
    return Result(name=name, value=value, unit=unit, goal=f">= {goal:g} {unit}", met=value >= goal, detail=detail)


def at_most(name: str, value: float, unit: str, goal: float, detail: str = "") -> Result:
    return Result(name=name, value=value, unit=unit, goal=f"<= {goal:g} {unit}", met=value <= goal, detail=detail)


def percentile(values: Sequence[float], share: float) -> float:
    """Of unsorted values; NaN for none."""
    if not values:
        return math.nan
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, math.ceil(share * len(ordered)) - 1))]


def write(results: Sequence[Result], path: Path) -> None:
    path.write_bytes(msgspec.json.format(msgspec.json.encode(list(results)), indent=2) + b"\n")


def show(results: Sequence[Result], console: Console) -> None:
    table = Table("measured", "value", "goal", "met", "detail")
    for result in results:
        met = {True: "[green]yes[/]", False: "[red]no[/]", None: ""}[result.met]
        value = "not measured" if math.isnan(result.value) else f"{result.value:,.2f} {result.unit}"
        table.add_row(result.name, value, result.goal, met, result.detail)
    console.print(table)
