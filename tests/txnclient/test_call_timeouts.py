"""`timeout=` of sends and acks: the call ends in time, and what was under way goes on as after a cancel."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

import txnclient
import txnclient.sync
from tests.cluster import InProcessCluster
from tests.segments.virtual_time import virtual_time
from tests.txnclient.scripted_server import SEGMENTS, TOPIC, connected
from tests.waiting import until

WRONG: list[Any] = [float("nan"), "1", True]


@virtual_time
async def test_a_send_that_took_too_long_may_be_stored_all_the_same() -> None:
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        producer = await client.producer(TOPIC)
        server.hold["send"] = asyncio.Event()
        with pytest.raises(txnclient.Timeout, match="not done within 2 s"):
            await producer.send(b"a", key="k", timeout=2.0)
        with pytest.raises(txnclient.Timeout, match="not done within 3 s"):
            await producer.send_many([("k", b"b")], timeout=3)
        server.hold["send"].set()
        await producer.flush(timeout=5.0)
        assert sum(len(entries) for entries in cluster.stored.values()) == 2


@virtual_time
async def test_in_a_transaction_it_can_only_abort() -> None:
    """▲ The caller may take the message for not sent and send it in another one."""
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        producer = await client.producer(TOPIC)
        server.hold["send"] = asyncio.Event()
        txn = await client.begin()
        with pytest.raises(txnclient.Timeout):
            await producer.send(b"a", txn=txn, timeout=2.0)
        server.hold["send"].set()
        with pytest.raises(txnclient.TxnError, match="a send in it"):
            await txn.commit()
        await until(lambda: list(cluster.states.values()) == ["ABORTED"])


@pytest.mark.parametrize("how", ["ack", "ack_cumulative"])
@virtual_time
async def test_an_ack_that_took_too_long_may_be_made_again(how: str) -> None:
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        consumer = await client.consumer(TOPIC, "sub")
        await until(lambda: len(server.permits) == len(SEGMENTS))
        server.deliver(SEGMENTS[0], 0, b"a")
        message = await consumer.receive()
        server.hold["ack"] = asyncio.Event()
        with pytest.raises(txnclient.Timeout, match="not done within 2 s"):
            await getattr(consumer, how)(message, timeout=2.0)
        server.hold["ack"].set()
        await getattr(consumer, how)(message, timeout=2.0)
        txn = await client.begin()
        server.hold["ack"] = asyncio.Event()
        with pytest.raises(txnclient.Timeout):
            await getattr(consumer, how)(message, txn=txn, timeout=2.0)
        server.hold["ack"].set()
        with pytest.raises(txnclient.TxnError, match="an ack in it"):
            await txn.commit()


@virtual_time
async def test_what_is_no_time_is_refused_and_nothing_is_done() -> None:
    async with connected() as (cluster, client):
        producer = await client.producer(TOPIC)
        for wrong in WRONG:
            with pytest.raises(txnclient.InvalidArgument, match="number of seconds"):
                await producer.send(b"a", timeout=wrong)
            with pytest.raises(txnclient.InvalidArgument, match="number of seconds"):
                await producer.send_many([b"a"], timeout=wrong)
        await producer.flush()
        assert not any(cluster.stored.values())
        txn = await client.begin(name="job/1")
        for wrong in (WRONG[0], WRONG[1]):
            for call in (txn.flush, txn.commit, txn.abort, txn.leave):
                with pytest.raises(txnclient.InvalidArgument, match="number of seconds"):
                    await call(timeout=wrong)
        assert txn.state == "OPEN"


@virtual_time
async def test_an_error_of_the_call_itself_comes_through() -> None:
    async with connected() as (_, client):
        producer = await client.producer(TOPIC)
        with pytest.raises(txnclient.MessageTooLarge):
            await producer.send(bytes(6 * 1024 * 1024), timeout=5.0)


@virtual_time
async def test_a_timeout_error_of_the_caller_s_own_iterator_is_not_taken_for_the_end_of_the_time() -> None:
    """▲ A socket that an iterator reads raises one, too; as `Timeout` it would ask for the same call again."""

    def messages() -> Iterator[bytes]:
        yield b"a"
        raise TimeoutError("the source did not answer")

    async with connected() as (_, client):
        producer = await client.producer(TOPIC)
        for timeout in (None, 5.0):
            with pytest.raises(TimeoutError, match="the source did not answer"):
                await producer.send_many(messages(), timeout=timeout)


async def test_without_await(cluster: InProcessCluster) -> None:
    def work() -> int:
        with txnclient.sync.connect(cluster.url) as client:
            client.create_topic(TOPIC)
            with client.producer(TOPIC) as producer, client.consumer(TOPIC, "s") as consumer:
                producer.send(b"a", timeout=10)
                producer.send_many([b"b"], timeout=10)
                producer.send_many((one for one in [b"c"]), timeout=10)
                producer.flush(timeout=10)
                got = [consumer.receive(timeout=20) for _ in range(3)]
                consumer.ack(got[:1], timeout=10)
                consumer.ack_cumulative(got[-1], timeout=10)
                lag = consumer.lag().messages
                assert lag is not None
                return lag

    assert await asyncio.to_thread(work) == 0
