"""Blocks of transactions whose client is closed in their midst, by another task or thread that ends the program."""

from __future__ import annotations

import asyncio

import pytest

import txnclient
import txnclient.sync
from tests.cluster import InProcessCluster
from tests.segments.virtual_time import virtual_time
from tests.txnclient.scripted_server import SEGMENTS, TOPIC, connected
from tests.waiting import until


@pytest.mark.parametrize("of_consumer", [False, True])
@virtual_time
async def test_the_end_of_a_block_tells_that_the_close_of_its_client_has_aborted_it(of_consumer: bool) -> None:
    """▲ Its program would go on as if everything had been committed."""
    async with connected() as (cluster, client):
        server, producer = cluster.servers["broker:1"], await client.producer(TOPIC)
        consumer = await client.consumer(TOPIC, "s")
        await until(lambda: len(server.permits) == len(SEGMENTS))
        server.deliver(SEGMENTS[0], 0, b"a")
        block = consumer.transaction(await consumer.receive()) if of_consumer else client.transaction()

        async def worker() -> None:
            async with block as txn:
                await producer.send(b"x", txn=txn)
                await asyncio.create_task(client.close())

        with pytest.raises(txnclient.InvalidTxnState, match="ABORTED, because its client was closed"):
            await worker()
        assert list(cluster.states.values()) == ["ABORTED"]


@virtual_time
async def test_a_block_that_has_ended_its_transaction_itself_is_left_in_peace() -> None:
    async with connected() as (_, client):
        async with client.transaction() as aborted:
            await aborted.abort()
            await client.close()
        assert aborted.state == "ABORTED"


@pytest.mark.parametrize("of_consumer", [False, True])
async def test_without_await_the_end_of_the_block_tells_it_too(cluster: InProcessCluster, of_consumer: bool) -> None:
    def work() -> None:
        with txnclient.sync.connect(cluster.url), txnclient.sync.connect(cluster.url) as client:
            client.create_topic(TOPIC)
            with client.producer(TOPIC) as producer, client.consumer(TOPIC, "s") as consumer:
                producer.send(b"a")
                message = consumer.receive(timeout=20)
                block = consumer.transaction(message) if of_consumer else client.transaction()
                with pytest.raises(txnclient.InvalidTxnState, match="because its client was closed"), block:
                    client.close()

    await asyncio.to_thread(work)


@pytest.mark.parametrize("failed", [False, True])
@pytest.mark.parametrize("of_consumer", [False, True])
async def test_without_await_the_end_of_the_block_tells_it_behind_the_last_client_as_well(
    cluster: InProcessCluster, of_consumer: bool, failed: bool
) -> None:
    """▲ Nobody is left to ask by then, and that hides neither this nor what the block itself has raised."""

    def ends(client: txnclient.sync.Client) -> None:
        client.close()
        assert 1 // (not failed)

    def work() -> None:
        with txnclient.sync.connect(cluster.url) as client:
            client.create_topic(TOPIC)
            with client.producer(TOPIC) as producer, client.consumer(TOPIC, "s") as consumer:
                producer.send(b"a")
                message = consumer.receive(timeout=20)
                block = consumer.transaction(message) if of_consumer else client.transaction()
                told = ZeroDivisionError if failed else txnclient.InvalidTxnState
                with pytest.raises(told, match=r"because its client was closed|by zero"), block:
                    ends(client)

    await asyncio.to_thread(work)


@virtual_time
async def test_a_block_of_messages_ends_though_nobody_answers_the_abort_of_its_closed_client() -> None:
    """▲ An hour, as long as its transaction may last: a program that ends would wait for nothing. Dies in the
    timeout."""
    async with connected() as (cluster, client):
        server, consumer = cluster.servers["broker:1"], await client.consumer(TOPIC, "s")
        await until(lambda: len(server.permits) == len(SEGMENTS))
        server.deliver(SEGMENTS[0], 0, b"a")
        message = await consumer.receive()
        server.ignore["end_txn"] = 1_000_000

        async def worker() -> None:
            async with consumer.transaction(message, timeout=3600):
                await asyncio.create_task(client.close())

        async with asyncio.timeout(60.0):
            with pytest.raises(txnclient.InvalidTxnState, match="because its client was closed"):
                await worker()
        await asyncio.sleep(0)
