"""Watches on a scripted broker: which segments they look at once they are moved."""

from __future__ import annotations

from tests.segments.virtual_time import virtual_time
from tests.txnclient.reading.changing_layouts import LEFT, RIGHT, SPLIT, attached, connected
from tests.txnclient.reading.test_snapshots_over_layouts import at, snapshot
from tests.waiting import until
from txnclient.reading.reader import behind
from txnwire.ids import Position


@virtual_time
async def test_a_watch_looks_again_at_every_segment_that_has_woken_it() -> None:
    """▲ Of what the snapshot still lacks it would hear nothing, and of the segment never again."""
    async with connected() as (cluster, server, client):
        cluster.become(SPLIT)
        cut = snapshot(2, left=at(0), right=at(0))
        async with client.watch(cut) as watch:
            for _ in range(2):
                await until(lambda: {LEFT, RIGHT} == set(attached(server)))
                for segment in (LEFT, RIGHT):
                    server.deliver(segment, 1, b"new")
                await until(lambda: not server.consumers)
                assert await watch.wait(1.0)
                await watch.move(cut)


@virtual_time
async def test_a_watch_that_is_moved_leaves_every_place_where_it_stood() -> None:
    async with connected() as (cluster, server, client):
        cluster.become(SPLIT)
        async with client.watch(snapshot(2, left=at(0), right=at(0))) as watch:
            await until(lambda: len(server.consumers) == 2)
            await watch.move(snapshot(2, left=at(1), right=at(1)))
            await until(lambda: server.seen["subscribe"] == 4 and len(server.consumers) == 2)
            for segment, request in attached(server).items():
                assert request.start == behind(segment, Position(1, 1))
