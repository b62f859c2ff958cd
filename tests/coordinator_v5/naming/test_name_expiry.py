"""Name records expire, run by the elected sweeper: over many pages, around what cannot be read, only while elected."""

from __future__ import annotations

import random

from coordinator_v5.naming.name_expiry import NameExpiry
from coordinator_v5.settings import NameSettings
from tests.coordinator_v5.processes import StepClock, fresh_etcd, within
from tests.segments.virtual_time import virtual_time
from tests.waiting import until
from txnctl.process.sweeper import Maintainer
from txnstore import keys, records
from txnstore.memory.memory_etcd import MemoryEtcd
from txnstore.memory.memory_store import MemoryStore
from txnstore.records import COMMITTED, TxnName
from txnstore.store import Commit, Delete, Put, created_at
from txnstore.writes.name_transitions import KEEP_MS
from txnwire.ids import TxnId


async def put_names(store: MemoryStore, clock: StepClock, count: int) -> None:
    """Batches of one query, collected now, and what is no record at all."""
    for number in range(count):
        named = TxnName(v=1, txn_id=str(TxnId(0, number + 1)), outcome=COMMITTED, collected_ms=clock.wall_ms())
        await store.commit(Commit(puts=(Put(keys.txn_name(f"sink/q/{number}"), records.encode(named)),)))
    await store.commit(Commit(puts=(Put(keys.txn_name("sink/p/1"), b"not a record"),)))


def names(etcd: MemoryEtcd) -> list[bytes]:
    return [record.key[len(keys.TXN_NAME) :] for record in within(etcd, keys.TXN_NAME)]


@virtual_time
async def test_names_expire_page_by_page_while_the_role_is_held() -> None:
    etcd = fresh_etcd()
    clock, etcd.pages_divided_by = StepClock(), 100
    store = MemoryStore(etcd, clock, random.Random(1))
    await put_names(store, clock, 1200)
    leader = (await store.commit(Commit(puts=(Put(keys.leader("sweeper"), b""),)))).revision
    expiry = NameExpiry(store, clock, guard=created_at(keys.leader("sweeper"), leader), first_s=60.0, every_s=3600.0)
    assert await expiry.expire() == 0
    clock.step_ms = KEEP_MS + 60_000
    await store.commit(Commit(deletes=(Delete(keys.leader("sweeper")),)))
    assert await expiry.expire() == 0, "▲ somebody who was deposed changes nothing"
    again = (await store.commit(Commit(puts=(Put(keys.leader("sweeper"), b""),)))).revision
    expiry = NameExpiry(store, clock, guard=created_at(keys.leader("sweeper"), again), first_s=60.0, every_s=3600.0)
    assert await expiry.expire() == 1199
    assert names(etcd) == [b"sink/p/1", b"sink/q/1199"]
    assert await expiry.expire() == 0
    await store.close()


@virtual_time
async def test_a_round_in_which_a_full_etcd_takes_no_count_is_over_all_the_same() -> None:
    """Or the next one would begin at once: each reads all names."""
    etcd = fresh_etcd()
    clock = StepClock()
    store = MemoryStore(etcd, clock, random.Random(1))
    await put_names(store, clock, 3)
    leader = (await store.commit(Commit(puts=(Put(keys.leader("sweeper"), b""),)))).revision
    expiry = NameExpiry(store, clock, guard=created_at(keys.leader("sweeper"), leader), first_s=60.0, every_s=3600.0)
    clock.step_ms = KEEP_MS + 60_000
    etcd.quota_bytes = 1
    assert await expiry.expire() == 2
    assert expiry.counts is None
    await store.close()


@virtual_time
async def test_whoever_was_deposed_amid_a_round_tells_no_count() -> None:
    """▲ It has walked over names that its successor has deleted since: a namespace with room would count as full."""
    etcd = fresh_etcd()
    clock = StepClock()
    store = MemoryStore(etcd, clock, random.Random(1))
    await put_names(store, clock, 3)
    leader = (await store.commit(Commit(puts=(Put(keys.leader("sweeper"), b""),)))).revision
    expiry = NameExpiry(store, clock, guard=created_at(keys.leader("sweeper"), leader), first_s=60.0, every_s=3600.0)
    await store.commit(Commit(deletes=(Delete(keys.leader("sweeper")),)))
    await store.commit(Commit(puts=(Put(keys.leader("sweeper"), b""),)))
    assert await expiry.expire() == 0
    assert (expiry.counts, await store.get(keys.TXN_NAME_COUNTS)) == (None, None)
    await store.close()


@virtual_time
async def test_the_elected_sweeper_lets_names_expire() -> None:
    etcd = fresh_etcd()
    clock = StepClock()
    store = MemoryStore(etcd, clock, random.Random(1))
    await put_names(store, clock, 3)
    clock.step_ms = KEEP_MS + 60_000
    five = NameSettings(most_of={"sink": 5})
    sweeper = Maintainer(store, clock, random.Random(2), id="one", address="one:1", lease_ttl_s=4.0, names=five)
    sweeper.start()
    await until(lambda: len(names(etcd)) == 2, within_s=120)
    await until(lambda: bool(sweeper.statistics().names), within_s=10)
    (told,) = sweeper.statistics().names
    assert (told.namespace, told.count, told.most) == ("sink", 2, 5)
    await sweeper.close()
    await store.close()
