"""Captures a run's other output: log lines, unretrieved exceptions, warnings of coroutines."""

from __future__ import annotations

import gc
import logging
import sys
import warnings
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager, suppress
from typing import Any

import structlog

from simulation.world.loop import OWNER, SimLoop
from simulation.world.trace import Trace


@contextmanager
def no_collection() -> Iterator[None]:
    """▲ The collector would run finalizers at moments that depend on what this interpreter did before."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextmanager
def last_words_are_findings(loop: SimLoop) -> Iterator[None]:
    """Coroutines that were never awaited, and exceptions in finalizers, are bugs as well."""
    hook = sys.unraisablehook

    def keep(words: sys.UnraisableHookArgs) -> None:
        loop.unhandled.append(f"{loop.time():.6f} {_running_name()}: {words.exc_value!r} in {words.object!r}"[:300])

    sys.unraisablehook = keep
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            yield
    finally:
        sys.unraisablehook = hook


@contextmanager
def quiet(trace: Trace, alarms: dict[str, int], heard: Callable[[object], None]) -> Iterator[None]:
    """Log lines go into the trace's text, not to the terminal; errors, which no fault causes on purpose, are kept in
    `alarms`. Calls `heard` with each line's event."""

    def note(_: object, level: str, event: MutableMapping[str, Any]) -> Any:
        heard(event.get("event"))
        if trace.logging:
            trace.note(f"    {_running_name()} {level}: {event}")
        if level in ("error", "critical", "exception"):
            text = f"{_running_name().partition('.')[0]}: {event.get('event')}: {event.get('error')!r}"
            alarms[text] = alarms.get(text, 0) + 1
        raise structlog.DropEvent

    before = structlog.get_config()
    structlog.configure(processors=[note], cache_logger_on_first_use=False)
    root = logging.getLogger()
    handler = _TraceHandler(trace, alarms)
    root.addHandler(handler)
    root.setLevel(logging.DEBUG if trace.logging else logging.WARNING)
    try:
        yield
    finally:
        root.removeHandler(handler)
        with suppress(KeyError):
            structlog.configure(**before)


class _TraceHandler(logging.Handler):
    def __init__(self, trace: Trace, alarms: dict[str, int]) -> None:
        super().__init__()
        self._trace = trace
        self._alarms = alarms

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.ERROR and record.name.startswith("txnclient"):
            cause = record.exc_info[1] if record.exc_info else None
            text = f"{_running_name().partition('.')[0]}: {record.getMessage()}: {cause!r}"
            self._alarms[text] = self._alarms.get(text, 0) + 1
        if self._trace.logging:
            self._trace.note(f"    {_running_name()} {record.levelname.lower()}: {record.getMessage()}")


def _running_name() -> str:
    owner = OWNER.get()
    return owner.name if owner is not None else "world"
