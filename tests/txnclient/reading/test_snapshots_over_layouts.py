"""Snapshots read over a layout that has changed since, or changes meanwhile."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import txnclient
from tests.segments.virtual_time import virtual_time
from tests.txnclient.reading.changing_layouts import (
    LEFT,
    PATH,
    RIGHT,
    ROOT,
    SPLIT,
    attached,
    connected,
    end_of,
    open_reader,
    settle,
)
from tests.txnclient.scripted_server import TOPIC
from tests.waiting import until
from txnclient import Snapshot
from txnclient.reading.reader import behind
from txnclient.reading.snapshot import Span
from txnwire.ids import EARLIEST, Position
from txnwire.snapshot import SegmentBounds, TopicBounds


def snapshot(epoch: int, **segments: SegmentBounds) -> Snapshot:
    names = {"root": ROOT, "left": LEFT, "right": RIGHT}
    bounds = {names[name]: one for name, one in segments.items()}
    return Snapshot(epoch * 10, {TOPIC: TopicBounds(epoch, bounds)})


def at(entry: int, *, sealed: bool = False) -> SegmentBounds:
    return SegmentBounds(Position(1, entry), Position(1, entry), sealed=sealed)


@virtual_time
async def test_x2_a_snapshot_from_before_a_split_is_read_without_its_children() -> None:
    async with connected() as (cluster, server, client):
        cluster.become(SPLIT)
        async with client.reader(TOPIC, end=snapshot(1, root=at(1))) as reader:
            await until(lambda: server.consumers)
            server.deliver(ROOT, 1, b"parent")
            end_of(server, ROOT, sealed=False)
            assert [message.value async for message in reader] == [b"parent"]
            assert server.seen["subscribe"] == 1


@virtual_time
async def test_x2_a_snapshot_of_a_later_layout_waits_for_it() -> None:
    async with connected() as (cluster, server, client):
        end = snapshot(2, root=at(1, sealed=True), left=at(0), right=SegmentBounds(EARLIEST, EARLIEST))
        opening = asyncio.ensure_future(open_reader(client, start=snapshot(1, root=at(1)), end=end))
        await settle()
        assert not opening.done()
        cluster.become(SPLIT)
        reader = await opening
        await until(lambda: server.consumers)
        assert list(attached(server)) == [LEFT], "of the parent nothing is left to read, the other child is empty"
        server.deliver(LEFT, 0, b"child")
        end_of(server, LEFT, sealed=False)
        assert [message.value async for message in reader] == [b"child"]


@virtual_time
async def test_who_waits_in_vain_for_a_later_layout_is_told_which() -> None:
    """▲ The topic can be looked up all the time: who is told that it cannot would look for a server that is down."""
    async with connected() as (_, _, client):
        later = snapshot(2, root=at(1, sealed=True), left=at(0), right=SegmentBounds(EARLIEST, EARLIEST))
        said = f"waiting for layout 2 of {TOPIC}: not done within"
        for opening in (open_reader(client, end=later), client.watch(later)):
            with pytest.raises(txnclient.Timeout, match=said):
                await opening
        async with client.watch(snapshot(1, root=at(1))) as watch:
            with pytest.raises(txnclient.Timeout, match=f"{said} 3 s"):
                await watch.move(later, timeout=3.0)
        with pytest.raises(txnclient.Timeout, match="waiting for a layout of epoch 2 that has segment://"):
            async for _ in client.read_entries(ROOT, after=EARLIEST, end=Position(1, 1), span=Span(None, later)):
                pass


@virtual_time
async def test_who_looks_up_the_end_of_a_sealed_segment_is_told_what_is_waited_for() -> None:
    async with connected() as (cluster, _, client):
        cluster.sealed[ROOT] = None
        with pytest.raises(
            txnclient.Timeout, match=f"waiting for the new layout of {TOPIC}: a segment has been sealed"
        ):
            await open_reader(client, end="latest", isolation="read_uncommitted")


GONE = {path: facts for path, facts in SPLIT.items() if path != ROOT}


@pytest.mark.parametrize(
    ("start", "end"),
    [
        (snapshot(1, root=at(1)), None),  # what came behind it there is gone
        (None, snapshot(1, root=at(1))),  # nothing is left of it
        (snapshot(1, root=at(1)), snapshot(2, root=at(3, sealed=True), left=at(1), right=at(1))),
    ],
)
@virtual_time
async def test_x2_what_retention_took_with_its_segment_is_not_left_out_silently(
    start: Snapshot | None, end: Snapshot | None
) -> None:
    async with connected() as (cluster, _, client):
        cluster.lost_id = 0
        cluster.become(GONE)
        with pytest.raises(txnclient.InvalidArgument, match="no longer exists"):
            await client.reader(TOPIC, start=start or "earliest", end=end)


@virtual_time
async def test_a_snapshot_of_a_topic_that_was_made_again_is_not_waited_for() -> None:
    """▲ The new topic counts its layouts from 1 again: it may never have as many as the former one had."""
    async with connected() as (cluster, _, client):
        cluster.lost_id = 2
        cluster.become({f"{PATH}/0000-ffff-3": ("ACTIVE", (), ())})
        former = snapshot(5, left=at(1), right=at(1))
        for start, end in (("earliest", former), (former, None), (former, former)):
            with pytest.raises(txnclient.InvalidArgument, match="its topic was deleted and created again"):
                await client.reader(TOPIC, start=start, end=end)
        span = Span(snapshot(4, left=EMPTY), former)
        read: dict[str, Any] = {"after": EARLIEST, "end": Position(1, 1), "span": span}
        with pytest.raises(txnclient.DataTrimmed, match="the topic was deleted and created again"):
            await anext(client.read_entries(LEFT, **read))
        assert [some async for some in client.read_entries(LEFT, **read, trimmed="skip")] == []


@virtual_time
async def test_x2_a_segment_that_was_never_used_may_go() -> None:
    async with connected() as (cluster, server, client):
        cluster.become(GONE)
        async with client.reader(TOPIC, start=snapshot(1, root=SegmentBounds(EARLIEST, EARLIEST))):
            await until(lambda: {LEFT, RIGHT} == set(attached(server)))


@virtual_time
async def test_x2_segments_of_which_nothing_was_left_to_read_may_go() -> None:
    async with connected() as (cluster, server, client):
        cluster.become(GONE)
        start = snapshot(2, root=at(3, sealed=True), left=at(1), right=at(1))
        for end in (None, snapshot(2, left=at(1), right=at(2))):
            async with client.reader(TOPIC, start=start, end=end):
                await until(lambda: RIGHT in attached(server))
                assert attached(server)[RIGHT].start == behind(RIGHT, Position(1, 1))
        whole = snapshot(2, root=at(3, sealed=True), left=at(0), right=SegmentBounds(EARLIEST, EARLIEST))
        async with client.reader(TOPIC, end=whole) as reader:
            await until(lambda: LEFT in attached(server))
            server.deliver(LEFT, 0, b"kept")
            end_of(server, LEFT, sealed=False)
            assert [message.value async for message in reader] == [b"kept"]


@virtual_time
async def test_x2_a_parent_on_its_way_out_of_the_graph_holds_nobody_back() -> None:
    """Nothing is left in it and nobody serves it; a snapshot taken meanwhile does not name it."""
    async with connected() as (cluster, server, client):
        cluster.become(SPLIT)
        async with client.reader(TOPIC, end=snapshot(2, left=at(0), right=at(0))):
            await until(lambda: {LEFT, RIGHT} == set(attached(server)))


@virtual_time
async def test_x2_a_snapshot_of_which_a_segment_goes_while_it_is_read_is_refused() -> None:
    """▲ The rest of it would be a part of a transaction."""
    async with connected() as (cluster, server, client):
        cluster.become(SPLIT)
        end = snapshot(2, root=at(3, sealed=True), left=at(0), right=at(0))
        async with client.reader(TOPIC, end=end) as reader:
            await until(lambda: server.consumers)
            server.deliver(ROOT, 0, b"first")
            await settle()
            cluster.become(GONE)
            assert (await reader.receive()).value == b"first"
            with pytest.raises(txnclient.InvalidArgument, match="no longer exists"):
                await reader.receive()


EMPTY = SegmentBounds(EARLIEST, EARLIEST)


@virtual_time
async def test_x2_what_an_older_snapshot_found_empty_or_not_at_all_is_asked_for_from_its_very_beginning() -> None:
    """▲ By name: the broker then refuses what retention has taken of it meanwhile. "Earliest" would pass over that."""
    async with connected() as (cluster, server, client):
        end = snapshot(2, root=at(1, sealed=True), left=at(3), right=at(3))
        cluster.become(SPLIT)
        for start in (snapshot(1, root=at(1)), snapshot(2, root=at(1, sealed=True), left=EMPTY, right=EMPTY)):
            async with client.reader(TOPIC, start=start, end=end):
                await until(lambda: {LEFT, RIGHT} == set(attached(server)))
                assert attached(server)[LEFT].start == behind(LEFT, EARLIEST)
            await settle()
        async with client.reader(TOPIC, end=snapshot(2, left=at(3), right=at(3))):
            await until(lambda: RIGHT in attached(server))
            assert not attached(server)[RIGHT].start.segment, "without an older one it is read as far as it is kept"


@pytest.mark.parametrize(("gone", "kept"), [(LEFT, RIGHT), (RIGHT, LEFT)])
@pytest.mark.parametrize("attach", [False, True], ids=["before it is begun", "before it answers"])
@virtual_time
async def test_x2_a_segment_that_came_between_two_snapshots_and_goes_while_they_are_read_is_missed(
    attach: bool, gone: str, kept: str
) -> None:
    """▲ Transactions over it and its neighbours would be shown in part."""
    async with connected() as (cluster, server, client):
        cluster.become(SPLIT)
        end = snapshot(2, root=at(3, sealed=True), left=at(3), right=at(3))
        async with client.reader(TOPIC, start=snapshot(1, root=at(1)), end=end) as reader:
            await until(lambda: server.consumers)
            server.deliver(ROOT, 3, b"parent")
            end_of(server, ROOT, sealed=False)
            await settle()
            if attach:
                server.refuse["subscribe"] = [txnclient.NotOwner("moving")] * 50
                assert (await reader.receive()).value == b"parent"
                await settle()
                cluster.become({kept: SPLIT[kept]})
            else:
                cluster.become({kept: SPLIT[kept]})
                await settle()
                assert (await reader.receive()).value == b"parent"
            with pytest.raises(txnclient.InvalidArgument, match=f"{gone} no longer exists"):
                await reader.receive()
