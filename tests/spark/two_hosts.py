"""A Spark cluster of two hosts on this machine, and a driver whose tasks are tried twice there.

python -m tests.spark.two_hosts FOLDER URL TOPIC

▲ Spark never tries a running task again on the host where it runs, and to Spark all of `local[2]` and `local-cluster`
is one host. Here each worker has an address of its own. Master and workers live in the JVM of the driver, as in
`local-cluster`; executors are processes. What each write of the program did stands in `FOLDER/<write>`, as the faults
of `faulty_sink` tell it; its rows go to `TOPIC-<write>`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from pyspark import SparkConf, SparkContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.spark.faulty_sink import FaultySource, processes_of_executor
from tests.spark.sessions import configuration
from tests.waiting import wait_until

HOSTS = ("127.0.0.2", "127.0.0.3")
MASTER = "127.0.0.1"
ROWS = 12
TASKS = 3
QUERY_TIMEOUT_S = 100
TASK_S = 0.5
EXECUTOR_MIB = 480
"""Spark takes no less than 450."""

SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "50ms",
    "spark.speculation.minTaskRuntime": "100ms",
    "spark.speculation.quantile": "0.3",
    "spark.speculation.multiplier": "1.1",
}


def start_cluster(configured: SparkConf, folder: Path) -> str:
    """In the JVM that this process has, which ends with it. Returns its URL for sessions."""
    SparkContext._ensure_initialized(conf=configured)
    gateway, jvm = SparkContext._gateway, SparkContext._jvm
    assert gateway is not None
    assert jvm is not None
    deploy, nothing = jvm.org.apache.spark.deploy, jvm.scala.Option.empty()
    settings = jvm.org.apache.spark.SparkConf(False)
    master = deploy.master.Master.startRpcEnvAndEndpoint(MASTER, 0, 0, settings)
    urls = gateway.new_array(jvm.java.lang.String, 1)
    urls[0] = f"spark://{MASTER}:{master._1().address().port()}"
    for host in HOSTS:
        work = str(folder / f"work-{host}")
        deploy.worker.Worker.startRpcEnvAndEndpoint(
            host, 0, 0, 1, 2 * EXECUTOR_MIB, urls, work, nothing, settings, nothing
        )
    return str(urls[0])


def session(folder: Path, master: str) -> SparkSession:
    """With both executors at work, each with one core."""
    configured = configuration(folder, master=master, memory="512m")
    configured.set("spark.executor.memory", f"{EXECUTOR_MIB}m")
    configured.set("spark.executor.extraJavaOptions", os.environ.get("SPARK_SUBMIT_OPTS", ""))
    configured.setAll(list(SPECULATION.items()))
    spark = SparkSession.builder.config(conf=configured).getOrCreate()
    spark.dataSource.register(FaultySource)
    running = spark.sparkContext._jsc.sc()
    there = 1 + len(HOSTS)  # the driver counts as one
    wait_until(lambda: running.getExecutorMemoryStatus().size() == there, "an executor on each host", within_s=100.0)
    return spark


class Writes:
    def __init__(self, spark: SparkSession, folder: Path, url: str, topic: str) -> None:
        self._spark = spark
        self._folder = folder
        self._url = url
        self._topic = topic

    def _options(self, write: str, fault: str) -> dict[str, str]:
        self.marks(write).mkdir()
        options = {"service.url": self._url, "topic": f"{self._topic}-{write}", "transactionTimeoutMs": "300000"}
        return {**options, "fault": fault, "fault.folder": str(self.marks(write))}

    def marks(self, write: str) -> Path:
        return self._folder / write

    def frame(self, write: str, fault: str) -> None:
        frame = as_rows(self._spark.range(0, ROWS, 1, TASKS).toDF("value"))
        frame.write.format("txnstore_faulty").options(**self._options(write, fault)).mode("append").save()

    def stream(self, write: str, fault: str) -> StreamingQuery:
        """Its first batch. ▲ Without a shuffle, for what a stopped executor has shuffled nobody can fetch."""
        source = self._spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS)
        frame = as_rows(source.option("numPartitions", TASKS).load())
        options = {**self._options(write, fault), "checkpointLocation": str(self._folder / f"{write}-checkpoint")}
        return frame.writeStream.format("txnstore_faulty").options(**options).trigger(availableNow=True).start()

    def stopped(self, write: str) -> int:
        """A stream whose first attempt at a task is stopped, its executor with it, until another one was committed. Its
        Python goes on first, and is done before its executor hears of anything. Returns the process of its JVM."""
        query = self.stream(write, "come back")
        marks = self.marks(write)
        wait_until(lambda: (marks / "half").exists() or not query.isActive, "half of the rows", within_s=100.0)
        attempt, _, *processes = json.loads((marks / "begun-0").read_text())
        assert attempt == 0
        jvm = processes[-1]
        send(signal.SIGSTOP, processes)
        (marks / "stopped").touch()
        try:
            ended(query)
            (marks / "go").touch()
            send(signal.SIGCONT, processes[:-1])
            wait_until((marks / "ended-0").exists, "the attempt that was stopped to end", within_s=100.0)
        finally:
            send(signal.SIGCONT, [jvm])
        return jvm


def as_rows(frame: DataFrame) -> DataFrame:
    return frame.selectExpr("cast(value AS string) AS value")


def send(which: signal.Signals, processes: Iterable[int]) -> None:
    for process in processes:
        os.kill(process, which)


def ended(query: StreamingQuery) -> None:
    try:
        assert query.awaitTermination(QUERY_TIMEOUT_S), "the query has not ended"
    finally:
        query.stop()


def at_work(spark: SparkSession) -> set[int]:
    """The JVMs of executors that run tasks when there are enough for all. ▲ Each takes a while: with tasks of no time,
    those of an executor that has to start a Python first are outrun by their second attempts and stopped, for ever."""

    def executor(_: int) -> int:
        time.sleep(TASK_S)
        return processes_of_executor()[-1]

    return set(spark.sparkContext.range(16, numSlices=16).map(executor).collect())


def main(folder: Path, url: str, topic: str) -> None:
    master = start_cluster(configuration(folder, master=f"spark://{MASTER}", memory="512m"), folder)
    spark = session(folder, master)
    before: set[int] = set()

    def both_work() -> bool:
        before.update(at_work(spark))
        return len(before) == 2

    wait_until(both_work, "tasks on both executors", within_s=100.0)
    writes = Writes(spark, folder, url, topic)
    writes.frame("frame", "outrun")
    ended(writes.stream("stream", "outrun"))
    stopped = writes.stopped("stopped")
    assert stopped in before
    wait_until(lambda: stopped in at_work(spark), "tasks on the executor that was stopped", within_s=100.0)
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
