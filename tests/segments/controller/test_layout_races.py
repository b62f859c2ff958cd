"""S6, S10 at random: several controllers, some of them deposed without knowing, owners that die, every step stalled."""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack
from typing import Any

import pytest
from msgspec.structs import replace

from segments.layout.topology import SEALED, Topology, create_record
from tests.segments.brokering import TOPIC, Cluster
from tests.segments.changing import Controlling, controlling, ledgers_of, topology_of
from tests.waiting import until
from txnstore import keys, records
from txnstore.records import LayoutChange
from txnstore.store import Commit, CommitVerdict, Delete, MetadataStore, Put
from txnwire.errors import Timeout, TxnError

TURNS = 60
"""Of the event loop that a write is held up at most, before it is sent and before its answer is heard of."""


class StallingStore:
    """Every commit takes its time, both ways: others come in between."""

    def __init__(self, store: MetadataStore, chance: random.Random) -> None:
        self._store = store
        self._chance = chance

    async def commit(self, commit: Commit, *, timeout_s: float = 10.0) -> CommitVerdict:
        await self._stall()
        result = await self._store.commit(commit, timeout_s=timeout_s)
        await self._stall()
        return result

    async def _stall(self) -> None:
        for _ in range(self._chance.randrange(TURNS)):
            await asyncio.sleep(0)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


async def ask(controller: Controlling, chance: random.Random) -> bool:
    """Some change, possible or not. Whether it was made."""
    topology = await topology_of(controller.cluster)
    paths = list(topology.active_paths)
    at = chance.randrange(len(paths))
    try:
        if chance.random() < 0.4 and len(paths) > 1:
            await controller.merge(paths[at], paths[(at + 1) % len(paths)])
        else:
            await controller.split(paths[at], chance.choice([None, chance.randrange(1, 0xFFFF)]))
    except TxnError:
        return False
    return True


@pytest.mark.parametrize("seed", range(6))
async def test_s6_s10_whatever_races_the_ranges_tile_and_every_change_ends(memory_cluster: Cluster, seed: int) -> None:
    """Neither requests nor controllers nor owners wait for each other. In the end everything that was accepted is done
    or given up; what is active can be written to, what is sealed is sealed."""
    cluster, chance = memory_cluster, random.Random(seed)
    make_store = cluster.make_store

    async def make_stalling() -> MetadataStore:
        return StallingStore(await make_store(), chance)  # type: ignore[return-value]

    cluster.make_store = make_stalling
    await cluster.create_topic(segments=3)
    node = await cluster.start()
    made = 0
    async with AsyncExitStack() as stack:
        for term in range(3):
            controller = await stack.enter_async_context(controlling(cluster, f"c{term}", patience_s=0.5))
            asked = [asyncio.ensure_future(ask(controller, chance)) for _ in range(6)]
            if term == 1:
                await node.crash()
                node = await cluster.start()
            made += sum(await asyncio.gather(*asked))
            late = [asyncio.ensure_future(ask(controller, chance)) for _ in range(3)]
            await asyncio.sleep(0)
            # Its key goes, and it does not hear of it: what it has begun goes on, against its successor.
            await cluster.store.commit(_forget_leader())
            stack.push_async_callback(asyncio.gather, *late, return_exceptions=True)
        last = await stack.enter_async_context(controlling(cluster, "last", patience_s=0.5))
        await until(lambda: last.changes.statistics().under_way == 0)
        await asyncio.gather(*late, return_exceptions=True)
        await last.changes.take_up()
        await until(lambda: last.changes.statistics().under_way == 0)
        topology = await topology_of(cluster)  # it cannot be made of ranges that do not tile
        assert not topology.record.changes
        assert made
        assert topology.epoch > 1
        await until(lambda: all(path in node.broker.segments for path in topology.paths.values()))
        for path in topology.active_paths:
            served = node.broker.segments[path]
            await until(lambda served=served: served.ledgers.writer is not None)  # type: ignore[misc]
            client = await cluster.connect(node)
            await (await client.producer(path, f"p{seed}")).send("writable")
        for entry in topology.segments.values():
            record = await ledgers_of(cluster, topology.paths[entry.id])
            assert (record.sealed is not None) == (entry.state == SEALED)


def _forget_leader() -> Commit:

    return Commit(deletes=(Delete(keys.leader("controller")),))


@pytest.mark.parametrize("pruned", [0, 1])
async def test_a_merge_with_a_parent_that_is_pruned_by_now_is_driven_no_more(
    memory_cluster: Cluster, pruned: int
) -> None:
    """It was made long ago; the layout that still shows it is an old one."""
    record = create_record(2, policies={}, created_ms=1)
    change = LayoutChange(id="c1", kind="merge", parents=[0, 1], since_ms=1)
    merged = Topology(TOPIC, record).merge(0, 1).prune(pruned)
    await memory_cluster.store.commit(Commit(puts=(Put(keys.topic(TOPIC.path), records.encode(merged.record)),)))
    async with controlling(memory_cluster) as control:
        control.changes.follow(Topology(TOPIC, replace(record, changes=[change])))
        assert control.changes.statistics().under_way == 1
        await until(lambda: control.changes.statistics().under_way == 0, within_s=20)


async def test_a_merge_that_is_given_up_is_told_with_both_its_segments(memory_cluster: Cluster) -> None:
    first, second = await memory_cluster.create_topic(segments=2)
    async with controlling(memory_cluster, patience_s=0.0) as control:
        with pytest.raises(Timeout, match=f"the merge of {first} and {second} was given up"):
            await control.merge(first, second)
