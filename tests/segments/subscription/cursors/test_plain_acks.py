"""Acks outside of transactions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.segments.brokering import Cluster
from tests.segments.gates import GatedStore, gate_stores
from tests.waiting import until
from txnstore import keys
from txnwire.errors import InvalidArgument


async def test_plain_acks_survive_a_graceful_restart_and_are_written_at_most_once_a_second(cluster: Cluster) -> None:
    gate_stores(cluster)
    [segment] = await cluster.create_topic()
    node = await cluster.start()
    client = await cluster.connect(node)
    producer, consumer = await client.producer(segment), await cluster.subscribe(client, segment)
    for number in range(20):
        await producer.send(str(number))
    await consumer.wait(*map(str, range(20)))
    for message in consumer.messages[:15]:
        await consumer.ack(message)
    await node.close()
    store: GatedStore = node.store  # type: ignore[assignment]
    cursor_key = keys.cursors(segment)
    writes = [commit for commit in store.sent if any(put.key.startswith(cursor_key) for put in commit.puts)]
    assert 1 <= len(writes) <= 3
    client = await cluster.connect(await cluster.start())
    await (await cluster.subscribe(client, segment, epoch=2)).wait(*map(str, range(15, 20)))


async def test_a_plain_ack_of_a_pending_message_is_dropped(cluster: Cluster) -> None:
    [segment] = await cluster.create_topic()
    client = await cluster.connect(await cluster.start())
    _, consumer = await cluster.holding_abc(client, segment)
    txn = await cluster.begin()
    await consumer.ack(consumer.messages[1], txn=txn)
    await consumer.ack(*consumer.messages)
    await cluster.abort(txn)
    await until(lambda: consumer.rewinds)
    await consumer.wait("b")


@pytest.mark.parametrize("committed", [True, False])
async def test_p2_a_plain_cumulative_ack_over_a_pending_one_acks_the_rest(cluster: Cluster, committed: bool) -> None:
    """Also in the hands of the next owner, before the transaction is decided. An abort brings back what it held and
    nothing else."""
    [segment] = await cluster.create_topic()
    node = await cluster.start()
    client = await cluster.connect(node)
    producer, consumer = await client.producer(segment), await cluster.subscribe(client, segment)
    for value in "abcdef":
        await producer.send(value)
    await consumer.wait(*"abcdef")
    txn = await cluster.begin()
    await consumer.ack(consumer.messages[1], consumer.messages[3], txn=txn)
    await consumer.ack(consumer.messages[4], cumulative=True)
    await node.close()
    client = await cluster.connect(await cluster.start())
    consumer = await cluster.subscribe(client, segment, epoch=2)
    await consumer.wait("f")
    await (cluster.commit(txn) if committed else cluster.abort(txn))
    await cluster.wait_no_ops(txn)
    await (await cluster.subscribe(client, segment, epoch=3)).wait(*("f" if committed else "bdf"))


@pytest.mark.parametrize("transactional", [False, True], ids=["plain", "in a transaction"])
async def test_a_cumulative_ack_of_several_positions_acks_nothing(memory_cluster: Cluster, transactional: bool) -> None:
    """It names one end: of two, another client might mean the later one."""
    cluster = memory_cluster
    [segment] = await cluster.create_topic()
    client = await cluster.connect(await cluster.start())
    _, consumer = await cluster.holding_abc(client, segment)
    txn = await cluster.begin() if transactional else None
    with pytest.raises(InvalidArgument, match="2 positions"):
        await consumer.ack(*consumer.messages[:2], cumulative=True, txn=txn)
    await (await cluster.subscribe(client, segment, epoch=2)).wait(*"abc")


async def test_an_ack_of_more_positions_than_the_broker_is_set_to_allow_acks_nothing(memory_cluster: Cluster) -> None:
    cluster = memory_cluster
    cluster.settings = replace(cluster.settings, max_ack_positions=2)
    [segment] = await cluster.create_topic()
    client = await cluster.connect(await cluster.start())
    _, consumer = await cluster.holding_abc(client, segment)
    with pytest.raises(InvalidArgument, match="at most 2"):
        await consumer.ack(*consumer.messages)
    await consumer.ack(*consumer.messages[:2])
    await (await cluster.subscribe(client, segment, epoch=2)).wait("c")
