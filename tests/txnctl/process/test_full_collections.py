"""Cycles are freed, also beside more objects than a full collection may look at, and those that were frozen later."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator

import pytest

from tests.segments.virtual_time import virtual_time
from txnctl.process.full_collections import LOOK_S, NEVER, OLDEST, FullCollections
from txnwire.tasks import cancel_all


class Node:
    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def own_collector() -> Iterator[None]:
    thresholds = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*thresholds)
    gc.collect()
    gc.freeze()  # else each later scenario in virtual time would walk all modules and all tests


def old_cycle() -> weakref.ref[Node]:
    """One that only a full collection frees."""
    node = Node()
    gc.collect(1)
    return weakref.ref(node)


def test_no_full_collection_comes_by_itself_and_each_look_is_one() -> None:
    collections = FullCollections(most=100_000)
    assert gc.get_threshold()[2] == NEVER
    cycle = old_cycle()
    assert cycle() is not None
    collections.look()
    assert cycle() is None


@virtual_time
async def test_a_process_looks_again_and_again() -> None:
    running = asyncio.create_task(FullCollections().run())
    for _ in range(2):
        cycle = old_cycle()
        await asyncio.sleep(LOOK_S + 1)
        assert cycle() is None
    await cancel_all([running])


def test_what_has_come_counts_though_as_much_of_what_was_frozen_has_gone() -> None:
    """Dies if memory is compared: a hundred thousand would be looked at, in one turn of the event loop."""
    collections = FullCollections(most=50_000)
    before = [[number] for number in range(200_000)]
    gc.collect(1)
    collections.look()
    frozen = gc.get_freeze_count()
    before.clear()
    later = [[number] for number in range(190_000)]
    cycle = old_cycle()
    collections.look()
    assert cycle() is not None
    assert gc.get_freeze_count() > frozen - 200_000 + len(later) - 1


def test_where_much_comes_quickly_a_look_is_due_before_there_is_too_much_to_count() -> None:
    collections = FullCollections(most=50_000)
    kept: list[list[list[int]]] = []
    counted = []
    for _ in range(4):
        while not collections.grown:
            kept.append([[number] for number in range(1000)])
        counted.append(len(gc.get_objects(generation=OLDEST)))
        collections.look()
        assert not collections.grown
    assert len(kept) > 400, "not at every little growth"
    assert max(counted) < 200_000


def test_more_than_may_be_looked_at_is_frozen_and_what_comes_later_is_collected() -> None:
    collections = FullCollections(most=60_000)
    for_good = gc.get_freeze_count()
    many = [[number] for number in range(200_000)]
    buried = old_cycle()
    collections.look()
    assert gc.get_freeze_count() > for_good + len(many) - 1
    later = old_cycle()
    collections.look()
    assert (buried() is None, later() is None) == (False, True)
    del many[100_000:]
    another = [[number] for number in range(50_000)]
    collections.look()
    assert buried() is not None, "there is still more than may be looked at"
    del many, another
    collections.look()
    assert buried() is None
    assert gc.get_freeze_count() < for_good + 50_000
