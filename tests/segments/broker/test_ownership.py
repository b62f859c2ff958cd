from __future__ import annotations

import asyncio

import pytest

from segments.broker.ownership import BrokerSession
from tests.segments.virtual_time import LoopClock, virtual_time
from tests.txnstore.faulty_store import HANGS, Script, client
from txnstore import keys
from txnstore.former_selves import FormerSelves
from txnstore.memory.memory_etcd import MemoryEtcd
from txnstore.memory.memory_store import Fate, MemoryStore
from txnstore.store import Commit, Delete, Put
from txnwire.errors import NotOwner

SEGMENT = "public/nyc/flights/0000-ffff-0"


async def register(store: MemoryStore, broker_id: str = "b1") -> BrokerSession:
    return await BrokerSession.register(
        store, broker_id=broker_id, address="a:1", lease_ttl_s=10.0, former_selves=FormerSelves()
    )


async def test_a_segment_has_one_owner_and_its_epoch_is_the_create_revision(memory_store: MemoryStore) -> None:
    one, two = await register(memory_store, "b1"), await register(memory_store, "b2")
    epoch = await one.claim(SEGMENT)
    assert epoch is not None
    assert await two.claim(SEGMENT) is None
    assert await one.claim(SEGMENT) == epoch
    await one.check(SEGMENT, epoch)
    await one.release(SEGMENT, epoch)
    with pytest.raises(NotOwner):
        await one.check(SEGMENT, epoch)
    taken = await two.claim(SEGMENT)
    assert taken is not None
    assert taken > epoch
    await one.release(SEGMENT, epoch)  # a late release of an old epoch harms nobody
    await two.check(SEGMENT, taken)
    await one.close()
    await two.close()


async def test_s8_a_segment_of_a_topic_that_has_changed_is_not_claimed(memory_store: MemoryStore) -> None:
    """▲ Whoever has not heard of a deletion would write records of a segment that is erased."""
    key = keys.topic("public/nyc/flights")
    await memory_store.commit(Commit(puts=(Put(key, b"{}"),)))
    topic = await memory_store.get(key)
    broker = await register(memory_store)
    await memory_store.commit(Commit(puts=(Put(key, b'{"deleting_ms":1}'),)))
    assert await broker.claim(SEGMENT, topic=topic) is None
    assert await broker.claim(SEGMENT, topic=await memory_store.get(key)) is not None
    await broker.close()


async def test_a_broker_whose_registration_is_gone_claims_nothing_though_its_lease_lives(
    memory_store: MemoryStore,
) -> None:
    """▲ Others give it no share any more, and whoever registers under its name would not know of the segment."""
    broker, key = await register(memory_store), keys.broker("b1")
    for change in (Commit(deletes=(Delete(key),)), Commit(puts=(Put(key, b"{}"),))):
        await memory_store.commit(change)
        assert await broker.claim(SEGMENT) is None
        assert await memory_store.get(keys.owner(SEGMENT)) is None
    await broker.close()


async def test_a_restarted_broker_revokes_its_old_lease_and_its_claims_with_it(memory_store: MemoryStore) -> None:
    old = await register(memory_store)
    epoch = await old.claim(SEGMENT)
    assert epoch is not None
    new = await register(memory_store)
    assert await memory_store.get(keys.owner(SEGMENT)) is None
    with pytest.raises(NotOwner):
        await old.check(SEGMENT, epoch)
    assert (await new.claim(SEGMENT) or 0) > epoch
    await new.close()


async def test_the_record_of_a_predecessor_of_the_same_name_is_not_mine(memory_store: MemoryStore) -> None:
    """▲ Only the lease id tells: name and address may be the same."""
    old = await register(memory_store)
    epoch = await old.claim(SEGMENT)
    found = await memory_store.get(keys.owner(SEGMENT))
    assert found is not None
    lease = await memory_store.grant_lease(10.0)
    imposter = BrokerSession(memory_store, "b1", "a:1", lease, old.revision)
    assert await imposter.claim(SEGMENT) is None
    assert await old.claim(SEGMENT) == epoch
    await old.close()
    await lease.revoke()


@virtual_time
async def test_of_two_brokers_of_one_name_the_later_one_has_it_and_the_earlier_waits() -> None:
    """The earlier one was paused until another had been started in its place, and wakes up. It counted on its lease."""
    etcd = MemoryEtcd(LoopClock())
    stores = [client(etcd, name=name) for name in ("old", "new")]
    selves, told = FormerSelves(), list[str | None]()
    names = {"broker_id": "b1", "lease_ttl_s": 4.0, "namesake": told.append}
    first = await BrokerSession.register(stores[0], address="old:1", former_selves=selves, **names)  # type: ignore[arg-type]
    later = await BrokerSession.register(stores[1], address="new:1", former_selves=FormerSelves(), **names)  # type: ignore[arg-type]
    await first.wait_lost()
    again = asyncio.create_task(
        BrokerSession.register(stores[0], address="old:1", former_selves=selves, **names)  # type: ignore[arg-type]
    )
    await asyncio.sleep(60)
    assert (later.valid(), again.done(), told[-1]) == (True, False, "new:1")
    await later.close()
    second = await again
    assert (second.valid(), told[-1]) == (True, None)
    await second.close()
    for store in stores:
        await store.close()


@virtual_time
async def test_a_registration_whose_answer_is_lost_leaves_no_lease_that_nobody_knows() -> None:
    etcd = MemoryEtcd(LoopClock())
    store = client(etcd, Script("commit", [HANGS] * 100))
    registering = asyncio.create_task(register(store))
    await asyncio.sleep(1)
    registering.cancel()
    await asyncio.wait([registering])
    assert 1 not in etcd.leases(), "what is left is that of the sending fence"
    await store.close()


@virtual_time
async def test_a_registration_that_was_overtaken_leaves_no_lease_behind() -> None:
    """It would be kept alive for as long as its process lives: one for each try that came too late."""
    etcd = MemoryEtcd(LoopClock())
    slow = client(etcd, Script("commit", [Fate(arrive_s=1.0, answer_s=1.0)]), name="slow")
    quick = client(etcd, name="quick")
    overtaken = asyncio.create_task(register(slow))
    await asyncio.sleep(0.5)
    broker = await register(quick)
    await asyncio.sleep(30.0)
    assert not overtaken.done()
    fences = [record.lease for record in etcd.mvcc.range(keys.SENDER, keys.prefix_end(keys.SENDER))[0]]
    assert [lease for lease in etcd.leases() if lease not in fences] == [broker.lease_id]
    overtaken.cancel()
    await asyncio.wait([overtaken])
    await broker.close()
    for store in (slow, quick):
        await store.close()


@virtual_time
async def test_a_broker_whose_store_is_away_leaves_and_ends_without_a_word() -> None:
    """▲ Its segments are still to be handed over, and what it holds to be closed."""
    etcd, script = MemoryEtcd(LoopClock()), Script("commit")
    store = client(etcd, script)
    broker = await register(store)
    script.fates = [HANGS] * 100
    async with asyncio.timeout(60.0):
        await broker.leave()
        etcd.pause()
        await broker.close()
    assert not broker.valid()
    etcd.resume()
    await store.close()
