"""What a stream consumer that comes back behind an abort is shown, and in which order."""

from __future__ import annotations

from tests.segments.brokering import Cluster
from txnwire.turns import turns_divided_by
from watchers.pending_acks import APPLIED_AT_ONCE

ACKED = [f"acked {number:02}" for number in range(40)]


async def test_nothing_newer_comes_before_all_of_an_abort_in_turns_is_released(memory_cluster: Cluster) -> None:
    """Dies if the decision counts as soon as it is heard of: what lies behind the acks would come first, and could be
    acked and committed before what comes again."""
    cluster = memory_cluster
    [segment] = await cluster.create_topic()
    with turns_divided_by(APPLIED_AT_ONCE):  # each ack has a turn of its own
        client = await cluster.connect(await cluster.start())
        producer, consumer = await client.producer(segment), await cluster.subscribe(client, segment)
        for value in [*ACKED, "newer"]:
            await producer.send(value)
        await consumer.wait(*ACKED, "newer")
        txn = await cluster.begin()
        for message in consumer.take()[:-1]:
            await consumer.ack(message, txn=txn)
        again = await cluster.subscribe(client, segment, epoch=2, permits=0)  # as the client does that aborts
        again.flow(1000, min_revision=await cluster.abort(txn))
        await again.wait(*ACKED, "newer")
        assert [message.value for message in again.all] == [*ACKED, "newer"]
