"""How answers are shown: a table for people, JSON for programs (fields: docs/commands.md).

On a terminal a table fits its width, folding what is long. In a pipe a row is a line, columns are two or more spaces
apart, and there is neither colour nor frame: `awk` and `grep` see what is there.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any

import msgspec
import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

PIPE_COLUMNS = 10_000
"""Wider than any row: rich writes no more than it needs."""


class Format(StrEnum):
    TABLE = "table"
    JSON = "json"


Output = Annotated[Format, typer.Option("--output", "-o", help="table or json")]


def show_rows(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], output: Format, *, empty: str) -> None:
    """Rows as a table of `columns`, or as a JSON list of whole rows. `empty` is said where there are none."""
    if output is Format.JSON:
        show_json(list(rows))
        return
    if not rows:
        print(empty, file=sys.stderr)
        return
    looked_at = sys.stdout.isatty()
    table = Table(
        box=box.SIMPLE_HEAD if looked_at else None,
        padding=(0, 1) if looked_at else (0, 2, 0, 0),
        pad_edge=False,
        show_edge=False,
        header_style="bold" if looked_at else "",
    )
    for column in columns:
        numbers = all(isinstance(row.get(column), int | float | None) for row in rows)
        title = column.replace("_", " ") if looked_at else column
        table.add_column(title, justify="right" if numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell(row.get(column))) for column in columns))
    console().print(table)


def show_done(said: str, answer: Mapping[str, Any], output: Format) -> None:
    """What a command has done: a sentence, or its facts as one JSON object."""
    if output is Format.JSON:
        show_json(answer)
    else:
        print(said)


def show_json(value: Any) -> None:
    sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n")
    sys.stdout.buffer.flush()


def cell(value: Any) -> str:
    """As people read it: thousands apart, a list without brackets, nothing as a dash."""
    if value is None or value == [] or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.1f}"
    if isinstance(value, list | tuple):
        return ", ".join(cell(one) for one in value)
    return msgspec.json.encode(value).decode() if isinstance(value, Mapping) else str(value)


def say(line: str) -> None:
    """A line as it stands: no markup, no folding."""
    console().print(escape(line), soft_wrap=True)


def console() -> Console:
    """Wide where nobody looks, and nothing but text: see the head of this file."""
    if sys.stdout.isatty():
        return Console(highlight=False)
    return Console(highlight=False, width=PIPE_COLUMNS)
