"""A user's test module, which the tests of the plugin copy into a project of its own."""

import os
import subprocess
import sys

import pytest

import txnclient

PROGRAM = """
import os, sys, txnclient.sync
with txnclient.sync.connect(os.environ["TXN_URL"]) as client, client.producer(sys.argv[1]) as producer:
    producer.send(b"from a program")
"""
SEEN = []


def test_a_transaction_of_the_synchronous_client(txn_namespace, txn_sync_client):
    orders = txn_namespace.topic("orders")
    txn_sync_client.create_topic(orders)
    with txn_sync_client.producer(orders) as producer, txn_sync_client.transaction() as txn:
        producer.send(b"one", txn=txn)
    with txn_sync_client.reader(orders, end="latest") as reader:
        assert [message.value for message in reader] == [b"one"]
    SEEN.append(txn_namespace.path)


@pytest.mark.asyncio
async def test_the_asynchronous_client_finds_a_namespace_of_its_own(txn_namespace, txn_client):
    orders = txn_namespace.topic("orders")
    await txn_client.create_topic(orders)
    txn = await txn_client.begin(name=txn_namespace.unique("job/1"))
    async with txn_client.producer(orders) as producer:
        await producer.send(b"two", txn=txn)
    await txn.commit()
    async with txn_client.reader(orders, end="latest") as reader:
        assert [message.value async for message in reader] == [b"two"]
    for path in SEEN:  # of the test before, unless another worker ran it
        assert path != txn_namespace.path
        assert await txn_client.list_topics(f"{path}/") == []


@pytest.mark.skipif("PYTEST_TXNSTORE_SHARED" in os.environ, reason="not this project's own cluster")
def test_a_program_is_tested_while_a_broker_is_killed(txn_cluster, txn_namespace, txn_sync_client):
    topic = txn_namespace.topic("sent")
    txn_sync_client.create_topic(topic)
    txn_cluster.kill("broker-1")
    subprocess.run([sys.executable, "-c", PROGRAM, topic], env=txn_cluster.environment, check=True, timeout=60)
    with txn_sync_client.reader(topic, end="latest") as reader:
        assert [message.value for message in reader] == [b"from a program"]
    with pytest.raises(ValueError, match="there is broker-1, etcd, server"):
        txn_cluster.kill("broker-9")


def test_a_topic_in_use_is_deleted_too(txn_namespace, request):
    client = txn_namespace.connect_sync()
    request.session.config.kept_client = client  # until the end: a careless test
    client.create_topic(txn_namespace.topic("kept"))
    client.producer(txn_namespace.topic("kept"))


def test_the_careless_one_has_left_nothing(txn_sync_client, request):
    client = getattr(request.session.config, "kept_client", None)
    if client is not None:
        assert [topic for topic in txn_sync_client.list_topics("pytest/") if topic.endswith("/kept")] == []
        client.close()


def test_names_of_tests_make_names_of_namespaces(txn_namespace):
    assert txn_namespace.path.startswith("pytest/test_names_of_tests_make_names_of_namespaces-")
    assert isinstance(txn_namespace.url, str)
    assert txnclient.__name__ == "txnclient"
