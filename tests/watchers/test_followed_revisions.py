"""How a decision watch follows the store to a revision."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from tests.waiting import until
from tests.watchers.decision_watch import OFTEN, A, B, Late
from tests.watchers.headers import Notes, begin, end
from txnstore import keys
from txnstore.memory.memory_etcd import MemoryEtcd
from txnstore.memory.memory_store import MemoryStore
from txnstore.store import Commit, KeyValue, MetadataStore, Put
from txnwire.clock import SystemClock
from txnwire.errors import Timeout
from watchers.decisions import DecisionSettings, DecisionWatch


async def test_revision_without_an_event_is_reached_by_reading(any_store: MetadataStore) -> None:
    """The store moves on elsewhere: no header changes any more, so the watch alone would never get there."""
    watch = DecisionWatch(any_store, SystemClock(), DecisionSettings(nudge_s=0.01))
    await watch.start()
    membership = watch.join(Notes())
    await membership.loaded([A])
    result = await any_store.commit(Commit(puts=(Put(b"/elsewhere", b""),)))
    await watch.wait_followed(result.revision, timeout_s=10)
    assert watch.followed_revision >= result.revision
    await watch.close()


# ---- faults of the watch, in memory


@pytest.fixture
async def starved_store() -> AsyncIterator[MemoryStore]:
    store = MemoryStore(MemoryEtcd(SystemClock()), SystemClock(), random.Random(0), faults=Late())
    try:
        yield store
    finally:
        await store.close()


async def test_a_revision_is_not_followed_while_a_segment_that_loads_may_hold_what_was_decided_before(
    starved_store: MemoryStore,
) -> None:
    """▲ It has read A as open; a reader that knows of A's commit must not be let through before A is decided here."""
    watch = DecisionWatch(starved_store, SystemClock(), DecisionSettings(nudge_s=0.01))
    await watch.start()
    notes = Notes()
    membership = watch.join(notes)
    await begin(starved_store, A)
    revision = await end(starved_store, A)
    with pytest.raises(Timeout):
        await watch.wait_followed(revision, timeout_s=0.2)
    await membership.loaded([A])
    await watch.wait_followed(revision, timeout_s=10)
    assert notes.told == [A]
    await watch.close()


async def test_a_segment_that_has_read_its_state_and_still_loads_holds_up_no_revision(
    starved_store: MemoryStore,
) -> None:
    """▲ On a disk that hangs it would hold up the snapshots of all others. What it expects is read for it as well."""
    watch = DecisionWatch(starved_store, SystemClock(), DecisionSettings(nudge_s=0.01))
    await watch.start()
    notes = Notes()
    membership = watch.join(notes)
    await begin(starved_store, A)
    await membership.expect([A])
    revision = await end(starved_store, A)
    await watch.wait_followed(revision, timeout_s=2)
    assert notes.told == []
    await membership.loaded([A])
    assert notes.told == [A]
    await watch.close()


class Slow:
    """A store whose reads of `keys` wait until they may `go`."""

    def __init__(self, store: MemoryStore, keys: Sequence[bytes]) -> None:
        self._store, self._keys = store, keys
        self.asked, self.go = asyncio.Event(), asyncio.Event()
        self.go.set()

    async def get_many(self, asked: Sequence[bytes]) -> tuple[int, list[KeyValue | None]]:
        if list(asked) == self._keys:
            self.asked.set()
            await self.go.wait()
        return await self._store.get_many(asked)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


async def test_what_is_let_go_of_while_its_header_is_read_is_passed_over(starved_store: MemoryStore) -> None:
    slow = Slow(starved_store, [keys.txn(B)])
    watch = DecisionWatch(slow, SystemClock(), DecisionSettings(nudge_s=0.01))  # type: ignore[arg-type]
    await watch.start()
    notes = Notes()
    membership = watch.join(notes)
    await membership.loaded([B])
    await begin(starved_store, B)
    revision = await end(starved_store, B)
    slow.go.clear()
    waiting = asyncio.ensure_future(watch.wait_followed(revision, timeout_s=10))
    await slow.asked.wait()
    membership.drop(B)
    slow.go.set()
    await waiting
    assert (notes.told, notes.absent) == ([], [])
    await watch.close()


async def test_who_was_loading_as_it_was_looked_what_is_held_has_not_been_read_for(starved_store: MemoryStore) -> None:
    """▲ It is through with loading by the end of the read, which has not asked for A: a reader that knows of A's commit
    must not be let through before A is decided here."""
    slow = Slow(starved_store, [keys.txn(B)])
    watch = DecisionWatch(slow, SystemClock(), DecisionSettings(nudge_s=0.01))  # type: ignore[arg-type]
    await watch.start()
    other, notes = Notes(), Notes()
    await watch.join(other).loaded([B])
    membership = watch.join(notes)
    await begin(starved_store, A)
    await begin(starved_store, B)
    revision = await end(starved_store, A)
    slow.go.clear()
    waiting = asyncio.ensure_future(watch.wait_followed(revision, timeout_s=10))
    await slow.asked.wait()
    await membership.loaded([A])
    assert notes.told == []
    slow.go.set()
    await waiting
    assert notes.told == [A]
    await watch.close()


async def test_what_is_held_while_a_revision_is_read_counts_too(starved_store: MemoryStore) -> None:
    """▲ The read is under way when A is begun, held and committed, and its answer's revision is above all that."""
    slow = Slow(starved_store, [keys.INCARNATION])
    watch = DecisionWatch(slow, SystemClock(), DecisionSettings(nudge_s=0.01))  # type: ignore[arg-type]
    await watch.start()
    notes = Notes()
    membership = watch.join(notes)
    await membership.loaded([])
    slow.go.clear()
    slow.asked.clear()
    elsewhere = (await starved_store.commit(Commit(puts=(Put(b"/elsewhere", b""),)))).revision
    waiting = asyncio.ensure_future(watch.wait_followed(elsewhere, timeout_s=10))
    await slow.asked.wait()
    membership.add(A)
    await begin(starved_store, A)
    revision = await end(starved_store, A)
    slow.go.set()
    await waiting
    assert (watch.followed_revision >= revision, notes.told) in ((True, [A]), (False, []))
    await watch.close()


async def test_e1_decision_the_watch_never_showed_is_found_by_reading_again(starved_store: MemoryStore) -> None:
    """What is held long is read again."""
    store = starved_store
    watch = DecisionWatch(store, SystemClock(), OFTEN)
    await watch.start()
    notes = Notes()
    membership = watch.join(notes)
    await membership.loaded([])
    await begin(store, A)
    membership.add(A)
    await end(store, A)
    await until(lambda: notes.told == [A])
    await watch.close()
