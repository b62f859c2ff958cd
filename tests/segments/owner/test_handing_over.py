"""What a segment answers while it is handed over to the next owner."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.segments.brokering import Cluster


@pytest.mark.parametrize("type", ["stream", "queue"])
async def test_an_ack_that_is_answered_during_a_hand_over_is_stored(
    memory_cluster: Cluster, monkeypatch: pytest.MonkeyPatch, type: str
) -> None:
    """▲ A restart in order would otherwise bring messages again whose acks were answered."""
    cluster = memory_cluster
    [path] = await cluster.create_topic()
    node = await cluster.start()
    client = await cluster.connect(node)
    producer = await client.producer(path)
    for value in "abc":
        await producer.send(value)
    subscribe = cluster.queue if type == "queue" else cluster.subscribe
    consumer = await subscribe(client, path, name="work")
    await consumer.wait(*"abc")
    a, b, _ = consumer.messages
    await consumer.ack(a)
    segment = node.broker.segments[path]
    close = segment.ledgers.close

    async def close_late(footer: Callable[[], bytes]) -> None:
        await consumer.ack(b)
        await close(footer)

    monkeypatch.setattr(segment.ledgers, "close", close_late)
    await node.close()
    client = await cluster.connect(await cluster.start())
    if type == "queue":
        consumer = await cluster.queue(client, path, name="work")
    else:
        consumer = await cluster.subscribe(client, path, name="work", epoch=2)
    await consumer.wait("c")


async def test_acks_are_stored_for_every_subscription_under_every_owner(memory_cluster: Cluster) -> None:
    """▲ One that an owner has loaded, and not created, is written as well: its messages would come again."""
    cluster, names = memory_cluster, ("one", "two")
    [path] = await cluster.create_topic()
    client = await cluster.connect(node := await cluster.start())
    producer = await client.producer(path)
    for value in "abc":
        await producer.send(value)
    for left in ("abc", "bc", "c"):
        for name in names:
            consumer = await cluster.queue(client, path, name=name)
            await consumer.wait(*left)
            await consumer.ack(consumer.messages[0])
        await node.close()
        client = await cluster.connect(node := await cluster.start())
