"""`python -m simulation.worker`: jobs as JSON lines on standard input, results as JSON lines on standard output.

The set guard must be installed before production code is imported, and a hanging run must be killed: so runs have their
own processes.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys

import msgspec

from simulation.world import guards


def main() -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes in the terminal; the runner ends us
    faulthandler.enable()  # on SIGABRT, which the runner sends to a hanging run, prints the stacks
    guards.install_guard()
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # stray prints must not mix with the answers
    from simulation.running.job import Job, perform

    for line in sys.stdin.buffer:
        result = perform(msgspec.json.decode(line, type=Job))
        answers.write(msgspec.json.encode(result) + b"\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
