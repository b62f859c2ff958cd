"""What the other Spark tests stand on."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import txnclient.sync
from tests.spark.conftest import pytest_collection_modifyitems
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


class _Item:
    def __init__(self, path: str) -> None:
        self.path = Path(path)

    def add_marker(self, mark: pytest.MarkDecorator) -> None:
        assert self.path == Path(__file__)


def test_spark_tests_stand_first_and_nothing_else_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTEST_XDIST_WORKER_COUNT", raising=False)
    here = str(Path(__file__))
    items = [_Item("/a/test_b.py"), _Item(here), _Item("/a/test_a.py"), _Item(here)]
    expected = [items[1], items[3], items[0], items[2]]
    pytest_collection_modifyitems(items)  # type: ignore[arg-type]
    assert items == expected
