"""Scans of entry heads whose segment is not where the client looks for it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from random import Random

import pytest

import txnclient
from tests.segments.virtual_time import virtual_time
from tests.txnclient.reading.changing_layouts import LEFT, RIGHT, ROOT, Layouts, Server
from txnwire.errors import TopicNotFound
from txnwire.ids import EARLIEST, Position
from txnwire.proto import txn_pb2 as pb
from txnwire.transport.serving import Handler, Peer

END = Position(1, 9)


class Scanned(Server):
    """Has one entry in each segment; knows none of them the first `unknown` times."""

    unknown = 0
    asked = 0

    @property
    def handlers(self) -> Mapping[str, Handler]:
        return {**super().handlers, "scan_entries": self._scan}

    def _scan(self, peer: Peer, command: pb.Command) -> pb.Command:
        self.asked += 1
        if self.asked <= self.unknown:
            raise TopicNotFound(f"there is no segment {command.scan_entries.segment}")
        head = pb.EntryHead(ledger_id=1, entry_id=9, count=1, size_bytes=50)
        through = pb.Position(ledger_id=1, entry_id=9)
        return pb.Command(scan_entries_ok=pb.ScanEntriesOk(heads=[head], through=through))


@asynccontextmanager
async def scanned(unknown: int) -> AsyncIterator[tuple[Layouts, Scanned, txnclient.Client]]:
    cluster = Layouts()
    server = cluster.servers["broker:1"] = Scanned(cluster, "broker:1")
    server.unknown = unknown
    await server.start()
    async with txnclient.connect(
        "txn://broker:1", transport=cluster.transport, clock=cluster.clock, random=Random(1)
    ) as client:
        yield cluster, server, client
    await cluster.stop()


async def scan(client: txnclient.Client, trimmed: str) -> list[Position]:
    pages = client.scan_entries(ROOT, after=EARLIEST, end=END, trimmed=trimmed)
    return [head.position async for page in pages for head in page]


@pytest.mark.parametrize("trimmed", ["fail", "skip"])
@virtual_time
async def test_an_owner_that_does_not_know_a_segment_of_the_layout_yet_is_asked_again(trimmed: str) -> None:
    """▲ Taken for trimmed away, its entries would be left out."""
    async with scanned(unknown=3) as (_, server, client):
        assert await scan(client, trimmed) == [END]
        assert server.asked == 4


@virtual_time
async def test_a_segment_that_has_left_the_layout_is_trimmed_away() -> None:
    async with scanned(unknown=1000) as (cluster, _, client):
        await client.describe_topic("topic://public/default/orders")
        cluster.lost_id = 0
        cluster.become({LEFT: ("ACTIVE", (), ()), RIGHT: ("ACTIVE", (), ())})
        assert await scan(client, "skip") == []
        with pytest.raises(txnclient.DataTrimmed):
            await scan(client, "fail")
