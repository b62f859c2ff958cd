"""`txnctl` commands as forks of one process that has imported what all of them need, which costs each of them more than
what it does: see `tests.txnctl.command_line`.

    python -P -m tests.txnctl.ready_commands FD

A request is a JSON object on the socket FD with four descriptors: standard input, output and error, and where to say
the process id and then the exit code, a line each. A command has a session, an environment and a folder of its own, and
ends as every Python process does. When the socket is closed, so is this.
"""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import sys

import txnctl.cli
import txnctl.main

REQUEST_BYTES = 1024 * 1024


def main(requests: socket.socket) -> None:
    """Returns in commands alone, and once the socket is closed."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        request, descriptors, _, _ = socket.recv_fds(requests, REQUEST_BYTES, 4)
        if not request:
            return
        if os.fork() == 0:
            requests.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            *streams, told = descriptors
            if (pid := os.fork()) == 0:
                os.close(told)
                _become(json.loads(request), streams)
                return
            for stream in streams:
                os.close(stream)
            os.write(told, b"%d\n" % pid)
            _, status = os.waitpid(pid, 0)
            os.write(told, b"%d\n" % os.waitstatus_to_exitcode(status))
            os._exit(0)
        for descriptor in descriptors:
            os.close(descriptor)


def _become(request: dict[str, object], streams: list[int]) -> None:
    os.setsid()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    # ▲ What stands there looked at other files when it was made.
    sys.stdin, sys.stdout = os.fdopen(0, closefd=False), os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)
    environment, words = request["environment"], request["words"]
    assert isinstance(environment, dict)
    assert isinstance(words, list)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(str(request["folder"]))
    random.seed()  # or all of them would draw the same
    sys.argv = ["txnctl", *words]


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
    if sys.argv[0] == "txnctl":
        txnctl.main.main()
