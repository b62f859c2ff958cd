"""The cluster that tests are run with: one that is named, or `txnctl dev` as a child of this process."""

from __future__ import annotations

import importlib.util
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

import pytest

START_TIMEOUT_S: Final = 120.0
STOP_TIMEOUT_S: Final = 60.0
LOG_LINES: Final = 20
SHORT_GRACES: Final = {
    "TXN_LEASE_TTL_S": "5",
    "TXN_CLIENT_GRACE_S": "2",
    "TXN_MIN_FREE_BYTES": "64MiB",
}
"""Settings of the servers, where the environment has none: a test does not wait long for what it has killed."""


@dataclass(frozen=True, slots=True)
class PytestCluster:
    """`url`: for clients. `pid`: of the `txnctl dev` that was started for this session, None of a cluster that was
    named."""

    url: str
    pid: int | None = None

    @property
    def environment(self) -> dict[str, str]:
        """The environment for a tested program in its own process: this process's, with `TXN_URL`."""
        return {**os.environ, "TXN_URL": self.url}

    def kill(self, name: str = "broker-1") -> None:
        """SIGKILL `server` (coordinator and controller), `broker-1` or `etcd`, which is then started again.

        Clients wait for it by themselves. Raises ValueError for another name, and of a cluster that was named.
        """
        if self.pid is None:
            raise ValueError(f"{self.url} was not started for these tests, so they kill nothing of it")
        running = _children(self.pid)
        if name not in running:
            raise ValueError(f"nothing of the name {name!r} runs; there is {', '.join(sorted(running)) or 'nothing'}")
        os.kill(running[name], signal.SIGKILL)


def can_start() -> bool:
    """Whether the servers are installed."""
    found = importlib.util.find_spec("txnctl")
    return found is not None and found.origin is not None


@contextmanager
def started(folder: Path) -> Iterator[PytestCluster]:
    """Runs `txnctl dev` at free ports, with its files in `folder`; at the end it keeps only the logs."""
    log = folder / "dev.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            _command(folder / "cluster"),
            cwd=folder,
            env=_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=output,
            start_new_session=True,  # Ctrl-C reaches pytest alone, which ends it behind the tests
        )
    try:
        yield PytestCluster(_ready(process, log).split()[1], process.pid)
    finally:
        _stop(process)
        for part in ("etcd", "data"):
            if (folder / "cluster" / part).exists():  # ledgers reserve 32 MiB each
                shutil.rmtree(folder / "cluster" / part)


def _command(folder: Path) -> list[str]:
    """▲ Tied to this process, so a pytest that is SIGKILLed leaves nothing that runs."""
    python = [sys.executable, "-P", "-m"]
    dev = [*python, "txnctl", "dev", "--data-dir", str(folder), "--etcd-port", "0"]
    dev += ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]
    return [*python, "txnstore.etcd.lifetime", str(os.getpid()), "--", *dev]


def _environment() -> dict[str, str]:
    """Without a settings file of the user's own servers, and without how those are known to their etcd."""
    return {
        name: value
        for name, value in (SHORT_GRACES | dict(os.environ)).items()
        if name != "TXN_CONFIG" and not name.upper().startswith("TXN_ETCD_")
    }


def _ready(process: subprocess.Popen[bytes], log: Path) -> str:
    """Its one line. Fails the test that asked for it where none comes, with what it has logged."""
    assert process.stdout is not None
    said, deadline = b"", time.monotonic() + START_TIMEOUT_S
    while not said.endswith(b"\n"):
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([process.stdout], [], [], left)[0]:
            _fail(f"was not ready after {START_TIMEOUT_S:g} s", log)
        more = os.read(process.stdout.fileno(), 4096)
        if not more:
            _fail("did not start", log)
        said += more
    return said.decode()


def _fail(why: str, log: Path) -> NoReturn:
    tail = "\n".join(log.read_text(errors="replace").splitlines()[-LOG_LINES:])
    pytest.fail(f"the cluster for these tests {why}; the end of {log}:\n{tail}", pytrace=False)


def _stop(process: subprocess.Popen[bytes]) -> None:
    assert process.stdout is not None
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()  # its children end with it
        process.wait()
    finally:
        process.stdout.close()


def _children(pid: int) -> dict[str, int]:
    """Name → process id. A server is named by its `--id`."""
    found = {}
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        try:
            words = Path(f"/proc/{child}/cmdline").read_bytes().decode().split("\0")
        except OSError:
            continue  # it has just ended
        if "--id" in words:
            found[words[words.index("--id") + 1]] = int(child)
        elif Path(words[0]).name == "etcd":
            found["etcd"] = int(child)
    return found
