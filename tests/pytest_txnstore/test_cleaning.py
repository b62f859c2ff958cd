"""What the plugin deletes behind a test, and what its servers take from the environment."""

from __future__ import annotations

import asyncio

import pytest

import txnclient
import txnclient.sync
from pytest_txnstore.cluster import PytestCluster, _environment
from pytest_txnstore.namespace import PytestNamespace
from tests.cluster import InProcessCluster
from txnstore import keys
from txnstore.store import Commit, Put
from txnwire.names import TopicName


async def test_a_topic_that_cannot_be_deleted_does_not_keep_the_others(cluster: InProcessCluster) -> None:
    """A shared cluster would gather them run by run."""
    namespace = PytestNamespace.of_test(PytestCluster(cluster.url), "a test")
    async with cluster.connect() as client:
        for name in ("a", "b"):
            await client.create_topic(namespace.topic(name))
        unreadable = Put(keys.topic(f"{namespace.path}/a"), b"from elsewhere")
        await cluster.servers["control"].store.commit(Commit(puts=(unreadable,)))
        with pytest.raises(txnclient.TxnError):
            await asyncio.to_thread(namespace.clean)
        assert namespace.topic("b") not in await client.list_topics(f"{namespace.path}/")


async def test_a_topic_that_the_test_deletes_itself_does_not_keep_the_others(
    cluster: InProcessCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its deletion ends right behind the list."""
    namespace = PytestNamespace.of_test(PytestCluster(cluster.url), "a test")
    listed = txnclient.sync.Client.list_topics

    def deleted_meanwhile(client: txnclient.sync.Client, prefix: str) -> list[str]:
        names = listed(client, prefix)
        client.delete_topic(names[0])
        return names

    monkeypatch.setattr(txnclient.sync.Client, "list_topics", deleted_meanwhile)
    async with cluster.connect() as client:
        for name in ("a", "b", "c"):
            await client.create_topic(namespace.topic(name))
        await asyncio.to_thread(namespace.clean)
        assert await client.list_topics(f"{namespace.path}/") == []


@pytest.mark.parametrize(
    ("test", "begins"),
    [
        ("test_plain", "test_plain-"),
        ("test_of[a/b c-1.5]", "test_of-a-b-c-1-5-"),
        ("test_" + "long" * 100, "test_" + ("long" * 100)[:55] + "-"),
        ("[ü]", "test-"),
    ],
)
def test_every_name_of_a_test_makes_a_namespace_that_topics_may_have(test: str, begins: str) -> None:
    """Names of parameters have any length and any characters; two tests never share a namespace."""
    cluster = PytestCluster("txn://127.0.0.1:1")
    one, other = PytestNamespace.of_test(cluster, test), PytestNamespace.of_test(cluster, test)
    assert one.path != other.path
    for namespace in (one, other):
        assert namespace.path.startswith(f"pytest/{begins}")
        assert TopicName.parse(namespace.topic("orders")).path == f"{namespace.path}/orders"
        assert TopicName.parse(namespace.topic("orders" * 20)).path == f"{namespace.path}/{'orders' * 20}"


def test_a_cluster_for_tests_is_not_told_how_servers_here_are_known_to_their_etcd(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("TXN_CONFIG", "TXN_ETCD_USER", "TXN_ETCD_CA", "TXN_ETCD_PREFIX"):
        monkeypatch.setenv(name, "of another cluster")
    found = _environment()
    assert not [name for name in found if name.startswith(("TXN_ETCD_", "TXN_CONFIG"))]
    assert found["TXN_LEASE_TTL_S"] == "5"
