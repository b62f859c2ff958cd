"""The one path through everything: open a producer, send in a transaction, decide, deliver, ack in a transaction."""

from __future__ import annotations

from tests.segments.brokering import Cluster


async def test_a_committed_message_is_delivered_and_acked_in_a_transaction(cluster: Cluster) -> None:
    [segment] = await cluster.create_topic()
    client = await cluster.connect(await cluster.start())
    producer = await client.producer(segment)
    consumer = await cluster.subscribe(client, segment)

    writing = await cluster.begin()
    await producer.send("one", txn=writing)
    await cluster.commit(writing)
    await consumer.wait("one")

    acking = await cluster.begin()
    await consumer.ack(consumer.messages[0], txn=acking)
    await cluster.commit(acking)
    await cluster.wait_no_ops(writing)
    await cluster.wait_no_ops(acking)
