"""Where a subscription stands in a segment: a copy of it begins there, with nothing twice and nothing left out."""

from __future__ import annotations

import pytest

from tests.segments.brokering import Cluster
from txnstore.records import SubscriptionRecord
from txnwire.ids import Position

BEFORE_ALL, FIRST, SECOND = Position(0, 0), Position(1, 0), Position(1, 1)


@pytest.mark.parametrize("attached", [False, True])
@pytest.mark.parametrize(
    ("index", "after", "stands_at"),
    [
        (0, False, (FIRST, 0)),
        (0, True, (FIRST, 1)),
        (1, False, (FIRST, 1)),
        (1, True, (SECOND, 0)),  # behind the last message of its entry
        (7, True, (SECOND, 0)),  # of an entry of which it was not known how many it has
    ],
)
async def test_it_stands_at_its_start_before_anybody_has_acked(
    memory_cluster: Cluster, index: int, after: bool, stands_at: tuple[Position, int], attached: bool
) -> None:
    cluster = memory_cluster
    [path] = await cluster.create_topic()
    node = await cluster.start()
    client = await cluster.connect(node)
    producer = await client.producer(path)
    assert await producer.send("a", "b") == FIRST
    assert await producer.send("c", "d") == SECOND
    start = {"kind": "message_id", "segment": path, "ledger_id": 1, "entry_id": 0, "index": index, "after": after}
    await cluster.create_subscription(record=SubscriptionRecord(type="stream", start=start))
    if attached:
        await cluster.subscribe(client, path)
    assert await node.broker.segments[path].subscriptions.lags.standing("sub") == stands_at


async def test_it_stands_at_the_first_message_that_is_not_acked(memory_cluster: Cluster) -> None:
    cluster = memory_cluster
    [path] = await cluster.create_topic()
    node = await cluster.start()
    client = await cluster.connect(node)
    producer = await client.producer(path)
    consumer = await cluster.queue(client, path)
    await producer.send("a", "b")
    await producer.send("c", "d")
    await consumer.wait(*"abcd")
    lags, stood = node.broker.segments[path].subscriptions.lags, []
    for index in (1, 3, 0, 2):
        await consumer.ack(consumer.messages[index], indexes=[index % 2])
        stood.append(await lags.standing("jobs"))
    assert stood == [(BEFORE_ALL, 0), (BEFORE_ALL, 0), (SECOND, 0), (Position(1, 2), 0)]
