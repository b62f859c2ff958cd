"""A cluster of scripted servers over a transport in memory, and clients of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import msgspec

import txnclient
from segments.layout.topology import Topology, create_record
from tests.segments.memory_transport import MemoryTransport
from tests.segments.virtual_time import LoopClock
from tests.txnclient.scripted_process import SEGMENTS, TOPIC, ScriptedServer
from txnwire.entry import decode_block
from txnwire.ids import TxnId
from txnwire.names import TopicName
from txnwire.proto import txn_pb2 as pb


class Cluster:
    """Servers that share one state, as etcd and the ledgers would keep it."""

    def __init__(self) -> None:
        self.transport = MemoryTransport()
        self.clock = LoopClock()
        self.servers: dict[str, ScriptedServer] = {}
        self.topology = Topology(TopicName.parse(TOPIC), create_record(2, policies={}, created_ms=0))
        self.topics = [TOPIC]
        """What is listed; there is only one."""
        self.life = 0
        """Of the topic, as far as the servers say."""
        self.owners = dict.fromkeys(SEGMENTS, "broker:1")
        self.coordinators = {0: "broker:1", 1: "broker:1"}
        self.controller = "broker:1"
        self.revision = 1
        self.states: dict[TxnId, str] = {}
        self.decided_at: dict[TxnId, int] = {}
        self.attempts: dict[bytes, TxnId] = {}
        self.names: dict[str, TxnId] = {}
        self.writers: dict[TxnId, list[int] | None] = {}
        """Of committed ones: those that count, None for all."""
        self.notes: dict[TxnId, str] = {}
        self.stored: dict[str, list[tuple[int, int, TxnId | None]]] = {path: [] for path in SEGMENTS}
        """Per segment: first and last sequence id, transaction."""
        self.entries: dict[str, list[bytes]] = defaultdict(list)
        self.sealed: dict[str, None] = {}
        """Segments whose owner takes nothing in any more, whatever the topic's layout says."""

    async def start(self, *addresses: str) -> None:
        for address in addresses or ("broker:1",):
            self.servers[address] = ScriptedServer(self, address)
            await self.servers[address].start()

    async def stop(self) -> None:
        for server in list(self.servers.values()):
            await server.stop()

    def move(self, path: str, address: str) -> None:
        self.owners[path] = address
        self.announce()

    def serve_all(self, address: str) -> None:
        """One server has every role and segment; nobody hears of it yet."""
        self.coordinators, self.controller = {0: address}, address
        self.owners = dict.fromkeys(self.owners, address)
        self.revision += 1

    def announce(self) -> None:
        """Push the cluster and the layout to whoever follows."""
        self.revision += 1
        for server in self.servers.values():
            server.push_news()

    def layout(self, topic: str) -> pb.Layout:
        exists, epoch = topic == TOPIC, self.topology.epoch
        layout = pb.Layout(topic=topic, exists=exists, epoch=epoch, revision=self.revision, life=self.life)
        for one in self.topology.segments.values() if exists else ():
            path = self.topology.paths[one.id]
            owner = self.owners.get(path, "")
            layout.segments.add(
                segment_id=one.id,
                lo=one.lo,
                hi=one.hi,
                state=one.state,
                parents=one.parents,
                children=one.children,
                owner=owner,
                owner_address=owner,
                path=path,
            )
        return layout

    def make_again(self) -> None:
        """The topic is deleted, and another one made of its name; nobody hears of it yet."""
        first = max(self.topology.segments) + 1
        record = create_record(2, policies={}, created_ms=0, first_segment_id=first)
        self.topology = Topology(self.topology.topic, record)
        self.life += 1
        for path in self.topology.active_paths:
            self.owners[path] = "broker:1"
            self.stored[path] = []

    # ---- layouts that change ----------------------------------------------------------------------------------------

    def path(self, segment_id: int) -> str:
        return self.topology.paths[segment_id]

    def seal(self, *segment_ids: int, told: bool = True) -> None:
        """What is in flight is stored, then the owner takes nothing in any more. `told`: it tells its producers."""
        for segment_id in segment_ids:
            self.sealed[self.path(segment_id)] = None
        for server in self.servers.values():
            server.finish_sends()
            for segment_id in segment_ids if told else ():
                server.tell_sealed(self.path(segment_id))

    def unseal(self, segment_id: int) -> None:
        """The change was given up."""
        del self.sealed[self.path(segment_id)]

    def split(self, segment_id: int, *, owner: str = "broker:1", at: int | None = None) -> None:
        """The layout change behind the seal, and who owns the children; everybody hears of it."""
        self._change(self.topology.split(segment_id, at=at), owner)

    def merge(self, one: int, other: int, *, owner: str = "broker:1") -> None:
        self._change(self.topology.merge(one, other), owner)

    def _change(self, topology: Topology, owner: str) -> None:
        self.topology = topology
        for path in topology.active_paths:
            self.owners.setdefault(path, owner)
        self.announce()

    def prune(self, segment_id: int) -> None:
        """A sealed segment is forgotten: no server and no layout knows it any more. Its children have no parents."""
        record = self.topology.record
        kept = [one for one in record.segments if one.id != segment_id]
        for one in kept:
            if segment_id in one.parents:
                one.parents.remove(segment_id)
        self.topology = Topology(self.topology.topic, msgspec.structs.replace(record, segments=kept))
        self.announce()

    def values_by_key(self) -> dict[bytes | None, list[bytes]]:
        """What a reader would find: parents before children, each segment from its first entry on."""
        found: dict[bytes | None, list[bytes]] = {}
        for path in [self.path(number) for number in self.topology.segments]:
            for entry in self.entries[path]:
                block = decode_block(entry)
                for key, value in zip(block.keys(), block.values(), strict=True):
                    found.setdefault(key, []).append(value)
        return found

    def cluster(self) -> pb.Cluster:
        return pb.Cluster(
            coordinators=[pb.Cluster.Coordinator(tc_id=tcid, address=a) for tcid, a in self.coordinators.items()],
            brokers=[pb.Cluster.Broker(id=address, address=address) for address in self.servers],
            controller_address=self.controller,
            revision=self.revision,
        )


@asynccontextmanager
async def connected(*addresses: str, **options: Any) -> AsyncIterator[tuple[Cluster, txnclient.Client]]:
    """A cluster of scripted servers (one at "broker:1" by default) and a client of it."""
    cluster = Cluster()
    await cluster.start(*addresses)
    url = "txn://" + ",".join(addresses or ("broker:1",))
    async with txnclient.connect(
        url, transport=cluster.transport, clock=cluster.clock, random=Random(1), **options
    ) as client:
        yield cluster, client
    await cluster.stop()


__all__ = ["SEGMENTS", "TOPIC", "Cluster", "ScriptedServer", "connected"]
