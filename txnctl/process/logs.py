"""Logging of every process: structlog to standard error, one line an event, level by name.

The client library runs in other programs, so it logs through `logging`; its lines get the same form here.
"""

from __future__ import annotations

import logging
import sys

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
        logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )
    library = logging.getLogger("txnclient")
    library.setLevel(number)
    library.handlers = [_Forwarding()]


class _Forwarding(logging.Handler):
    """Brings `logging` records of the client library and the wire into the form of all other lines."""

    def emit(self, record: logging.LogRecord) -> None:
        structlog.get_logger(record.name).log(record.levelno, record.getMessage(), exc_info=record.exc_info)
