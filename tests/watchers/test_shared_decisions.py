"""Decisions that several participants, or several readers, await at once."""

from __future__ import annotations

import asyncio

import pytest

from tests.waiting import until
from tests.watchers.decision_watch import NEVER, OFTEN, A, B, C
from tests.watchers.headers import Notes, begin, end
from txnstore.memory.memory_store import MemoryStore
from txnwire.clock import SystemClock
from txnwire.errors import StoreUnavailable
from watchers.decisions import DecisionWatch

HOUR_S = 3600.0


async def test_all_participants_of_a_transaction_are_told_and_keep_nothing_of_it(memory_store: MemoryStore) -> None:
    """▲ What each holds would grow with all transactions of several segments."""
    watch = DecisionWatch(memory_store, SystemClock(), NEVER)
    await watch.start()
    noted = [Notes() for _ in range(3)]
    memberships = [watch.join(notes) for notes in noted]
    await begin(memory_store, A)
    await begin(memory_store, B)
    for membership in memberships:
        await membership.loaded([])
        membership.add(A)
        membership.add(B)
    await end(memory_store, A)
    await until(lambda: all(notes.told == [A] for notes in noted))
    assert [[held.txn_id for held in membership.held] for membership in memberships] == [[B]] * 3
    for membership in memberships:
        membership.leave()
    assert watch.statistics().held == 0
    await watch.close()


async def test_all_participants_are_told_of_a_header_that_is_gone(memory_store: MemoryStore) -> None:
    watch = DecisionWatch(memory_store, SystemClock(), OFTEN)
    await watch.start()
    noted = [Notes() for _ in range(3)]
    for notes in noted:
        membership = watch.join(notes)
        await membership.loaded([])
        membership.add(A)
    await until(lambda: all(A in notes.absent for notes in noted))
    assert [notes.told for notes in noted] == [[], [], []]
    await watch.close()


async def test_all_who_wait_for_a_revision_go_on_with_the_event_that_shows_it(memory_store: MemoryStore) -> None:
    watch = DecisionWatch(memory_store, SystemClock(), NEVER)
    await watch.start()
    revision = watch.followed_revision + 1
    waiting = [
        asyncio.ensure_future(watch.wait_followed(revision, timeout_s=HOUR_S, patience_s=HOUR_S)) for _ in range(3)
    ]
    later = asyncio.ensure_future(watch.wait_followed(revision + 1000, timeout_s=HOUR_S, patience_s=HOUR_S))
    await asyncio.sleep(0)
    await begin(memory_store, C)
    await asyncio.wait_for(asyncio.gather(*waiting), 10)
    assert not later.done()
    await watch.close()
    with pytest.raises(StoreUnavailable):
        await later


async def test_all_who_wait_for_a_revision_are_told_that_nobody_follows_any_more(memory_store: MemoryStore) -> None:
    watch = DecisionWatch(memory_store, SystemClock(), NEVER)
    await watch.start()
    revision = watch.followed_revision + 1
    waiting = [
        asyncio.ensure_future(watch.wait_followed(revision, timeout_s=HOUR_S, patience_s=HOUR_S)) for _ in range(3)
    ]
    await asyncio.sleep(0)
    await watch.close()
    found = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 10)
    assert [type(one) for one in found] == [StoreUnavailable] * 3


async def test_what_a_segment_was_loaded_with_is_shown(memory_store: MemoryStore) -> None:
    """▲ A reader elsewhere must wait for as much."""
    watch = DecisionWatch(memory_store, SystemClock(), NEVER)
    watch.loaded_at(50)
    watch.loaded_at(40)
    assert watch.shown_revision == 50
