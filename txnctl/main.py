"""Runs the command line: an error of ours, or of the machine, goes to standard error without a traceback.

Exit codes: 0 done, 1 refused or broken, 2 usage, 130 Ctrl-C, 143 SIGTERM before the work was done.
"""

from __future__ import annotations

import io
import sys

from txnwire.errors import InvalidArgument, TxnError

REFUSED, USAGE, INTERRUPTED = 1, 2, 130


def main() -> None:
    """Entry point of `txnctl`."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without box characters is no reason to fail
    try:
        from txnctl.cli import app  # here, for Ctrl-C may well come while the libraries are imported

        app()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        sys.stdout = None  # whoever read us has gone; the interpreter would complain when it flushes at exit
        sys.exit(REFUSED)
    except (TxnError, OSError) as error:
        sys.exit(_report(error))
    except ExceptionGroup as group:
        first, others = _first_known(group)
        if first is None or others:
            raise
        sys.exit(_report(first))


def _report(error: TxnError | OSError) -> int:
    """Say what is wrong; the exit code for it."""
    named = isinstance(error, TxnError) and not isinstance(error, InvalidArgument)
    print(f"txnctl: {type(error).__name__}: {error}" if named else f"txnctl: {error}", file=sys.stderr)
    return USAGE if isinstance(error, InvalidArgument) else REFUSED


def _first_known(
    group: ExceptionGroup[Exception],
) -> tuple[TxnError | OSError | None, ExceptionGroup[Exception] | None]:
    """The first error of tasks that ended together, and those among them that are bugs and need their traceback."""
    known, others = group.split((TxnError, OSError))
    while isinstance(known, ExceptionGroup):
        found = known.exceptions[0]
        if isinstance(found, TxnError | OSError):
            return found, others
        known = found if isinstance(found, ExceptionGroup) else None
    return None, others
