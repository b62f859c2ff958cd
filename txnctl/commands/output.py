"""How listings are shown: a table for people, JSON for programs."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.table import Table


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
    table = Table(*columns)
    for row in rows:
        table.add_row(*(_cell(row.get(column)) for column in columns))
    _console().print(table)


def show_record(record: Mapping[str, Any], output: Format) -> None:
    """One record as name and value lines, or as a JSON object."""
    if output is Format.JSON:
        show_json(record)
        return
    table = Table(show_header=False, box=None)
    for name, value in record.items():
        table.add_row(name, _cell(value))
    _console().print(table)


def show_json(value: Any) -> None:
    sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n")
    sys.stdout.buffer.flush()


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, Mapping | list | tuple):
        return msgspec.json.encode(value).decode()
    return str(value)


def _console() -> Console:
    """Wide where nobody looks: a pipe must not have its cells folded."""
    return Console(soft_wrap=False) if sys.stdout.isatty() else Console(width=250)
