"""Injects faults into the Spark demo: splits the job's topic, kills the driver in the middle of a micro-batch, kills a
broker and brings it back, merges two segments."""

from __future__ import annotations

import asyncio
import time

import txnclient
from pyspark_txnstore.jobs.flights import STATISTICS_CHECKPOINT
from txnctl.commands.shared.asking import Asking, asking
from txnctl.demo.changes import Changes, JobProgress, Pause, Say
from txnctl.demo.flights import FLIGHTS
from txnctl.demo.spark.driver import SparkDriver, batch_under_way
from txnctl.demo.spark.places import Places
from txnctl.demo.waits import Waits
from txnctl.launch.dev import DevCluster

SPLIT_AT, KILL_DRIVER_AT, KILL_BROKER_AT, MERGE_AT = 0.15, 0.35, 0.5, 0.85
KILL_DRIVER_COUNTED = 0.01
"""Not the first micro-batch: the restarted driver should find a checkpoint."""
OPEN_POLL_S = 0.005


class SparkDemoFaults:
    """`pauses`: how long each change delayed the producers, in order. `back_after_s`: from the driver's SIGKILL to the
    next readable micro-batch."""

    def __init__(
        self,
        client: txnclient.Client,
        cluster: DevCluster,
        driver: SparkDriver,
        places: Places,
        waits: Waits,
        say: Say,
    ) -> None:
        self._client = client
        self._cluster = cluster
        self._driver = driver
        self._checkpoint = places.checkpoint / STATISTICS_CHECKPOINT
        self._waits = waits
        self._say = say
        self.pauses: list[Pause] = []
        self.back_after_s = 0.0

    async def run(self, progress: JobProgress) -> None:
        async with asking(self._cluster.url) as admin:
            changes = Changes(self._client, self._cluster, admin, self._waits, self._say)
            self.pauses = changes.pauses
            await progress.reached(SPLIT_AT, lambda: progress.loaded)
            upper = await changes.split((await self._client.describe_topic(FLIGHTS)).active[0], ", under Spark's hands")
            async with asyncio.TaskGroup() as group:
                # In a task of its own: Spark decides when a micro-batch is under way, and producers do not wait for
                # that.
                group.create_task(self._kill_driver_and_wait(admin, progress))
                await changes.kill_broker_and_merge(progress, upper, kill_at=KILL_BROKER_AT, merge_at=MERGE_AT)

    async def _kill_driver_and_wait(self, admin: Asking, progress: JobProgress) -> None:
        await progress.reached(KILL_DRIVER_AT, lambda: progress.loaded)
        # If everything is loaded before Spark's first count, there may be only one micro-batch.
        await progress.reached(
            KILL_DRIVER_COUNTED, lambda: progress.total if progress.loaded >= progress.total else progress.done
        )
        if await self._is_in_transaction(admin, progress):
            await self._come_back(progress, self._kill_driver(progress))
        else:
            self._say("Spark has counted everything before it could be killed in a micro-batch: take more flights")

    async def _is_in_transaction(self, admin: Asking, progress: JobProgress) -> bool:
        """Returns once a micro-batch's transaction is open: tasks have written in it, and the driver has not committed.
        False if there will be no more micro-batch."""
        while progress.done < progress.total:
            if batch_under_way(self._checkpoint) is not None and await _is_any_named_open(admin):
                return True
            await asyncio.sleep(OPEN_POLL_S)
        return False

    def _kill_driver(self, progress: JobProgress) -> int | None:
        """Returns the micro-batch that the driver was in."""
        self._driver.kill()
        batch = batch_under_way(self._checkpoint)
        self._say(
            f"SIGKILL to the Spark driver in micro-batch {batch}, its transaction is open; "
            f"{progress.done:,} flights are counted by now"
        )
        self._say("Spark is started again, from its checkpoint: 10 to 30 s until the next statistics")
        return batch

    async def _come_back(self, progress: JobProgress, batch: int | None) -> None:
        began, before = time.monotonic(), progress.done
        while progress.done == before:
            progress.moved.clear()
            await progress.moved.wait()
        self.back_after_s = time.monotonic() - began
        self._say(f"micro-batch {batch} is committed, once: {self.back_after_s:.1f} s after the kill")


async def _is_any_named_open(admin: Asking) -> bool:
    """The loaders' transactions have no names, so a named one is a micro-batch's."""
    answer = await admin.ask("transactions.list", state="OPEN", limit=1000)
    return any(row["name"] for row in answer["transactions"])
