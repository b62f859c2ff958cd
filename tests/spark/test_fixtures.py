"""What the other Spark tests stand on."""

from __future__ import annotations

from pyspark.sql import SparkSession

import txnclient.sync
from tests.spark.service import Service


def test_python_workers_of_spark_run_this_python(spark: SparkSession) -> None:
    found = spark.range(4, numPartitions=2).mapInPandas(_executable, "python string").distinct().collect()
    assert [row.python for row in found] == [spark.sparkContext.pythonExec]


def _executable(frames):  # type: ignore[no-untyped-def]
    import sys

    import pandas

    for _ in frames:
        yield pandas.DataFrame({"python": [sys.executable]})


def test_a_killed_broker_comes_back(service: Service, sync_client: txnclient.sync.Client, topic: str) -> None:
    sync_client.create_topic(topic, segments=2)
    with sync_client.producer(topic) as producer:
        before = producer.send(b"before", key=b"k")
        service.kill("broker-1", "broker-2")
        after = producer.send(b"after", key=b"k")
    assert before < after
