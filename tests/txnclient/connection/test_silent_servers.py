"""Servers that hang: gRPC answers the pings of their connections, which live on, and nothing else is answered."""

from __future__ import annotations

import asyncio

import pytest

import txnclient
from tests.segments.virtual_time import virtual_time
from tests.txnclient.scripted_server import SEGMENTS, TOPIC, Cluster, connected
from tests.waiting import until
from txnclient.connection.moved_segments import MOVED_S
from txnwire.errors import to_wire
from txnwire.proto import txn_pb2 as pb


def hangs(cluster: Cluster, address: str) -> None:
    for connection in cluster.transport.connections:
        if connection.peer == address:
            connection.pause(True)
            connection.other.pause(True)


def home_and_another(client: txnclient.Client) -> tuple[str, str]:
    home = client._directory.home()
    assert home is not None
    (another,) = {"broker:1", "broker:2"} - {home.address}
    return home.address, another


@virtual_time
async def test_a_client_leaves_a_home_that_does_not_answer() -> None:
    """▲ It could open nothing on a topic that it does not follow yet, although all other servers are well."""
    async with connected("broker:1", "broker:2", timeout=20.0) as (cluster, client):
        home, another = home_and_another(client)
        cluster.coordinators, cluster.controller = {0: another}, another
        cluster.owners = dict.fromkeys(SEGMENTS, another)
        cluster.announce()
        await asyncio.sleep(0.1)
        hangs(cluster, home)
        async with client.producer(TOPIC) as producer:
            await producer.send(b"x")
        assert home_and_another(client) == (another, home)


@virtual_time
async def test_a_home_that_was_given_little_time_to_answer_is_not_left() -> None:
    """▲ A call with a short timeout tells nothing about a server: each would move the client to another one."""
    async with connected("broker:1", "broker:2", timeout=1.0) as (cluster, client):
        home, another = home_and_another(client)
        cluster.servers[home].ignore["watch_layout"] = 1
        with pytest.raises(txnclient.Timeout):
            await client.describe_topic(TOPIC)
        await asyncio.sleep(10.0)
        assert home_and_another(client) == (home, another)
        assert cluster.servers[another].seen["watch_cluster"] == 0


@virtual_time
async def test_a_request_that_any_server_answers_goes_to_another_one_if_the_first_does_not_answer() -> None:
    async with connected("broker:1", "broker:2") as (cluster, client):
        await client.admin("brokers.list")
        hangs(cluster, client._directory.addresses()[0])
        assert await client.admin("brokers.list") == {"v": 1}


@virtual_time
async def test_a_request_that_any_server_answers_goes_to_another_one_if_the_first_cannot_be_reached() -> None:
    """▲ A server that has just died is listed until its lease ends."""
    async with connected("broker:1", "broker:2", timeout=5.0) as (cluster, client):
        another = home_and_another(client)[1]
        cluster.coordinators = {0: another}
        cluster.announce()
        await until(lambda: client._directory.addresses()[0] == another)
        await cluster.servers[another].stop()
        assert await client.list_topics() == [TOPIC]
        assert await client.admin("brokers.list") == {"v": 1}


@virtual_time
async def test_who_is_at_an_owner_that_hangs_turns_to_the_next_one() -> None:
    """▲ Nobody would tell him: a consumer would get nothing more, and each send would end with `Timeout`."""
    async with connected("broker:1", "broker:2", timeout=20.0) as (cluster, client):
        home, another = home_and_another(client)
        cluster.owners = dict.fromkeys(SEGMENTS, another)
        cluster.announce()
        await asyncio.sleep(0.1)
        consumer, reader, producer = (
            await client.consumer(TOPIC, "s"),
            await client.reader(TOPIC),
            await client.producer(TOPIC),
        )
        await producer.send(b"opened", key="k")
        await until(lambda: len(cluster.servers[another].consumers) == 4)
        hangs(cluster, another)
        cluster.owners = dict.fromkeys(SEGMENTS, home)
        cluster.announce()
        await producer.send(b"x", key="k")
        await until(lambda: len(cluster.servers[home].consumers) == 4)
        for path in SEGMENTS:
            for consumer_id, (peer, request) in cluster.servers[home].consumers.items():
                if request.segment == path:
                    entry = cluster.servers[home].encoded(0, b"new")
                    delivered = pb.DeliveredEntry(ledger_id=1, entry_id=0, entry=entry)
                    peer.push(pb.Command(deliver=pb.Deliver(consumer_id=consumer_id, entries=[delivered])))
        assert [(await one.receive()).value for one in (consumer, reader)] == [b"new"] * 2


@virtual_time
async def test_an_owner_that_tells_itself_that_a_segment_has_moved_is_given_the_time_for_it() -> None:
    """Its answers to what is under way are still to come."""
    async with connected("broker:1", "broker:2") as (cluster, client):
        home, another = home_and_another(client)
        cluster.owners = dict.fromkeys(SEGMENTS, another)
        cluster.announce()
        await asyncio.sleep(0.1)
        await client.consumer(TOPIC, "s")
        await until(lambda: len(cluster.servers[another].consumers) == 2)
        cluster.owners = dict.fromkeys(SEGMENTS, home)
        cluster.announce()
        await asyncio.sleep(MOVED_S - 1.0)
        cluster.owners = dict.fromkeys(SEGMENTS, another)
        cluster.announce()
        await asyncio.sleep(10.0)
        assert cluster.servers[another].seen["subscribe"] == 2
        assert cluster.servers[home].seen["subscribe"] == 0
        # ▲ It came back to the owner that it had left, which has time again from its next move on.
        cluster.owners = dict.fromkeys(SEGMENTS, home)
        cluster.announce()
        await asyncio.sleep(MOVED_S - 1.0)
        assert cluster.servers[home].seen["subscribe"] == 0
        await until(lambda: cluster.servers[home].seen["subscribe"] == 2, within_s=3.0)


@virtual_time
async def test_who_has_turned_to_the_next_owner_in_time_stays_there() -> None:
    """▲ The time that the former owner had passes nevertheless: a worker that left the next one then would give back
    what it works on."""
    async with connected("broker:1", "broker:2") as (cluster, client):
        home, another = home_and_another(client)
        former, following = cluster.servers[another], cluster.servers[home]
        cluster.owners = dict.fromkeys(SEGMENTS, another)
        cluster.announce()
        await asyncio.sleep(0.1)
        await client.consumer(TOPIC, "s", type="queue")
        await until(lambda: len(former.consumers) == 2)
        cluster.owners = dict.fromkeys(SEGMENTS, home)
        cluster.announce()
        await asyncio.sleep(1.0)
        moved = to_wire(txnclient.NotOwner("the segment has moved"))
        for consumer_id, (peer, _) in former.consumers.items():
            peer.push(pb.Command(consumer_closed=pb.ConsumerClosed(consumer_id=consumer_id, error=moved)))
        await until(lambda: len(following.consumers) == 2)
        await asyncio.sleep(2 * MOVED_S)
        assert following.seen["subscribe"] == 2
        assert following.seen["close_consumer"] == 0
