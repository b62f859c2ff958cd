"""What a broker keeps for somebody who reads, until that one ends."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

from tests.segments.virtual_time import virtual_time
from tests.txnclient.scripted_server import SEGMENTS, TOPIC, connected
from tests.waiting import until
from txnwire.ids import EARLIEST, Position


@virtual_time
async def test_a_reader_that_is_closed_leaves_nothing_attached_at_the_brokers() -> None:
    """▲ Each segment would go on sending to a client that has other readers, over the same connection."""
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        async with client.reader(TOPIC) as reader:
            await until(lambda: len(server.consumers) == len(SEGMENTS))
            server.deliver(SEGMENTS[0], 0, b"one")
            assert (await reader.receive()).value == b"one"
        await until(lambda: not server.consumers, within_s=5.0)


@virtual_time
async def test_a_read_of_entries_that_is_left_in_its_midst_leaves_nothing_attached() -> None:
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        entries = client.read_entries(SEGMENTS[0], after=EARLIEST, end=Position(1, 9))
        async with aclosing(entries):
            first = asyncio.ensure_future(anext(entries))
            await until(lambda: server.consumers)
            server.deliver(SEGMENTS[0], 0, b"one")
            assert [entry.position for entry in await first] == [Position(1, 0)]
        await until(lambda: not server.consumers, within_s=5.0)
