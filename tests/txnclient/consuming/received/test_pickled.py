"""A message pickles: before and after its value was read, from a large value, and if its serializer has failed."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

import txnclient
from tests.cluster import InProcessCluster
from txnclient import Message, UndecodableMessage

TOPIC = "topic://public/default/pickled"


def carried(message: Message[Any]) -> Message[Any]:
    copy: Message[Any] = pickle.loads(pickle.dumps(message))
    told = (
        "data",
        "key",
        "properties",
        "event_time_ms",
        "publish_time_ms",
        "deliver_at_ms",
        "id",
        "topic",
        "segment",
        "position",
    )
    told += ("producer_name", "sequence_id", "txn_id", "redelivery_count")
    assert [getattr(copy, name) for name in told] == [getattr(message, name) for name in told]
    assert repr(copy) == repr(message)
    return copy


async def test_a_message_pickles_with_its_own_bytes(cluster: InProcessCluster, client: txnclient.Client) -> None:
    await client.create_topic(TOPIC)
    async with await client.producer(TOPIC) as producer, await client.consumer(TOPIC, "s") as consumer:
        txn = await client.begin()
        many = [txnclient.OutgoingMessage(bytes(1000), key=f"k{n}", properties={"n": str(n)}) for n in range(100)]
        await producer.send_many(many, txn=txn)
        await txn.commit()
        messages = await consumer.receive_many(100, timeout=20)
        assert len(pickle.dumps(messages[0])) < 3_000, "not the whole entry"
        unread, read = messages[0], messages[1]
        assert read.value == bytes(1000)
        for message in (unread, read):
            copy = carried(message)
            assert copy.value == message.value
            assert carried(copy).value == message.value
        await consumer.ack([pickle.loads(pickle.dumps(one)) for one in messages])
    async with await client.consumer(TOPIC, "s") as consumer:
        assert await consumer.receive_many(1, timeout=0.2) == [], "acked by copies"


async def test_a_copy_gives_back_what_the_consumer_holds_and_nothing_else(
    cluster: InProcessCluster, client: txnclient.Client
) -> None:
    """▲ Otherwise the message stays with the consumer, and nobody gets it, until that closes."""
    await client.create_topic(TOPIC)
    async with (
        await client.producer(TOPIC) as producer,
        await client.consumer(TOPIC, "q", type="queue") as consumer,
        await client.reader(TOPIC) as reader,
    ):
        await producer.send(b"job")
        message, foreign = await consumer.receive(timeout=20), await reader.receive(timeout=20)
        await consumer.nack(carried(foreign), delay=0)
        assert await consumer.receive_many(1, timeout=0.2) == [], "received by a reader"
        await consumer.nack(carried(message), delay=0)
        again = await consumer.receive(timeout=20)
        assert (again.value, again.redelivery_count) == (b"job", 1)
        await consumer.ack(again)
        await consumer.nack(carried(again), delay=0)
        assert await consumer.receive_many(1, timeout=0.2) == [], "acked"


async def test_a_large_value_pickles_before_and_after_it_was_put_together(
    cluster: InProcessCluster, client: txnclient.Client
) -> None:
    await client.create_topic(TOPIC)
    large = bytes(range(256)) * 30_000
    async with await client.producer(TOPIC) as producer, client.transaction() as txn:
        await producer.send(large, key="k", txn=txn, chunk=True)
    for read_before in (False, True):
        async with await client.reader(TOPIC, end="latest") as reader:
            message = await reader.receive(timeout=20)
            assert not read_before or message.value == large
            copy = carried(message)
            assert (copy.value, copy.key) == (large, b"k")
            assert carried(message).value == large


@pytest.mark.parametrize("read_before", [False, True])
async def test_a_decoded_value_is_carried_and_so_is_the_failure_of_a_serializer(
    cluster: InProcessCluster, client: txnclient.Client, read_before: bool
) -> None:
    """The serializer stays behind: it may be a function of one process."""
    await client.create_topic(TOPIC)
    async with await client.producer(TOPIC) as producer:
        await producer.send(b'{"a":1}')
        await producer.send(b"{")

    def decode(data: bytes) -> object:
        return txnclient_json(data)

    pair = (lambda value: value, decode)
    async with await client.reader(TOPIC, end="latest", serializer=pair) as reader:
        good, bad = await reader.receive(timeout=20), await reader.receive(timeout=20)
        if read_before:
            assert good.value == {"a": 1}
            with pytest.raises(UndecodableMessage):
                _ = bad.value
        copy = carried(good)
        assert copy.value == {"a": 1}
        assert carried(copy).value == {"a": 1}
        for failed in (carried(bad), carried(carried(bad))):
            with pytest.raises(UndecodableMessage, match="cannot be decoded") as caught:
                _ = failed.value
            assert str(caught.value).count("cannot be decoded") == 1
            assert failed.data == b"{"


def txnclient_json(data: bytes) -> object:
    import json

    return json.loads(data)
