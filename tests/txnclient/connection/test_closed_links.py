"""What a client leaves at a server, and who goes on waiting, behind a connection or a client that has ended."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

import txnclient
from tests.segments.virtual_time import virtual_time
from tests.txnclient.scripted_server import SEGMENTS, TOPIC, Cluster, connected
from tests.waiting import until
from txnwire.errors import SegmentSealed, to_wire
from txnwire.proto import txn_pb2 as pb
from txnwire.transport.calls import Caller


@virtual_time
async def test_a_producer_that_nobody_has_any_more_is_closed_at_the_broker_that_tells_of_it() -> None:
    """▲ The broker keeps what it has closed until its client has heard of it."""
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        async with client.producer(TOPIC) as producer:
            await producer.send(b"x", key="k")
            (peer, _), *_ = server.producers
            error = to_wire(SegmentSealed("sealed"))
            peer.push(pb.Command(producer_closed=pb.ProducerClosed(producer_id=987_654, error=error)))
            await until(lambda: 987_654 in server.closed_producers)


@virtual_time
async def test_whoever_waits_for_a_server_is_told_at_once_that_its_client_was_closed() -> None:
    async with connected() as (cluster, client):
        cluster.coordinators = {}
        cluster.announce()
        await until(lambda: not client._directory.coordinators)
        waiting = asyncio.ensure_future(client.begin())
        await asyncio.sleep(0.5)
        closing = asyncio.ensure_future(client.close())
        async with asyncio.timeout(10.0):
            with pytest.raises(txnclient.ConnectionLost, match="closed"):
                await waiting
        await closing


@virtual_time
async def test_a_call_that_turns_to_another_server_as_its_client_closes_does_not_wait_until_its_time_is_up() -> None:
    """▲ Its client makes no connection any more, which nobody told the call."""
    async with connected(timeout=300.0) as (cluster, client):
        cluster.controller = ""
        cluster.announce()
        await until(lambda: client._directory.controller_address is None)
        creating = asyncio.ensure_future(client.create_topic(TOPIC))
        await asyncio.sleep(0.5)
        assert client._directory.cluster is not None
        client._directory.cluster.controller_address = "broker:2"  # heard of just as the close wakes the call
        await client.close()
        async with asyncio.timeout(10.0):
            with pytest.raises(txnclient.ConnectionLost, match="closed"):
                await creating


LOOK_UPS: dict[str, Callable[[txnclient.Client], Awaitable[object]]] = {
    "producer": lambda client: client.producer(TOPIC),
    "consumer": lambda client: client.consumer(TOPIC, "s"),
    "reader": lambda client: client.reader(TOPIC),
    "describe": lambda client: client.describe_topic(TOPIC),
    "seek": lambda client: client.seek_subscription(TOPIC, "s", "earliest"),
}


async def ends_with_its_client(client: txnclient.Client, call: Awaitable[object]) -> None:
    waiting = asyncio.ensure_future(call)
    await asyncio.sleep(0.5)
    assert not waiting.done()
    await client.close()
    async with asyncio.timeout(10.0):
        with pytest.raises(txnclient.ConnectionLost, match="closed"):
            await waiting


@pytest.mark.parametrize("name", LOOK_UPS)
@virtual_time
async def test_whoever_looks_up_a_topic_is_told_that_its_client_was_closed(name: str) -> None:
    async with connected(timeout=300.0) as (cluster, client):
        cluster.transport.go_mute()

        async def call() -> object:
            return await LOOK_UPS[name](client)

        await ends_with_its_client(client, call())


@virtual_time
async def test_whoever_waits_for_the_news_of_a_topic_that_was_made_again_is_told_that_its_client_was_closed() -> None:
    async with connected(timeout=300.0) as (cluster, client):
        cluster.life = 7
        cluster.announce()
        await client.describe_topic(TOPIC)
        cluster.make_again()

        async def call() -> object:
            return await client.producer(TOPIC)

        await ends_with_its_client(client, call())


@virtual_time
async def test_an_abort_does_not_wait_for_sends_whose_connection_ends_beside_it() -> None:
    """▲ They would be sent again to whoever owns the segment next, and be refused there: nobody needs that answer."""
    async with connected("broker:1", "broker:2") as (cluster, client):
        home = client._directory.home()
        assert home is not None
        (away,) = cluster.servers.keys() - {home.address}
        cluster.coordinators = {0: home.address}
        cluster.owners = dict.fromkeys(SEGMENTS, away)
        cluster.announce()
        await asyncio.sleep(0.1)
        txn, producer = await client.begin(), await client.producer(TOPIC)
        owner, coordinator = cluster.servers[away], cluster.servers[home.address]
        await producer.send(b"stored", key="k", txn=txn)
        owner.stall_sends = True
        sent = producer.send_nowait(b"on its way", key="k", txn=txn)
        await until(lambda: owner.stalled)
        coordinator.hold["end_txn"] = asyncio.Event()
        aborting = asyncio.ensure_future(txn.abort(timeout=25.0))
        await until(lambda: coordinator.seen["end_txn"])
        cluster.owners = dict.fromkeys(SEGMENTS, "")
        cluster.announce()
        owner.drop_stalled()
        await owner.cut()
        await asyncio.sleep(0.1)
        before = cluster.clock.monotonic()
        coordinator.hold["end_txn"].set()
        await aborting
        assert cluster.clock.monotonic() - before < 5.0
        with pytest.raises(txnclient.TxnError):
            await sent


@virtual_time
async def test_a_client_that_is_closed_has_ended_every_connection() -> None:
    async with connected("broker:1", "broker:2", "broker:3") as (cluster, client):
        cluster.owners = dict(zip(SEGMENTS, ("broker:2", "broker:3"), strict=True))
        cluster.announce()
        async with client.reader(TOPIC):
            await until(lambda: all(cluster.servers[one].consumers for one in ("broker:2", "broker:3")))
        await client.close()
        assert len({one.peer for one in cluster.transport.connections}) == 3
        assert all(one._closed for one in cluster.transport.connections)


@virtual_time
async def test_a_client_knows_every_server_that_the_cluster_names() -> None:
    """▲ Where those that it was given are gone, it goes on with any of the others."""
    cluster = Cluster()
    await cluster.start("broker:1", "broker:2", "broker:3")
    cluster.coordinators, cluster.controller = {0: "coordinator:1", 1: "coordinator:2"}, "controller:1"
    async with txnclient.connect("txn://broker:1", transport=cluster.transport, clock=cluster.clock) as client:
        expected = ["coordinator:1", "coordinator:2", "controller:1", "broker:1", "broker:2", "broker:3"]
        assert client._directory.addresses() == expected
    await cluster.stop()


@virtual_time
async def test_a_connection_that_ends_under_a_push_hinders_no_close(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody has told of its end yet, and what is pushed matters only as long as it lives."""
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        consumer = await client.consumer(TOPIC, "sub")
        await until(lambda: len(server.permits) == len(SEGMENTS))

        def ended(caller: Caller, command: pb.Command) -> None:
            raise txnclient.ConnectionLost("it has ended")

        with monkeypatch.context() as patched:
            patched.setattr(Caller, "push", ended)
            await consumer.close()
        assert server.seen["leave_subscription"] == 1
