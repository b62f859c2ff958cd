"""Queue consumers and seeks against a whole cluster in this process."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any, cast

import pytest

import txnclient
from tests.cluster import InProcessCluster
from tests.txnclient.queueing import TOPIC, prepared, received
from txnclient.consuming.consumer import consumer_impl


async def test_every_consumer_gets_messages_of_every_segment_and_each_goes_to_one(client: txnclient.Client) -> None:
    values = await prepared(client, 200)
    async with (
        await client.consumer(TOPIC, "workers", type="queue", prefetch=20) as one,
        await client.consumer(TOPIC, "workers", type="queue", prefetch=20) as two,
    ):
        assert one.segments == two.segments
        assert len(one.segments) == 2
        found: list[bytes] = []

        async def work(consumer: txnclient.Consumer) -> int:
            count = 0
            while len(found) < len(values):
                messages = await consumer.receive_many(7, timeout=0.1)
                found.extend(message.value for message in messages)
                await consumer.ack(messages)
                count += len(messages)
            return count

        async with asyncio.timeout(30):
            counts = await asyncio.gather(work(one), work(two))
    assert sorted(found) == sorted(values)
    assert min(counts) > 0


async def test_v8_what_is_committed_flows_round_an_open_transaction(client: txnclient.Client) -> None:
    await client.create_topic(TOPIC)
    async with (
        await client.producer(TOPIC) as producer,
        await client.consumer(TOPIC, "workers", type="queue") as queue,
        await client.consumer(TOPIC, "in-order") as stream,
    ):
        txn = await client.begin()
        await producer.send(b"held", txn=txn)
        await producer.send(b"plain")
        assert (await queue.receive(timeout=10)).value == b"plain"
        assert await stream.receive_many(1, timeout=0.2) == []
        await txn.commit()
        assert (await queue.receive(timeout=10)).value == b"held"
        assert [message.value for message in await received(stream, 2)] == [b"held", b"plain"]


class Full:
    """The link of a feed that takes in no acks for now."""

    closed = False

    def call_nowait(self, command: object, *, timeout_s: float) -> object:
        raise txnclient.Overloaded("too much is under way on this connection")


async def test_an_ack_in_a_transaction_that_never_left_gives_its_message_back(cluster: InProcessCluster) -> None:
    """▲ The broker has not heard of it, so the abort brings nothing back: the message would stay with this consumer."""
    async with cluster.connect(timeout=2.0) as client:
        await prepared(client, 1, segments=1)
        async with client.consumer(TOPIC, "workers", type="queue") as consumer:
            message = await consumer.receive(timeout=20)
            (feed,) = consumer_impl(consumer)._feeds.values()
            link, feed.acks._link = feed.acks._link, cast(Any, Full())
            txn = await client.begin()
            with pytest.raises(txnclient.Timeout):
                await consumer.ack(message, txn=txn)
            feed.acks._link = link
            await txn.abort()
            assert (await consumer.receive(timeout=20)).value == message.value


async def test_a_nacked_message_comes_again_after_its_delay_and_counts(client: txnclient.Client) -> None:
    await prepared(client, 2, segments=1)
    async with await client.consumer(TOPIC, "workers", type="queue", redelivery_delay=0.0) as consumer:
        first, second = await received(consumer, 2)
        assert first.redelivery_count == 0
        await consumer.ack(second)
        await consumer.nack(first)
        again = await consumer.receive(timeout=10)
        assert (again.id, again.redelivery_count) == (first.id, 1)
        started = asyncio.get_running_loop().time()
        await consumer.nack([again], delay=0.3)
        assert (await consumer.receive(timeout=10)).redelivery_count == 2
        assert asyncio.get_running_loop().time() - started >= 0.28
        await consumer.nack(first)  # another copy is out: this one was given back long ago
        assert await consumer.receive_many(1, timeout=0.1) == []


async def test_p1_a_transaction_s_abort_gives_its_queue_messages_back_and_only_those(client: txnclient.Client) -> None:
    await prepared(client, 3, segments=1)
    async with await client.consumer(TOPIC, "workers", type="queue") as consumer:
        messages = await received(consumer, 3)
        txn = await client.begin()
        await consumer.ack(messages[0], txn=txn)
        await consumer.ack(messages[1])
        await txn.abort()
        again = await consumer.receive(timeout=10)
        assert (again.id, again.redelivery_count) == (messages[0].id, 1)
        async with client.transaction() as second:
            await consumer.ack([again, messages[2]], txn=second)
        assert await consumer.receive_many(1, timeout=0.2) == []


async def test_a_transaction_cannot_take_two_copies_of_one_message(client: txnclient.Client) -> None:
    await prepared(client, 1, segments=1)
    async with await client.consumer(TOPIC, "workers", type="queue", redelivery_delay=0) as consumer:
        old = await consumer.receive(timeout=10)
        await consumer.nack(old)
        new = await consumer.receive(timeout=10)
        txn = await client.begin()
        await consumer.ack(new, txn=txn)
        with pytest.raises(txnclient.TxnConflict, match="given back \\(nack"):
            await consumer.ack(old, txn=txn)
        with pytest.raises(txnclient.TxnConflict):
            await txn.commit()
        assert (await consumer.receive(timeout=10)).id == new.id


async def test_what_a_closed_consumer_held_goes_to_another(client: txnclient.Client) -> None:
    values = await prepared(client, 10)
    first = await client.consumer(TOPIC, "workers", type="queue")
    await received(first, 5)
    async with await client.consumer(TOPIC, "workers", type="queue") as second:
        await first.close()
        assert sorted(message.value for message in await received(second, 10)) == sorted(values)


async def test_rewind_gives_back_all_that_a_queue_s_consumer_holds(client: txnclient.Client) -> None:
    values = await prepared(client, 4)
    async with await client.consumer(TOPIC, "workers", type="queue") as consumer:
        held = await received(consumer, 4)
        await consumer.ack(held[0])
        consumer.rewind()
        again = await received(consumer, 3)
        assert sorted(message.value for message in again) == sorted(set(values) - {held[0].value})
        assert {message.redelivery_count for message in again} == {1}


async def test_the_other_type_is_refused_for_a_subscription_and_calls_of_the_other_type_too(
    client: txnclient.Client,
) -> None:
    await prepared(client, 1, segments=1)
    async with (
        await client.consumer(TOPIC, "workers", type="queue") as queue,
        await client.consumer(TOPIC, "stream") as stream,
    ):
        with pytest.raises((txnclient.NotAllowed, txnclient.InvalidArgument), match=r"(?i)queue"):
            await client.consumer(TOPIC, "workers")
        with pytest.raises(txnclient.InvalidArgument, match="one by one"):
            await queue.ack_cumulative(await queue.receive(timeout=10))
        with pytest.raises(txnclient.InvalidArgument, match="rewind"):
            await stream.nack(await stream.receive(timeout=10))


@pytest.mark.parametrize("ends", ["commit", "abort"])
async def test_p4_p9_one_transaction_acks_on_a_queue_and_a_stream_and_outlives_its_consumers(
    client: txnclient.Client, ends: str
) -> None:
    await prepared(client, 4, segments=1)
    queue = await client.consumer(TOPIC, "workers", type="queue")
    stream = await client.consumer(TOPIC, "in-order")
    txn = await client.begin()
    await queue.ack(await received(queue, 2), txn=txn)
    await stream.ack(await received(stream, 3), txn=txn)
    await queue.close()
    await stream.close()
    async with await client.consumer(TOPIC, "workers", type="queue") as other:
        # The two that are acked in the transaction are hidden, the others have come back.
        rest = await received(other, 2)
        assert await other.receive_many(1, timeout=0.2) == []
        await (txn.commit() if ends == "commit" else txn.abort())
        back = await received(other, 2) if ends == "abort" else []
        assert await other.receive_many(1, timeout=0.2) == []
        assert sorted(message.value for message in (*rest, *back)) == (
            [b"2", b"3"] if ends == "commit" else [b"0", b"1", b"2", b"3"]
        )
    async with await client.consumer(TOPIC, "in-order") as again:
        expected = [b"3"] if ends == "commit" else [b"0", b"1", b"2", b"3"]
        assert [message.value for message in await received(again, len(expected))] == expected


# ---- seek -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("type", ["stream", "queue"])
async def test_seek_goes_back_and_forth_and_voids_what_was_received_before(client: txnclient.Client, type: str) -> None:
    await prepared(client, 10, segments=1)
    async with await client.consumer(TOPIC, "sub", type=type) as consumer:
        messages = await received(consumer, 10)
        await consumer.ack(messages[:8])
        await consumer.seek("earliest")
        again = await received(consumer, 10)
        assert [message.value for message in again] == [message.value for message in messages]
        with pytest.raises(txnclient.NotAllowed, match="before a seek"):
            await consumer.ack(messages[8])
        await consumer.ack(again)
        await consumer.seek(messages[4].id)
        assert [message.value for message in await received(consumer, 6)] == [b"4", b"5", b"6", b"7", b"8", b"9"]
        await consumer.seek("latest")
        assert await consumer.receive_many(1, timeout=0.2) == []
        before = datetime.now(UTC)
        await asyncio.sleep(0.01)
        async with await client.producer(TOPIC) as producer:
            await producer.send(b"later")
        await consumer.seek(before)
        assert [message.value for message in await received(consumer, 1)] == [b"later"]


async def test_a_seek_by_somebody_else_voids_acks_of_what_was_received_before(client: txnclient.Client) -> None:
    """▲ Also those that are sent only after the consumer has attached anew."""
    await prepared(client, 4, segments=1)
    async with await client.consumer(TOPIC, "sub") as consumer:
        old = await received(consumer, 4)
        await client.seek_subscription(TOPIC, "sub", "earliest")
        acks = await asyncio.gather(*(consumer.ack(message) for message in old), return_exceptions=True)
        assert all(isinstance(error, txnclient.NotAllowed) for error in acks), acks
        assert [message.value for message in await received(consumer, 4)] == [b"0", b"1", b"2", b"3"]
    async with await client.consumer(TOPIC, "sub") as fresh:
        assert len(await received(fresh, 4)) == 4
    with pytest.raises(txnclient.SubscriptionNotFound):
        await client.seek_subscription(TOPIC, "nobody", "earliest")


async def test_a_seek_holds_across_the_broker_s_restart(cluster: InProcessCluster, client: txnclient.Client) -> None:
    await prepared(client, 5, segments=1)
    async with await client.consumer(TOPIC, "sub") as consumer:
        await consumer.ack(await received(consumer, 5))
        await consumer.seek("earliest")
        await cluster.restart_server("broker")
        assert len(await received(consumer, 5)) == 5


# ---- isolation and prefetch -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("type", ["stream", "queue"])
async def test_v7_read_uncommitted_sees_open_and_aborted_transactions(client: txnclient.Client, type: str) -> None:
    await client.create_topic(TOPIC)
    async with (
        await client.producer(TOPIC) as producer,
        await client.consumer(TOPIC, "dirty", type=type, isolation="read_uncommitted") as consumer,
        await client.reader(TOPIC, isolation="read_uncommitted") as reader,
    ):
        txn = await client.begin()
        await producer.send(b"open", txn=txn)
        assert (await consumer.receive(timeout=10)).value == b"open"
        assert (await reader.receive(timeout=10)).value == b"open"
        await txn.abort()


async def test_prefetch_bytes_bounds_what_waits_in_the_client(client: txnclient.Client) -> None:
    await client.create_topic(TOPIC)
    async with await client.producer(TOPIC, compression=None, batch_bytes=1) as producer:
        for number in range(60):
            await producer.send(bytes([number]) * 50_000)
    async with await client.consumer(TOPIC, "sub", prefetch_bytes=400_000) as consumer:
        (feed,) = consumer_impl(consumer)._feeds.values()
        largest = 0
        for number in range(60):
            message = await consumer.receive(timeout=10)
            assert message.value[:1] == bytes([number])
            largest = max(largest, feed.buffered)
    assert 1 <= largest <= 9
