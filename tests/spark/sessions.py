"""Spark in this process, on this machine alone, for the tests' own process and for drivers that tests start."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

JVM_END_S = 60.0

LOGGING = """
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
"""


def configuration(folder: Path, *, master: str, memory: str) -> SparkConf:
    """Everything the session writes is in `folder`; `memory`: of the JVM, such as 1g. Its Python workers are this
    Python, which the environment of this process tells."""
    # ▲ Before the session: a worker of another Python is waited for in vain.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    properties = folder / "log4j2.properties"
    properties.write_text(LOGGING)
    return (
        SparkConf(loadDefaults=False)
        .setMaster(master)
        .setAppName("txnstore tests")
        .set("spark.driver.memory", memory)
        .set("spark.driver.extraJavaOptions", f"-Dlog4j2.configurationFile=file:{properties}")
        .set("spark.driver.host", "127.0.0.1")
        .set("spark.driver.bindAddress", "127.0.0.1")
        .set("spark.ui.enabled", "false")
        .set("spark.ui.showConsoleProgress", "false")
        .set("spark.local.dir", str(folder / "local"))
        .set("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .set("spark.sql.session.timeZone", "UTC")
        .set("spark.sql.shuffle.partitions", "2")
    )


def local_session(folder: Path, *, master: str, memory: str) -> SparkSession:
    """As its `configuration` says."""
    return SparkSession.builder.config(conf=configuration(folder, master=master, memory=memory)).getOrCreate()


@contextmanager
def running_session(folder: Path, *, master: str, memory: str) -> Iterator[SparkSession]:
    """As `local_session`; in the end its queries, its JVM and the threads of its gateway end too."""
    session = local_session(folder, master=master, memory=memory)
    try:
        yield session
    finally:
        for query in session.streams.active:
            query.stop()
        session.stop()
        gateway = SparkContext._gateway
        assert gateway is not None
        gateway.shutdown()
        gateway.proc.stdin.close()  # which the JVM lives by
        gateway.proc.wait(JVM_END_S)
        SparkContext._gateway = SparkContext._jvm = None
