"""Real Spark and a real cluster for these tests, one of each in a process that runs some: see `spark`, `service`,
`sync_client` and `topic`. `tests/order.py` gives them to two workers, so two JVMs are started."""

from __future__ import annotations

import gc
import itertools
import os
import warnings
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import txnclient.sync
from pyspark_txnstore.shared.process_client import close_clients
from tests.spark.micro_batches import MicroBatches, Start
from tests.spark.service import REPOSITORY, Service, running_service
from tests.spark.sessions import running_session

HERE = Path(__file__).parent
TIMEOUT_S = 60.0
TEST_TIMEOUT_S = 300
"""Spark starts many Pythons, which takes long on a busy machine; the first test starts all there is."""
_topics = itertools.count(1)
_running = ExitStack()


@dataclass
class Kept:
    """What runs, for the fixtures of these names."""

    spark: SparkSession | None = None
    service: Service | None = None
    sync_client: txnclient.sync.Client | None = None


_kept = Kept()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    ours = [item for item in items if HERE in item.path.parents]
    for item in ours:
        item.add_marker(pytest.mark.timeout(TEST_TIMEOUT_S))  # a test's own mark is the closer one
        item.add_marker(pytest.mark.leaves("budgets", "a process keeps one client for each service: see below"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """Behind the last of these tests Spark and all clients end: tests in virtual time forbid the clock to their whole
    process, and threads that are still at work there would fail them. More may come later, from another worker."""
    try:
        yield
    finally:
        if nextitem is None or HERE not in nextitem.path.parents:
            _end_all()


def _end_all() -> None:
    _running.close()
    _kept.spark = _kept.service = _kept.sync_client = None
    close_clients()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # of what PySpark leaves to the collector: pipes, sockets
        gc.collect()


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> SparkSession:
    """`local[2]`, where a failed task is tried once more, as on a cluster. Shared: a test gives its queries names of
    their own, stops them, and puts back what it configures."""
    if _kept.spark is not None:
        return _kept.spark
    before = os.environ.get("PYTHONPATH")
    # Of Spark's workers, which start elsewhere and are to find the data sources that tests define.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(REPOSITORY), before)))
    session = running_session(tmp_path_factory.mktemp("spark"), master="local[2,2]", memory="2g")
    try:
        _kept.spark = _running.enter_context(session)
        return _kept.spark
    finally:
        os.environ["PYTHONPATH"] = before or ""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Service:
    """A cluster of real processes with two brokers: `.url`, and `.kill("broker-1")`."""
    if _kept.service is None:
        _kept.service = _running.enter_context(running_service(tmp_path_factory.mktemp("service")))
    return _kept.service


@pytest.fixture(scope="module")
def sync_client(service: Service) -> txnclient.sync.Client:
    if _kept.sync_client is None:
        client = txnclient.sync.connect(service.url, timeout=TIMEOUT_S, client_name="spark tests")
        _kept.sync_client = _running.enter_context(client)
    return _kept.sync_client


@pytest.fixture
def topic() -> str:
    """A name no other test has; the test creates it, with as many segments as it wants."""
    return f"topic://public/spark/t{next(_topics)}"


@pytest.fixture
def start(service: Service, topic: str) -> Start:
    """Of a query that reads the test's topic, unless its options name others."""

    def started(**options: str) -> MicroBatches:
        if not {"topics", "topicsPattern"} & options.keys():
            options.setdefault("topic", topic)
        return MicroBatches(service.url, options)

    return started
