"""What a queue's consumer gives back, when, and how it counts: nothing stays with who does not work on it."""

from __future__ import annotations

import asyncio

import pytest

import txnclient
from tests.cluster import InProcessCluster
from tests.txnclient.queueing import TOPIC, prepared, received
from tests.waiting import until
from txnclient.consuming.consumer import consumer_impl
from txnclient.transactions.transaction import impl_of


async def test_closing_counts_for_what_was_received_and_not_for_what_was_buffered(client: txnclient.Client) -> None:
    """A message that makes its worker close is dead one day; those behind it in the buffer are not."""
    await prepared(client, 10, segments=1)
    for closed in range(3):
        async with await client.consumer(TOPIC, "workers", type="queue", max_redeliveries=3) as consumer:
            first = await consumer.receive(timeout=10)
            assert (first.value, first.redelivery_count) == (b"0", closed)
    async with await client.consumer(TOPIC, "workers", type="queue") as consumer:
        found = {message.value: message.redelivery_count for message in await received(consumer, 10)}
    assert found == {b"0": 3} | {str(number).encode(): 0 for number in range(1, 10)}


async def test_a_loop_that_is_cancelled_gives_back_what_it_has_received(client: txnclient.Client) -> None:
    """Whoever goes on with the same consumer misses nothing."""
    values = await prepared(client, 6, segments=1)
    reached = asyncio.Event()

    async def handler(message: txnclient.Message) -> None:
        if message.value == b"3":
            reached.set()
            await asyncio.Event().wait()

    async with await client.consumer(TOPIC, "workers", type="queue") as consumer:
        running = asyncio.create_task(txnclient.process(consumer, handler, batch_messages=2))
        await asyncio.wait_for(reached.wait(), 10)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        rest = await received(consumer, 3)
        rest += await consumer.receive_many(10, timeout=0.5)  # unless it was committed before the third was handled
        assert sorted(message.value for message in rest) in (values[2:], values[3:])


async def test_a_handler_that_is_cancelled_itself_loses_nothing(client: txnclient.Client) -> None:
    """What it awaits was cancelled by somebody else."""
    values = await prepared(client, 4, segments=1)

    async def handler(message: txnclient.Message) -> None:
        raise asyncio.CancelledError

    async with await client.consumer(TOPIC, "workers", type="queue") as consumer:
        done = await txnclient.process(consumer, handler, batch_messages=2, max_messages=4)
        assert (done.messages, done.nacked) == (0, 4)
        assert sorted(message.value for message in await received(consumer, 4)) == values


@pytest.mark.parametrize("type", ["queue", "stream"])
async def test_what_was_named_with_a_stale_copy_comes_again(client: txnclient.Client, type: str) -> None:
    """A transaction's ack that is refused on the client's side: nothing of it reaches the broker."""
    await prepared(client, 4, segments=1)
    async with await client.consumer(TOPIC, "workers", type=type) as consumer:
        stale, *_ = await received(consumer, 4)
        consumer.rewind()
        held = await received(consumer, 4)
        async with asyncio.timeout(10):
            with pytest.raises(txnclient.TxnConflict):
                async with client.transaction() as txn:
                    await consumer.ack([*held, stale], txn=txn)
            again = await received(consumer, 4)
        assert sorted(message.value for message in again) == [b"0", b"1", b"2", b"3"]
        await consumer.ack(again)


async def test_what_was_named_with_a_stale_copy_of_another_segment_comes_again(client: txnclient.Client) -> None:
    await prepared(client, 10)
    async with await client.consumer(TOPIC, "workers", type="queue") as consumer:
        stale = (await received(consumer, 10))[0]
        consumer.rewind()
        held = [one for one in await received(consumer, 10) if one.id.segment != stale.id.segment]
        assert held
        async with asyncio.timeout(10):
            with pytest.raises(txnclient.TxnConflict):
                async with client.transaction() as txn:
                    await consumer.ack([stale, *held], txn=txn)
            again = await received(consumer, len(held))
        assert sorted(one.value for one in again) == sorted(one.value for one in held)


async def test_of_what_is_nacked_a_segment_that_has_left_keeps_none_behind_it(client: txnclient.Client) -> None:
    """▲ Or the others would stay with a consumer that has given them back, for as long as it lives."""
    await prepared(client, 1, segments=1)
    async with await client.consumer(TOPIC, "workers", type="queue") as consumer:
        (gone,) = await received(consumer, 1)
        (root,) = consumer.segments
        await client.split("segment://" + root)
        await client.seek_subscription(TOPIC, "workers", "latest")  # all of it is passed
        await until(lambda: not (root in consumer.segments or len(consumer.segments) < 2), within_s=30)
        async with await client.producer(TOPIC) as producer:
            await producer.send(b"kept")
        (kept,) = await received(consumer, 1)
        with pytest.raises(txnclient.NotAllowed):
            await consumer.nack([gone, kept], delay=0)
        (again,) = await received(consumer, 1)
        assert (again.value, again.redelivery_count) == (b"kept", 1)


async def test_an_ack_that_was_withdrawn_before_it_left_comes_again(client: txnclient.Client) -> None:
    await prepared(client, 2, segments=1)
    async with await client.consumer(TOPIC, "workers", type="queue") as consumer:
        held = await received(consumer, 2)
        txn = await client.begin()
        answers = consumer_impl(consumer).ack_nowait(held, txn=impl_of(txn))
        await txn.abort()
        with pytest.raises(txnclient.InvalidTxnState):
            answers[0].result()
        assert len(await received(consumer, 2)) == 2


@pytest.mark.parametrize("turns", [1, 5, 20])
async def test_a_rewind_while_it_attaches_leaves_nobody_behind_at_the_broker(
    cluster: InProcessCluster, client: txnclient.Client, turns: int
) -> None:
    """Attached twice, one of the two would keep for itself what was delivered to it, after the consumer's end too."""
    values = await prepared(client, 10, segments=1)
    async with cluster.connect() as other:  # it has yet to connect to the broker
        consumer = await other.consumer(TOPIC, "workers", type="queue", prefetch=6)
        for _ in range(turns):
            await asyncio.sleep(0)
        consumer.rewind()
        await received(consumer, 3)
        await consumer.close()
        async with await client.consumer(TOPIC, "workers", type="queue") as second:
            assert sorted(message.value for message in await received(second, 10)) == values
