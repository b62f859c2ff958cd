"""Which coordinator ids a process believes to hold, whatever it hears late."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from random import Random
from typing import Any

import pytest

from coordinator_v5.ownership import TcidOwnership
from coordinator_v5.settings import CoordinatorSettings
from tests.coordinator_v5.processes import LOST_BEFORE, Fates, StepClock, fresh_etcd
from tests.segments.virtual_time import virtual_time
from tests.waiting import until
from txnstore import keys, records
from txnstore.memory.memory_etcd import MemoryEtcd
from txnstore.memory.memory_store import Fate, MemoryStore
from txnstore.records import RegistrationRecord
from txnstore.store import Commit, Delete, Event, EventKind, KeyValue, Put, RangeResult, WatchBatch
from txnwire.errors import StoreUnavailable

ME = RegistrationRecord(id="one", address="one:1")
OTHER = RegistrationRecord(id="two", address="two:1")


class Held:
    """What the process was told it holds, by id the epoch."""

    def __init__(self, store: MemoryStore, tcids: int = 2) -> None:
        self.store = store
        self.mine: dict[int, int] = {}
        self.takings: list[list[int]] = []
        """The ids that each taking told of."""
        self.lost_at: list[int] = []
        """At which turn of `turns` each was told to be lost."""
        self.turns = 0
        self.ownership = TcidOwnership(
            store, CoordinatorSettings(tcids=tcids), ME, on_taken=self._taken, on_lost=self._lost
        )

    def _lost(self, tcid: int) -> None:
        del self.mine[tcid]
        self.lost_at.append(self.turns)

    async def count_turns(self) -> None:
        while True:
            self.turns += 1
            await asyncio.sleep(0)

    async def _taken(self, taken: dict[int, int]) -> None:
        self.takings.append(sorted(taken))
        self.mine |= taken


@asynccontextmanager
async def holding(etcd: MemoryEtcd, tcids: int = 2, fates: Fates | None = None) -> AsyncIterator[Held]:
    store = MemoryStore(etcd, StepClock(), Random(1), name="one", faults=fates)
    held = Held(store, tcids)
    running = asyncio.ensure_future(held.ownership.run())
    try:
        await until(lambda: len(held.mine) == tcids)
        yield held
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await held.ownership.close()
        await store.close()


@virtual_time
async def test_a_listing_from_before_it_took_an_id_takes_nothing_away() -> None:
    """▲ The id would stay its own in the store, on a lease that lives, and nobody would serve it."""
    etcd = fresh_etcd()
    async with holding(etcd) as held:
        before = dict(held.mine)
        earliest = min(before.values())
        await held.ownership.heard(WatchBatch(earliest - 1, (), resync=True))
        assert held.mine == before
        await held.ownership.heard(WatchBatch(earliest, (), resync=True))
        assert sorted(held.mine.values()) == [max(before.values())], "one from behind it tells that it is gone"


@virtual_time
async def test_e4_a_deletion_from_before_it_took_an_id_takes_nothing_away() -> None:
    """▲ Of its predecessor's key, between the listing and the taking."""
    etcd = fresh_etcd()
    async with holding(etcd) as held:
        before = dict(held.mine)
        key, taken_at = keys.tc(0), before[0]
        for revision, left in ((taken_at - 1, before), (taken_at + 1, {1: before[1]})):
            gone = Event(EventKind.DELETE, KeyValue(key, b"", 0, 0, revision))
            await held.ownership.heard(WatchBatch(revision, (gone,)))
            assert held.mine == left


@pytest.mark.parametrize("resync", [False, True])
@virtual_time
async def test_an_id_that_was_taken_anew_under_its_name_is_lost(resync: bool) -> None:
    """▲ By a process that was there meanwhile: a listing shows nothing of the deletion between."""
    etcd = fresh_etcd()
    async with holding(etcd) as held:
        before = dict(held.mine)
        revision = etcd.mvcc.revision + 1
        heard = [
            Event(EventKind.PUT, KeyValue(keys.tc(tcid), records.encode(ME), 1, created, created))
            for tcid, created in ((0, revision), (1, before[1]))
        ]
        await held.ownership.heard(WatchBatch(revision, tuple(heard), resync=resync))
        assert held.mine == {1: before[1]}


@virtual_time
async def test_an_id_that_is_given_up_is_acted_for_no_more_before_it_is_free() -> None:
    """▲ Else a begin of it may be on its way that its next owner knows nothing of."""
    etcd = fresh_etcd()
    async with holding(etcd, tcids=4) as held:
        stood: list[bool] = []
        tell = held.ownership._on_lost

        def lost(tcid: int) -> None:
            stood.append(etcd.mvcc.get(keys.tc(tcid)) is not None)
            tell(tcid)

        held.ownership._on_lost = lost
        etcd.mvcc.commit([Commit(puts=(Put(keys.tc_member("two"), records.encode(OTHER)),))])
        await until(lambda: len(held.mine) == 2)
        assert stood == [True, True]


@virtual_time
async def test_an_id_whose_giving_up_is_not_answered_costs_none_of_those_that_are_kept() -> None:
    """As while etcd defragments: it renews leases all the same."""
    etcd, fates = fresh_etcd(), Fates()
    async with holding(etcd, fates=fates) as held:
        fates.skip, fates.script = 1, [LOST_BEFORE] * 20  # answered: the write that shows whether others can take ids
        etcd.mvcc.commit([Commit(puts=(Put(keys.tc_member("two"), records.encode(OTHER)),))])
        await until(lambda: len(held.mine) == 1)
        (kept,) = held.mine
        waited_s = await until(lambda: etcd.mvcc.get(keys.tc(1 - kept)) is None, within_s=60)
        assert (list(held.mine), len(held.lost_at)) == ([kept], 1)
        assert waited_s > 15, "the giving up was never in want of an answer"


@virtual_time
async def test_an_id_that_stands_on_its_lease_and_is_not_served_is_taken_anew() -> None:
    etcd = fresh_etcd()
    async with holding(etcd) as held:
        before = dict(held.mine)
        # What a listing says that has lost the id's key, and what the store says.
        await held.ownership.heard(WatchBatch(etcd.mvcc.revision, (), resync=True))
        assert held.mine == {}
        for tcid in before:
            record = etcd.mvcc.get(keys.tc(tcid))
            assert record is not None
            put = Put(record.key, record.value, record.lease)
            etcd.mvcc.commit([Commit(puts=(put,))])
        await until(lambda: len(held.mine) == 2)
        assert all(held.mine[tcid] > epoch for tcid, epoch in before.items())


@virtual_time
async def test_an_id_whose_taking_is_heard_of_before_its_answer_is_not_given_up() -> None:
    """▲ etcd may tell the watch of a write before it answers the write."""
    etcd, fates = fresh_etcd(), Fates()
    async with holding(etcd, fates=fates) as held:
        plenty, etcd.quota_bytes, etcd.no_space = etcd.quota_bytes, 1, True
        etcd.mvcc.commit([Commit(deletes=(Delete(keys.tc(0)), Delete(keys.tc(1))))])
        await until(lambda: not held.mine)
        await asyncio.sleep(2)  # it tries again, behind what the watch has told
        fates.script = [Fate(arrive_s=0.001, answer_s=0.2)] * 3
        etcd.quota_bytes, etcd.no_space = plenty, False
        await until(lambda: len(held.mine) == 2)
        told = len(held.lost_at)
        await asyncio.sleep(5)
        assert len(held.mine) == 2
        assert len(held.lost_at) == told, "they were given up, and taken once more"


@virtual_time
async def test_an_id_is_not_taken_again_with_one_that_is_heard_of_before_its_own_taking() -> None:
    """▲ Whoever takes an id drops what it has in memory under it: begins would be refused until it is loaded again."""
    etcd, fates = fresh_etcd(), Fates()

    def free(tcid: int) -> None:
        etcd.mvcc.commit([Commit(deletes=(Delete(keys.tc(tcid)),))])

    async with holding(etcd, fates=fates) as held:
        fates.script = [Fate(arrive_s=0.2)]
        for tcid in (0, 1):  # the second becomes free while the taking of the first is on its way
            etcd.arrive(partial(free, tcid))
            await asyncio.sleep(0.1)
        await until(lambda: len(held.mine) == 2)
        assert held.takings == [[0, 1], [0], [1]]


@virtual_time
async def test_an_id_of_another_process_is_not_given_up() -> None:
    etcd = fresh_etcd()
    async with holding(etcd) as held:
        taken = Put(keys.tc(0), records.encode(OTHER))
        await held.ownership.heard(WatchBatch(etcd.mvcc.revision + 1, (), resync=True))
        etcd.mvcc.commit([Commit(puts=(taken,))])
        await asyncio.sleep(5)
        record = etcd.mvcc.get(keys.tc(0))
        assert record is not None
        assert record.value == taken.value


@pytest.mark.leaves("leases", "that of a namesake, which is none of this process")
@virtual_time
async def test_an_id_on_another_lease_of_its_name_is_not_given_up() -> None:
    """▲ A process ends only its own: a namesake may serve this one."""
    etcd = fresh_etcd()
    async with holding(etcd) as held:
        lease, _ = etcd.grant(30)
        await held.ownership.heard(WatchBatch(etcd.mvcc.revision + 1, (), resync=True))
        assert held.mine == {}
        etcd.mvcc.commit([Commit(puts=(Put(keys.tc(0), records.encode(ME), lease),))])
        await asyncio.sleep(5)
        record = etcd.mvcc.get(keys.tc(0))
        assert record is not None
        assert record.lease == lease


@virtual_time
async def test_every_lease_that_a_predecessor_has_left_under_its_name_is_ended() -> None:
    """Or it would wait for the second one as long as that lease lasts."""
    etcd = fresh_etcd()
    leases = [etcd.grant(3600)[0] for _ in range(2)]
    for tcid, lease in enumerate(leases):
        etcd.mvcc.commit([Commit(puts=(Put(keys.tc(tcid), records.encode(ME), lease),))])
    async with holding(etcd) as held:
        assert sorted(held.mine) == [0, 1]
        assert not set(leases) & set(etcd.leases())


@virtual_time
async def test_a_namesake_that_comes_while_a_predecessor_s_lease_cannot_be_ended_is_waited_for() -> None:
    etcd = fresh_etcd()
    old, came = etcd.grant(3600)[0], list[int]()
    puts = tuple(Put(key, records.encode(ME), old) for key in (keys.tc_member(ME.id), keys.tc(0)))
    etcd.mvcc.commit([Commit(puts=puts)])
    store = MemoryStore(etcd, StepClock(), Random(1), name="one")
    revoke, held = store.revoke_lease, Held(store)

    async def fails_once(lease_id: int, **options: Any) -> None:
        if not came:
            came.append(etcd.grant(30)[0])
            etcd.mvcc.commit([Commit(puts=(Put(keys.tc(1), records.encode(ME), came[0]),))])
            raise StoreUnavailable("just now")
        await revoke(lease_id, **options)

    store.revoke_lease = fails_once  # type: ignore[method-assign]
    running = asyncio.ensure_future(held.ownership.run())
    await until(lambda: held.ownership.namesake is not None, within_s=10)
    assert came[0] in etcd.leases()
    await until(lambda: len(held.mine) == 2)
    assert held.ownership.namesake is None
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await held.ownership.close()
    await store.close()


@pytest.mark.parametrize("looks", [1, 2], ids=["before it lists the members", "after it has listed them"])
@virtual_time
async def test_a_namesake_that_comes_as_the_name_is_found_free_keeps_its_place(looks: int) -> None:
    """▲ Dies if its record is replaced: both would take the name from each other for ever."""
    etcd = fresh_etcd()
    store = MemoryStore(etcd, StepClock(), Random(1), name="one")
    range_really, held, came, looked = store.range, Held(store), list[int](), list[bytes]()

    async def ranged(start: bytes, end: bytes, **options: Any) -> RangeResult:
        found = await range_really(start, end, **options)
        looked.append(start)
        if len(looked) == looks:
            came.append(etcd.grant(30)[0])
            etcd.mvcc.commit([Commit(puts=(Put(keys.tc_member(ME.id), records.encode(ME), came[0]),))])
        return found

    store.range = ranged  # type: ignore[method-assign]
    running = asyncio.ensure_future(held.ownership.run())
    await until(lambda: held.ownership.namesake is not None, within_s=10)
    member = etcd.mvcc.get(keys.tc_member(ME.id))
    assert member is not None
    assert member.lease == came[0]
    await until(lambda: len(held.mine) == 2)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await held.ownership.close()
    await store.close()


@virtual_time
async def test_a_defect_in_what_runs_beside_the_watch_is_raised() -> None:
    """Whoever runs it has to stop, and to leave its ids to others."""
    etcd = fresh_etcd()
    store = MemoryStore(etcd, StepClock(), Random(1), name="one")
    held = Held(store)
    tell, running = held.ownership._on_lost, asyncio.ensure_future(held.ownership.run())
    await until(lambda: len(held.mine) == 2)

    def defect(tcid: int) -> None:
        held.ownership._on_lost = tell
        raise ZeroDivisionError

    held.ownership._on_lost = defect
    etcd.mvcc.commit([Commit(puts=(Put(keys.tc_member("two"), records.encode(OTHER)),))])
    with pytest.raises(ZeroDivisionError):
        await asyncio.wait_for(running, 30)
    await held.ownership.close()
    await store.close()


@virtual_time
async def test_a_lease_that_is_lost_leaves_no_watch_behind() -> None:
    etcd = fresh_etcd()
    async with holding(etcd) as held:
        for _ in range(3):
            taken = etcd.mvcc.get(keys.tc(0))
            assert taken is not None
            etcd.expire_lease(taken.lease)
            await until(lambda: not held.mine)
            await until(lambda: len(held.mine) == 2)
        assert len(held.store._watches) == 1


@virtual_time
async def test_others_have_their_turn_between_the_losses_of_ids() -> None:
    """Each of them may have thousands of transactions open; a lease that ends takes all of them at once."""
    etcd = fresh_etcd()
    async with holding(etcd, tcids=5) as held:
        counting = asyncio.ensure_future(held.count_turns())
        await held.ownership.heard(WatchBatch(etcd.mvcc.revision, (), resync=True))
        counting.cancel()
        assert held.mine == {}
        assert len(set(held.lost_at)) == 5


@virtual_time
async def test_losses_that_are_not_all_told_as_the_lease_ends_are_told_then() -> None:
    """▲ Dies if what is lost then takes their place: these ids would be acted for, and never let go of."""
    etcd = fresh_etcd()
    async with holding(etcd, tcids=5) as held:
        hearing = asyncio.ensure_future(held.ownership.heard(WatchBatch(etcd.mvcc.revision, (), resync=True)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        hearing.cancel()
        assert 0 < len(held.lost_at) < 5
        await held.ownership.close()
        assert held.mine == {}


@virtual_time
async def test_keys_and_records_that_are_none_of_ours_keep_nobody_from_holding_ids() -> None:
    etcd = fresh_etcd()
    strange = [keys.TC + b"zz", keys.TC + b"1", keys.TC + b"fffff", keys.TC + b"\xff", keys.TC_MEMBER + b"\xff"]
    puts = tuple(Put(key, b"not one of ours") for key in (*strange, keys.tc_member("three")))
    etcd.mvcc.commit([Commit(puts=puts)])
    async with holding(etcd) as held:
        etcd.mvcc.commit([Commit(deletes=tuple(Delete(key) for key in strange))])
        etcd.mvcc.commit([Commit(puts=puts)])
        before = dict(held.mine)
        await asyncio.sleep(5)
        assert held.mine == before
        etcd.mvcc.commit([Commit(deletes=(Delete(keys.tc(0)),))])
        await until(lambda: held.mine.get(0, 0) > before[0])
