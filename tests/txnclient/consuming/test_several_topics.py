"""A consumer of several topics, as it closes (scenario C5)."""

from __future__ import annotations

import txnclient

TOPICS = [f"topic://public/default/{name}" for name in ("orders", "invoices", "parcels")]


async def test_c5_a_consumer_of_several_topics_that_closes_leaves_each_of_them(client: txnclient.Client) -> None:
    """The client is there still, so nobody else would tell the controller whose segments are free."""
    for topic in TOPICS:
        await client.create_topic(topic)
    await (await client.consumer(TOPICS, "sub")).close()
    for topic in TOPICS:
        async with client.producer(topic) as producer:
            await producer.send(b"x")
        async with client.consumer(topic, "sub") as consumer:
            assert (await consumer.receive(timeout=10.0)).value == b"x"
