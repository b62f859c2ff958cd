"""Servers that take everything and answer nothing: each call is given up within its time (C6)."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

import txnclient
from tests.mute_endpoint import mute_endpoint
from tests.segments.virtual_time import virtual_time
from tests.txnclient.scripted_server import Cluster, connected
from tests.txnclient.test_closed_and_foreign_calls import CALLS_OF_ALL, opened
from tests.waiting import until_turn

TIMEOUT_S = 8.0
"""Of the client, in virtual time."""
GIVING_BACK_S = 2.5
"""Behind it a consumer that does not come to be has a while to say so."""

KNOWN_HERE = (
    "client.attach",
    "client.producer",
    "client.reader",
    "client.describe_topic",
    "client.read_entries",
    "client.scan_entries",
    "client.watch",
    "client.close",
    "producer.send_nowait",
    "producer.flush",
    "producer.close",
    "consumer.receive",
    "consumer.receive_many",
    "consumer.receive_batch",
    "consumer.__anext__",
    "consumer.ack_nowait",
    "consumer.nack",
    "consumer.pause",
    "consumer.resume",
    "consumer.rewind",
    "consumer.close",
    "reader.positions",
    "reader.seek",
    "reader.close",
    "watch.move",
    "watch.wait",
    "watch.close",
    "txn.flush",
)
"""They ask nobody, or tell without waiting; and a message is here already."""
PATIENT = ("reader.__anext__", "reader.receive", "reader.receive_many", "process", "process_batches")
"""They wait for messages for as long as it takes."""

REFUSED = ("txn.leave",)
"""Of a transaction without a name."""


@pytest.mark.parametrize("name", [name for name in CALLS_OF_ALL if name not in PATIENT + REFUSED])
@virtual_time
async def test_c6_a_call_to_mute_servers_is_given_up_in_time(name: str) -> None:
    async with connected(timeout=TIMEOUT_S) as (cluster, client):
        things = await opened(client, cluster.servers["broker:1"])
        cluster.transport.go_mute()
        async with asyncio.timeout(TIMEOUT_S + GIVING_BACK_S) as limit:
            if name in KNOWN_HERE:
                await CALLS_OF_ALL[name](things)
            else:
                with pytest.raises(txnclient.Timeout):
                    await CALLS_OF_ALL[name](things)
        assert not limit.expired()
        async with asyncio.timeout(TIMEOUT_S):
            try:
                await client.close()
            except txnclient.TxnError as lost:
                assert name == "producer.send_nowait", lost


@pytest.mark.parametrize("name", PATIENT)
@virtual_time
async def test_c6_who_waits_for_messages_of_mute_servers_can_be_cancelled_and_closed(name: str) -> None:
    async with connected(timeout=TIMEOUT_S) as (cluster, client):
        things = await opened(client, cluster.servers["broker:1"])
        cluster.transport.go_mute()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(10 * TIMEOUT_S):
                await CALLS_OF_ALL[name](things)
        async with asyncio.timeout(TIMEOUT_S):
            await client.close()


async def test_c6_a_server_that_takes_the_connection_and_says_nothing_is_given_up() -> None:
    async with mute_endpoint() as address, asyncio.timeout(30.0):
        with pytest.raises(txnclient.Timeout, match=address):
            await txnclient.connect(f"txn://{address}", timeout=0.3)


@virtual_time
async def test_of_several_servers_one_that_has_the_role_is_asked_at_once() -> None:
    cluster = Cluster()
    await cluster.start("broker:1", "broker:2", "broker:3")
    *first, last = cluster.servers.values()
    for server in first:
        server.roles = ["coordinator", "broker", "controller"]
    url = "txn://broker:1,broker:2,broker:3"
    async with txnclient.connect(url, transport=cluster.transport, clock=cluster.clock, random=Random(1)) as client:
        await asyncio.sleep(5.0)
        asking = asyncio.ensure_future(client.admin("topics.list"))
        await until_turn(asking.done, "the answer", most_turns=1000)
        await asking
        assert last.seen["admin_request"] == 1
    await cluster.stop()
