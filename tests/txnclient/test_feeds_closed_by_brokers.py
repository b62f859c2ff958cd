"""Feeds that a broker takes in and closes again, against a scripted broker: its disk fails to read, for one."""

from __future__ import annotations

import asyncio
from typing import Literal

import pytest

import txnclient
from tests.segments.virtual_time import virtual_time
from tests.txnclient.scripted_server import SEGMENTS, TOPIC, ScriptedServer, connected
from tests.waiting import until
from txnwire.errors import to_wire
from txnwire.proto import txn_pb2 as pb

LEFT, RIGHT = SEGMENTS
UNREADABLE = txnclient.StoreUnavailable(f"reading {LEFT}/1.ledger: input/output error")
FAILING_S = 30.0

Receiving = txnclient.Consumer[bytes] | txnclient.Reader[bytes]


async def opened(client: txnclient.Client, how: str) -> Receiving:
    if how == "reader":
        return await client.reader(TOPIC)
    if how == "queue":
        return await client.consumer(TOPIC, "sub", type="queue")
    return await client.consumer(TOPIC, "sub")


async def attached(server: ScriptedServer) -> None:
    await until(lambda: len(server.consumers) == len(SEGMENTS))
    await asyncio.sleep(0.05)


@pytest.mark.parametrize("how", ["stream", "queue", "reader"])
@virtual_time
async def test_a_broker_that_closes_us_at_each_first_read_is_not_asked_in_a_tight_loop(how: str) -> None:
    """Seeds 30014 and 30089: 907 times in the seconds for which a disk failed to read."""
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        receiving = await opened(client, how)
        await attached(server)
        server.closes_at_first_read = UNREADABLE
        await server.cut()
        before = server.seen["subscribe"]
        await asyncio.sleep(FAILING_S)
        each = (server.seen["subscribe"] - before) / len(SEGMENTS)
        assert FAILING_S * 0.7 < each < FAILING_S * 2 + 10  # pauses of half a second to a whole one in the end
        server.closes_at_first_read = None
        await asyncio.sleep(1.1)
        server.deliver(LEFT, 0, b"a")
        assert (await receiving.receive(timeout=1)).value == b"a"


@pytest.mark.parametrize("how", ["stream", "queue", "reader"])
@virtual_time
async def test_after_a_while_without_a_loss_the_next_one_is_repaired_at_once(how: str) -> None:
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        await opened(client, how)
        await attached(server)
        server.closes_at_first_read = UNREADABLE
        await server.cut()
        await asyncio.sleep(FAILING_S)
        server.closes_at_first_read = None
        await asyncio.sleep(3.0)
        before = server.seen["subscribe"]
        closed = pb.ConsumerClosed(consumer_id=server.consumer_of(LEFT), error=to_wire(UNREADABLE))
        server.push_to_consumer(LEFT, pb.Command(consumer_closed=closed))
        await asyncio.sleep(0.1)
        assert server.seen["subscribe"] == before + 1


@virtual_time
async def test_who_leaves_by_itself_comes_back_at_once_however_often() -> None:
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        consumer = await client.consumer(TOPIC, "sub")
        await attached(server)
        before = server.seen["subscribe"]
        for _ in range(20):
            consumer.rewind()
            consumer.rewind()  # ▲ the second finds nothing to leave
            await asyncio.sleep(0.01)
        assert server.seen["subscribe"] == before + 20 * len(SEGMENTS)


@pytest.mark.parametrize("how", ["stream", "queue"])
@virtual_time
async def test_who_attaches_again_and_again_over_one_connection_leaves_nothing_there(
    how: Literal["stream", "queue"],
) -> None:
    """▲ A connection lives for weeks, and its end would detach what has long been attached elsewhere."""
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        consumer = await client.consumer(TOPIC, "sub", type=how)
        await attached(server)
        link = client._directory.home()
        assert link is not None
        listeners, consumers = (link._lost_listeners, client._directory._listeners), link.consumers
        before, kept = server.seen["subscribe"], [*map(len, listeners), len(consumers)]
        for _ in range(5):
            consumer.rewind()
            await asyncio.sleep(0.1)
        assert server.seen["subscribe"] == before + 5 * len(SEGMENTS)
        assert [*map(len, listeners), len(consumers)] == kept


@virtual_time
async def test_a_consumer_that_is_closed_before_its_attaching_is_answered_counts_as_lost() -> None:
    """▲ Dies if the answer attaches it all the same: its acks would go to a consumer that is none any more, and the end
    of this connection would detach it from the next one."""
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        await client.consumer(TOPIC, "sub")
        await attached(server)
        link = client._directory.home()
        assert link is not None
        listeners, before = len(link._lost_listeners), set(link.consumers)
        server.hold["subscribe"] = asyncio.Event()
        closed = pb.ConsumerClosed(consumer_id=server.consumer_of(LEFT), error=to_wire(UNREADABLE))
        server.push_to_consumer(LEFT, pb.Command(consumer_closed=closed))
        await until(lambda: bool(set(link.consumers) - before))
        (closed.consumer_id,) = set(link.consumers) - before
        server.push_to_consumer(RIGHT, pb.Command(consumer_closed=closed))
        await until(lambda: closed.consumer_id not in link.consumers)
        server.hold.pop("subscribe").set()
        await asyncio.sleep(3.0)
        assert len(link.consumers) == len(SEGMENTS)
        assert len(link._lost_listeners) == listeners
