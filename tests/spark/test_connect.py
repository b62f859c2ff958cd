"""Spark Connect: the guide's program, and what else a client of it may do, in a process that is no driver."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from pyspark.sql import SparkSession

import txnclient.sync
from tests.project.test_documentation import blocks
from tests.spark.connect_server import connect_url
from tests.spark.service import Service
from tests.spark.test_documentation import GUIDE

CLIENT_TIMEOUT_S = 240

MORE = """
import threading
from pyspark.errors import PySparkException

to = {"service.url": URL, "topic": COPY}
spark.sql(f"CREATE TEMPORARY VIEW copied USING txnstore OPTIONS (`service.url` '{URL}', topic '{COPY}', columns 'value')")
spark.sql("INSERT INTO copied SELECT cast('by SQL' AS BINARY)")
one = spark.sql("SELECT 'in a thread' AS value").write.format("txnstore").options(**to)
thread = threading.Thread(target=one.mode("append").save)
thread.start()
thread.join()
try:
    one.mode("error").saveAsTable("a_new_table")
except PySparkException as error:
    print("refused:", "would append to what the topic has" in str(error))

from pyspark_txnstore import DefaultSource
spark.dataSource.register(DefaultSource)
print("seen", spark.table("copied").count(), spark.read.format("txnstore").options(**to).load().count())
"""  # noqa: E501


def test_the_guides_program_and_others_run_in_a_client_of_spark_connect(
    spark: SparkSession, service: Service, sync_client: txnclient.sync.Client, tmp_path: Path
) -> None:
    for name in ("visits", "copy", "counts"):
        sync_client.create_topic(f"topic://public/connect/{name}", segments=2)
    (program,) = (block for block in blocks(GUIDE, "python") if ".remote(" in block)
    for shown, here in {
        "txn://127.0.0.1:6650": service.url,
        "sc://127.0.0.1:15002": connect_url(spark),
        "public/shop/": "public/connect/",
        "checkpoints/": f"{tmp_path}/",
    }.items():
        assert shown in program
        program = program.replace(shown, here)
    (tmp_path / "program.py").write_text(program + MORE)
    spark_ones = ("SPARK", "PYSPARK", "PYTHONPATH")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(spark_ones)}
    command = [sys.executable, "program.py"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=CLIENT_TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "topic://public/connect/copy 3",
        "topic://public/connect/counts 2",
        "refused: True",
        "seen 5 5",
    ]
    with sync_client.reader("topic://public/connect/counts", end="latest") as reader:
        assert {(message.key, message.value) for message in reader} == {(b"customer-1", b"2"), (b"customer-2", b"1")}
