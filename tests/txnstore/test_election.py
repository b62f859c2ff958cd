"""Elections: one holder at a time, over everything that can happen to a claim. Contract over memory and real etcd."""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.segments.virtual_time import LoopClock, virtual_time
from txnstore import keys
from txnstore.election import Election
from txnstore.etcd.etcd_store import EtcdStore
from txnstore.memory.memory_etcd import MemoryEtcd
from txnstore.memory.memory_store import NO_FAULT, Fate, MemoryStore
from txnstore.store import Commit, Delete, MetadataStore, Put

KEY = keys.leader("sweeper")


class FirstCommit:
    """The first commit meets this fate."""

    def __init__(self, fate: Fate) -> None:
        self._fates = [fate]

    def fate(self, request: str, client: str) -> Fate:
        return self._fates.pop() if request == "commit" and self._fates else NO_FAULT

    def watch_delay_s(self, client: str) -> float:
        return 0.0


def election(store: MetadataStore, id: str, *, lease_ttl_s: float = 5.0) -> Election:
    return Election(store, random.Random(id), what="sweeper", id=id, address=f"{id}:1", lease_ttl_s=lease_ttl_s)


async def check_terms_follow_one_another(store: MetadataStore) -> None:
    first = await election(store, "a").campaign()
    waiting = asyncio.create_task(election(store, "b").campaign())
    lost = asyncio.create_task(first.wait_lost())
    record = await store.get(KEY)
    assert record is not None
    assert (record.create_revision, record.lease) == (first.epoch, first.lease_id)
    guarded = Commit((first.still_held(),), (Put(b"/guarded", b"1"),))
    assert (await store.commit(guarded)).succeeded
    assert first.valid()
    assert not waiting.done()
    await first.resign()
    second = await asyncio.wait_for(waiting, 5.0)
    await asyncio.wait_for(lost, 5.0)
    assert second.epoch > first.epoch
    assert not first.valid()
    assert not (await store.commit(guarded)).succeeded
    assert (await store.commit(Commit((second.still_held(),), (Put(b"/guarded", b"2"),)))).succeeded
    await second.resign()
    assert await store.get(KEY) is None


@virtual_time
async def test_terms_follow_one_another_in_memory() -> None:
    store = MemoryStore(MemoryEtcd(LoopClock()), LoopClock(), random.Random(0))
    await check_terms_follow_one_another(store)
    assert not store._watches, "whoever has waited for the key follows it no more"
    await store.close()


@virtual_time
async def test_a_candidate_that_cannot_reach_the_store_is_elected_once_it_can() -> None:
    store = MemoryStore(MemoryEtcd(LoopClock()), LoopClock(), random.Random(0))
    store.memory_backend.disconnect()
    campaign = asyncio.create_task(election(store, "a").campaign())
    await asyncio.sleep(60.0)
    store.memory_backend.reconnect()
    leadership = await asyncio.wait_for(campaign, 30.0)
    assert leadership.valid()
    await leadership.resign()
    await store.close()


async def test_terms_follow_one_another_on_etcd(store: EtcdStore) -> None:
    await check_terms_follow_one_another(store)


def elected_leases(etcd: MemoryEtcd) -> list[int]:
    """Without those of sending fences."""
    fences = [record.lease for record in etcd.mvcc.range(keys.SENDER, keys.prefix_end(keys.SENDER))[0]]
    return [lease for lease in etcd.leases() if lease not in fences]


@pytest.mark.parametrize("fate", [Fate(arrive_s=None, fail_s=0.5), Fate(arrive_s=0.0, fail_s=0.5)])
@virtual_time
async def test_e2_a_claim_whose_answer_is_lost_is_recognized_by_its_lease(fate: Fate) -> None:
    etcd = MemoryEtcd(LoopClock())
    store = MemoryStore(etcd, LoopClock(), random.Random(0), faults=FirstCommit(fate))
    leadership = await election(store, "a").campaign()
    record = etcd.mvcc.get(KEY, 0)
    assert record is not None
    assert (record.create_revision, record.lease) == (leadership.epoch, leadership.lease_id)
    assert leadership.lease_id == 1  # the very first claim, not another one after it
    assert elected_leases(etcd) == [1]
    await leadership.resign()
    await store.close()


@virtual_time
async def test_a_cancelled_claim_leaves_no_key_behind_even_if_it_lands_later() -> None:
    etcd = MemoryEtcd(LoopClock())
    store = MemoryStore(etcd, LoopClock(), random.Random(0), faults=FirstCommit(Fate(arrive_s=1.0, answer_s=1.0)))
    claim = asyncio.create_task(election(store, "a").campaign())
    await asyncio.sleep(0.5)
    claim.cancel()
    await asyncio.gather(claim, return_exceptions=True)
    await asyncio.sleep(20.0)
    assert etcd.mvcc.get(KEY, 0) is None
    assert elected_leases(etcd) == []
    await store.close()


@virtual_time
async def test_a_claim_that_was_overtaken_leaves_no_lease_behind() -> None:
    """It would be kept alive for as long as its process lives: one for each election that was lost by a hair."""
    etcd = MemoryEtcd(LoopClock())
    slow = MemoryStore(etcd, LoopClock(), random.Random(0), faults=FirstCommit(Fate(arrive_s=1.0, answer_s=1.0)))
    quick = MemoryStore(etcd, LoopClock(), random.Random(1))
    overtaken = asyncio.create_task(election(slow, "a").campaign())
    await asyncio.sleep(0.5)
    leadership = await election(quick, "b").campaign()
    await asyncio.sleep(20.0)
    assert not overtaken.done()
    assert elected_leases(etcd) == [leadership.lease_id]
    overtaken.cancel()
    await asyncio.gather(overtaken, return_exceptions=True)
    await leadership.resign()
    await slow.close()
    await quick.close()


@virtual_time
async def test_of_many_candidates_one_holds_the_key_at_a_time() -> None:
    etcd = MemoryEtcd(LoopClock())
    held: list[int] = []

    async def candidate(name: str) -> None:
        store = MemoryStore(etcd, LoopClock(), random.Random(name))
        for _ in range(3):
            leadership = await election(store, name).campaign()
            held.append(leadership.epoch)
            record = etcd.mvcc.get(KEY, 0)
            assert record is not None
            assert record.create_revision == leadership.epoch
            await asyncio.sleep(random.Random(name).uniform(0.0, 1.0))
            await leadership.resign()
        await store.close()

    await asyncio.gather(*(candidate(name) for name in "abcd"))
    assert held == sorted(set(held))
    assert len(held) == 12


@virtual_time
async def test_a_holder_that_cannot_reach_the_store_counts_itself_out_before_the_lease_expires() -> None:
    etcd = MemoryEtcd(LoopClock())
    paused = MemoryStore(etcd, LoopClock(), random.Random(0))
    other = MemoryStore(etcd, LoopClock(), random.Random(1))
    leadership = await election(paused, "a").campaign()
    paused.memory_backend.disconnect()
    await asyncio.wait_for(leadership.wait_lost(), 5.0)
    assert not leadership.valid()
    assert not paused._watches, "who has lost the lease follows the key no more"
    assert etcd.mvcc.get(KEY, 0) is not None
    successor = await election(other, "b").campaign()
    assert successor.epoch > leadership.epoch
    await successor.resign()
    await paused.close()
    await other.close()


@virtual_time
async def test_e1_a_candidate_that_was_away_while_the_term_ended_and_was_compacted_away_is_elected() -> None:
    """▲ The watch shows it nothing of the end: it lists anew, and there is nothing."""
    etcd = MemoryEtcd(LoopClock())
    there, away = (MemoryStore(etcd, LoopClock(), random.Random(seed)) for seed in (0, 1))
    leadership = await election(there, "a").campaign()
    waiting = asyncio.create_task(election(away, "b").campaign())
    await asyncio.sleep(1.0)
    away.memory_backend.disconnect()
    await leadership.resign()
    await there.commit(Commit(puts=(Put(b"/elsewhere", b""),)))
    etcd.compact(etcd.mvcc.revision)
    away.memory_backend.reconnect()
    successor = await asyncio.wait_for(waiting, 60.0)
    assert successor.epoch > leadership.epoch
    await successor.resign()
    await there.close()
    await away.close()


@virtual_time
async def test_a_key_that_stands_behind_a_compaction_ends_no_term() -> None:
    """What is listed anew, and what is put on the key, is its own."""
    etcd = MemoryEtcd(LoopClock())
    store, other = (MemoryStore(etcd, LoopClock(), random.Random(n), name=f"{n}") for n in range(2))
    leadership = await election(store, "a", lease_ttl_s=60.0).campaign()
    lost = asyncio.create_task(leadership.wait_lost())
    await asyncio.sleep(0.1)
    store.memory_backend.disconnect()
    await other.commit(Commit(puts=(Put(b"/elsewhere", b""),)))
    etcd.compact(etcd.mvcc.revision)
    store.memory_backend.reconnect()
    await asyncio.sleep(10.0)
    assert not lost.done()
    await other.commit(Commit(deletes=(Delete(KEY),)))
    await asyncio.wait_for(lost, 10.0)
    await leadership.resign()
    await store.close()
    await other.close()


@virtual_time
async def test_a_key_that_went_while_its_watch_was_compacted_away_ends_the_term() -> None:
    """▲ What is listed anew then shows nothing of it, not even that it went; and its lease may go on."""
    etcd = MemoryEtcd(LoopClock())
    store, other = (MemoryStore(etcd, LoopClock(), random.Random(n), name=f"{n}") for n in range(2))
    leadership = await election(store, "a", lease_ttl_s=60.0).campaign()
    lost = asyncio.create_task(leadership.wait_lost())
    await asyncio.sleep(0.1)
    store.memory_backend.disconnect()
    await asyncio.sleep(0.1)
    await other.commit(Commit(deletes=(Delete(KEY),)))
    etcd.compact(etcd.mvcc.revision)
    store.memory_backend.reconnect()
    await asyncio.wait_for(lost, 10.0)
    assert leadership.valid()
    await leadership.resign()
    await store.close()
    await other.close()
