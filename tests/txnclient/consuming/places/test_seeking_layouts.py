"""Seeks of a client that lags behind the layout, on a scripted broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from random import Random

import pytest

import txnclient
from tests.segments.virtual_time import virtual_time
from tests.txnclient.reading.changing_layouts import LEFT, RIGHT, ROOT, SPLIT, Layouts, Server, settle
from tests.txnclient.scripted_server import SEGMENTS, TOPIC
from tests.txnclient.scripted_server import connected as scripted
from txnclient.connection.topic_layout import TopicLayout
from txnclient.consuming.places.seeking import unsought
from txnwire.proto import txn_pb2 as pb
from txnwire.transport.serving import Handler, Peer


class Seeking(Server):
    """Notes which segments were sought, in order."""

    sought: list[str]
    gone = False
    """Whether it knows the topic's segments no more, whatever the layout says."""

    @property
    def handlers(self) -> Mapping[str, Handler]:
        self.sought = []
        return {**super().handlers, "seek": self._seek}

    def _seek(self, peer: Peer, command: pb.Command) -> pb.Command:
        self.sought.append(command.seek.segment)
        if self.gone:
            raise txnclient.TopicNotFound(f"{TOPIC} has no segment {command.seek.segment}")
        return pb.Command(ok=pb.Ok())


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[Layouts, Seeking, txnclient.Client]]:
    cluster = Layouts()
    server = cluster.servers["broker:1"] = Seeking(cluster, "broker:1")
    await server.start()
    async with txnclient.connect(
        "txn://broker:1", transport=cluster.transport, clock=cluster.clock, random=Random(1)
    ) as client:
        yield cluster, server, client
    await cluster.stop()


@pytest.mark.parametrize("given_up", [False, True])
@virtual_time
async def test_a_seek_reaches_children_that_a_sealed_segment_must_have(given_up: bool) -> None:
    """▲ Others may have read and acked there before this was asked: unsought, that would not come again."""
    async with connected() as (cluster, server, client):
        cluster.sealed[ROOT] = None
        seeking = asyncio.ensure_future(client.seek_subscription(TOPIC, "s", "earliest", timeout=60.0))
        await settle()
        assert server.sought == [ROOT]
        assert not seeking.done()
        if given_up:
            cluster.sealed.clear()
        else:
            cluster.become(SPLIT)
        await seeking
        assert sorted(server.sought) == sorted([ROOT] if given_up else [ROOT, LEFT, RIGHT])


@pytest.mark.parametrize("sealed", [LEFT, RIGHT])
@virtual_time
async def test_a_seek_waits_for_the_children_of_any_segment_that_is_sealed(sealed: str) -> None:
    async with connected() as (cluster, server, client):
        cluster.become(SPLIT)
        cluster.sealed[sealed] = None
        seeking = asyncio.ensure_future(client.seek_subscription(TOPIC, "s", "earliest", timeout=60.0))
        await settle()
        assert sorted(server.sought) == sorted(SPLIT)
        assert not seeking.done()
        cluster.sealed.clear()
        await seeking


@virtual_time
async def test_a_seek_that_waits_for_the_children_of_a_sealed_segment_says_so_when_its_time_is_up() -> None:
    async with connected() as (cluster, server, client):
        cluster.sealed[ROOT] = None
        with pytest.raises(txnclient.Timeout, match=f"new layout of {TOPIC}: a segment has been sealed: .* within 5 s"):
            await client.seek_subscription(TOPIC, "s", "earliest", timeout=5.0)
        assert server.sought == [ROOT]


@pytest.mark.parametrize("what", ["comes back", "leaves", "its topic is deleted"])
@virtual_time
async def test_a_segment_that_its_owner_does_not_know_is_sought_until_the_layout_says_so_too(what: str) -> None:
    """▲ Told as done, what was acked there would not come again."""
    async with connected() as (cluster, server, client):
        await client.describe_topic(TOPIC)
        server.gone = True
        seeking = asyncio.ensure_future(client.seek_subscription(TOPIC, "s", "earliest", timeout=60.0))
        await settle()
        assert len(server.sought) > 1
        assert not seeking.done()
        server.gone = what != "comes back"
        if what == "leaves":
            server.gone = False
            cluster.become({LEFT: ("ACTIVE", (), ()), RIGHT: ("ACTIVE", (), ())})
        elif server.gone:
            cluster.exists = False
            cluster.become({})
            with pytest.raises(txnclient.TopicNotFound):
                await seeking
            return
        await seeking
        assert server.sought[-1] == ROOT if what == "comes back" else sorted(server.sought[-2:]) == [LEFT, RIGHT]


@pytest.mark.parametrize("what", ["seek", "segment_positions"])
@virtual_time
async def test_a_seek_that_one_of_the_owners_refuses_is_refused(what: str) -> None:
    """▲ Told as done, part of the topic would stay where it was."""
    async with scripted("broker:1", "broker:2") as (cluster, client):
        cluster.owners[SEGMENTS[1]] = "broker:2"
        cluster.servers["broker:2"].refuse[what] = [txnclient.NotAllowed("not here")]
        with pytest.raises(txnclient.NotAllowed, match="not here"):
            await client.seek_subscription(TOPIC, "s", "earliest")
        await client.seek_subscription(TOPIC, "s", "earliest")


def test_all_segments_are_sought_at_once_that_need_not_wait_for_a_parent() -> None:
    wire = pb.Layout(topic=TOPIC, exists=True)
    family: dict[int, tuple[int, ...]] = {0: (), 1: (), 2: (0,), 3: (0,), 4: (1, 3), 5: ()}
    for number, parents in family.items():
        wire.segments.add(segment_id=number, path=str(number), parents=parents)
    layout = TopicLayout.from_wire(wire)
    assert unsought(layout, []) == [["0", "1", "5"], ["2", "3"], ["4"]]
    assert unsought(layout, ["0", "1", "3"]) == [["2", "4", "5"]]
