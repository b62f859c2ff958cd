"""A scripted broker whose topic is split and merged, and readers of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import txnclient
from tests.txnclient.scripted_server import TOPIC, Cluster, ScriptedServer
from txnwire.ids import Position
from txnwire.names import TopicName
from txnwire.proto import txn_pb2 as pb
from txnwire.transport.serving import Peer

PATH = TopicName.parse(TOPIC).path


ROOT = f"{PATH}/0000-ffff-0"


LEFT, RIGHT = f"{PATH}/0000-7fff-1", f"{PATH}/8000-ffff-2"


OTHER = "topic://public/default/bills"


OTHER_ROOT = f"{TopicName.parse(OTHER).path}/0000-ffff-0"


SPLIT = {ROOT: ("SEALED", (), (1, 2)), LEFT: ("ACTIVE", (0,), ()), RIGHT: ("ACTIVE", (0,), ())}


class Server(ScriptedServer):
    """`sealed`: segments whose owner says so. `held`: last confirmed positions above what may be read."""

    cluster: Layouts

    def _segment_positions(self, peer: Peer, command: pb.Command) -> pb.Command:
        path = command.segment_positions.segment
        reply = super()._segment_positions(peer, command)
        answer = reply.segment_positions_ok
        answer.sealed = path in self.cluster.sealed
        if path in self.cluster.held:
            answer.last_confirmed.ledger_id, answer.last_confirmed.entry_id = self.cluster.held[path]
        return reply


class Layouts(Cluster):
    """One topic whose layout a test changes."""

    def __init__(self) -> None:
        super().__init__()
        self.epoch = 1
        self.segments: dict[str, tuple[str, tuple[int, ...], tuple[int, ...]]] = {ROOT: ("ACTIVE", (), ())}
        self.owners = {ROOT: "broker:1"}
        self.sealed: dict[str, None] = {}
        self.held: dict[str, Position] = {}
        self.lost_id: int | None = None
        self.exists = True

    async def start(self, *addresses: str) -> None:
        self.servers["broker:1"] = Server(self, "broker:1")
        await self.servers["broker:1"].start()

    def become(self, segments: dict[str, tuple[str, tuple[int, ...], tuple[int, ...]]]) -> None:
        self.segments, self.epoch = segments, self.epoch + 1
        self.owners = dict.fromkeys(segments, "broker:1")
        self.announce()

    def layout(self, topic: str) -> pb.Layout:
        layout = pb.Layout(
            topic=topic,
            exists=topic == TOPIC and self.exists,
            epoch=self.epoch,
            revision=self.revision,
            topic_revision=self.epoch,
            life=self.life,
        )
        if self.lost_id is not None:
            layout.lost_segment_id = self.lost_id
        for path, (state, parents, children) in self.segments.items():
            lo, hi, number = path.rpartition("/")[2].split("-")
            layout.segments.add(
                segment_id=int(number),
                lo=int(lo, 16),
                hi=int(hi, 16),
                state=state,
                parents=parents,
                children=children,
                owner="broker:1",
                owner_address="broker:1",
                path=path,
            )
        return layout


class TwoTopics(Layouts):
    """Another topic of one segment, which never changes."""

    def become(self, segments: dict[str, tuple[str, tuple[int, ...], tuple[int, ...]]]) -> None:
        super().become(segments)
        self.owners[OTHER_ROOT] = "broker:1"

    def layout(self, topic: str) -> pb.Layout:
        if topic != OTHER:
            return super().layout(topic)
        layout = pb.Layout(topic=OTHER, exists=True, epoch=1, revision=self.revision, topic_revision=1)
        owner = "broker:1"
        layout.segments.add(path=OTHER_ROOT, hi=0xFFFF, state="ACTIVE", owner=owner, owner_address=owner)
        return layout


@asynccontextmanager
async def connected(cluster: Layouts | None = None) -> AsyncIterator[tuple[Layouts, Server, txnclient.Client]]:
    cluster = cluster or Layouts()
    await cluster.start()
    async with txnclient.connect(
        "txn://broker:1", transport=cluster.transport, clock=cluster.clock, random=Random(1)
    ) as client:
        server = cluster.servers["broker:1"]
        assert isinstance(server, Server)
        yield cluster, server, client
    await cluster.stop()


def end_of(server: ScriptedServer, segment: str, *, sealed: bool = True) -> None:
    push = pb.EndOfSegment(consumer_id=server.consumer_of(segment), sealed=sealed)
    server.push_to_consumer(segment, pb.Command(end_of_segment=push))


def attached(server: ScriptedServer) -> dict[str, pb.Subscribe]:
    return {request.segment: request for _, request in server.consumers.values()}


async def settle() -> None:
    """Everything that is on its way arrives."""
    await asyncio.sleep(1.0)


async def open_reader(client: txnclient.Client, **options: Any) -> txnclient.Reader:
    reader: txnclient.Reader = await client.reader(TOPIC, **options)
    return reader
