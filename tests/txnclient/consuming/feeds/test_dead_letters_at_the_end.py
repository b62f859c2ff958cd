"""Dead letters that are on their way while their consumer closes."""

from __future__ import annotations

import asyncio

import pytest

import txnclient
from tests.segments.virtual_time import virtual_time
from tests.txnclient.scripted_process import ScriptedServer
from tests.txnclient.scripted_server import SEGMENTS, TOPIC, Cluster, connected
from tests.waiting import until
from txnclient.consuming.consumer import consumer_impl
from txnclient.consuming.feeds.dead_letters import DeadLetterPolicy, DeadLetters
from txnclient.producing.producer_impl import ProducerImpl
from txnwire.proto import txn_pb2 as pb


class Holder:
    """A feed that has received dead messages."""

    def __init__(self) -> None:
        self.given_back = 0

    def ack_nowait(self, *_: object) -> list[object]:
        return []

    def nack_nowait(self, *_: object) -> list[object]:
        self.given_back += 1
        return []

    def settled(self, count: int) -> None:
        pass


@virtual_time
async def test_a_move_that_does_not_end_leaves_no_producer_open_behind_its_consumer() -> None:
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        consumer = await client.consumer(TOPIC, "s", type="queue")
        await until(lambda: len(server.consumers) == 2)
        for number in range(2):
            server.deliver(SEGMENTS[0], number, b"dead", redelivery_count=1)
        messages = [await consumer.receive() for _ in range(2)]
        server.stall_sends = True
        failed: list[txnclient.TxnError] = []
        letters = DeadLetters(
            client._session,
            DeadLetterPolicy(client._moving(), 0, TOPIC),
            "s",
            redelivery_delay_s=0.0,
            on_failed=failed.append,
        )
        for message in messages:
            letters.put(Holder(), [message])  # type: ignore[arg-type]
        await until(lambda: server.stalled)
        await letters.close()
        assert not letters._tasks
        await until(lambda: server.seen["new_txn"] == server.seen["end_txn"])
        assert [one for one in client._opened if isinstance(one, ProducerImpl)] == []
        assert failed == []


async def moving(
    cluster: Cluster, client: txnclient.Client, *, messages: int = 1, ack_timeout: float | None = None
) -> tuple[ScriptedServer, txnclient.Consumer[bytes]]:
    """A consumer amid the move of dead messages, whose topic is not made yet."""
    server = cluster.servers["broker:1"]
    consumer = await client.consumer(
        TOPIC, "s", type="queue", max_redeliveries=0, dead_letter_topic=TOPIC + "-x", ack_timeout=ack_timeout
    )
    await until(lambda: len(server.consumers) == 2)
    server.deliver(SEGMENTS[0], 0, *[b"dead"] * messages, redelivery_count=1)
    server.hold["create_topic"] = asyncio.Event()
    assert await consumer.receive_many(messages, timeout=0.1) == []
    await until(lambda: server.seen["create_topic"])
    return server, consumer


@virtual_time
async def test_no_message_of_a_move_that_takes_long_is_given_back_meanwhile() -> None:
    """▲ Given back it would come again, and the move could not ack it."""
    async with connected() as (cluster, client):
        server, _ = await moving(cluster, client, messages=3, ack_timeout=2.0)
        await asyncio.sleep(6.0)
        assert server.seen["nack"] == 0
        server.hold.clear()


@virtual_time
async def test_a_client_that_closes_meanwhile_lets_a_consumer_leave_in_order() -> None:
    """▲ Cut off, all that waited in its buffer would count as redelivered, and nobody has looked at it."""
    async with connected() as (cluster, client):
        server, consumer = await moving(cluster, client)
        closing = [asyncio.ensure_future(consumer.close()) for _ in range(2)]
        await asyncio.sleep(0.1)
        assert not any(one.done() for one in closing)
        await client.close()
        assert server.seen["close_consumer"] == 2
        assert server.seen["leave_subscription"] == 1
        await asyncio.gather(*closing)


@virtual_time
async def test_a_consumer_that_closes_behind_a_move_hands_out_nothing_more() -> None:
    """▲ Its application could not ack it: a loop that should end would fail, and the message count as redelivered."""
    async with connected() as (cluster, client):
        server, consumer = await moving(cluster, client)
        closing = asyncio.ensure_future(consumer.close())
        await asyncio.sleep(0.1)
        server.deliver(SEGMENTS[0], 1, b"late")
        await until(lambda: any(feed.buffered for feed in consumer_impl(consumer)._feeds.values()))
        assert [message.value async for message in consumer] == []
        with pytest.raises(txnclient.InvalidArgument, match="closed"):
            await consumer.receive()
        await closing


async def one_dead(
    cluster: Cluster, client: txnclient.Client
) -> tuple[ScriptedServer, txnclient.Message, DeadLetters, list[txnclient.TxnError]]:
    """Its server, the message, what moves it, and the errors that fail its consumer."""
    server, failed = cluster.servers["broker:1"], list[txnclient.TxnError]()
    consumer = await client.consumer(TOPIC, "s", type="queue")
    await until(lambda: len(server.consumers) == 2)
    server.deliver(SEGMENTS[0], 0, b"dead", redelivery_count=1)
    policy = DeadLetterPolicy(client._moving(), 0, TOPIC)
    letters = DeadLetters(client._session, policy, "s", redelivery_delay_s=0.0, on_failed=failed.append)
    return server, await consumer.receive(), letters, failed


@virtual_time
async def test_a_copy_of_which_nobody_knows_fails_its_move_alone() -> None:
    """Its transaction is aborted, so the message is moved behind its next redelivery; ▲ the worker goes on."""
    async with connected() as (cluster, client):
        server, message, letters, failed = await one_dead(cluster, client)
        holder = Holder()
        server.refuse["send"] = [txnclient.OutcomeUnknown("its segment is no segment of its topic any more")]
        letters.put(holder, [message])  # type: ignore[arg-type]
        await until(lambda: holder.given_back)
        letters.put(holder, [message])  # type: ignore[arg-type]
        await until(lambda: letters.moved)
        assert (failed, sorted(cluster.states.values())) == ([], ["ABORTED", "COMMITTED"])
        await letters.close()


@virtual_time
async def test_a_move_fails_by_its_own_error_though_its_abort_fails_too() -> None:
    """▲ Which tells whether the consumer can go on."""
    async with connected() as (cluster, client):
        server, message, letters, failed = await one_dead(cluster, client)
        holder = Holder()
        server.refuse["send"] = [txnclient.DataCorrupt("its segment is damaged")]
        server.refuse["end_txn"] = [txnclient.NotAllowed("no")]
        letters.put(holder, [message])  # type: ignore[arg-type]
        await until(lambda: holder.given_back)
        assert [type(error) for error in failed] == [txnclient.DataCorrupt]
        assert "failed: no" in "".join(failed[0].__notes__)
        await letters.close()


@virtual_time
async def test_a_topic_of_dead_letters_that_another_client_makes_first_is_as_good() -> None:
    async with connected() as (cluster, client):
        server, layout = cluster.servers["broker:1"], cluster.layout
        consumer = await client.consumer(TOPIC, "s", type="queue")
        await until(lambda: len(server.consumers) == 2)
        server.deliver(SEGMENTS[0], 0, b"dead", redelivery_count=1)
        message, holder = await consumer.receive(), Holder()
        await consumer.close()
        cluster.layout = lambda topic: pb.Layout(topic=topic, exists=False, revision=cluster.revision)  # type: ignore[method-assign]
        cluster.announce()
        await asyncio.sleep(1.0)
        policy = DeadLetterPolicy(client._moving(), 0, TOPIC)
        letters = DeadLetters(client._session, policy, "s", redelivery_delay_s=0.0, on_failed=pytest.fail)  # type: ignore[arg-type]
        server.hold["create_topic"] = asyncio.Event()
        server.refuse["create_topic"] = [txnclient.TopicExists("with two segments")]
        letters.put(holder, [message])  # type: ignore[arg-type]
        await until(lambda: server.seen["create_topic"])
        cluster.layout = layout  # type: ignore[method-assign]
        cluster.announce()
        server.hold["create_topic"].set()
        await until(lambda: letters.moved or holder.given_back)
        assert (letters.moved, holder.given_back) == (1, 0)
        await letters.close()
