"""A standalone Spark cluster of containers beside a cluster of containers: a master, two workers, drivers.

None of them has anything of ours but the client's wheel. What drivers and workers share is one folder, as a volume that
many pods mount: data files, checkpoint, Parquet. A driver is started by the words that Spark gives to a driver's pod.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

from pyspark_txnstore.jobs.flights import STATISTICS_CHECKPOINT
from tests.containers.cluster import ContainerCluster
from tests.containers.engine import SPARK_IMAGE, Container, Engine
from tests.waiting import until_answer
from txnctl.commands.shared.asking import Asking
from txnctl.demo.flights import AIRLINES_FILE, FLIGHTS, PLANES_FILE, copy_data_files
from txnctl.demo.spark.driver import batch_under_way
from txnctl.demo.spark.places import STATISTICS

MASTER = "spark-master"
WORKERS = ("spark-worker-1", "spark-worker-2")
SHARED = "/shared"
JOB = "local:///opt/spark/jobs/flights.py"
SHORT = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""Each JVM ends before the better compiler would pay."""
CONFIGURATION = {
    "spark.master": f"spark://{MASTER}:7077",
    "spark.cores.max": str(len(WORKERS)),
    "spark.driver.memory": "640m",
    "spark.driver.extraJavaOptions": SHORT,
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.executor.extraJavaOptions": SHORT,
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.warehouse.dir": f"{SHARED}/warehouse",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
POLL_S = 0.005
UNDER_WAY_WITHIN_S = 300.0


class SparkContainers:
    """`start` it; the engine that owns the containers removes them. `folder`: of this machine."""

    def __init__(self, engine: Engine, cluster: ContainerCluster, folder: Path) -> None:
        self.engine = engine
        self.cluster = cluster
        self.shared = folder / "shared"
        self.checkpoint = self.shared / "checkpoint" / STATISTICS_CHECKPOINT
        self.parquet = self.shared / "statistics.parquet"
        self._drivers = 0

    def prepare(self, flights: int) -> None:
        """The folder with the data files, and the properties that a driver's pod would find."""
        self.shared.mkdir(mode=0o777)
        self.shared.chmod(0o777)
        copy_data_files(self.shared, flights)
        lines = [f"{name} {value}" for name, value in CONFIGURATION.items()]
        (self.shared / "spark.properties").write_text("\n".join(lines) + "\n")

    def start(self) -> None:
        self._create(MASTER, ["Master", "--host", MASTER, "--port", "7077"], memory="512m").start()
        for name in WORKERS:
            words = ["Worker", "--host", name, "--cores", "1", "--memory", "600m", "--work-dir", "/tmp/work"]
            self._create(name, [*words, f"spark://{MASTER}:7077"], memory="2g").start()

    def _create(self, name: str, words: list[str], *, memory: str) -> Container:
        role, *rest = words
        return self.engine.create(
            name,
            SPARK_IMAGE,
            ["spark-class", f"org.apache.spark.deploy.{role.lower()}.{role}", *rest],
            environment={
                "SPARK_DAEMON_MEMORY": "192m",
                "SPARK_DAEMON_JAVA_OPTS": SHORT,
            },
            volumes={str(self.shared): SHARED},
            memory=memory,
            tmp="size=512m,exec",
        )

    def start_driver(self) -> Container:
        """A new container, with an address of its own; what it goes on from is in the shared folder alone."""
        self._drivers += 1
        address = self.engine.next_address
        driver = self.engine.create(
            f"spark-driver-{self._drivers}",
            SPARK_IMAGE,
            [
                "driver", "--properties-file", f"{SHARED}/spark.properties",
                "--conf", f"spark.driver.host={address}",
                "--class", "org.apache.spark.deploy.PythonRunner", JOB,
                "--service", self.cluster.url, "--flights", FLIGHTS, "--statistics", STATISTICS,
                "--airlines", f"{SHARED}/{AIRLINES_FILE}", "--planes", f"{SHARED}/{PLANES_FILE}",
                "--parquet", f"{SHARED}/{self.parquet.name}", "--checkpoint", f"{SHARED}/{self.checkpoint.parent.name}",
                "--max-bytes", "1m",
            ],
            environment={"SPARK_DRIVER_BIND_ADDRESS": address},
            volumes={str(self.shared): SHARED},
            memory="2g",
            tmp="size=512m,exec",
        )  # fmt: skip
        driver.start()
        return driver

    async def writing(self, admin: Asking, counted: int) -> int:
        """Returns the micro-batch once tasks have written in it and the driver has not committed; `counted`: batches
        that were committed before, at least. Raises `TimeoutError`."""

        async def under_way() -> int | None:
            batch = batch_under_way(self.checkpoint)
            return batch if batch is not None and batch >= counted and await _named_is_open(admin) else None

        batch = await until_answer(
            under_way,
            lambda found: found is not None,
            f"a batch behind {counted} that is being written",
            within_s=UNDER_WAY_WITHIN_S,
            longest_poll_s=POLL_S,
        )
        assert batch is not None
        return batch

    def batches(self) -> int:
        """That Spark has noted as done."""
        return len([one for one in (self.checkpoint / "commits").glob("*") if one.name.isdecimal()])


async def _named_is_open(admin: Asking) -> bool:
    """Loaders' transactions have no names: a named one is a micro-batch's."""
    answer = await admin.ask("transactions.list", state="OPEN", limit=1000)
    return any(row["name"] for row in answer["transactions"])


class Victim:
    """A running container that can be killed at once. ▲ The engine, asked for it, takes its time: a batch that was seen
    under way would be over by then."""

    def __init__(self, container: Container) -> None:
        """Raises `ProcessLookupError` where it does not run."""
        self.container = container
        self._process = os.pidfd_open(container.pid)  # of this very process, whoever has its number later

    def kill(self) -> None:
        """All that runs in it, with its first process."""
        signal.pidfd_send_signal(self._process, signal.SIGKILL)

    def close(self) -> None:
        os.close(self._process)
