"""Shows answers: a table for people, JSON for programs (fields: docs/commands.md).

On a terminal a table fits the width by folding long cells. In a pipe a row is a line, columns are two or more spaces
apart, and there is no colour or frame, so that `awk` and `grep` work.
"""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any

import msgspec
import typer
from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

PIPE_COLUMNS = 10_000
"""Wider than any row: rich writes no more than it needs."""


TITLES = {
    "age_s": "age s",
    "assignment_epoch": "epoch",
    "lag_messages": "unacked messages",
    "lag_seconds": "oldest",
    "clean_up_backlog": "to clean",
    "commit_p50_ms": "p50 ms",
    "commit_p99_ms": "p99 ms",
    "coordinator": "process",
    "entries_behind": "behind",
    "last_confirmed": "confirmed",
    "max_read_position": "readable",
    "oldest_open_s": "oldest s",
    "open_transactions": "open",
    "subscriptions": "read by",
    "sweep_backlog": "to sweep",
}
"""Titles shorter than their fields, for terminals: a column is never narrower than the longest word of its title."""

WHOLE_COLUMNS = 21
"""Cells up to the length of a transaction's id are never folded."""


NOT_SHOWN = ("Cc", "Cf", "Cs", "Zl", "Zp")
"""Unicode's categories of control characters, marks of direction and the like, halves of pairs, ends of lines."""


class Format(StrEnum):
    TABLE = "table"
    JSON = "json"


Output = Annotated[Format, typer.Option("--output", "-o", help="table or json")]


def show_rows(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], output: Format, *, empty: str) -> None:
    """Shows rows as a table of `columns`, or as a JSON list of whole rows. Prints `empty` if there are none."""
    if output is Format.JSON:
        show_json(list(rows))
        return
    if not rows:
        print(empty, file=sys.stderr)
        return
    if not sys.stdout.isatty():
        _print_lines(rows, columns)
        return
    shown, terminal = [[cell(row.get(column)) for column in columns] for row in rows], console()
    table = _table(rows, columns, shown)
    if _least_width(columns, shown) <= terminal.width:
        terminal.print(table)
    else:
        _print_blocks(columns, shown, terminal)


def _table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], shown: Sequence[Sequence[str]]) -> Table:
    """Short cells and the words of titles stay whole; long cells fold."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False, header_style="bold")
    for column, longest in zip(columns, _longest(shown), strict=True):
        numbers = all(isinstance(row.get(column), int | float | None) for row in rows)
        table.add_column(
            _title(column),
            justify="right" if numbers else "left",
            overflow="fold",
            min_width=_longest_word(column),
            no_wrap=longest <= WHOLE_COLUMNS,
        )
    for line in shown:
        table.add_row(*map(Text, line))
    return table


def _least_width(columns: Sequence[str], shown: Sequence[Sequence[str]]) -> int:
    """With what stays whole, and two characters between columns. ▲ rich's own measure leaves out a part of these, and
    cuts cells where the terminal has no room for them."""
    whole = (longest if longest <= WHOLE_COLUMNS else 0 for longest in _longest(shown))
    return sum(map(max, whole, map(_longest_word, columns))) + 2 * (len(columns) - 1)


def _longest(shown: Sequence[Sequence[str]]) -> list[int]:
    """Of each column's cells."""
    return [max(map(cell_len, cells)) for cells in zip(*shown, strict=True)]


def _longest_word(column: str) -> int:
    return max(map(len, _title(column).split()))


def _title(column: str) -> str:
    return TITLES.get(column, column.replace("_", " "))


def _print_blocks(columns: Sequence[str], shown: Sequence[Sequence[str]], terminal: Console) -> None:
    """For a terminal too narrow for the table: a block of lines for each row."""
    width = max(len(_title(column)) for column in columns)
    for number, line in enumerate(shown):
        if number:
            terminal.print()
        for column, value in zip(columns, line, strict=True):
            terminal.print(Text.assemble((f"{_title(column):<{width}}", "bold"), "  ", value), soft_wrap=True)


def _print_lines(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> None:
    """For programs that read lines: names of fields, numbers without separators, columns two spaces or more apart."""
    lines = [list(columns), *([cell(row.get(column), plain=True) for column in columns] for row in rows)]
    widths = [max(len(line[at]) for line in lines) for at in range(len(columns))]
    for line in lines:
        print("  ".join(f"{text:<{width}}" for text, width in zip(line, widths, strict=True)).rstrip())


def show_done(said: str, answer: Mapping[str, Any], output: Format) -> None:
    """Reports what a command has done, as a sentence or as one JSON object."""
    if output is Format.JSON:
        show_json(answer)
    else:
        print(said)


def show_json(value: Any) -> None:
    sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n")
    sys.stdout.buffer.flush()


def cell(value: Any, *, plain: bool = False) -> str:
    """A cell for people: thousands separators (unless `plain`), a list without brackets, a dash for None."""
    if value is None or value == [] or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return str(value) if plain else f"{value:,}"
    if isinstance(value, float):
        return str(value) if plain else f"{value:,.1f}"
    if isinstance(value, list | tuple):
        return ", ".join(cell(one, plain=plain) for one in value)
    return printable(msgspec.json.encode(value).decode() if isinstance(value, Mapping) else str(value))


def printable(text: str) -> str:
    """Free text of clients (names, keys, notes, values), with control characters written out. ▲ A newline would begin a
    false row, and an escape sequence could hide one."""
    return "".join(
        one.encode("unicode_escape").decode() if unicodedata.category(one) in NOT_SHOWN else one for one in text
    )


def counted(number: int, one: str, many: str) -> str:
    """For example `1 message`, `2,000 messages`."""
    return f"{cell(number)} {one if number == 1 else many}"


def say(line: str) -> None:
    """Prints a line unchanged: no markup, no folding."""
    console().print(escape(line), soft_wrap=True)


def console() -> Console:
    """A wide console without markup if output is no terminal: see the head of this file."""
    if sys.stdout.isatty():
        return Console(highlight=False)
    return Console(highlight=False, width=PIPE_COLUMNS)
