"""Dead letters, and the loops over a queue, against a whole cluster in this process."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

import txnclient
from tests.processes import read_all
from tests.txnclient.queueing import TOPIC, force_abort, prepared, received
from tests.waiting import until, until_answer
from txnclient.connection.deadlines import Deadline
from txnclient.connection.opening import Opening
from txnclient.connection.topic_layout import TopicLayout
from txnclient.consuming.consumer import consumer_impl
from txnclient.consuming.feeds.dead_letters import (
    ORIGIN_MESSAGE_ID,
    ORIGIN_SUBSCRIPTION,
    ORIGIN_TOPIC,
    REDELIVERIES,
    DeadLetterPolicy,
    DeadLetters,
)
from txnclient.producing.outgoing import MAX_MESSAGE_BYTES, MESSAGE_OVERHEAD_BYTES, PROPERTY_OVERHEAD_BYTES
from txnclient.transactions.transaction_impl import TransactionImpl

DEAD = "topic://public/default/jobs-workers-DLQ"


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


@asynccontextmanager
async def receiving(consumer: txnclient.Consumer) -> AsyncIterator[None]:
    """Somebody waits for a next message all the while, which brings dead letters on their way; none comes."""
    waiting = asyncio.create_task(consumer.receive_many(1, timeout=60))
    yield
    assert not waiting.done()
    waiting.cancel()
    await asyncio.wait([waiting])


async def dead_letters(client: txnclient.Client, topic: str, count: int) -> list[txnclient.Message]:
    await until_answer(client.list_topics, lambda found: topic in found, f"{topic}", within_s=20)
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
        async with receiving(consumer):
            (dead,) = await dead_letters(client, DEAD, 1)
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
        while True:
            await consumer.nack(await consumer.receive_many(5, timeout=60))

    async with (
        await client.consumer(TOPIC, "workers", dead_letter_topic=target, **options) as one,
        await client.consumer(TOPIC, "workers", dead_letter_topic=target, **options) as two,
    ):
        leaver = await client.consumer(TOPIC, "workers", dead_letter_topic=target, **options)
        await leaver.receive_many(5, timeout=5)
        leaving = asyncio.create_task(leaver.close())
        refusing = asyncio.gather(refuse_all(one), refuse_all(two))
        await leaving
        found = await dead_letters(client, target, 40)
        assert not refusing.done()
        refusing.cancel()
        await asyncio.wait([refusing])
    assert sorted(message.value for message in found) == sorted(values)


class CountingHolder:
    """A feed, as the dead letters know it: counts what comes back of its permits."""

    def __init__(self, consumer: txnclient.Consumer) -> None:
        self._consumer = consumer
        self.free = 0

    def ack_nowait(
        self, messages: Sequence[txnclient.Message], txn: TransactionImpl, deadline: Deadline
    ) -> list[asyncio.Future[None]]:
        return consumer_impl(self._consumer).ack_nowait(messages, txn=txn)

    def nack_nowait(self, messages: Sequence[txnclient.Message], delay_s: float) -> list[asyncio.Future[None]]:
        return []

    def settled(self, count: int) -> None:
        self.free += count


class NoTransactions:
    """The client's calls while no coordinator takes in a transaction."""

    transaction_key = None

    def __init__(self, client: txnclient.Client) -> None:
        self._services = client._moving()
        self.producers = 0

    async def create_topic(self, topic: str, *, segments: int = 1) -> TopicLayout:
        return await self._services.create_topic(topic, segments=segments)

    def producer(self, topic: str) -> Opening[txnclient.Producer[bytes]]:
        self.producers += 1
        return self._services.producer(topic)

    async def begin(self, *, timeout: float = 60.0) -> txnclient.Transaction:
        raise txnclient.Overloaded("too many transactions")


async def test_all_permits_of_a_dead_batch_come_back(client: txnclient.Client) -> None:
    """▲ Or some such batches would leave a worker with none, and it would receive nothing more."""
    await client.create_topic(TOPIC, segments=1)
    async with (
        await client.producer(TOPIC) as producer,
        await client.consumer(TOPIC, "workers", type="queue") as consumer,
    ):
        values = [b"%d" % number for number in range(8)]
        await producer.send_many([("k", value) for value in values])
        messages = await received(consumer, 8)
        policy = DeadLetterPolicy.of(client._moving(), 0, None)
        assert policy is not None
        letters = DeadLetters(
            client._session, policy, "workers", redelivery_delay_s=0.0, on_failed=lambda error: pytest.fail(str(error))
        )
        holder = CountingHolder(consumer)
        letters.put(holder, messages)
        await until(lambda: holder.free)
        assert (holder.free, letters.moved) == (8, 8)
        assert [message.value for message in await dead_letters(client, DEAD, 8)] == values, "all are acked"


async def test_all_permits_of_a_batch_that_could_not_be_moved_come_back(client: txnclient.Client) -> None:
    """▲ As above: the broker gives what was nacked to whoever has permits."""
    await client.create_topic(TOPIC, segments=1)
    async with (
        await client.producer(TOPIC) as producer,
        await client.consumer(TOPIC, "workers", type="queue") as consumer,
    ):
        await producer.send_many([("k", b"dead")] * 8)
        messages = await received(consumer, 8)
        failures: list[Exception] = []
        policy = DeadLetterPolicy.of(NoTransactions(client), 0, None)
        assert policy is not None
        letters = DeadLetters(client._session, policy, "workers", redelivery_delay_s=0.0, on_failed=failures.append)
        holder = CountingHolder(consumer)
        letters.put(holder, messages)
        await until(lambda: holder.free)
        assert (holder.free, letters.moved, failures) == (8, 0, [])
        await letters.close()


async def test_moves_that_are_refused_for_a_while_share_a_producer(client: txnclient.Client) -> None:
    """Dies where each refused move leaves a producer behind, which its broker remembers for an hour: a full disk
    refuses many a second."""
    await client.create_topic(TOPIC, segments=1)
    await client.create_topic(DEAD)
    async with (
        await client.producer(TOPIC) as producer,
        await client.consumer(TOPIC, "workers", type="queue") as consumer,
    ):
        await producer.send_many([("k", b"dead")] * 3)
        messages = await received(consumer, 3)
        services = NoTransactions(client)
        policy = DeadLetterPolicy.of(services, 0, None)
        assert policy is not None
        letters = DeadLetters(
            client._session, policy, "workers", redelivery_delay_s=0.0, on_failed=lambda error: pytest.fail(str(error))
        )
        holder = CountingHolder(consumer)
        for message in messages:
            letters.put(holder, [message])
        await until(lambda: holder.free == 3)
        assert services.producers == 1
        await letters.close()


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
        async with receiving(consumer):
            (dead,) = await dead_letters(client, DEAD, 1)
        assert (dead.value, dead.key) == (large, b"big")


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
        stop = asyncio.Event()
        working = asyncio.create_task(
            txnclient.process(consumer, lambda message: seen.append(message.value), stop=stop)
        )
        (dead,) = await dead_letters(client, DEAD, 1)
        await until(lambda: len(seen) == 2)
        stop.set()
        done = await working
        assert (done.messages, done.nacked, sorted(seen)) == (2, 2, [1, 3])
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
        assert consumer_impl(consumer)._dead_letters is not None
        services = AbortedOnce(client, after_send=after_send)
        consumer_impl(consumer)._dead_letters._policy = replace(
            consumer_impl(consumer)._dead_letters._policy, services=services
        )  # type: ignore[arg-type]
        await consumer.nack(await received(consumer, 3))
        async with receiving(consumer):
            found = await dead_letters(client, DEAD, 3)
        assert services.begun == 4
    assert sorted(message.value for message in found) == [b"0", b"1", b"2"]
    async with await client.consumer(TOPIC, "workers", type="queue") as after:
        assert await after.receive_many(1, timeout=0.3) == []


async def test_a_dead_letter_topic_that_cannot_be_is_refused_when_the_consumer_is_opened(
    client: txnclient.Client,
) -> None:
    """Dies where it is found by the first message that dies, and by each worker that gets it then."""
    await prepared(client, 1, segments=1)
    subscription = "x" * 128  # with the topic's it makes a name that is too long
    with pytest.raises(txnclient.InvalidArgument, match="give a dead_letter_topic"):
        await client.consumer(TOPIC, subscription, type="queue", max_redeliveries=0)
    fitting = subscription[len("jobs--DLQ") :]
    with pytest.raises(txnclient.InvalidArgument, match=f"the dead letters of {TOPIC}2"):
        await client.consumer([TOPIC, TOPIC + "2"], fitting, type="queue", max_redeliveries=0)
    with pytest.raises(txnclient.InvalidArgument, match="come back to it"):
        await client.consumer(TOPIC, "workers", type="queue", max_redeliveries=0, dead_letter_topic=TOPIC)
    async with await client.consumer(
        TOPIC, subscription, type="queue", max_redeliveries=0, redelivery_delay=0.0, dead_letter_topic=DEAD
    ) as consumer:
        await consumer.nack(await consumer.receive(timeout=10))
        async with receiving(consumer):
            await dead_letters(client, DEAD, 1)


async def test_c9_a_message_as_large_as_may_be_is_moved_without_its_origin(client: txnclient.Client) -> None:
    """Dies where the properties that tell its origin make it too large to be moved: its worker fails, and the next."""
    await client.create_topic(TOPIC)
    properties = {"p": "v" * (MAX_MESSAGE_BYTES - MESSAGE_OVERHEAD_BYTES - PROPERTY_OVERHEAD_BYTES - 1 - 5)}
    async with await client.producer(TOPIC, compression=None) as producer:
        await producer.send(b"large", properties=properties)
    async with await client.consumer(
        TOPIC, "workers", type="queue", max_redeliveries=0, redelivery_delay=0.0
    ) as consumer:
        await consumer.nack(await consumer.receive(timeout=20))
        async with receiving(consumer):
            (dead,) = await dead_letters(client, DEAD, 1)
    assert (dead.value, dead.properties) == (b"large", properties)


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
        stop = asyncio.Event()
        working = asyncio.create_task(txnclient.process(consumer, handler, producer, stop=stop))
        assert sorted(message.value for message in await dead_letters(client, DEAD, 2)) == [b"11", b"3"]
        await until_answer(
            lambda: read_all(client, target), lambda found: len(found) >= 18, "what was handled", within_s=20
        )
        stop.set()
        done = await working
        assert (done.messages, done.nacked) == (18, 4)
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

        done = await txnclient.process_batches(consumer, handler, max_messages=12)
    assert (done.messages, done.nacked) == (11, 1)
    async with await client.reader(target, end="latest") as reader:
        assert sorted([message.value async for message in reader]) == sorted(set(values) - {b"7"})


async def test_an_output_that_cannot_be_sent_is_its_message_s_failure_alone(client: txnclient.Client) -> None:
    """Dies where the whole batch is given back, and the loop ends: here three of twelve cannot be encoded or sent."""
    values = await prepared(client, 12, segments=1)
    target = "topic://public/default/done"
    await client.create_topic(target)
    bad: dict[bytes, Any] = {
        b"3": object(),
        b"5": txnclient.Output("late", event_time_ms=1 << 63),
        b"7": [txnclient.Output("ok"), txnclient.Output("bad", properties={"p": "\ud800"})],
    }
    async with (
        await client.consumer(TOPIC, "workers", type="queue", redelivery_delay=60.0) as consumer,
        await client.producer(target, serializer="json") as producer,
    ):
        done = await txnclient.process(
            consumer, lambda message: bad.get(message.value, message.value.decode()), producer, max_messages=12
        )
    assert (done.messages, done.nacked, done.again) == (9, 3, 0)
    async with await client.reader(target, end="latest", serializer="json") as reader:
        found = sorted([message.value async for message in reader])
    assert found == sorted(value.decode() for value in values if value not in bad)
