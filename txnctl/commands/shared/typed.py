"""Options of commands for sizes and durations, as people type them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import typer

from txnctl.process.amounts import milliseconds_of, seconds_of, size_of
from txnwire.errors import InvalidArgument


def size(*names: str, help: str, least: int = 0, most: float = float("inf")) -> Any:
    """An option in bytes."""
    return typer.Option(*names, help=f"{help}; as 10G, 64MiB", parser=_of(size_of, least, most), metavar="SIZE")


def seconds(*names: str, help: str, least: float = 0) -> Any:
    """An option whose plain number means seconds."""
    return typer.Option(*names, help=help, parser=_of(seconds_of, least), metavar="SECONDS|7d")


def milliseconds(*names: str, help: str, least: int = 0) -> Any:
    """An option whose plain number means milliseconds."""
    return typer.Option(*names, help=help, parser=_of(milliseconds_of, least), metavar="7d|MILLISECONDS")


TIMES: Final = "2026-11-22T10:00 (this machine's time zone), 2026-11-22T10:00Z, or milliseconds since 1970"


def _of(parse: Callable[[str], float], least: float, most: float = float("inf")) -> Callable[[Any], Any]:
    """▲ Defaults come parsed already."""

    def value(text: Any) -> Any:
        try:
            number = parse(text) if isinstance(text, str) else text
        except InvalidArgument as error:
            raise typer.BadParameter(str(error)) from None
        if number < least:
            raise typer.BadParameter(f"{text} is less than {least:g}")
        if number > most:
            raise typer.BadParameter(f"{text} is more than {most:,.0f}")
        return number

    return value
