"""Acks that are cancelled or refused, and consumers that are closed amid something (scenarios C1, C5)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

import txnclient
from tests.segments.virtual_time import virtual_time
from tests.txnclient.scripted_server import SEGMENTS, TOPIC, Cluster, ScriptedServer, connected
from tests.waiting import until

LEFT, RIGHT = SEGMENTS


@asynccontextmanager
async def consuming() -> AsyncIterator[tuple[Cluster, txnclient.Client, txnclient.Consumer[bytes]]]:
    """A consumer that is attached to all segments."""
    async with connected() as (cluster, client):
        server = server_of(cluster)
        consumer = await client.consumer(TOPIC, "sub")
        await until(lambda: len(server.consumers) == len(SEGMENTS))
        await asyncio.sleep(0.05)
        yield cluster, client, consumer


def server_of(cluster: Cluster) -> ScriptedServer:
    return cluster.servers["broker:1"]


@pytest.mark.parametrize("cumulative", [False, True])
@virtual_time
async def test_c1_an_ack_that_is_cancelled_leaves_its_transaction_only_able_to_abort(cumulative: bool) -> None:
    async with consuming() as (cluster, client, consumer):
        server = server_of(cluster)
        server.deliver(LEFT, 0, b"a")
        message = await consumer.receive(1.0)
        txn = await client.begin()
        server.hold["ack"] = asyncio.Event()
        acking = consumer.ack_cumulative(message, txn=txn) if cumulative else consumer.ack(message, txn=txn)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await acking
        server.hold["ack"].set()
        with pytest.raises(txnclient.InvalidTxnState, match="an ack in it was cancelled"):
            await txn.commit()
        assert cluster.states == {txn.id: "ABORTED"}


@pytest.mark.parametrize("made", ["before", "as the connection is lost", "behind"])
@virtual_time
async def test_an_ack_ends_by_its_timeout_while_nobody_owns_the_segment(made: str) -> None:
    """▲ Whenever it was made: also where nothing was unanswered when the connection was lost."""
    async with connected(timeout=5.0) as (cluster, client):
        server = server_of(cluster)
        consumer = await client.consumer(TOPIC, "sub")
        await until(lambda: len(server.consumers) == len(SEGMENTS))
        server.deliver(LEFT, 0, b"a")
        message = await consumer.receive(1.0)
        if made == "before":
            server.ignore["ack"] = 1
            acking = asyncio.ensure_future(consumer.ack(message))
            await until(lambda: server.seen["ack"])
        cluster.owners = dict.fromkeys(SEGMENTS, "")
        if made == "behind":
            cluster.announce()
        await server.cut()
        if made == "behind":
            await asyncio.sleep(1.0)
        if made != "before":
            acking = asyncio.ensure_future(consumer.ack(message))
        with pytest.raises(txnclient.Timeout, match="acking messages"):
            await asyncio.wait_for(acking, 60.0)


@virtual_time
async def test_a_loop_whose_consumer_is_closed_by_its_handler_does_not_commit_what_it_made_without_the_ack() -> None:
    async with consuming() as (cluster, client, consumer), client.producer(TOPIC) as producer:

        async def handler(message: txnclient.Message[bytes]) -> bytes:
            await consumer.close()
            return message.value

        server_of(cluster).deliver(LEFT, 0, b"a")
        with pytest.raises(txnclient.InvalidArgument, match="is closed"):
            await txnclient.process(consumer, handler, producer, max_messages=1)
        assert server_of(cluster).seen["ack"] == 0
        assert list(cluster.states.values()) == ["ABORTED"]


@virtual_time
async def test_a_closed_consumer_begins_no_transaction_for_messages_that_it_cannot_ack() -> None:
    async with consuming() as (cluster, _, consumer):
        server_of(cluster).deliver(LEFT, 0, b"a")
        message = await consumer.receive(1.0)
        await consumer.close()
        with pytest.raises(txnclient.InvalidArgument, match="is closed"):
            async with consumer.transaction(message):
                pass
        assert cluster.states == {}


async def _gone(server: ScriptedServer) -> None:
    """The client is there still, so nobody else would tell the controller and the brokers."""
    await until(lambda: not server.consumers and server.seen["leave_subscription"] == 1, within_s=5.0)


@virtual_time
async def test_c5_a_consumer_whose_closing_is_cancelled_leaves_its_subscription() -> None:
    async with consuming() as (cluster, _, consumer):
        closing = asyncio.create_task(consumer.close())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        await _gone(server_of(cluster))


@virtual_time
async def test_c5_a_consumer_whose_closing_is_cancelled_amid_a_move_to_dead_letters_gives_its_messages_back() -> None:
    async with connected() as (cluster, client):
        server = server_of(cluster)
        consumer = await client.consumer(TOPIC, "workers", type="queue", max_redeliveries=0)
        await until(lambda: len(server.consumers) == len(SEGMENTS))
        server.hold["create_topic"] = asyncio.Event()
        server.deliver(LEFT, 0, b"dead", redelivery_count=1)
        receiving = asyncio.create_task(consumer.receive())
        await until(lambda: server.seen["create_topic"])
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await consumer.close()
        await _gone(server)
        with pytest.raises(txnclient.InvalidArgument, match="is closed"):
            await receiving


@virtual_time
async def test_c5_a_transaction_that_its_block_tried_to_abort_is_aborted_once_somebody_answers() -> None:
    """▲ The block has ended as if all were well: nobody else asks, and it would hold up readers for its whole time."""
    async with consuming() as (cluster, _, consumer):
        server = server_of(cluster)
        server.deliver(LEFT, 0, b"a")
        message = await consumer.receive(1.0)
        server.ignore["end_txn"] = 1
        async with consumer.transaction(message) as txn:
            with pytest.raises(txnclient.Timeout):
                await txn.abort(timeout=1.0)
        await until(lambda: cluster.states == {txn.id: "ABORTED"}, within_s=30.0)


@virtual_time
async def test_a_stream_s_block_that_fails_starts_over_once_its_abort_is_known_and_raises_its_own_error() -> None:
    """▲ While it may be open, what it has acked does not come again, and messages behind that would be done first."""
    async with consuming() as (cluster, _, consumer):
        server = server_of(cluster)
        server.deliver(LEFT, 0, b"a")
        message = await consumer.receive(1.0)

        async def block() -> None:
            async with consumer.transaction(message, timeout=300.0):
                raise ZeroDivisionError

        server.ignore["end_txn"] = 1_000
        ending, subscribed = asyncio.create_task(block()), server.seen["subscribe"]
        await asyncio.sleep(100.0)
        assert not ending.done()
        assert server.seen["subscribe"] == subscribed
        server.ignore.clear()
        with pytest.raises(ZeroDivisionError):
            await ending
        assert list(cluster.states.values()) == ["ABORTED"]
        await until(lambda: server.seen["subscribe"] > subscribed)


@virtual_time
async def test_a_block_that_fails_raises_its_own_error_also_where_its_messages_cannot_be_given_back() -> None:
    async with connected() as (cluster, client):
        server = server_of(cluster)
        consumer = await client.consumer(TOPIC, "workers", type="queue")
        await until(lambda: len(server.permits) == len(SEGMENTS))
        server.deliver(LEFT, 0, b"a")
        message = await consumer.receive(1.0)

        async def block() -> None:
            async with consumer.transaction(message):
                server.assign(RIGHT)
                await until(lambda: consumer.segments == [RIGHT])
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await block()


@virtual_time
async def test_c5_who_is_cancelled_as_its_block_commits_is_cancelled_though_it_has_committed() -> None:
    """▲ Whoever cancels a worker waits for its end: a worker that went on would take the next messages."""
    async with consuming() as (cluster, _, consumer):
        server = server_of(cluster)
        server.deliver(LEFT, 0, b"a")
        message = await consumer.receive(1.0)

        async def work() -> None:
            async with consumer.transaction(message):
                pass

        server.ignore["end_txn"] = 1
        working = asyncio.ensure_future(work())
        await until(lambda: server.seen["end_txn"])
        (txn_id,) = cluster.states
        cluster.states[txn_id], cluster.decided_at[txn_id], cluster.writers[txn_id] = "COMMITTED", 7, None
        working.cancel()
        with pytest.raises(asyncio.CancelledError):
            await working
