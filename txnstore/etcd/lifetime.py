"""`python -m txnstore.etcd.lifetime PARENT_PID -- COMMAND…`: become COMMAND, and be killed when the parent dies.

Linux kills a process whose parent-death signal is set as soon as its parent is gone, SIGKILLed or not; the setting
survives `exec`. So an etcd or a cluster never outlives its starter. Standard library only: every child runs it first.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

_PR_SET_PDEATHSIG = 1


def tied_to_parent(command: Sequence[str]) -> list[str]:
    """The command line that runs `command` bound to the life of the calling process.

    `-P`, here and wherever we start a Python: a folder of the current directory named like one of our packages
    (`segments`, say) must not replace it."""
    return [sys.executable, "-P", "-m", "txnstore.etcd.lifetime", str(os.getpid()), "--", *command]


def main(arguments: Sequence[str]) -> int:
    if len(arguments) < 3 or arguments[1] != "--":
        print("usage: python -m txnstore.etcd.lifetime PARENT_PID -- COMMAND…", file=sys.stderr)
        return 2
    parent, command = int(arguments[0]), list(arguments[2:])
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        print(f"cannot set the parent-death signal: {os.strerror(ctypes.get_errno())}", file=sys.stderr)
        return 1
    if os.getppid() != parent:  # the parent died before the signal was set
        return 1
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"cannot run {command[0]}: {error.strerror}", file=sys.stderr)
        return 127


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
