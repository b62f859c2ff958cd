"""What a broker says that shows nothing, to those who read in bulk and to readers."""

from __future__ import annotations

import asyncio

import pytest

from tests.segments.virtual_time import virtual_time
from tests.txnclient.reading.test_entries import end_of, reading, request, span, values
from tests.txnclient.scripted_server import SEGMENTS, TOPIC, ScriptedServer, connected
from tests.waiting import until
from txnclient.reading.reader import behind
from txnwire.errors import Timeout
from txnwire.ids import EARLIEST, Position
from txnwire.proto import txn_pb2 as pb

LEFT, _ = SEGMENTS
END = Position(1, 9_000)


def pass_over(server: ScriptedServer, entry_id: int) -> None:
    """Nothing is visible up to this entry."""
    deliver = pb.Deliver(consumer_id=server.consumer_of(LEFT))
    deliver.passed.ledger_id, deliver.passed.entry_id = 1, entry_id
    server.push_to_consumer(LEFT, pb.Command(deliver=deliver))


@virtual_time
async def test_time_is_up_where_nothing_goes_on_not_where_nothing_is_visible() -> None:
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        entries = client.read_entries(LEFT, after=EARLIEST, end=END, timeout=5.0)
        first = asyncio.ensure_future(anext(entries))
        await until(lambda: server.permits)
        for number in range(1, 11):
            await asyncio.sleep(3.0)
            pass_over(server, number * 500)
        await asyncio.sleep(3.0)
        server.deliver(LEFT, 5_001, b"a")
        assert [entry.position for entry in await first] == [Position(1, 5_001)]
        pass_over(server, 6_000)
        with pytest.raises(Timeout, match="after 1:6000"):
            await anext(entries)


@virtual_time
async def test_it_goes_on_behind_what_shows_nothing_after_a_lost_connection() -> None:
    async with connected() as (cluster, client), reading(client, end=END) as (found, task):
        server = cluster.servers["broker:1"]
        await until(lambda: server.permits)
        assert request(server).tells_passed
        server.deliver(LEFT, 3, b"a")
        pass_over(server, 500)
        await until(lambda: found)
        for passed, attached in ((500, 2), (900, 3)):
            await server.cut()
            await until(lambda attached=attached: server.seen["subscribe"] == attached)
            assert request(server).start == behind(LEFT, Position(1, passed))
            pass_over(server, 900)
            await asyncio.sleep(0.1)
        server.deliver(LEFT, 901, b"b")
        end_of(server)
        await task
        assert values(found) == [b"a", b"b"]


@virtual_time
async def test_what_lies_before_any_snapshot_is_read_as_far_as_it_is_kept_also_behind_a_gap() -> None:
    """▲ From a place that is named a read is refused once retention has taken something behind it. Dies where the first
    of a span without a start names the end of a gap that it begins with."""
    async with connected() as (cluster, client), reading(client, end=END, span=span(9_000)) as (found, _):
        server = cluster.servers["broker:1"]
        await until(lambda: server.permits)
        pass_over(server, 500)
        await asyncio.sleep(0.1)
        await server.cut()
        await until(lambda: server.seen["subscribe"] == 2)
        assert (request(server).start, request(server).trimmed) == (
            pb.Start(earliest=True),
            pb.TRIMMED_DATA_BY_START,
        )
        server.deliver(LEFT, 501, b"a")
        pass_over(server, 900)
        await until(lambda: found)
        await server.cut()
        await until(lambda: server.seen["subscribe"] == 3)
        assert (request(server).start, request(server).trimmed) == (
            behind(LEFT, Position(1, 900)),
            pb.TRIMMED_DATA_REFUSE,
        )


@virtual_time
async def test_a_reader_goes_on_behind_what_shows_nothing_too() -> None:
    async with connected() as (cluster, client), client.reader(TOPIC, start="earliest") as reader:
        server = cluster.servers["broker:1"]
        receiving = asyncio.ensure_future(reader.receive())
        await until(lambda: len(server.permits) == 2)
        pass_over(server, 500)
        await asyncio.sleep(0.1)
        await server.cut()
        await until(lambda: server.seen["subscribe"] == 4)
        assert request(server).start == behind(LEFT, Position(1, 500))
        server.deliver(LEFT, 501, b"a")
        assert (await receiving).data == b"a"
