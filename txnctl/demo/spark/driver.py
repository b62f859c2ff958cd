"""Runs the flights job as a process with its JVM: restarts it when it dies, and kills it as a whole."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from types import TracebackType

from pyspark_txnstore.jobs.flights import PARQUET_CHECKPOINT, STATISTICS_CHECKPOINT
from txnctl.demo.flights import AIRLINES_FILE, FLIGHTS, PLANES_FILE
from txnctl.demo.spark.places import STATISTICS, Places
from txnctl.launch.supervisor import Child, ChildSpec, Supervisor
from txnwire.errors import Timeout

START_TIMEOUT_S = 120.0
FINISH_TIMEOUT_S = 120.0
POLL_S = 0.05
MASTER = "local[2]"
MAX_BYTES = "2m"
"""Limit in stored bytes of flights: the backlog after an absence of Spark comes in several micro-batches."""


class SparkDriver:
    """Use as an async context manager; started on entry, killed on exit unless it has finished."""

    def __init__(self, url: str, places: Places) -> None:
        self._places = places
        self._supervisor = Supervisor([_spec(url, places)])
        self._child: Child = self._supervisor.children["spark-driver"]

    async def __aenter__(self) -> SparkDriver:
        await self._supervisor.__aenter__()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: BaseException | TracebackType | None) -> None:
        """▲ Kills without asking after a failure: a stopping job would first finish its work, and exactly once must
        hold for any kill."""
        if kind is not None:
            self._child.kill_group()
        await self._supervisor.stop()

    async def wait_running(self) -> None:
        """Waits until both queries have begun. Raises `Timeout`, or `InternalError` once it has died again and
        again."""
        failed = asyncio.create_task(self._supervisor.wait_crash_loop(), name="Spark crash loop")
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                while not self._has_begun():
                    if failed.done():
                        failed.result()
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            raise Timeout(f"Spark was not there after {START_TIMEOUT_S:g} s; {self._child.log_tail()}") from None
        finally:
            failed.cancel()
            await asyncio.gather(failed, return_exceptions=True)

    async def wait_failed(self) -> None:
        """Never returns; raises `InternalError` once it has died again and again."""
        await self._supervisor.wait_crash_loop()

    def kill(self) -> None:
        """Sends SIGKILL to the driver and its JVM at once; it is started again. Python workers end with their JVM."""
        self._child.kill_group()

    async def finish(self) -> None:
        """Waits until everything available is written, in Parquet too."""
        await self._child.stop(timeout_s=FINISH_TIMEOUT_S)

    def _has_begun(self) -> bool:
        """Whether both queries have begun: each writes its id into its checkpoint at its first start."""
        folders = (self._places.checkpoint / name for name in (STATISTICS_CHECKPOINT, PARQUET_CHECKPOINT))
        return all((folder / "metadata").exists() for folder in folders)


def batch_under_way(checkpoint: Path) -> int | None:
    """The micro-batch recorded as begun and not as committed, if there is one."""
    begun = _newest(checkpoint / "offsets")
    return begun if begun is not None and begun != _newest(checkpoint / "commits") else None


def _newest(log: Path) -> int | None:
    """Newest file of one of the logs in Spark's checkpoint, which have a file for each micro-batch."""
    if not log.is_dir():
        return None
    return max((int(entry.name) for entry in log.iterdir() if entry.name.isdecimal()), default=None)


def _spec(url: str, places: Places) -> ChildSpec:
    arguments = {
        "--service": url,
        "--flights": FLIGHTS,
        "--statistics": STATISTICS,
        "--airlines": str(places.input / AIRLINES_FILE),
        "--planes": str(places.input / PLANES_FILE),
        "--parquet": str(places.parquet),
        "--checkpoint": str(places.checkpoint),
        "--master": MASTER,
        "--max-bytes": MAX_BYTES,
    }
    words = [word for pair in arguments.items() for word in pair]
    return ChildSpec(
        name="spark-driver",
        command=[sys.executable, "-P", "-m", "pyspark_txnstore.jobs.flights", *words],
        log_path=places.folder / "logs" / "spark-driver.log",
        environment=places.environment(),
    )
