"""`python -m simulation.worker`: jobs as JSON lines on standard input, results as JSON lines on standard output.

The set guard has to be installed before production code is imported, and a run that hangs must be killed: so runs
happen in processes of their own.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys

import msgspec

from simulation.world import guards


def main() -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to everybody in the terminal; the runner ends us
    faulthandler.enable()  # with SIGABRT the runner asks a run that hangs where it is
    guards.install_guard()
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # whatever is printed by accident must not stand among the answers
    from simulation.running.job import Job, perform

    for line in sys.stdin.buffer:
        result = perform(msgspec.json.decode(line, type=Job))
        answers.write(msgspec.json.encode(result) + b"\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
