"""What an application gives by mistake is refused at once, in words that name it; and what things are called."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import pytest

import txnclient
import txnclient.sync
from tests.cluster import InProcessCluster
from tests.segments.virtual_time import virtual_time
from tests.txnclient.scripted_server import SEGMENTS, TOPIC, connected
from tests.waiting import until
from txnwire.ids import EARLIEST, HASH_SPACE

Call = Callable[[txnclient.Client, Any, Any, Any], Awaitable[object]]

WRONG: dict[str, Call] = {
    "max_messages is a positive number, not 0": lambda client, producer, consumer, txn: consumer.receive_many(0),
    "max_messages is a positive number, not -1": lambda client, producer, consumer, txn: consumer.receive_many(-1),
    "max_messages is a positive number, not '9'": lambda client, producer, consumer, txn: consumer.receive_many("9"),
    "a timeout is a number of seconds, not '2'": lambda client, producer, consumer, txn: consumer.receive(timeout="2"),
    "a timeout is a number of seconds, not nan": lambda client, producer, consumer, txn: producer.flush(
        timeout=float("nan")
    ),
    "prefetch is a whole number of messages, 1 or more, not 1000.0": lambda client, producer, consumer, txn: (
        client.consumer(TOPIC, "sub", prefetch=1e3)  # type: ignore[call-overload]
    ),
    "prefetch_bytes is a whole number of bytes, 1 or more, not None": lambda client, producer, consumer, txn: (
        client.reader(TOPIC, prefetch_bytes=None)  # type: ignore[call-overload]
    ),
    "prefetch_bytes is a whole number of bytes, 1 or more, not 4000000.0": lambda client, producer, consumer, txn: (
        anext(client.read_entries(SEGMENTS[0], after=EARLIEST, end=EARLIEST, prefetch_bytes=4e6))  # type: ignore[arg-type]
    ),
    "page_entries is a whole number of entries, 1 or more, not 1.5": lambda client, producer, consumer, txn: anext(
        client.scan_entries(
            SEGMENTS[0],
            after=EARLIEST,
            end=EARLIEST,
            page_entries=1.5,  # type: ignore[arg-type]
        )
    ),
    "max_redeliveries is a whole number of redeliveries, 0 or more, not '3'": (
        lambda client, producer, consumer, txn: client.consumer(
            TOPIC,
            "sub",
            type="queue",
            max_redeliveries="3",  # type: ignore[call-overload]
        )
    ),
    "start 18446744073709551616: expected": lambda client, producer, consumer, txn: client.reader(TOPIC, start=2**64),
    "txn is a transaction, as begin.. gives it, not str": lambda client, producer, consumer, txn: producer.send(
        b"x", txn="0003-0000000000000001"
    ),
    "txn is a transaction, as begin.. gives it, not TxnId": lambda client, producer, consumer, txn: consumer.ack(
        [], txn=txn.id
    ),
    "several, not MessageId": lambda client, producer, consumer, txn: consumer.ack(
        txnclient.MessageId.parse("public/default/t/0000-ffff-0@1:0:0")
    ),
    "several, not str": lambda client, producer, consumer, txn: consumer.ack(["public/default/t/0000-ffff-0@1:0:0"]),
    "several, not NoneType": lambda client, producer, consumer, txn: consumer.ack_cumulative(None),
    "several, not int": lambda client, producer, consumer, txn: consumer.ack(5),
    "event_time_ms is a whole number, of ms since 1970, not datetime": lambda client, producer, consumer, txn: (
        producer.send(b"x", event_time_ms=datetime.now(UTC))
    ),
    "event_time_ms is a whole number, of ms since 1970, not float": lambda client, producer, consumer, txn: (
        producer.send_many([txnclient.OutgoingMessage(b"x", None, None, 0.5)])
    ),
    "a transaction's timeout is a positive number of seconds, not '5'": lambda client, producer, consumer, txn: (
        client.begin(timeout="5")  # type: ignore[arg-type]
    ),
    "a transaction's timeout is a positive number of seconds, not inf": lambda client, producer, consumer, txn: (
        client.begin(timeout=float("inf"))
    ),
    "a transaction's timeout is a positive number of seconds, not nan": lambda client, producer, consumer, txn: (
        client.begin(name="job/2", timeout=float("nan"))
    ),
    "a transaction name is text, not int": lambda client, producer, consumer, txn: client.begin(name=5),  # type: ignore[arg-type]
    "writer_id is a positive 64-bit number, not '7'": lambda client, producer, consumer, txn: client.begin(
        name="job/3",
        writer_id="7",  # type: ignore[arg-type]
    ),
    "'x' is no writer id": lambda client, producer, consumer, txn: txn.commit(writers=["x"]),
    "writers is a list of writer ids, not 5": lambda client, producer, consumer, txn: txn.commit(writers=5),
    r"\[1\] is no writer id": lambda client, producer, consumer, txn: txn.commit(writers=[[1]]),
    "linger_ms is a number, not '5'": lambda client, producer, consumer, txn: client.producer(
        TOPIC,
        linger_ms="5",  # type: ignore[call-overload]
    ),
    "batch_bytes is a number, not '5'": lambda client, producer, consumer, txn: client.producer(
        TOPIC,
        batch_bytes="5",  # type: ignore[call-overload]
    ),
    "buffer_bytes is a number, not None": lambda client, producer, consumer, txn: client.producer(
        TOPIC,
        buffer_bytes=None,  # type: ignore[call-overload]
    ),
    "batch_bytes and buffer_bytes must be positive": lambda client, producer, consumer, txn: client.producer(
        TOPIC,
        buffer_bytes=float("nan"),  # type: ignore[call-overload]
    ),
    "batch_bytes and buffer_bytes must be": lambda client, producer, consumer, txn: client.producer(
        TOPIC,
        batch_bytes=float("nan"),  # type: ignore[call-overload]
    ),
    "compression_level '3': expected 1 to": lambda client, producer, consumer, txn: client.producer(
        TOPIC,
        compression_level="3",  # type: ignore[call-overload]
    ),
    "1099511627776 segments: a topic can be divided into 65536": lambda client, producer, consumer, txn: (
        client.create_topic(TOPIC, segments=2**40)
    ),
    "a topic has at least one segment, not 'x'": lambda client, producer, consumer, txn: client.create_topic(
        TOPIC,
        segments="x",  # type: ignore[arg-type]
    ),
}


@virtual_time
async def test_wrong_arguments_are_refused_in_words_that_name_them() -> None:
    async with connected() as (_, client):
        producer, consumer = await client.producer(TOPIC), await client.consumer(TOPIC, "sub")
        txn = await client.begin(name="job/1")
        for said, call in WRONG.items():
            with pytest.raises(txnclient.InvalidArgument, match=said):
                await call(client, producer, consumer, txn)


@pytest.mark.parametrize("delay", [float("inf"), float("nan"), -1.0, 31 * 24 * 3600.0, "1"])
@virtual_time
async def test_a_delay_that_no_broker_takes_is_refused_before_anything_is_given_back(delay: Any) -> None:
    """Dies where the message is nobody's any more."""
    async with connected() as (cluster, client):
        server, consumer = cluster.servers["broker:1"], await client.consumer(TOPIC, "sub", type="queue")
        await until(lambda: server.consumers and server.permits)
        server.deliver(consumer.segments[0], 0, b"a")
        message = await consumer.receive()
        with pytest.raises(txnclient.InvalidArgument, match="a delay is a number of seconds, 0 to 2592000, not"):
            await consumer.nack(message, delay=delay)
        async with client.transaction() as txn:
            await consumer.ack(message, txn=txn)  # it is held still
        with pytest.raises(txnclient.InvalidArgument, match="redelivery_delay is a number of seconds"):
            await client.consumer(TOPIC, "sub", type="queue", redelivery_delay=delay)


@virtual_time
async def test_a_reader_asked_for_no_messages_refuses_too() -> None:
    async with connected() as (_, client), await client.reader(TOPIC) as reader:
        with pytest.raises(txnclient.InvalidArgument, match="max_messages is a positive number, not 0"):
            await reader.receive_many(0)


@virtual_time
async def test_what_a_caller_s_own_iterable_raises_is_not_hidden() -> None:
    async with connected() as (cluster, client):
        server, consumer = cluster.servers["broker:1"], await client.consumer(TOPIC, "sub")
        await until(lambda: server.consumers and server.permits)
        server.deliver(consumer.segments[0], 0, b"a")
        message = await consumer.receive()

        def messages() -> Any:
            yield message
            raise AttributeError("a slip in it")

        with pytest.raises(AttributeError, match="a slip in it"):
            await consumer.ack(messages())


@virtual_time
async def test_what_is_open_says_what_it_is() -> None:
    async with connected() as (_, client):
        producer = await client.producer(TOPIC, name="p1")
        consumer = await client.consumer(TOPIC, "sub", name="c1", type="queue")
        reader = await client.reader(TOPIC)
        assert repr(client) == "Client(txn://broker:1)"
        assert repr(producer) == f"Producer({TOPIC}, p1)"
        assert repr(consumer) == f"Consumer(sub: queue of {TOPIC}, c1)"
        assert repr(reader) == f"Reader({TOPIC})"
        await client.close()
        assert all(repr(one).endswith(", closed)") for one in (client, producer, consumer, reader))


@pytest.mark.parametrize(("name", "said"), [("\udcff", "is not valid Unicode"), (None, "a client name is text")])
def test_a_client_name_that_cannot_be_sent_is_refused_before_connecting(name: Any, said: str) -> None:
    with pytest.raises(txnclient.InvalidArgument, match=said):
        txnclient.connect("txn://broker:1", client_name=name)


def test_a_timeout_that_is_none_is_refused_before_connecting() -> None:
    with pytest.raises(txnclient.InvalidArgument, match="timeout is a positive number of seconds, not '3'"):
        txnclient.connect("txn://broker:1", timeout="3")  # type: ignore[arg-type]


async def test_without_await_a_wrong_transaction_is_refused_in_the_same_words(cluster: InProcessCluster) -> None:
    def script() -> None:
        with txnclient.sync.connect(cluster.url) as client:
            client.create_topic(TOPIC)
            with client.producer(TOPIC) as producer, pytest.raises(txnclient.InvalidArgument, match="not str"):
                producer.send(b"x", txn="0003-0000000000000001")  # type: ignore[arg-type]

    await asyncio.to_thread(script)


@virtual_time
async def test_a_topic_may_have_as_many_segments_as_there_are_hashes() -> None:
    async with connected() as (cluster, client):
        await client.create_topic(TOPIC, segments=HASH_SPACE)
        requests = [command for command in cluster.servers["broker:1"].commands if command.HasField("create_topic")]
        assert [command.create_topic.segments for command in requests] == [HASH_SPACE]
        with pytest.raises(txnclient.InvalidArgument, match=f"divided into {HASH_SPACE} at most"):
            await client.create_topic(TOPIC, segments=HASH_SPACE + 1)
