"""Headers that are read again: all pages of what is held, in the order of decisions (E1, DESIGN §6)."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.waiting import until
from tests.watchers.decision_watch import Late
from tests.watchers.headers import Notes, begin, end
from txnstore.memory.memory_etcd import MemoryEtcd
from txnstore.memory.memory_store import MemoryStore
from txnstore.store import KeyValue
from txnwire.clock import SystemClock
from txnwire.errors import StoreUnavailable
from txnwire.ids import TxnId
from watchers.decisions import DecisionSettings, DecisionWatch
from watchers.outcomes import Decision

A, B, C = (TxnId(0, number) for number in (1, 2, 3))


@pytest.fixture
async def starved() -> AsyncIterator[MemoryStore]:
    """No event comes."""
    store = MemoryStore(MemoryEtcd(SystemClock()), SystemClock(), random.Random(0), faults=Late())
    try:
        yield store
    finally:
        await store.close()


async def test_e1_a_revision_is_reached_by_reading_all_pages_of_what_is_held(starved: MemoryStore) -> None:
    """▲ Readers at that revision would not be shown what stands on the pages that were left out."""
    watch = DecisionWatch(
        starved, SystemClock(), DecisionSettings(nudge_s=0.01, reconcile_interval_s=3600.0, reconcile_page=1)
    )
    await watch.start()
    notes = Notes()
    membership = watch.join(notes)
    await membership.loaded([A, B, C])
    for txn_id in (A, B, C):
        await begin(starved, txn_id)
        revision = await end(starved, txn_id)
    await watch.wait_followed(revision, timeout_s=10)
    assert notes.told == [A, B, C]
    await watch.close()


async def test_e1_a_revision_is_reached_though_its_first_reading_fails(starved: MemoryStore) -> None:
    watch = DecisionWatch(starved, SystemClock(), DecisionSettings(nudge_s=0.01, reconcile_interval_s=3600.0))
    await watch.start()
    notes, read = Notes(), starved.get_many
    await watch.join(notes).loaded([A])
    await begin(starved, A)
    revision = await end(starved, A)

    async def fails_once(*args: Any, **options: Any) -> tuple[int, list[KeyValue | None]]:
        starved.get_many = read  # type: ignore[method-assign]
        raise StoreUnavailable("just now")

    starved.get_many = fails_once  # type: ignore[method-assign]
    await watch.wait_followed(revision, timeout_s=10)
    assert notes.told == [A]
    await watch.close()


async def test_e1_one_that_stays_open_keeps_no_other_from_being_read_again(starved: MemoryStore) -> None:
    settings = DecisionSettings(
        reconcile_interval_s=0.02, held_long_s=0.0, reconcile_pause_s=0.0, reconcile_page=1, nudge_s=3600.0
    )
    watch = DecisionWatch(starved, SystemClock(), settings)
    await watch.start()
    notes = Notes()
    membership = watch.join(notes)
    await membership.loaded([A, B])
    for txn_id in (A, B):
        await begin(starved, txn_id)
    await end(starved, B)
    await until(lambda: notes.told == [B])
    await watch.close()


async def test_e1_what_is_found_by_one_reading_is_told_in_the_order_of_decisions(starved: MemoryStore) -> None:
    watch = DecisionWatch(starved, SystemClock(), DecisionSettings(nudge_s=0.01, reconcile_interval_s=3600.0))
    await watch.start()
    notes = Notes()
    membership = watch.join(notes)
    await membership.loaded([A, B, C])
    for txn_id in (A, B, C):
        await begin(starved, txn_id)
    for txn_id in (C, A, B):
        revision = await end(starved, txn_id)
    await watch.wait_followed(revision, timeout_s=10)
    assert notes.told == [C, A, B]
    await watch.close()


class Asks(Notes):
    """Notes how far is shown as it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.watch: DecisionWatch | None = None
        self.shown: list[int] = []

    def decide(self, decision: Decision) -> None:
        super().decide(decision)
        assert self.watch is not None
        self.shown.append(self.watch.shown_revision)


async def test_what_is_told_counts_as_shown_already(memory_store: MemoryStore) -> None:
    """▲ Who is given entries is told with them how far the next snapshot must reach."""
    watch = DecisionWatch(memory_store, SystemClock())
    await watch.start()
    asks = Asks()
    asks.watch = watch
    membership = watch.join(asks)
    await membership.loaded([A])
    await begin(memory_store, A)
    revision = await end(memory_store, A)
    await watch.wait_followed(revision, timeout_s=10)
    assert asks.shown == [revision]
    await watch.close()
