"""Sends whose time is up while a broker does not answer (C6)."""

from __future__ import annotations

import asyncio

import pytest

import txnclient
from tests.segments.virtual_time import virtual_time
from tests.txnclient.scripted_server import SEGMENTS, TOPIC, connected
from tests.waiting import until
from txnclient.connection.links import BUSY_BYTES
from txnwire.errors import to_wire
from txnwire.proto import txn_pb2 as pb
from txnwire.protocol import MIB


@virtual_time
async def test_c6_sends_behind_a_full_window_end_though_their_broker_answers_none() -> None:
    async with connected(timeout=5.0) as (cluster, client):
        producer = await client.producer(TOPIC, compression=None)
        await producer.send(b"opened", key="k")
        cluster.servers["broker:1"].stall_sends = True
        sent = [producer.send_nowait(bytes(MIB), key="k") for _ in range(12)]
        await asyncio.wait(sent, timeout=60.0)
        assert [type(one.exception()) if one.done() else None for one in sent] == [txnclient.Timeout] * 12


@virtual_time
async def test_c6_a_bulk_send_ends_though_its_broker_answers_none() -> None:
    async with connected(timeout=5.0) as (cluster, client):
        producer = await client.producer(TOPIC, compression=None)
        await producer.send(b"opened", key="k")
        cluster.servers["broker:1"].stall_sends = True
        with pytest.raises(txnclient.Timeout):
            async with asyncio.timeout(60.0):
                await producer.send_many([("k", bytes(MIB))] * 12)


@virtual_time
async def test_what_waits_behind_a_full_window_until_its_time_is_up_is_not_sent_any_more() -> None:
    async with connected(timeout=5.0) as (cluster, client):
        server = cluster.servers["broker:1"]
        producer = await client.producer(TOPIC, compression=None)
        await producer.send(b"opened", key="k")
        server.stall_sends = True
        sent = [producer.send_nowait(bytes(MIB), key="k") for _ in range(12)]
        await asyncio.gather(*sent, return_exceptions=True)
        before = server.seen["send"]
        server.stall_sends = False
        server.finish_sends()
        await producer.send(b"later", key="k")
        assert server.seen["send"] == before + 1 < 1 + 12


@virtual_time
async def test_sends_behind_a_busy_connection_end_though_their_broker_reads_nothing() -> None:
    """▲ Most are not even written, so no answer of theirs can be late; an answer to pings keeps the connection."""
    async with connected(timeout=5.0) as (cluster, client):
        producer = await client.producer(TOPIC, compression=None)
        await producer.send(b"opened", key="k")
        for connection in cluster.transport.connections:
            connection.other.pause(True)
        sent = [producer.send_nowait(bytes(MIB), key="k") for _ in range(12)]
        await asyncio.sleep(2.0)
        sent += [producer.send_nowait(bytes(MIB), key="k") for _ in range(4)]
        await asyncio.wait(sent, timeout=10.0)
        assert [type(one.exception()) if one.done() else None for one in sent] == [txnclient.Timeout] * 16


@virtual_time
async def test_who_waits_for_a_busy_connection_waits_for_that_of_the_next_owner_once_the_segment_has_moved() -> None:
    """▲ The former owner, which reads nothing, would never tell it to go on."""
    async with connected("broker:1", "broker:2", timeout=5.0) as (cluster, client):
        former, links = cluster.servers["broker:1"], client._session.links
        producer = await client.producer(TOPIC, compression=None)
        await producer.send(b"opened", key="k")

        def reads(address: str, *, goes_on: bool) -> None:
            for connection in cluster.transport.connections:
                if connection.peer == address:
                    connection.other.pause(not goes_on)

        reads("broker:1", goes_on=False)
        sent = [producer.send_nowait(bytes(MIB), key="k") for _ in range(12)]
        cluster.owners = dict.fromkeys(SEGMENTS, "broker:2")
        cluster.announce()
        for peer, producer_id in former.producers:
            closed = pb.ProducerClosed(producer_id=producer_id, error=to_wire(txnclient.NotOwner("it has moved")))
            peer.push(pb.Command(producer_closed=closed))
        await asyncio.gather(*sent)
        reads("broker:2", goes_on=False)
        link = links.ready("broker:2")
        assert link is not None
        link.caller.push(pb.Command(admin_request=pb.AdminRequest(what="x" * (BUSY_BYTES + 1))))
        behind = producer.send_nowait(b"behind", key="k")
        await asyncio.sleep(1.0)
        reads("broker:2", goes_on=True)
        await behind


@virtual_time
async def test_what_was_not_opened_in_time_is_closed() -> None:
    """▲ Its broker may open it yet: its topic would count as in use for as long as this client lives."""
    async with connected(timeout=3.0) as (cluster, client):
        server = cluster.servers["broker:1"]
        server.ignore["open_producer"] = 1
        async with client.producer(TOPIC) as producer:
            with pytest.raises(txnclient.Timeout):
                await producer.send(b"1", key="k")
        (opened,) = [one.open_producer.producer_id for one in server.commands if one.HasField("open_producer")]
        await until(lambda: server.closed_producers == [opened])


@virtual_time
async def test_c6_a_numbered_producer_whose_name_no_segment_gives_in_time_is_told() -> None:
    async with connected(timeout=5.0) as (cluster, client):
        server = cluster.servers["broker:1"]
        server.refuse["take_name"] = [txnclient.NotOwner("not here yet") for _ in range(1000)]
        with pytest.raises(txnclient.Timeout, match=r"taking the name of producer importer: segment://.* not here yet"):
            async with asyncio.timeout(60.0):
                await client.producer(TOPIC, name="importer", sequence_id=-1)


@virtual_time
async def test_sends_behind_a_connection_that_is_busy_for_the_second_time_end_as_at_the_first() -> None:
    async with connected(timeout=5.0) as (cluster, client):
        producer = await client.producer(TOPIC, compression=None)
        await producer.send(b"opened", key="k")

        def send_many() -> list[asyncio.Future[txnclient.MessageId]]:
            for connection in cluster.transport.connections:
                connection.other.pause(True)
            return [producer.send_nowait(bytes(MIB), key="k") for _ in range(12)]

        sent = send_many()
        await asyncio.sleep(1.0)
        for connection in cluster.transport.connections:
            connection.other.pause(False)
        await asyncio.gather(*sent)
        sent = send_many()
        await asyncio.wait(sent, timeout=10.0)
        assert [type(one.exception()) if one.done() else None for one in sent] == [txnclient.Timeout] * 12
