"""A cluster in a process of its own, for the Spark tests: `python -m tests.spark.service FOLDER BROKERS`.

Not in the tests' process, for `txnclient.sync` has its loop there and Spark's gateway its threads. Prints `ready URL`,
then answers one line for each line it is told: `kill NAME…` (SIGKILL all at one moment, back again when answered). It
ends with its standard input.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.processes import kill, process_cluster
from txnstore.etcd.lifetime import tied_to_parent

REPOSITORY = Path(__file__).parents[2]
STOP_TIMEOUT_S = 60.0


class Service:
    """A running cluster: `url` for clients, `kill` for tests of what survives it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.url = self._line().removeprefix("ready ")

    def kill(self, *names: str) -> None:
        """SIGKILL `server`, `broker-1`, `broker-2` or `etcd`, all at one moment; returns when they have been started
        again, which is earlier than that they serve."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"kill {' '.join(names)}\n")
        self._process.stdin.flush()
        assert self._line() == "done"

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the cluster's process ended with {self._process.wait(STOP_TIMEOUT_S)}"
        return line.rstrip("\n")


@contextmanager
def running_service(folder: Path, *, brokers: int = 2) -> Iterator[Service]:
    command = tied_to_parent([sys.executable, "-m", "tests.spark.service", str(folder), str(brokers)])
    with subprocess.Popen(
        command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            yield Service(process)
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(STOP_TIMEOUT_S)


async def _serve(folder: Path, brokers: int) -> None:
    loop, answers = asyncio.get_running_loop(), sys.stdout
    sys.stdout = sys.stderr  # where logs go to
    async with process_cluster(folder, brokers=brokers) as cluster:
        print(f"ready {cluster.url}", file=answers, flush=True)
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            command, *names = line.split()
            assert command == "kill"
            await kill(cluster, *names)
            print("done", file=answers, flush=True)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started this ends it
    asyncio.run(_serve(Path(sys.argv[1]), int(sys.argv[2])))
