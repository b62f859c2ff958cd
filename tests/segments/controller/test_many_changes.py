"""S9: a thousand changes of a topic with data and retention, in virtual time: what a restart reads and takes over, and
what is kept, is bounded by what the topic holds, not by how often its layout has changed."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any, NamedTuple

from segments.layout.topology import create_record
from segments.log.settings import BrokerSettings
from simulation.world.sim_disk import SimDisk
from simulation.world.sim_ledger import SimLedgerStore
from tests.segments.brokering import Client, Cluster, Node
from tests.segments.changing import Controlling, controlling, topology_of
from tests.segments.controller.test_pruning import KEY, pruning, serving_all
from tests.segments.virtual_time import LoopClock, run
from tests.waiting import until
from txnstore import records
from txnstore.memory.memory_etcd import MemoryEtcd
from txnstore.memory.memory_store import MemoryStore
from txnstore.store import Commit, KeyValue, MetadataStore, Put, RangeResult
from txnwire.ids import TxnId

CHANGES, FIRST, ROUND = 1000, 100, 25
RETENTION_S = 1.0
SETTINGS = BrokerSettings(
    lease_ttl_s=2.0,
    claim_retry_s=0.05,
    housekeeping_s=1.0,
    roll_least_age_ms=100,
    prune_least_age_ms=0,
    producer_idle_s=1.0,
)


class CountedStore:
    """Counts the records that are read through it."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self.read = 0

    async def get(self, key: bytes, **options: Any) -> KeyValue | None:
        found = await self._store.get(key, **options)
        self.read += found is not None
        return found

    async def get_many(self, wanted: Any, **options: Any) -> tuple[int, list[KeyValue | None]]:
        revision, found = await self._store.get_many(wanted, **options)
        self.read += sum(one is not None for one in found)
        return revision, found

    async def range(self, start: bytes, end: bytes, **options: Any) -> RangeResult:
        found = await self._store.range(start, end, **options)
        self.read += len(found.records)
        return found

    async def ranges(self, wanted: Any, **options: Any) -> Any:
        found = await self._store.ranges(wanted, **options)
        self.read += sum(map(len, found))
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


class Kept(NamedTuple):
    """Behind so many changes."""

    record_bytes: int
    keys: int
    ledgers: int
    segments_taken_over: int
    records_read: int


class World:
    """Writes a transaction into every active segment, then changes the layout; every third is aborted."""

    def __init__(self) -> None:
        self.etcd = MemoryEtcd(LoopClock())
        self.disk = SimDisk(9)
        self.cluster = Cluster(
            self.make_store,
            MemoryStore(self.etcd, LoopClock(), random.Random(9), name="test"),
            Path("/nowhere"),
            SETTINGS,
            make_ledgers=lambda _: SimLedgerStore(self.disk),
            clock=LoopClock(),
            random=random.Random(9),
        )
        self.chance = random.Random(9)
        self.changes = 0
        self.ended: list[TxnId] = []

    async def make_store(self) -> MetadataStore:
        store: Any = CountedStore(MemoryStore(self.etcd, LoopClock(), random.Random(9), name="broker"))
        return store  # type: ignore[no-any-return]

    async def create_topic(self) -> None:
        record = create_record(1, policies={"retention_ms": int(RETENTION_S * 1000)}, created_ms=1)
        await self.cluster.store.commit(Commit(puts=(Put(KEY, records.encode(record)),)))

    async def change(self, controller: Controlling, client: Client) -> None:
        topology = await topology_of(self.cluster)
        active = list(topology.active_paths)
        txn = await self.cluster.begin()
        for path in active:
            await (await client.producer(path, f"p{self.changes}")).send(f"{self.changes}", txn=txn)
        await (self.cluster.abort(txn) if self.changes % 3 == 0 else self.cluster.commit(txn))
        self.ended.append(txn)
        index = self.chance.randrange(len(active))
        if len(active) > 3 and index:
            await controller.merge(active[index - 1], active[index])
        else:
            widest = max(topology.active, key=lambda one: one.hi - one.lo)
            await controller.split(topology.paths[widest.id])
        self.changes += 1

    async def keep_and_prune(self, node: Node, controller: Controlling) -> None:
        """All that was written is past its retention then."""
        for txn in self.ended:
            await self.cluster.collect(txn)
        self.ended.clear()
        await serving_all(node, self.cluster)
        async with pruning(controller) as pruner:
            for _ in range(4):
                await asyncio.sleep(RETENTION_S)
                await pruner.round()

    async def restarted(self, node: Node) -> tuple[Node, Kept]:
        await node.crash()
        node = await self.cluster.start()
        paths = (await topology_of(self.cluster)).paths.values()
        await until(lambda: all(path in node.broker.segments for path in paths), within_s=60)
        store: CountedStore = node.store  # type: ignore[assignment]
        record = self.etcd.mvcc.get(KEY)
        assert record is not None
        return node, Kept(
            len(record.value),
            len(self.etcd.mvcc.range(b"/", b"0")[0]),
            len(self.disk.files),
            len(node.broker.segments),
            store.read,
        )


def test_s9_a_thousand_changes_with_data_cost_a_restart_no_more_than_a_hundred() -> None:
    async def scenario() -> tuple[Kept, Kept]:
        world = World()
        await world.create_topic()
        node, found = await world.cluster.start(), []
        for changes in (FIRST, CHANGES):
            client = await world.cluster.connect(node)
            async with controlling(world.cluster) as controller:
                while world.changes < changes:
                    await serving_all(node, world.cluster)
                    await world.change(controller, client)
                    if world.changes % ROUND == 0:
                        await world.keep_and_prune(node, controller)
            node, kept = await world.restarted(node)
            found.append(kept)
        await world.cluster.close()
        await world.cluster.store.close()
        return found[0], found[1]

    first, last = run(scenario())
    print(first, last)
    assert last.segments_taken_over <= 8
    for name in Kept._fields:
        assert getattr(last, name) < 1.5 * getattr(first, name) + 10, (first, last)
