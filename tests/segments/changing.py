"""Layout changes over the brokers of `brokering.Cluster`: the controller's part, straight in this process."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from segments.controller.layout_changes import LayoutChanges
from segments.layout.layout_transitions import Seal, read_topology
from segments.layout.topology import Topology
from tests.segments.brokering import TOPIC, Cluster
from txnstore import keys, records
from txnstore.election import Election
from txnstore.records import LedgerRecord
from txnstore.store import MetadataStore
from txnwire.errors import NotOwner
from txnwire.names import SegmentName, TopicName


class Owners:
    """Asks whichever broker of the cluster serves the segment. `asked` keeps (segment, change id)."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.asked: list[tuple[str, str]] = []
        self.before: Callable[[str], None] = lambda _: None
        """Called with each segment before it is asked; may raise."""

    async def seal(self, segment: str, change_id: str) -> Seal:
        self.asked.append((segment, change_id))
        self.before(segment)
        for node in self._cluster.nodes:
            if (served := node.broker.segments.get(segment)) is not None:
                return await served.sealing.seal(change_id)
        raise NotOwner(f"nobody serves {segment}")

    async def forgotten(self, segment: str) -> bool:
        for node in self._cluster.nodes:
            if (served := node.broker.segments.get(segment)) is not None:
                return await served.forgotten()
        raise NotOwner(f"nobody serves {segment}")


@dataclass
class Controlling:
    """One term of a controller, as far as layouts go."""

    cluster: Cluster
    store: MetadataStore
    changes: LayoutChanges
    owners: Owners
    deposed: list[None] = field(default_factory=list)

    async def split(self, path: str, at: int | None = None) -> list[str]:
        """The children's paths."""
        return list((await self.changes.split(SegmentName.from_path(path), at)).children)

    async def merge(self, path_a: str, path_b: str) -> list[str]:
        changed = await self.changes.merge(SegmentName.from_path(path_a), SegmentName.from_path(path_b))
        return list(changed.children)


@asynccontextmanager
async def controlling(
    cluster: Cluster, name: str = "c1", *, patience_s: float = 10.0, store: MetadataStore | None = None
) -> AsyncIterator[Controlling]:
    """Elected, once whoever was before has resigned or lost its lease; takes up what that has left."""
    store = store or await cluster.make_store()
    election = Election(store, random.Random(name), what="controller", id=name, address=name, lease_ttl_s=2.0)
    leadership = await election.campaign()
    owners, deposed = Owners(cluster), []
    changes = LayoutChanges(
        store,
        cluster.clock,
        random.Random(name),
        owners,
        leadership=leadership,
        patience_s=patience_s,
        on_deposed=lambda: deposed.append(None),
    )
    await changes.take_up()
    try:
        yield Controlling(cluster, store, changes, owners, deposed)
    finally:
        await changes.close()
        await leadership.resign()
        await store.close()


async def topology_of(cluster: Cluster, topic: TopicName = TOPIC) -> Topology:
    record = await cluster.store.get(keys.topic(topic.path))
    assert record is not None
    return read_topology(record)


async def ledgers_of(cluster: Cluster, path: str) -> LedgerRecord:
    record = await cluster.store.get(keys.ledger(path))
    assert record is not None
    return records.decode(LedgerRecord, record.value, key=record.key)
