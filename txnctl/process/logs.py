"""Logging of every process: structlog to standard error, one line an event, level by name.

The client library runs in other programs, so it logs through `logging`; its lines get the same form here.
"""

from __future__ import annotations

import logging
import os
import sys
from contextlib import suppress

import structlog

from txnwire.errors import InvalidArgument


def configure(level: str) -> None:
    """Raises `InvalidArgument` for a level that does not exist."""
    number = logging.getLevelNamesMapping().get(level.upper())
    if number is None:
        raise InvalidArgument(f"log level {level!r}: expected debug, info, warning or error")
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), sort_keys=False),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=_Lines,
        cache_logger_on_first_use=True,
    )
    library = logging.getLogger("txnclient")
    library.setLevel(number)
    library.handlers = [_Forwarding()]


class _Lines:
    """▲ A line that cannot be written, to a full disk or a reader that has gone, is lost: its error would end what
    wanted to log, and a segment would be owned but never served.

    Past the buffer of `sys.stderr`, which would keep that line before all later ones."""

    def __init__(self, *_: object) -> None:
        """structlog passes what its caller names the logger by."""

    def msg(self, message: str) -> None:
        with suppress(OSError, ValueError):  # ValueError: it is closed
            os.write(sys.stderr.fileno(), f"{message}\n".encode(sys.stderr.encoding, "backslashreplace"))

    debug = info = warning = error = critical = msg


class _Forwarding(logging.Handler):
    """Brings `logging` records of the client library and the wire into the form of all other lines."""

    def emit(self, record: logging.LogRecord) -> None:
        structlog.get_logger(record.name).log(record.levelno, record.getMessage(), exc_info=record.exc_info)
