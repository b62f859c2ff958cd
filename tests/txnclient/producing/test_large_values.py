"""A7 over a real cluster: values in pieces appear whole or not at all, whoever reads them and however."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from random import Random

import pytest

import txnclient
from tests.cluster import InProcessCluster
from tests.txnclient.test_with_cluster import new_topic, read_all, receive
from txnclient.producing.large_values import PIECE_BYTES
from txnwire.protocol import MAX_CHUNKED_BYTES, MAX_VALUE_BYTES

LARGE = Random(7).randbytes(MAX_VALUE_BYTES + PIECE_BYTES // 2)


def brief(data: bytes) -> str:
    """For comparisons whose failure can be read."""
    return data.decode() if len(data) < 100 else f"{len(data)} bytes, {hashlib.sha256(data).hexdigest()[:8]}"


def briefs(messages: Iterable[txnclient.Message]) -> list[str]:
    return [brief(message.data) for message in messages]


@asynccontextmanager
async def subscribed(
    client: txnclient.Client, topic: str, kind: str = "stream", **options: object
) -> AsyncIterator[txnclient.Consumer]:
    async with await client.consumer(topic, "s", type=kind, **options) as consumer:  # type: ignore[call-overload]
        yield consumer


async def send_large(client: txnclient.Client, topic: str, value: bytes = LARGE, key: str | None = None) -> None:
    async with client.producer(topic, compression=None) as producer, client.transaction() as txn:
        await producer.send(value, key=key, properties={"a": "b"}, event_time_ms=5, chunk=True, txn=txn)


async def test_a7_a_large_value_appears_whole_with_its_transaction_or_not_at_all(client: txnclient.Client) -> None:
    topic = await new_topic(client)
    producer = await client.producer(topic)
    aborted = await client.begin()
    await producer.send(LARGE, chunk=True, txn=aborted)
    await aborted.abort()
    txn = await client.begin()
    sent = await producer.send(LARGE, key="k", properties={"a": "b"}, event_time_ms=5, chunk=True, txn=txn)
    await producer.send(b"with it", txn=txn)
    assert await read_all(client, topic) == []
    await txn.commit()
    await producer.send(b"behind")
    messages = await read_all(client, topic)
    assert briefs(messages) == [brief(LARGE), "with it", "behind"]
    assert messages[0].id == sent
    assert (messages[0].key, messages[0].properties, messages[0].event_time_ms) == (b"k", {"a": "b"}, 5)
    assert messages[0].txn_id == txn.id
    async with client.reader(topic, start=sent, end="latest") as reader:
        assert briefs([await reader.receive()]) == [brief(LARGE)], "its id is a place to start at"


async def test_what_is_too_large_says_what_to_do(client: txnclient.Client) -> None:
    producer = await client.producer(await new_topic(client))
    with pytest.raises(txnclient.MessageTooLarge, match="chunk=True"):
        await producer.send(LARGE)
    with pytest.raises(txnclient.MessageTooLarge, match="needs a transaction"):
        await producer.send(LARGE, chunk=True)
    async with client.transaction() as txn:
        with pytest.raises(txnclient.MessageTooLarge, match=str(MAX_CHUNKED_BYTES)):
            await producer.send(bytes(MAX_CHUNKED_BYTES + 1), chunk=True, txn=txn)
        await producer.send(b"small", chunk=True, txn=txn)
    await producer.send(b"small", chunk=True)


async def test_a7_a_view_of_items_wider_than_a_byte_is_sent_in_pieces_by_its_bytes(client: txnclient.Client) -> None:
    """▲ Measured by its items it went the way of small values, where "send it with chunk=True" refused it."""
    topic = await new_topic(client)
    async with client.producer(topic) as producer, client.transaction() as txn:
        await producer.send(memoryview(LARGE).cast("I"), chunk=True, txn=txn)  # type: ignore[arg-type]
        with pytest.raises(txnclient.InvalidArgument, match="bytes, not int"):
            await producer.send(5, chunk=True, txn=txn)  # type: ignore[arg-type]
    assert briefs(await read_all(client, topic)) == [brief(LARGE)]


async def test_c9_properties_that_leave_no_room_for_a_piece_are_refused_before_any_is_sent(
    client: txnclient.Client,
) -> None:
    """▲ Its first piece would be refused by itself, and leave the transaction able to abort only."""
    properties = {"large": Random(7).randbytes(MAX_VALUE_BYTES // 2 - PIECE_BYTES // 4).hex()}
    async with client.producer(await new_topic(client)) as producer, client.transaction() as txn:
        with pytest.raises(txnclient.MessageTooLarge, match="with its key and properties"):
            await producer.send(LARGE, properties=properties, chunk=True, txn=txn)
    assert txn.state == "COMMITTED"


async def test_a7_a_send_given_up_halfway_can_only_be_aborted(client: txnclient.Client) -> None:
    topic = await new_topic(client)
    producer = await client.producer(topic, buffer_bytes=PIECE_BYTES)
    txn = await client.begin()
    sending = asyncio.ensure_future(producer.send(LARGE, chunk=True, txn=txn))
    await asyncio.sleep(0)
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    with pytest.raises(txnclient.InvalidTxnState, match="large value in it was cancelled"):
        await txn.commit()
    assert await read_all(client, topic) == []


@pytest.mark.parametrize("kind", ["stream", "queue"])
async def test_a7_an_ack_of_a_large_value_acks_all_of_it(client: txnclient.Client, kind: str) -> None:
    topic = await new_topic(client)
    await send_large(client, topic)
    await send_large(client, topic, LARGE[::-1])
    async with subscribed(client, topic, kind, prefetch=2) as consumer:
        first, second = await receive(consumer, 2)
        assert briefs([first, second]) == [brief(LARGE), brief(LARGE[::-1])]
        await consumer.ack(first)
    async with subscribed(client, topic, kind) as consumer:
        [again] = await receive(consumer, 1)
        assert brief(again.data) == brief(LARGE[::-1])
        async with client.transaction() as txn:
            await consumer.ack(again, txn=txn)
    await send_large(client, topic, b"next")
    async with subscribed(client, topic, kind) as consumer:
        [message] = await receive(consumer, 1)
        assert brief(message.data) == "next", "nothing of the others is left"


@pytest.mark.parametrize("kind", ["stream", "queue"])
async def test_a7_after_an_abort_it_comes_again_whole(client: txnclient.Client, kind: str) -> None:
    topic = await new_topic(client)
    await send_large(client, topic)
    async with subscribed(client, topic, kind) as consumer:
        txn = await client.begin()
        [message] = await receive(consumer, 1)
        await consumer.ack(message, txn=txn)
        await txn.abort()
        [again] = await receive(consumer, 1)
        assert brief(again.data) == brief(LARGE)
        assert again.id == message.id
        async with client.transaction() as txn:
            await consumer.ack(again, txn=txn)


async def test_a7_in_a_queue_all_pieces_of_a_value_go_to_one_consumer(client: txnclient.Client) -> None:
    topic = await new_topic(client)
    values = [Random(seed).randbytes(MAX_VALUE_BYTES + 1) for seed in range(3)]
    async with subscribed(client, topic, "queue", prefetch=3) as a, subscribed(client, topic, "queue", prefetch=3) as b:
        await asyncio.gather(*(send_large(client, topic, value) for value in values))
        found: list[str] = []
        async with asyncio.timeout(30):
            while len(found) < 3:
                for consumer in (a, b):
                    for message in await consumer.receive_many(10, timeout=0.05):
                        found.append(brief(message.data))
                        await consumer.ack(message)
    assert sorted(found) == sorted(map(brief, values))


async def test_a7_a_nack_gives_all_of_it_back_to_whoever_takes_it(client: txnclient.Client) -> None:
    topic = await new_topic(client)
    await send_large(client, topic)
    async with subscribed(client, topic, "queue", redelivery_delay=0.01) as consumer:
        [message] = await receive(consumer, 1)
        await consumer.nack(message)
        [again] = await receive(consumer, 1)
        assert (brief(again.data), again.redelivery_count) == (brief(LARGE), 1)
    async with subscribed(client, topic, "queue") as other:
        [third] = await receive(other, 1)
        assert brief(third.data) == brief(LARGE)
        await other.ack(third)


async def test_a7_values_between_each_other_s_pieces_and_a_cumulative_ack(client: txnclient.Client) -> None:
    topic = await new_topic(client)
    values = [Random(seed).randbytes(MAX_VALUE_BYTES + 1) for seed in range(3)]
    producers = [await client.producer(topic, buffer_bytes=PIECE_BYTES, compression=None) for _ in values]
    txn = await client.begin()
    sends = [producer.send(value, chunk=True, txn=txn) for producer, value in zip(producers, values, strict=True)]
    ids = await asyncio.gather(*sends)
    await txn.commit()
    async with subscribed(client, topic) as consumer:
        messages = await receive(consumer, 3)
        assert dict(zip(ids, map(brief, values), strict=True)) == {one.id: brief(one.data) for one in messages}
        await consumer.ack_cumulative(messages[1])
    async with subscribed(client, topic) as consumer:
        [left] = await receive(consumer, 1)
        assert brief(left.data) == brief(messages[2].data), "the third, whole, although its pieces lay between theirs"
        await consumer.ack_cumulative(left)


async def test_a7_it_survives_the_broker_that_served_half_of_it(cluster: InProcessCluster) -> None:
    async with cluster.connect() as client:
        topic = await new_topic(client)
        await send_large(client, topic)
        async with subscribed(client, topic) as consumer, client.reader(topic) as reader:
            await cluster.stop_server("broker")
            await cluster.start_server("broker", "broker")
            [message] = await receive(consumer, 1)
            assert brief(message.data) == brief(LARGE)
            assert briefs([await reader.receive(timeout=30)]) == [brief(LARGE)]


async def test_pieces_of_one_that_was_aborted_are_passed_over_by_who_reads_uncommitted(
    client: txnclient.Client,
) -> None:
    topic = await new_topic(client)
    producer = await client.producer(topic, buffer_bytes=PIECE_BYTES)
    txn = await client.begin()
    sending = asyncio.ensure_future(producer.send(LARGE, chunk=True, txn=txn))
    await asyncio.sleep(0)
    sending.cancel()
    await asyncio.wait([sending])
    await producer.flush()
    assert producer.last_sequence_id >= 0, "something of it is stored"
    await txn.abort()
    async with client.transaction() as txn:
        await producer.send(LARGE[::-1], chunk=True, txn=txn)
    async with subscribed(client, topic, isolation="read_uncommitted") as consumer:
        [message] = await receive(consumer, 1)
        assert brief(message.data) == brief(LARGE[::-1])
        await consumer.ack(message)
    await producer.send(b"next")
    async with subscribed(client, topic, isolation="read_uncommitted") as consumer:
        [message] = await receive(consumer, 1)
        assert brief(message.data) == "next"


async def test_a7_one_producer_sends_large_values_one_after_the_other(client: txnclient.Client) -> None:
    """Between each other's pieces the first would be taken for one that was given up. Here the second comes before the
    first in waiting for room, when that has sent one piece."""
    topic = await new_topic(client)
    first, second = (Random(seed).randbytes(MAX_VALUE_BYTES + 1) for seed in range(2))
    async with client.producer(topic, buffer_bytes=PIECE_BYTES + 100) as producer, client.transaction() as txn:
        small = producer.send_nowait(b"small", txn=txn)
        sending = asyncio.ensure_future(producer.send(first, chunk=True, txn=txn))
        await small
        await producer.send(second, chunk=True, txn=txn)
        await sending
    assert briefs(await read_all(client, topic)) == ["small", brief(first), brief(second)]
