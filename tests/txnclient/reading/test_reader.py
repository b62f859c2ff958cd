"""Reading without a subscription, against a scripted broker."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import txnclient
from tests.segments.virtual_time import virtual_time
from tests.txnclient.scripted_server import SEGMENTS, TOPIC, ScriptedServer, connected
from tests.waiting import until
from txnclient.reading.reader import behind
from txnwire.ids import MessageId, Position
from txnwire.proto import txn_pb2 as pb
from txnwire.protocol import MAX_PERMITS

LEFT, RIGHT = SEGMENTS


def end_of(server: ScriptedServer, segment: str) -> None:
    push = pb.EndOfSegment(consumer_id=server.consumer_of(segment))
    server.push_to_consumer(segment, pb.Command(end_of_segment=push))


def requests(server: ScriptedServer) -> dict[str, pb.Subscribe]:
    return {request.segment: request for _, request in server.consumers.values()}


@virtual_time
async def test_a_reader_with_an_end_ends_by_itself() -> None:
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        server.positions = {LEFT: Position(1, 1), RIGHT: Position(1, 0)}
        async with client.reader(TOPIC, end="latest") as reader:
            await until(lambda: len(server.permits) == 2)
            assert requests(server)[LEFT].end == pb.Position(ledger_id=1, entry_id=1)
            assert not requests(server)[LEFT].subscription
            server.deliver(LEFT, 0, b"a")
            server.deliver(LEFT, 1, b"b")
            end_of(server, LEFT)
            server.deliver(RIGHT, 0, b"c")
            end_of(server, RIGHT)
            assert sorted([message.value async for message in reader]) == [b"a", b"b", b"c"]
            assert reader.ended
            assert await reader.receive_many(10) == []
            with pytest.raises(txnclient.EndOfStream):
                await reader.receive()


@virtual_time
async def test_an_empty_topic_ends_at_once() -> None:
    async with connected() as (_, client), client.reader(TOPIC, end="latest") as reader:
        assert [message async for message in reader] == []


@virtual_time
async def test_a_reader_goes_on_behind_what_it_has_after_a_lost_connection() -> None:
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        reader = await client.reader(TOPIC)
        await until(lambda: len(server.permits) == 2)
        assert requests(server)[LEFT].start.earliest
        server.deliver(LEFT, 0, b"a")
        server.deliver(LEFT, 1, b"b", b"c")
        assert (await reader.receive()).value == b"a"
        await server.cut()
        await until(lambda: server.seen["subscribe"] == 4)
        start = requests(server)[LEFT].start
        assert start == behind(LEFT, Position(1, 1))
        assert requests(server)[RIGHT].start.earliest
        server.deliver(LEFT, 2, b"d")
        await asyncio.sleep(0.1)
        rest = [await reader.receive() for _ in range(3)]
        assert [message.value for message in rest] == [b"b", b"c", b"d"]


@virtual_time
async def test_latest_is_fixed_when_the_reader_is_opened() -> None:
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        server.positions = {LEFT: Position(4, 7)}
        await client.reader(TOPIC, start="latest")
        await until(lambda: len(server.consumers) == 2)
        start = requests(server)[LEFT].start
        assert start == behind(LEFT, Position(4, 7))


@virtual_time
async def test_a_message_id_positions_its_own_segment() -> None:
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        await client.reader(TOPIC, start=MessageId(LEFT, Position(1, 3), 2))
        await until(lambda: len(server.consumers) == 2)
        starts = {segment: request.start for segment, request in requests(server).items()}
        assert starts[LEFT] == starts[RIGHT] == pb.Start(segment=LEFT, ledger_id=1, entry_id=3, index=2)


@virtual_time
async def test_a_window_larger_than_one_grant_may_be_is_granted_by_several() -> None:
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        async with client.reader(TOPIC, prefetch=5_000_000, prefetch_bytes=1 << 60):
            await until(lambda: list(server.permits.values()) == [2_500_000, 2_500_000])
            flows = [command.flow.permits for command in server.commands if command.HasField("flow")]
            assert max(flows) == MAX_PERMITS


@virtual_time
async def test_receive_times_out_on_a_reader_without_an_end() -> None:
    async with connected() as (_, client):
        reader = await client.reader(TOPIC)
        with pytest.raises(txnclient.Timeout):
            await reader.receive(timeout=0.2)
        assert not reader.ended


@virtual_time
async def test_asking_how_far_a_segment_reaches_waits_for_an_owner() -> None:
    async def opened(client: txnclient.Client) -> txnclient.Reader:
        return await client.reader(TOPIC, end="latest", isolation="read_uncommitted")

    async with connected() as (cluster, client):
        cluster.move(LEFT, "")
        await asyncio.sleep(0.1)
        opening = asyncio.ensure_future(opened(client))
        await asyncio.sleep(1)
        assert not opening.done()
        cluster.move(LEFT, "broker:1")
        assert (await opening).ended


@virtual_time
async def test_closing_a_reader_ends_its_iteration() -> None:
    async with connected() as (cluster, client):
        reader = await client.reader(TOPIC)

        async def iterate() -> None:
            async for _ in reader:
                raise AssertionError("nothing was delivered")

        iterating = asyncio.create_task(iterate())
        await until(lambda: len(cluster.servers["broker:1"].consumers) == 2)
        await reader.close()
        await iterating


@pytest.mark.parametrize("options", [{"end": "tomorrow"}, {"prefetch": 0}, {"isolation": "x"}, {"start": -1}])
@virtual_time
async def test_malformed_options_are_refused(options: dict[str, Any]) -> None:
    async with connected() as (_, client):
        with pytest.raises(txnclient.InvalidArgument):
            await client.reader(TOPIC, **options)


@virtual_time
async def test_what_was_not_attached_in_time_is_closed() -> None:
    """▲ Its broker may have attached it, or do so yet: it would stay for as long as the connection."""
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        server.ignore["subscribe"] = 1
        async with client.reader(TOPIC):
            await until(lambda: server.seen["close_consumer"] == 1)
