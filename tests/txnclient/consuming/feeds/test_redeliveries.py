"""How often a stream says that a message was delivered before, and what a queue's consumer is refused at opening."""

from __future__ import annotations

import pytest

import txnclient
from tests.txnclient.queueing import TOPIC, prepared, received
from txnclient.consuming.consumer import consumer_impl
from txnclient.transactions.transaction import impl_of


@pytest.mark.parametrize("acked", [True, False], ids=["acked", "without an ack that was sent"])
async def test_each_abort_counts_as_one_redelivery(client: txnclient.Client, acked: bool) -> None:
    await prepared(client, 3, segments=1)
    async with client.consumer(TOPIC, "sub") as consumer:
        for times in range(4):
            messages = await received(consumer, 3)
            assert [message.redelivery_count for message in messages] == [times] * 3
            txn = await client.begin()
            if acked:
                await consumer.ack(messages, txn=txn)
            else:
                consumer_impl(consumer).ack_nowait(messages, txn=impl_of(txn))
            await txn.abort()


async def test_a_rewind_counts_what_it_delivers_again(client: txnclient.Client) -> None:
    await prepared(client, 3, segments=1)
    async with client.consumer(TOPIC, "sub") as consumer:
        first = await received(consumer, 3)
        await consumer.ack(first[0])
        consumer.rewind()
        assert [message.redelivery_count for message in await received(consumer, 2)] == [1, 1]


async def test_another_isolation_than_the_queue_s_is_refused_at_opening(client: txnclient.Client) -> None:
    await prepared(client, 1, segments=2)
    async with client.consumer(TOPIC, "sub", type="queue") as consumer:
        with pytest.raises(txnclient.InvalidArgument, match="one isolation"):
            await client.consumer(TOPIC, "sub", type="queue", isolation="read_uncommitted")
        await consumer.ack(await received(consumer, 1))
        async with client.consumer(TOPIC, "sub", type="queue"):
            pass
    async with client.consumer(TOPIC, "sub", type="queue", isolation="read_uncommitted"):
        with pytest.raises(txnclient.InvalidArgument, match="one isolation"):
            await client.consumer(TOPIC, "sub", type="queue")
