"""Seeks of a client that lags behind the layout, on a scripted broker."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from random import Random

import pytest

import txnclient
from tests.segments.virtual_time import virtual_time
from tests.txnclient.reading.changing_layouts import LEFT, RIGHT, ROOT, SPLIT, Layouts, Server, settle
from tests.txnclient.scripted_server import TOPIC
from txnwire.proto import txn_pb2 as pb
from txnwire.transport.serving import Handler, Peer


class Seeking(Server):
    """Notes which segments were sought, in order."""

    sought: list[str]

    @property
    def handlers(self) -> Mapping[str, Handler]:
        self.sought = []
        return {**super().handlers, "seek": self._seek}

    def _seek(self, peer: Peer, command: pb.Command) -> pb.Command:
        self.sought.append(command.seek.segment)
        return pb.Command(ok=pb.Ok())


@pytest.mark.parametrize("given_up", [False, True])
@virtual_time
async def test_a_seek_reaches_children_that_a_sealed_segment_must_have(given_up: bool) -> None:
    """▲ Others may have read and acked there before this was asked: unsought, that would not come again."""
    cluster = Layouts()
    server = cluster.servers["broker:1"] = Seeking(cluster, "broker:1")
    await server.start()
    cluster.sealed[ROOT] = None
    async with txnclient.connect(
        "txn://broker:1", transport=cluster.transport, clock=cluster.clock, random=Random(1)
    ) as client:
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
    await cluster.stop()
