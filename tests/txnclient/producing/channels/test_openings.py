"""How a producer opens at a segment's owner, and what becomes of openings that come to nothing."""

from __future__ import annotations

import asyncio

import pytest

import txnclient
from tests.segments.virtual_time import virtual_time
from tests.txnclient.producing.channels.rounds import LOW
from tests.txnclient.scripted_server import SEGMENTS, TOPIC, connected
from tests.waiting import until
from txnwire.ports import Connection


@virtual_time
async def test_what_is_withdrawn_while_its_owner_is_connected_to_opens_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """▲ A producer that has left the segment would never be closed there."""
    async with connected() as (cluster, client):
        await cluster.start("broker:2")
        producer, txn = await client.producer(TOPIC), await client.begin()
        cluster.move(SEGMENTS[0], "broker:2")
        await until(lambda: client._directory.segment(SEGMENTS[0]).owner == "broker:2")  # type: ignore[union-attr]
        connect, connecting = cluster.transport.connect, asyncio.Event()

        async def connect_slowly(address: str, *, timeout_s: float) -> Connection:
            connecting.set()
            await asyncio.sleep(1.0)
            return await connect(address, timeout_s=timeout_s)

        monkeypatch.setattr(cluster.transport, "connect", connect_slowly)
        sent = producer.send_nowait(b"x", key=LOW[0], txn=txn)
        await connecting.wait()
        await txn.abort()
        with pytest.raises(txnclient.InvalidTxnState):
            await sent
        await asyncio.sleep(5.0)
        assert cluster.servers["broker:2"].seen["open_producer"] == 0


@virtual_time
async def test_a_producer_with_nothing_in_doubt_goes_on_where_the_epochs_have_gone_back() -> None:
    """As they do for good in an etcd that was restored from a backup."""
    async with connected() as (cluster, client), client.producer(TOPIC) as producer:
        server = cluster.servers["broker:1"]
        server.epochs[SEGMENTS[0]] = 7
        await producer.send(b"x", key=LOW[0])
        server.epochs[SEGMENTS[0]] = 3
        await server.cut()
        await producer.send(b"y", key=LOW[0])
        assert len(cluster.stored[SEGMENTS[0]]) == 2


@virtual_time
async def test_openings_that_follow_each_other_leave_nothing_behind() -> None:
    """A producer lives for weeks, and its connections do not."""
    async with connected() as (cluster, client), client.producer(TOPIC) as producer:
        kept: list[tuple[int, int]] = []
        for _ in range(5):
            await producer.send(b"x", key=LOW[0])
            link = client._directory.home()
            assert link is not None
            kept.append((len(client._directory._listeners), len(link.producers)))
            await cluster.servers["broker:1"].cut()
            await until(lambda link=link: client._directory.home() not in (None, link))  # type: ignore[misc]
        assert kept[1:] == kept[:1] * 4


@pytest.mark.parametrize("how", ["refused", "not answered"])
@virtual_time
async def test_an_opening_that_fails_leaves_nothing_behind(how: str) -> None:
    """▲ The broker may open it yet, and would keep it for as long as the connection lives."""
    async with connected(timeout=100.0) as (cluster, client), client.producer(TOPIC) as producer:
        server = cluster.servers["broker:1"]
        if how == "refused":
            server.refuse["open_producer"] = [txnclient.NotOwner("moving") for _ in range(3)]
        else:
            server.ignore["open_producer"] = 1
        await producer.send(b"x", key=LOW[0])
        link = client._directory.home()
        assert link is not None
        assert len(link.producers) == 1
        opened = [command.open_producer.producer_id for command in server.commands if command.HasField("open_producer")]
        assert server.closed_producers == ([] if how == "refused" else opened[:-1])
