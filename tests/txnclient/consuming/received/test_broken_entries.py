"""Entries that cannot be handed out: nothing behind them is, and whoever receives is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

import pytest

import txnclient
from tests.segments.virtual_time import virtual_time
from tests.txnclient.scripted_server import SEGMENTS, TOPIC, Cluster, ScriptedServer, connected
from tests.waiting import until
from txnwire.ids import EARLIEST, Position
from txnwire.proto import txn_pb2 as pb

LEFT, RIGHT = SEGMENTS

Receiving = txnclient.Consumer[bytes] | txnclient.Reader[bytes]


@asynccontextmanager
async def receiving(how: str) -> AsyncIterator[tuple[Cluster, ScriptedServer, Receiving]]:
    """Attached to all segments; what it receives is broken from the second entry of the left one on."""
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        things: Receiving
        if how == "reader":
            things = await client.reader(TOPIC, prefetch=20)
        else:
            things = await client.consumer(TOPIC, "sub", type=how, prefetch=20)
        await until(lambda: len(server.consumers) == len(SEGMENTS))
        await asyncio.sleep(0.05)
        yield cluster, server, things


def deliver_broken(server: ScriptedServer, entry_id: int) -> None:
    delivered = pb.DeliveredEntry(ledger_id=1, entry_id=entry_id, entry=b"no entry")
    push = pb.Command(deliver=pb.Deliver(consumer_id=server.consumer_of(LEFT), entries=[delivered]))
    server.push_to_consumer(LEFT, push)


@pytest.mark.parametrize("how", ["stream", "queue", "reader"])
@virtual_time
async def test_nothing_is_handed_out_behind_an_entry_that_is_broken(how: str) -> None:
    async with receiving(how) as (_, server, things):
        server.deliver(LEFT, 0, b"a")
        deliver_broken(server, 1)
        server.deliver(LEFT, 2, b"c")
        await asyncio.sleep(0.05)
        assert (await things.receive(1)).value == b"a"
        with pytest.raises(txnclient.DataCorrupt, match=f"{LEFT} at 1:1"):
            await things.receive(1)


@pytest.mark.parametrize("how", ["stream", "queue", "reader"])
@virtual_time
async def test_a_broken_entry_is_told_also_where_other_segments_never_pause(how: str) -> None:
    async with receiving(how) as (_, server, things):
        deliver_broken(server, 0)
        right, delivered = server.consumer_of(RIGHT), 0

        async def received() -> None:
            nonlocal delivered
            for _ in range(100):
                while delivered < server.permits[right]:
                    server.deliver(RIGHT, delivered, b"x")
                    delivered += 1
                await asyncio.sleep(0.01)
                await things.receive(1)

        with pytest.raises(txnclient.DataCorrupt, match=LEFT):
            await received()


@virtual_time
async def test_a_reader_does_not_end_as_if_it_had_read_all_where_an_entry_is_broken() -> None:
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        server.positions[LEFT] = Position(1, 2)
        reader = await client.reader(TOPIC, end="latest")
        await until(lambda: server.consumers)
        await asyncio.sleep(0.05)
        server.deliver(LEFT, 0, b"a")
        deliver_broken(server, 1)
        server.deliver(LEFT, 2, b"c")
        end = pb.EndOfSegment(consumer_id=server.consumer_of(LEFT))
        server.push_to_consumer(LEFT, pb.Command(end_of_segment=end))
        found = []

        async def read() -> None:
            async for message in reader:
                found.append(message.value)

        with pytest.raises(txnclient.DataCorrupt, match=LEFT):
            await read()
        assert found == [b"a"]
        assert not reader.ended


@virtual_time
async def test_a_reader_does_not_go_on_to_the_children_of_a_segment_with_a_broken_entry() -> None:
    async with receiving("reader") as (cluster, server, reader):
        deliver_broken(server, 0)
        await asyncio.sleep(0.05)
        left = server.consumer_of(LEFT)
        cluster.seal(0)
        cluster.split(0)
        server.push_to_consumer(LEFT, pb.Command(end_of_segment=pb.EndOfSegment(consumer_id=left, sealed=True)))
        await asyncio.sleep(1.0)
        assert server.seen["subscribe"] == len(SEGMENTS)
        with pytest.raises(txnclient.DataCorrupt, match=LEFT):
            await reader.receive(1)


@virtual_time
async def test_reading_in_bulk_does_not_end_as_if_it_had_read_all_where_an_entry_is_broken() -> None:
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        async with aclosing(client.read_entries(LEFT, after=EARLIEST, end=Position(1, 2))) as reading:
            first = asyncio.ensure_future(anext(reading))
            await until(lambda: server.consumers)
            await asyncio.sleep(0.05)
            server.deliver(LEFT, 0, b"a")
            assert [list(entry.block.values()) for entry in await first] == [[b"a"]]
            deliver_broken(server, 1)
            server.deliver(LEFT, 2, b"c")
            end = pb.EndOfSegment(consumer_id=server.consumer_of(LEFT))
            server.push_to_consumer(LEFT, pb.Command(end_of_segment=end))
            await asyncio.sleep(0.05)  # who reads is at work meanwhile
            with pytest.raises(txnclient.DataCorrupt, match=LEFT):
                await anext(reading)
