"""How listings are shown: a table for people, JSON for programs (fields: docs/commands.md)."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

PIPE_COLUMNS = 10_000


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
    table = Table()
    for column in columns:
        numbers = all(isinstance(row.get(column), int | float | None) for row in rows)
        table.add_column(column.replace("_", " "), justify="right" if numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell(row.get(column))) for column in columns))
    console().print(table)


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


def console() -> Console:
    """Wide where nobody looks: in a pipe one row is one line, whatever its length."""
    if sys.stdout.isatty():
        return Console(highlight=False)
    return Console(highlight=False, width=PIPE_COLUMNS)
