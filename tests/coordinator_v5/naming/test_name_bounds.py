"""The bound of names of a namespace: counted by the elected sweeper, kept by coordinators."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import pytest

from coordinator_v5.naming import kept_names
from coordinator_v5.naming.name_expiry import NameExpiry
from coordinator_v5.settings import CoordinatorSettings, NameSettings
from tests.coordinator_v5.processes import Process, StepClock, fresh_etcd
from tests.segments.virtual_time import virtual_time
from txnstore import keys, records
from txnstore.memory.memory_etcd import MemoryEtcd
from txnstore.memory.memory_store import MemoryStore
from txnstore.records import COMMITTED, NameCounts, TxnName
from txnstore.store import Commit, Put, created_at
from txnwire.errors import TooManyNames, TxnError
from txnwire.ids import TxnId

THREE = CoordinatorSettings(
    tcids=1, header_retention_s=5.0, names=NameSettings(most=3, most_of={"wide": 5, "": 1}, keep_s_of={"wide": 60.0})
)


async def count(etcd: MemoryEtcd, clock: StepClock | None = None, settings: NameSettings | None = None) -> NameCounts:
    store = MemoryStore(etcd, clock or StepClock(), random.Random(1), name="sweeper")
    leader = (await store.commit(Commit(puts=(Put(keys.leader("sweeper"), b""),)))).revision
    guard = created_at(keys.leader("sweeper"), (await found(store)).create_revision)
    expiry = NameExpiry(store, clock or StepClock(), guard=guard, first_s=60.0, every_s=600.0, settings=settings)
    await expiry.expire()
    await store.close()
    assert leader
    assert expiry.counts is not None
    return expiry.counts


async def found(store: MemoryStore):  # type: ignore[no-untyped-def]
    record = await store.get(keys.leader("sweeper"))
    assert record is not None
    return record


async def begin(process: Process, *names: str) -> None:
    for name in names:
        await process.coordinator.begin_named(0, name=name)


async def refused(process: Process, name: str) -> str:
    with pytest.raises(TooManyNames) as caught:
        await begin(process, name)
    return str(caught.value)


@virtual_time
async def test_a_full_namespace_refuses_new_names_and_says_what_to_do() -> None:
    process = await Process(fresh_etcd(), "one", THREE).start()
    await begin(process, "a/1", "a/2", "a/3", "b/1", "alone", *(f"wide/{number}" for number in range(5)))
    said = await refused(process, "a/4")
    assert "'a' has 3 names" in said
    assert "txnctl names delete" in said
    assert "names_max" in said
    assert "without a namespace" in await refused(process, "other")
    await refused(process, "wide/5")
    await begin(process, "a/1", "b/2")  # joins; and the other namespace has room
    assert not TooManyNames("").retriable
    await process.close()


@virtual_time
async def test_the_bound_goes_by_the_count_of_all_coordinators_names() -> None:
    etcd = fresh_etcd()
    one = await Process(etcd, "one", THREE).start()
    await begin(one, "a/1", "a/2", "a/3")
    await one.close()
    counts = await count(etcd)
    assert (counts.namespaces, counts.others) == ({"a": 3}, 0)
    other = await Process(etcd, "two", THREE).start()
    await refused(other, "a/4")
    txn_id = (await other.coordinator.begin_named(0, name="a/1")).txn_id
    await other.coordinator.end(txn_id, commit=True, name="a/1")
    assert (await kept_names.delete_name(other.store, "a/1")).deleted == 1
    await asyncio.sleep(THREE.count_names_s)
    await begin(other, "a/4")  # a deletion makes room before the next count
    await refused(other, "a/5")
    await other.close()


@virtual_time
async def test_a_count_that_is_read_twice_forgets_no_begin_between() -> None:
    """The sweeper counts every ten minutes, and its count is read much more often."""
    etcd = fresh_etcd()
    await count(etcd)
    process = await Process(etcd, "one", THREE).start()
    await begin(process, "a/1", "a/2")
    await asyncio.sleep(THREE.count_names_s)
    await begin(process, "a/3")
    await asyncio.sleep(THREE.count_names_s)
    await refused(process, "a/4")
    await process.close()


@virtual_time
async def test_a_later_count_makes_room_and_counts_anew() -> None:
    etcd = fresh_etcd()
    process = await Process(etcd, "one", THREE).start()
    await begin(process, "a/1", "a/2", "a/3")
    await refused(process, "a/4")
    put = Put(keys.TXN_NAME_COUNTS, records.encode(NameCounts(counted_ms=1, namespaces={"a": 1})))
    await process.store.commit(Commit(puts=(put,)))
    await refused(process, "a/4")  # it looks again after a while
    await asyncio.sleep(THREE.count_names_s)
    await begin(process, "a/4", "a/5")
    await refused(process, "a/6")
    await process.store.commit(Commit(puts=(Put(keys.TXN_NAME_COUNTS, b"not a record"),)))
    await asyncio.sleep(THREE.count_names_s)
    await refused(process, "a/6")
    await process.close()


@virtual_time
async def test_a_name_that_starts_afresh_after_an_abort_is_no_new_one() -> None:
    process = await Process(fresh_etcd(), "one", THREE).start()
    for _ in range(5):
        txn_id = (await process.coordinator.begin_named(0, name="a/1")).txn_id
        await process.coordinator.end(txn_id, commit=False, name="a/1")
    await begin(process, "a/2", "a/3")
    await refused(process, "a/4")
    await process.close()


@virtual_time
async def test_a_name_is_kept_as_its_namespace_says_unless_its_begin_says_more() -> None:
    etcd = fresh_etcd()
    process = await Process(etcd, "one", THREE).start()
    await begin(process, "wide/1", "a/1")

    def keep_ms(name: str) -> int:
        record = process.record(keys.txn_name(name))
        assert record is not None
        return records.decode(TxnName, record.value, key=record.key).keep_ms

    assert (keep_ms("wide/1"), keep_ms("a/1")) == (60_000, 7 * 24 * 3600 * 1000)
    await process.close()


@virtual_time
async def test_what_a_round_forgets_is_not_counted_and_those_with_the_most_are_told() -> None:
    etcd, clock = fresh_etcd(), StepClock()
    store = MemoryStore(etcd, clock, random.Random(1))

    async def put(name: str, keep_ms: int) -> None:
        named = TxnName(
            v=1, txn_id=str(TxnId(0, 1)), outcome=COMMITTED, collected_ms=clock.wall_ms(), keep_ms=keep_ms,
            keep_newest=False,
        )  # fmt: skip
        await store.commit(Commit(puts=(Put(keys.txn_name(name), records.encode(named)),)))

    for number in range(600):
        await put(f"n{number:03}/1", 10**12)
    for number in range(3):
        await put(f"gone/{number}", 60_000)
        await put(f"often/{number}", 10**12)
    await store.commit(Commit(puts=(Put(keys.TXN_NAME + b"\xff/x", b"not even text"),)))
    clock.step_ms = 120_000
    counts = await count(etcd, clock)
    assert counts.namespaces["often"] == 3
    assert "gone" not in counts.namespaces
    assert (len(counts.namespaces), counts.others) == (200, 402)
    await store.close()


@virtual_time
async def test_a_namespace_with_a_small_bound_is_told_among_many_with_more_names() -> None:
    """▲ Its bound would never be kept: a coordinator takes what is not told for empty."""
    etcd, clock = fresh_etcd(), StepClock()
    store = MemoryStore(etcd, clock, random.Random(1))
    names = [f"n{number:03}/{each}" for number in range(201) for each in range(5)]
    for name in [*names, "tiny/1", "tiny/2"]:
        named = TxnName(v=1, txn_id=str(TxnId(0, 1)), outcome=COMMITTED, keep_ms=10**15, keep_newest=False)
        await store.commit(Commit(puts=(Put(keys.txn_name(name), records.encode(named)),)))
    settings = NameSettings(most_of={"tiny": 2})
    assert (await count(etcd, clock, settings)).namespaces["tiny"] == 2
    process = await Process(etcd, "one", replace(THREE, names=settings)).start()
    await refused(process, "tiny/3")
    await process.close()
    await store.close()


@pytest.mark.parametrize("most", [1, 2])
@virtual_time
async def test_begins_at_once_pass_the_bound_by_no_more_than_themselves(most: int) -> None:
    settings = replace(THREE, names=NameSettings(most=most))
    process = await Process(fresh_etcd(), "one", settings).start()
    answers = await asyncio.gather(*(begin(process, f"a/{number}") for number in range(4)), return_exceptions=True)
    assert all(isinstance(answer, TxnError | None) for answer in answers)
    await refused(process, "a/9")
    await process.close()


@virtual_time
async def test_an_aborted_batch_is_begun_again_though_its_namespace_is_full() -> None:
    """Its name is there already, and counts."""
    process = await Process(fresh_etcd(), "one", THREE).start()
    await begin(process, "jobs/1", "jobs/2", "jobs/3")
    first = await process.coordinator.begin_named(0, name="jobs/2")
    await process.coordinator.end(first.txn_id, commit=False)
    again = await process.coordinator.begin_named(0, name="jobs/2")
    assert again.txn_id != first.txn_id
    assert "jobs" in await refused(process, "jobs/4")
    await process.close()
