"""The fixtures. pytest finds this module by the client's entry point `pytest11`; `-p no:txnstore` leaves it out.

def test_an_order_is_billed(txn_namespace):
    with txn_namespace.connect_sync() as client:
        client.create_topic(txn_namespace.topic("orders"))
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import txnclient.sync
    from pytest_txnstore.cluster import PytestCluster
    from pytest_txnstore.namespace import PytestNamespace

NOTHING_TO_TEST_WITH = (
    "these tests need a cluster of txnstore: install the distribution `txnstore` and an etcd beside the client, and "
    "one is started here; or name one that runs by --txnstore-url or TXN_URL"
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("txnstore").addoption(
        "--txnstore-url",
        metavar="URL",
        help="txn://host:port of the cluster to test with; default: one that is started here, else TXN_URL",
    )


def pytest_configure(config: pytest.Config) -> None:
    """▲ The fixture of a coroutine is made by the plugin that runs coroutines, which this session may not have."""
    chosen = "async_client" if config.pluginmanager.hasplugin("asyncio") else "no_async_client"
    config.pluginmanager.register(importlib.import_module(f"pytest_txnstore.{chosen}"), "txnstore-async")


@pytest.fixture(scope="session")
def txn_cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PytestCluster]:
    """A running cluster, one for the session; under xdist one for each worker, so a test may kill a part of its own.

    That of `--txnstore-url`; else it is started here, an etcd, a server and a broker, if `txnctl` is installed; else
    that of `TXN_URL`. Without any of them the test fails and says what to install.
    """
    from pytest_txnstore.cluster import PytestCluster, can_start, started

    named = request.config.getoption("--txnstore-url")
    if named is None and can_start():
        with started(tmp_path_factory.mktemp("txnstore")) as cluster:
            yield cluster
        return
    url = named or os.environ.get("TXN_URL")
    if not url:
        pytest.fail(NOTHING_TO_TEST_WITH, pytrace=False)
    yield PytestCluster(url)


@pytest.fixture
def txn_namespace(txn_cluster: PytestCluster, request: pytest.FixtureRequest) -> Iterator[PytestNamespace]:
    """A namespace that no other test has. Its topics are deleted when the test has ended, also those in use."""
    from pytest_txnstore.namespace import PytestNamespace

    namespace = PytestNamespace.of_test(txn_cluster, request.node.name)
    yield namespace
    namespace.clean()


@pytest.fixture
def txn_sync_client(txn_namespace: PytestNamespace) -> Iterator[txnclient.sync.Client]:
    """A `txnclient.sync.Client` of the test's cluster. `txn_client` is the asynchronous one."""
    with txn_namespace.connect_sync() as client:
        yield client
