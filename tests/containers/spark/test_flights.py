"""The flights job on a Spark cluster of containers, over a cluster of containers: each flight is counted once, though a
worker is killed, an executor cut off from a broker, and the driver killed and begun elsewhere with its checkpoint."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

import txnclient
from tests.containers.cluster import ContainerCluster
from tests.containers.disturbing import deafen, dropped, hear
from tests.containers.engine import SPARK_IMAGE, Container, Engine, why_no_faults, why_not
from tests.containers.spark.cluster import WORKERS, SparkContainers, Victim
from tests.containers.spark.judge import differences, of_parquet, of_topic
from tests.waiting import until
from txnctl.commands.shared.asking import Asking, asking
from txnctl.demo.flights import FLIGHTS, Flight, read_flights
from txnctl.demo.load import load
from txnctl.demo.spark.driver import batch_under_way
from txnctl.demo.spark.places import STATISTICS
from txnctl.demo.waits import Waits

pytestmark = [
    pytest.mark.process,
    pytest.mark.timeout(1200),
    pytest.mark.filterwarnings(
        "ignore:The 'initial' parameter is deprecated:DeprecationWarning"
    ),  # of the demo's loader
    pytest.mark.skipif(why_no_faults() is not None, reason=str(why_no_faults())),
]
ALL = 16_000
PARTS = 4
PART_S = 8.0
AWAY_S = 8.0
"""Longer than a connection takes to be given up by who asks for a sign of life."""
WITHIN_S = 420.0
"""Everything is counted so long after the last fault, on a machine that has more to do."""
SPARKS_OWN_LIMIT = b"Python worker failed to connect back"
"""A Python of the driver took more than 10 s to start."""
LOOK_S = 0.5


class Course:
    """Flights come in parts; amid the micro-batches of each a fault strikes."""

    def __init__(self, spark: SparkContainers, client: txnclient.Client, admin: Asking, flights: list[Flight]) -> None:
        self._spark = spark
        self._client = client
        self._admin = admin
        self._flights = flights
        self._begin = time.monotonic()
        self._drivers: list[Victim] = []
        self._doomed = Victim(spark.engine.containers[WORKERS[1]])
        self._changing = asyncio.Lock()

    def say(self, text: str) -> None:
        print(f"{time.monotonic() - self._begin:6.1f} s  {text}", flush=True)

    async def run(self) -> None:
        await self._start_driver()
        supervising = asyncio.create_task(self._supervise(), name="supervising")
        working = asyncio.create_task(self._work(), name="working")
        try:
            await asyncio.wait([supervising, working], return_when=asyncio.FIRST_COMPLETED)
            if supervising.done():
                supervising.result()
            await working
        finally:
            for task in (supervising, working):
                task.cancel()
            await asyncio.wait([supervising, working])
            for one in (self._doomed, *self._drivers):
                one.close()

    async def _start_driver(self) -> Container:
        started = await asyncio.to_thread(self._spark.start_driver)
        self._drivers.append(await asyncio.to_thread(Victim, started))
        return started

    async def _supervise(self) -> None:
        """As the operator does, begins a driver again that has ended; only where a busy machine is the reason. Raises
        `AssertionError` with the end of its log where it is not."""
        while True:
            await asyncio.sleep(LOOK_S)
            async with self._changing:
                driver = self._drivers[-1].container
                if await asyncio.to_thread(lambda one=driver: one.pid):
                    continue
                log = await asyncio.to_thread(lambda one=driver: one.log)
                assert SPARKS_OWN_LIMIT in log, log[-6000:].decode(errors="replace")
                self.say(f"{driver.name} has ended by itself, the machine is too busy; it is begun again")
                await self._start_driver()

    async def _work(self) -> None:
        faults = (None, self._kill_worker, self._cut_off, self._kill_driver)
        for number, fault in enumerate(faults):
            size = len(self._flights) // PARTS
            part = self._flights[number * size : (number + 1) * size]
            before = self._spark.batches()
            loading = asyncio.create_task(
                load(self._client, part, Waits(time.monotonic), lambda _: None, shortest_s=PART_S), name="loading"
            )
            if fault is not None:
                await fault(await self._spark.writing(self._admin, before))
            await loading
            await self._wait_batch(before)
        self.say("all flights are loaded")
        await until(self._all_kept, "every flight in the Parquet files", within_s=WITHIN_S)
        self.say(f"all are counted and kept, in {self._spark.batches()} micro-batches")

    async def _wait_batch(self, before: int) -> None:
        await until(lambda: self._spark.batches() > before, "the next micro-batch", within_s=WITHIN_S)

    async def _all_kept(self) -> bool:
        await asyncio.sleep(LOOK_S)
        found = await asyncio.to_thread(of_parquet, self._spark.parquet)
        return found.flights >= len(self._flights)

    async def _kill_worker(self, batch: int) -> None:
        worker = self._doomed.container
        self._doomed.kill()
        self.say(f"{worker.name} killed with its executor amid micro-batch {batch}")
        await until(self._has_lost_an_executor, "Spark to notice", within_s=WITHIN_S)
        await self._wait_batch(self._spark.batches())
        self.say("the other worker has gone on; the killed one is started again")
        worker.start()

    async def _has_lost_an_executor(self) -> bool:
        driver = self._drivers[-1].container
        await asyncio.sleep(LOOK_S)
        return b"Lost executor" in await asyncio.to_thread(lambda: driver.log)

    async def _cut_off(self, batch: int) -> None:
        worker, broker = self._spark.engine.containers[WORKERS[0]], self._spark.cluster["broker-1"]
        for one, other in ((worker, broker), (broker, worker)):
            await asyncio.to_thread(deafen, one, other)
        self.say(f"{worker.name} and {broker.name} are parted amid micro-batch {batch}")
        await asyncio.sleep(AWAY_S)
        lost = await asyncio.to_thread(lambda: dropped(worker) + dropped(broker))
        for one, other in ((worker, broker), (broker, worker)):
            await asyncio.to_thread(hear, one, other)
        self.say(f"they hear each other again; {lost} packets between them were lost")
        assert lost > 0, "the partition met nobody"

    async def _kill_driver(self, batch: int) -> None:
        async with self._changing:
            self._drivers[-1].kill()
            left = batch_under_way(self._spark.checkpoint)
            driver = self._drivers[-1].container
            self.say(f"{driver.name} killed; the checkpoint has begun micro-batch {left} (seen in {batch})")
            assert left is not None, "it was killed between two micro-batches"
            new = await self._start_driver()
            self.say(f"{new.name} begins at {new.address}, {driver.name} was at {driver.address}")


async def test_flights_are_counted_once_by_a_spark_cluster_of_containers(engine: Engine, tmp_path: Path) -> None:
    if (reason := why_not(SPARK_IMAGE)) is not None:
        pytest.skip(f"{reason}; `make spark-image` builds it")
    flights = list(read_flights(ALL))
    async with ContainerCluster(engine, tmp_path) as cluster:
        spark = SparkContainers(engine, cluster, tmp_path)
        await asyncio.to_thread(spark.prepare, ALL)
        await asyncio.to_thread(spark.start)
        await cluster.start_servers()
        async with txnclient.connect(cluster.url, timeout=60.0) as client:
            for topic in (FLIGHTS, STATISTICS):
                await client.create_topic(topic, segments=2)
            async with asking(f"txn://{cluster['admin-1'].address}:6650") as admin:
                await Course(spark, client, admin, flights).run()
            found = await of_topic(client)
            print(f"{found.flights} flights in {len(found.rows)} micro-batches, {sum(found.rows.values())} increments")
            assert await differences(client, flights, spark.shared, spark.parquet) == []
