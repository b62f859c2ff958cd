"""What a controller does by itself while it leads, and that it ends with the term; in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace

import pytest

from segments.controller.term_work import no_controller
from segments.layout.layout_transitions import Seal, read_topology
from segments.layout.topology import Topology
from tests.segments.controlling import SETTINGS, TOPIC, Inbox, Process, joining, running, with_topic
from tests.segments.virtual_time import LoopClock, virtual_time
from tests.waiting import until
from txnstore import keys
from txnstore.memory.memory_etcd import MemoryEtcd
from txnstore.memory.memory_store import Fate
from txnstore.records import LedgerRecord, LoadSample, OwnerRecord, SubscriptionRecord, encode
from txnstore.store import Commit, Delete, Put
from txnwire.errors import NotOwner
from txnwire.names import SegmentName


async def topology_of(process: Process) -> Topology:
    record = await process.store.get(keys.topic(TOPIC.path))
    assert record is not None
    return read_topology(record)


async def put(process: Process, *puts: Put) -> None:
    await process.store.commit(Commit(puts=puts))


async def with_sealed_root(process: Process) -> str:
    """Its path: it has been split, and its owner serves it."""
    await with_topic(process, segments=1)
    whole = await topology_of(process)
    [root] = whole.active_paths
    await put(
        process,
        Put(keys.topic(TOPIC.path), encode(whole.split(0).record)),
        Put(keys.ledger(root), encode(LedgerRecord(ledgers=[]))),
        Put(keys.owner(root), encode(OwnerRecord(broker="b", address="b:1"))),
    )
    return root


@virtual_time
async def test_s9_whoever_leads_takes_empty_sealed_segments_out_of_the_graph() -> None:
    async with running(MemoryEtcd(LoopClock()), "a") as [a]:
        root = await with_sealed_root(a)

        async def forgotten(segment: str) -> bool:
            return segment == root

        a.positions.forgotten = forgotten  # type: ignore[method-assign]
        await asyncio.sleep(61.0)
        assert (await topology_of(a)).record.pruning == [0]
        await a.store.commit(Commit(deletes=(Delete(keys.owner(root)), Delete(keys.ledger(root)))))
        await asyncio.sleep(10.0)
        assert sorted((await topology_of(a)).segments) == [1, 2]


@virtual_time
async def test_whoever_leads_splits_what_is_loaded() -> None:
    a = await Process(MemoryEtcd(LoopClock()), "a", replace(SETTINGS, autoscale_s=10.0)).start()
    try:
        await a.controller.wait_leading(timeout_s=10.0)
        await with_topic(a, segments=1)
        [path] = (await topology_of(a)).active_paths
        load = LoadSample(messages_in_per_s=20_000.0, bytes_in_per_s=0, window_s=60, taken_ms=1)
        await put(a, Put(keys.load(path), encode(load)))
        asked = asyncio.Event()

        async def seal(segment: str, change_id: str) -> Seal:
            asked.set()
            raise NotOwner("it is moving")

        a.positions.seal = seal  # type: ignore[method-assign]
        await asyncio.wait_for(asked.wait(), 90.0)
        assert [(change.kind, change.parents) for change in (await topology_of(a)).record.changes] == [("split", [0])]
    finally:
        await a.close()


async def begin_split(process: Process) -> None:
    await with_topic(process, segments=1)
    [path] = (await topology_of(process)).active_paths
    await process.controller.split_segment(SegmentName.from_path(path), None)


async def begin_pruning(process: Process) -> None:
    await with_sealed_root(process)


async def begin_deletion(process: Process) -> None:
    await with_topic(process, segments=1)
    known = SubscriptionRecord(type="queue", start={"kind": "earliest"})
    await put(process, Put(keys.subscription(TOPIC.path, "s"), encode(known)))
    await process.controller.delete_subscription(TOPIC, "s", force=True)


@pytest.mark.parametrize(
    ("begin", "call"),
    [(begin_split, "seal"), (begin_pruning, "forgotten"), (begin_deletion, "drop_subscription")],
    ids=["split", "pruning", "deletion"],
)
@virtual_time
async def test_a_controller_is_closed_once_each_call_that_it_had_under_way_has_ended(
    begin: Callable[[Process], Coroutine[None, None, None]], call: str
) -> None:
    """▲ The store and the connections that such a call uses are closed behind it."""
    asked, ended = [], []

    async def lingering(*_: str) -> None:
        asked.append(call)
        try:
            await asyncio.sleep(3600.0)
        finally:
            await asyncio.sleep(0.5)
            ended.append(call)

    async with running(MemoryEtcd(LoopClock()), "a") as [a]:
        setattr(a.positions, call, lingering)
        request = asyncio.ensure_future(begin(a))
        await until(lambda: asked == [call], within_s=120.0)
        await a.controller.close()
        assert ended == [call]
        await asyncio.gather(request, return_exceptions=True)


@virtual_time
async def test_groups_are_closed_once_what_they_write_has_ended() -> None:
    """▲ The next term, perhaps of this process, reads the assignments behind that."""
    async with running(MemoryEtcd(LoopClock()), "a") as [a]:
        await with_topic(a, segments=1)
        await a.controller.join(joining("one"), Inbox())
        a.fates.commits = [Fate(arrive_s=0.001, fail_s=3600.0)]
        join = asyncio.ensure_future(a.controller.join(joining("two"), Inbox()))
        await asyncio.sleep(1.0)
        writing = [task for task in asyncio.all_tasks() if task.get_name().startswith("assignment")]
        assert len(writing) == 1
        term = a.controller._term
        assert term is not None
        await term.groups.close(no_controller())
        assert writing[0].done()
        await asyncio.gather(join, return_exceptions=True)
