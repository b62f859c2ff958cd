"""Queue consumers, dead letters and seeks against a whole cluster in this process."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

import txnclient
from tests.cluster import InProcessCluster
from txnclient.dead_letters import ORIGIN_MESSAGE_ID, ORIGIN_SUBSCRIPTION, ORIGIN_TOPIC, REDELIVERIES
from txnwire.proto import txn_pb2 as pb

TOPIC = "topic://public/default/jobs"
DEAD = "topic://public/default/jobs-workers-DLQ"


async def prepared(client: txnclient.Client, count: int, *, segments: int = 2) -> list[bytes]:
    await client.create_topic(TOPIC, segments=segments)
    values = [str(number).encode() for number in range(count)]
    async with await client.producer(TOPIC, batch_bytes=1) as producer:  # entries of one message
        await producer.send_many([(f"k{number % 5}", value) for number, value in enumerate(values)])
    return values


async def received(consumer: txnclient.Consumer[Any], count: int) -> list[txnclient.Message[Any]]:
    found: list[txnclient.Message[Any]] = []
    async with asyncio.timeout(15):
        while len(found) < count:
            found += await consumer.receive_many(count - len(found), timeout=15)
    return found


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
            while messages := await consumer.receive_many(7, timeout=1.0):
                found.extend(message.value for message in messages)
                await consumer.ack(messages)
                count += len(messages)
            return count

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
        with pytest.raises(txnclient.TxnConflict):
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


async def force_abort(txn: txnclient.Transaction) -> None:
    end = pb.EndTxn(
        txnid_most_bits=txn.id.most_bits,
        txnid_least_bits=txn.id.least_bits,
        action=pb.TXN_ACTION_ABORT,
        forced=True,
    )
    await txn.link.call(pb.Command(end_txn=end), timeout_s=10)


# ---- dead letters ---------------------------------------------------------------------------------------------------


async def drain_nacking(consumer: txnclient.Consumer, poison: bytes, until: int) -> Counter[bytes]:
    """Nack the poisonous, ack the rest; how often each was seen, until `until` are done."""
    seen: Counter[bytes] = Counter()
    done = 0
    async with asyncio.timeout(20):
        while done < until:
            for message in await consumer.receive_many(10, timeout=0.5):
                seen[message.value] += 1
                if message.value == poison:
                    await consumer.nack(message)
                else:
                    await consumer.ack(message)
                    done += 1
    return seen


async def dead_letters(client: txnclient.Client, topic: str, count: int) -> list[txnclient.Message]:
    async with asyncio.timeout(20):
        while topic not in await client.list_topics():
            await asyncio.sleep(0.01)
    async with await client.reader(topic) as reader:
        found = [await reader.receive(timeout=10) for _ in range(count)]
        assert await reader.receive_many(1, timeout=0.2) == []
        return found


async def test_what_is_redelivered_too_often_is_moved_once_and_says_where_it_came_from(
    client: txnclient.Client,
) -> None:
    await prepared(client, 6)
    async with await client.consumer(
        TOPIC, "workers", type="queue", max_redeliveries=2, redelivery_delay=0.0
    ) as consumer:
        seen = await drain_nacking(consumer, b"3", until=5)
        while seen[b"3"] < 3:
            message = await consumer.receive(timeout=10)
            seen[message.value] += 1
            await consumer.nack(message)
        # Delivered three times, the fourth delivery finds its way without us: somebody has to receive, though.
        receiving = asyncio.create_task(consumer.receive_many(1, timeout=3))
        (dead,) = await dead_letters(client, DEAD, 1)
        assert await receiving == []
    assert seen[b"3"] == 3
    assert (dead.value, dead.key) == (b"3", b"k3")
    assert dead.properties[ORIGIN_TOPIC] == TOPIC
    assert dead.properties[ORIGIN_SUBSCRIPTION] == "workers"
    assert dead.properties[REDELIVERIES] == "3"
    assert dead.properties[ORIGIN_MESSAGE_ID].startswith("public/default/jobs/")
    assert dead.txn_id is not None
    assert len((await client.describe_topic(DEAD)).segments) == 1
    async with await client.consumer(TOPIC, "workers", type="queue") as after:
        assert await after.receive_many(1, timeout=0.3) == []


async def test_dead_letters_of_several_consumers_are_each_moved_once(client: txnclient.Client) -> None:
    """Everything is nacked by everybody, while a consumer closes in the middle."""
    values = await prepared(client, 40)
    options: dict[str, Any] = {"type": "queue", "max_redeliveries": 1, "redelivery_delay": 0.0, "prefetch": 10}
    target = "topic://public/default/dead"
    await client.create_topic(target, segments=2)

    async def refuse_all(consumer: txnclient.Consumer) -> None:
        while messages := await consumer.receive_many(5, timeout=1.5):
            await consumer.nack(messages)

    async with (
        await client.consumer(TOPIC, "workers", dead_letter_topic=target, **options) as one,
        await client.consumer(TOPIC, "workers", dead_letter_topic=target, **options) as two,
    ):
        leaver = await client.consumer(TOPIC, "workers", dead_letter_topic=target, **options)
        await leaver.receive_many(5, timeout=5)
        leaving = asyncio.create_task(leaver.close())
        await asyncio.gather(refuse_all(one), refuse_all(two), leaving)
    found = await dead_letters(client, target, 40)
    assert sorted(message.value for message in found) == sorted(values)


async def test_a7_a_large_value_is_given_back_and_moved_as_one(client: txnclient.Client) -> None:
    await client.create_topic(TOPIC)
    large = random.Random(1).randbytes(6 * 1024 * 1024)
    async with await client.producer(TOPIC) as producer, client.transaction() as txn:
        await producer.send(large, key="big", txn=txn, chunk=True)
    async with await client.consumer(
        TOPIC, "workers", type="queue", max_redeliveries=0, redelivery_delay=0.0
    ) as consumer:
        message = await consumer.receive(timeout=20)
        assert message.value == large
        await consumer.nack(message)
        receiving = asyncio.create_task(consumer.receive_many(1, timeout=5))
        (dead,) = await dead_letters(client, DEAD, 1)
        assert (dead.value, dead.key) == (large, b"big")
        assert await receiving == []


async def test_what_a_queue_s_worker_cannot_decode_ends_among_the_dead_letters_as_it_was(
    client: txnclient.Client,
) -> None:
    await client.create_topic(TOPIC)
    async with await client.producer(TOPIC, batch_bytes=1) as producer:
        await producer.send_many([(None, b"1"), (None, b"{nonsense"), (None, b"3")])
    async with await client.consumer(
        TOPIC, "workers", type="queue", serializer="json", max_redeliveries=1, redelivery_delay=0.0
    ) as consumer:
        seen: list[int] = []
        done = await txnclient.process(consumer, lambda message: seen.append(message.value), idle_timeout=1.0)
        assert (done.messages, done.nacked, sorted(seen)) == (2, 2, [1, 3])
        (dead,) = await dead_letters(client, DEAD, 1)
        assert dead.value == b"{nonsense"


class AbortedOnce:
    """A client whose first transaction an administrator aborts: as soon as it is begun, or once something was sent."""

    def __init__(self, client: txnclient.Client, *, after_send: bool) -> None:
        self._client = client
        self._after_send = after_send
        self.begun = 0
        self.create_topic = client.create_topic

    async def begin(self, *, timeout: float = 60.0) -> txnclient.Transaction:
        self.begun += 1
        txn = await self._client.begin(timeout=timeout)
        if self.begun == 1 and not self._after_send:
            await force_abort(txn)
        return txn

    async def producer(self, topic: str) -> Any:
        producer = await self._client.producer(topic)
        send = producer.send

        async def sent(value: bytes, *, txn: txnclient.Transaction, **options: Any) -> None:
            await send(value, txn=txn, **options)
            if self.begun == 1 and self._after_send:
                await force_abort(txn)

        producer.send = sent  # type: ignore[method-assign, assignment]
        return producer


@pytest.mark.parametrize("after_send", [False, True])
async def test_a_move_whose_transaction_is_aborted_leaves_no_copy_and_is_made_again(
    client: txnclient.Client, after_send: bool
) -> None:
    """▲ Dies if the copy or the ack is not in the transaction."""
    await prepared(client, 3, segments=1)
    async with await client.consumer(
        TOPIC, "workers", type="queue", max_redeliveries=0, redelivery_delay=0.0
    ) as consumer:
        assert consumer._dead_letters is not None
        services = AbortedOnce(client, after_send=after_send)
        consumer._dead_letters._policy = replace(consumer._dead_letters._policy, services=services)  # type: ignore[arg-type]
        await consumer.nack(await received(consumer, 3))
        receiving = asyncio.create_task(consumer.receive_many(1, timeout=3))
        found = await dead_letters(client, DEAD, 3)
        assert await receiving == []
        assert services.begun == 4
    assert sorted(message.value for message in found) == [b"0", b"1", b"2"]
    async with await client.consumer(TOPIC, "workers", type="queue") as after:
        assert await after.receive_many(1, timeout=0.3) == []


async def test_a_dead_letter_topic_that_cannot_be_is_told(client: txnclient.Client) -> None:
    await prepared(client, 1, segments=1)
    subscription = "x" * 128  # with the topic's it makes a name that is too long
    async with await client.consumer(
        TOPIC, subscription, type="queue", max_redeliveries=0, redelivery_delay=0.0
    ) as consumer:
        await consumer.nack(await consumer.receive(timeout=10))
        with pytest.raises(txnclient.InvalidArgument):
            await consumer.receive(timeout=10)


# ---- process --------------------------------------------------------------------------------------------------------


async def test_process_nacks_what_the_handler_refuses_and_goes_on_with_the_rest(client: txnclient.Client) -> None:
    values = await prepared(client, 20)
    target = "topic://public/default/done"
    await client.create_topic(target)

    def handler(message: txnclient.Message) -> bytes:
        if message.value in (b"3", b"11"):
            raise ZeroDivisionError(message.value)
        return message.value

    options: dict[str, Any] = {"type": "queue", "max_redeliveries": 1, "redelivery_delay": 0.0}
    async with (
        await client.consumer(TOPIC, "workers", **options) as consumer,
        await client.producer(target) as producer,
    ):
        done = await txnclient.process(consumer, handler, producer, idle_timeout=1.5)
        assert (done.messages, done.nacked) == (18, 4)
        assert sorted(message.value for message in await dead_letters(client, DEAD, 2)) == [b"11", b"3"]
    async with await client.reader(target, end="latest") as reader:
        found = sorted([message.value async for message in reader])
    assert found == sorted(value for value in values if value not in (b"3", b"11"))


async def test_process_batches_finds_out_which_message_of_a_batch_is_poisonous(client: txnclient.Client) -> None:
    values = await prepared(client, 12, segments=1)
    target = "topic://public/default/done"
    await client.create_topic(target)
    async with (
        await client.consumer(TOPIC, "workers", type="queue", redelivery_delay=60.0) as consumer,
        await client.producer(target) as producer,
    ):

        async def handler(messages: Any, txn: txnclient.Transaction) -> None:
            for message in messages:
                await producer.send(message.value, txn=txn)
                if message.value == b"7":
                    raise ZeroDivisionError

        done = await txnclient.process_batches(consumer, handler, idle_timeout=1.0)
    assert (done.messages, done.nacked) == (11, 1)
    async with await client.reader(target, end="latest") as reader:
        assert sorted([message.value async for message in reader]) == sorted(set(values) - {b"7"})


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
        with pytest.raises(txnclient.NotAllowed, match="sought"):
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
        (feed,) = consumer._feeds.values()
        largest = 0
        for number in range(60):
            message = await consumer.receive(timeout=10)
            assert message.value[:1] == bytes([number])
            largest = max(largest, feed.buffered)
    assert 1 <= largest <= 9
