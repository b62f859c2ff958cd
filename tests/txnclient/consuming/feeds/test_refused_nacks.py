"""Nacks that a broker refuses, or does not answer: what was named must come again all the same."""

from __future__ import annotations

import asyncio

import pytest

import txnclient
from tests.segments.virtual_time import virtual_time
from tests.txnclient.consuming.attached import LEFT, attached
from tests.txnclient.scripted_server import connected
from tests.waiting import until
from txnclient.connection.links import Link
from txnwire.proto import txn_pb2 as pb


@pytest.mark.parametrize(
    ("how", "told"),
    [
        (txnclient.Overloaded("too many"), False),
        (txnclient.NotOwner("it has moved"), False),
        (txnclient.NotAllowed("the subscription is a stream by now"), True),
        ("not answered", False),
    ],
    ids=str,
)
@virtual_time
async def test_a_consumer_whose_nack_is_not_taken_attaches_again_which_gives_all_back(
    how: txnclient.TxnError | str, told: bool
) -> None:
    """▲ Else the messages would stay with it, and nobody would work on them."""
    async with connected() as (cluster, client):
        server, consumer = await attached(cluster, client, type="queue")
        server.deliver(LEFT, 0, b"a")
        message = await consumer.receive()
        before, attached_as = server.seen["subscribe"], server.consumer_of(LEFT)
        if isinstance(how, str):
            server.ignore["nack"] = 1
        else:
            server.refuse["nack"] = [how]
        if told:
            with pytest.raises(txnclient.NotAllowed, match="by now"):
                await consumer.nack(message, delay=0)
        else:
            await consumer.nack(message, delay=0)
        await until(lambda: server.seen["subscribe"] == before + 1)
        assert server.seen["close_consumer"] == 1
        assert server.consumer_of(LEFT) != attached_as
        await asyncio.sleep(1.0)
        assert server.seen["subscribe"] == before + 1, "its other segment goes on"


@virtual_time
async def test_a_nack_whose_connection_ends_is_done() -> None:
    """The broker gives back by itself what a lost consumer held."""
    async with connected() as (cluster, client):
        server, consumer = await attached(cluster, client, type="queue")
        server.deliver(LEFT, 0, b"a")
        message = await consumer.receive()
        server.hold["nack"] = asyncio.Event()
        nacking = asyncio.create_task(consumer.nack(message, delay=0))
        await until(lambda: server.seen["nack"])
        assert not nacking.done()
        await server.cut()
        async with asyncio.timeout(1.0):
            await nacking
        server.hold["nack"].set()


@pytest.mark.parametrize(
    "how", [txnclient.ConnectionLost("it has ended"), txnclient.Overloaded("too much is under way")]
)
@virtual_time
async def test_a_nack_that_cannot_even_be_sent_is_done(
    how: txnclient.TxnError, monkeypatch: pytest.MonkeyPatch
) -> None:
    """▲ By attaching again, if the connection goes on: else nobody would work on the message."""
    async with connected() as (cluster, client):
        server, consumer = await attached(cluster, client, type="queue")
        server.deliver(LEFT, 0, b"a")
        message = await consumer.receive()
        before = server.seen["subscribe"]

        def refuse(link: Link, command: pb.Command, *, timeout_s: float) -> asyncio.Future[pb.Command]:
            raise how

        with monkeypatch.context() as patched:
            patched.setattr(Link, "call_nowait", refuse)
            await consumer.nack(message, delay=0)
        lost = isinstance(how, txnclient.ConnectionLost)
        await asyncio.sleep(1.0)
        assert server.seen["subscribe"] == before + (not lost)
