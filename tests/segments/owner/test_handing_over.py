"""What a segment answers while it is handed over to the next owner."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from tests.segments.brokering import Cluster
from tests.segments.owner.gated_owner import Gated
from tests.waiting import until
from txnwire.errors import NotOwner


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


async def test_a_send_that_comes_during_a_hand_over_is_refused_and_what_was_in_flight_is_stored(gated: Gated) -> None:
    """Dies if it is admitted: a busy segment would never come to rest, and its successor would have to recover it."""
    producer, segment = await gated.client.producer(gated.segment), gated.broker.segments[gated.segment]
    gated.ledgers.hold()
    in_flight = producer.send_nowait("a")
    await until(lambda: gated.ledgers.waiting)
    handing_over = asyncio.ensure_future(segment.hand_over(timeout_s=10.0))
    await asyncio.sleep(0)
    late = producer.send_nowait("b")
    await until(lambda: late.done() or segment.pipeline.inflight > 1)
    gated.ledgers.open()
    with pytest.raises(NotOwner, match="shutting down"):
        await late
    await in_flight
    await handing_over
