"""Spark on this machine's two cores, and its queries."""

from __future__ import annotations

import asyncio
import functools
import os
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

P = ParamSpec("P")
T = TypeVar("T")

CORES = 2
QUERY_TIMEOUT_S = 300
KEPT_PROGRESS = 1000
LOGGING = """
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
"""


async def in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Spark's calls wait; the cluster beside them is looked after by the loop."""
    return await asyncio.to_thread(functools.partial(function, *args, **kwargs))


@asynccontextmanager
async def spark_session(folder: Path) -> AsyncIterator[SparkSession]:
    """`local[2]`, whose Python workers run this Python; everything it writes is in `folder`."""
    spark = await in_thread(_start, folder)
    try:
        yield spark
    finally:
        await in_thread(spark.stop)


def _start(folder: Path) -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    logging = folder / "log4j2.properties"
    logging.write_text(LOGGING)
    settings = {
        "spark.driver.memory": "4g",
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile=file:{logging}",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.local.dir": str(folder / "local"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sql.shuffle.partitions": str(CORES),
        "spark.sql.streaming.numRecentProgressUpdates": str(KEPT_PROGRESS),
    }
    builder = SparkSession.builder.master(f"local[{CORES}]").appName("txnstore benchmarks")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def consumed(frame: DataFrame) -> float:
    """Seconds that Spark takes to make all rows, and to do nothing with them."""
    began = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - began


def finished(query: StreamingQuery) -> list[dict[str, Any]]:
    """What a query with the trigger `availableNow` says of each of its batches that had rows."""
    try:
        if not query.awaitTermination(QUERY_TIMEOUT_S):
            raise TimeoutError(f"the query took more than {QUERY_TIMEOUT_S} s")
    finally:
        query.stop()
    return [progress for progress in query.recentProgress if progress["numInputRows"]]
