"""Several segments of one topic that leave its graph in one round: none keeps another, and nothing of them stays."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from segments.controller.pruning import Pruning
from segments.layout.layout_transitions import read_topology
from segments.layout.topology import Topology, create_record
from txnstore import keys, records
from txnstore.memory.memory_store import MemoryStore
from txnstore.records import Drained
from txnstore.store import Commit, Delete, KeyValue, Put, created_at
from txnwire.errors import NotOwner
from txnwire.names import TopicName

TOPIC = TopicName("public", "nyc", "flights")
KEY = keys.topic(TOPIC.path)
MERGED = Topology(TOPIC, create_record(2, policies={}, created_ms=1)).merge(0, 1)
"""0, 1 → 2"""


async def pruning(
    store: MemoryStore, followed: list[int], on_deposed: Callable[[], None] = lambda: None, owners: Any = None
) -> Pruning:
    """Of a controller whose directory shows these segments of the topic, and an owner of each only if there are any."""
    key = keys.leader("controller")
    leader = await store.get(key)
    epoch = leader.create_revision if leader else (await store.commit(Commit(puts=(Put(key, b"{}"),)))).revision
    layout = SimpleNamespace(segments=dict.fromkeys(followed))
    directory: Any = SimpleNamespace(topics=lambda: {TOPIC.path: layout}, owner=lambda _: owners)
    leadership: Any = SimpleNamespace(still_held=lambda: created_at(key, epoch))
    return Pruning(store, directory, owners, leadership=leadership, pause_s=1.0, on_deposed=on_deposed)


async def stored(store: MemoryStore) -> KeyValue:
    record = await store.get(KEY)
    assert record is not None
    return record


async def test_a_segment_of_which_something_is_left_keeps_no_other_in_the_graph(memory_store: MemoryStore) -> None:
    """Its owner has died amid the erasing, and it has none for as long as no broker takes it."""
    marked = replace(MERGED.record, pruning=[0, 1])
    left = Put(keys.ledger(MERGED.paths[0]), b"{}")
    await memory_store.commit(Commit(puts=(Put(KEY, records.encode(marked)), left)))
    record = await stored(memory_store)
    of_term = await pruning(memory_store, [0, 1, 2])
    await of_term._take_out(record, read_topology(record))
    assert list(read_topology(await stored(memory_store)).segments) == [0, 2]
    assert of_term.pruned == 1


async def test_segments_that_hold_something_keep_no_later_one_from_being_asked(
    memory_store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dies where only as many are looked at as are asked at once: with so many that stay nothing else would ever go."""
    monkeypatch.setattr("segments.controller.pruning.SEGMENTS_AT_ONCE", 2)
    layout = Topology(TOPIC, create_record(6, policies={}, created_ms=1)).merge(0, 1).merge(2, 3).merge(4, 5)
    asked: list[str] = []

    async def forgotten(path: str) -> bool:
        asked.append(path)
        return path in (layout.paths[3], layout.paths[4])

    of_term = await pruning(memory_store, [], owners=SimpleNamespace(forgotten=forgotten))
    assert await of_term._find_forgotten(layout) == [3, 4]
    assert asked == [layout.paths[one] for one in range(6)]


async def test_drained_records_go_once_no_segment_of_theirs_is_followed_and_all_of_them_do(
    memory_store: MemoryStore,
) -> None:
    """▲ Who still follows one of them would take it for undrained, and its children from their consumers."""
    gone = replace(MERGED.prune(0).prune(1).record, pruning=[0, 1])
    drained = {(name, one): keys.drained(TOPIC.path, name, one) for one in (0, 1, 2) for name in "ab"}
    value = records.encode(Drained(end=(1, 0)))
    puts = [Put(KEY, records.encode(gone)), *(Put(key, value) for key in drained.values())]
    await memory_store.commit(Commit(puts=tuple(puts)))

    async def left() -> list[int]:
        return sorted({one for (_, one), key in drained.items() if await memory_store.get(key) is not None})

    for followed, remain in (([0, 2], [0, 1, 2]), ([1, 2], [0, 1, 2]), ([2], [2])):
        of_term = await pruning(memory_store, followed)
        await of_term._forget_drained(TOPIC.path, await stored(memory_store), [0, 1])
        assert await left() == remain
    assert read_topology(await stored(memory_store)).record.pruning == []


async def test_a_step_that_another_controller_has_forbidden_ends_the_term(memory_store: MemoryStore) -> None:
    marked = replace(MERGED.record, pruning=[0, 1])
    await memory_store.commit(Commit(puts=(Put(KEY, records.encode(marked)),)))
    deposed: list[None] = []
    of_term = await pruning(memory_store, [0, 1, 2], on_deposed=lambda: deposed.append(None))
    await memory_store.commit(Commit(deletes=(Delete(keys.leader("controller")),)))
    record = await stored(memory_store)
    with pytest.raises(NotOwner):
        await of_term._take_out(record, read_topology(record))
    assert deposed == [None]
    assert await stored(memory_store) == record
