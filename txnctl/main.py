"""Runs the command line: prints errors of ours and of the machine to standard error without a traceback.

Exit codes: 0 done, 1 refused or broken, 2 usage, 130 Ctrl-C, 143 SIGTERM before the work was done. With `--output json`
errors are JSON, too: one line on standard error, `{"error", "message", "retriable", "exit_code"}`.
"""

from __future__ import annotations

import io
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import cast

from txnwire.errors import InvalidArgument, TxnError

REFUSED, USAGE, INTERRUPTED, TERMINATED = 1, 2, 130, 143


def main() -> None:
    """Entry point of `txnctl`."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without box characters is no reason to fail
    as_json = wants_json(sys.argv[1:])
    try:
        _heed_sigterm()
        if sys.argv[1:2] == ["health"]:
            _health()
        from txnctl.cli import app  # imported here, because Ctrl-C may come during the import

        if as_json:
            sys.exit(_run_for_programs(app))
        app()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        sys.stdout = None  # the reader of the pipe has gone; the interpreter would complain when it flushes at exit
        sys.exit(REFUSED)
    except (TxnError, OSError) as error:
        sys.exit(_report(error, as_json=as_json))
    except ExceptionGroup as group:
        first, others = _first_known(group)
        if first is None or others:
            raise
        sys.exit(_report(first, as_json=as_json))


def _heed_sigterm() -> None:
    """▲ In a container the command is process 1, and Linux drops signals to process 1 that it has no handler for.
    Commands that end in an order of their own set their handler later."""
    if os.getpid() == 1:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))


def _health() -> None:
    """Without the other commands: importing them takes longer than the answer."""
    import typer

    from txnctl.commands.health import health

    alone = typer.Typer(
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # as the other commands
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    alone.command()(health)
    alone(args=sys.argv[2:], prog_name="txnctl health")


def wants_json(words: Sequence[str]) -> bool:
    """Whether the command line asks for JSON; found before parsing, which may fail."""
    pairs = zip(words, [*words, ""][1:], strict=True)
    return any(
        word in ("--output=json", "-ojson") or (word in ("--output", "-o") and following == "json")
        for word, following in pairs
    )


def _run_for_programs(app: Callable[..., object]) -> int:
    """Like `app()`, with usage errors as JSON; returns the exit code."""
    import typer

    # The `UsageError` of the click that typer uses.
    usage_error = cast(type[typer.BadParameter], typer.BadParameter.__bases__[0])
    try:
        code = app(standalone_mode=False)
    except typer.Abort:
        return INTERRUPTED
    except usage_error as error:
        _say_json("Usage", error.format_message(), retriable=False, code=USAGE)
        return USAGE
    return code if isinstance(code, int) else 0


def _report(error: TxnError | OSError, *, as_json: bool) -> int:
    """Prints what is wrong and returns the exit code. ▲ An unknown name is no usage error: the command itself is
    right."""
    code = USAGE if type(error) is InvalidArgument else REFUSED
    if as_json:
        retriable = isinstance(error, TxnError) and error.retriable
        _say_json(type(error).__name__, str(error), retriable=retriable, code=code)
        return code
    named = isinstance(error, TxnError) and type(error) is not InvalidArgument
    print(f"txnctl: {type(error).__name__}: {error}" if named else f"txnctl: {error}", file=sys.stderr)
    return code


def _say_json(error: str, message: str, *, retriable: bool, code: int) -> None:
    answer = {"error": error, "message": message, "retriable": retriable, "exit_code": code}
    print(json.dumps(answer, ensure_ascii=False), file=sys.stderr)


def _first_known(
    group: ExceptionGroup[Exception],
) -> tuple[TxnError | OSError | None, ExceptionGroup[Exception] | None]:
    """The first error of tasks that ended together, and the bugs among them, which need their traceback."""
    known, others = group.split((TxnError, OSError))
    while isinstance(known, ExceptionGroup):
        found = known.exceptions[0]
        if isinstance(found, TxnError | OSError):
            return found, others
        known = found if isinstance(found, ExceptionGroup) else None
    return None, others
