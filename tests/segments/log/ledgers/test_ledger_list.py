"""Who may read and rewrite a segment's ledger list, and over which record."""

from __future__ import annotations

import pytest

from segments.log.ledgers.ledger_list import LedgerList
from txnstore import keys
from txnstore.memory.memory_store import MemoryStore
from txnstore.records import LedgerInfo, LedgerRecord
from txnstore.store import Commit, Delete, KeyValue, Put
from txnwire.errors import InternalError, NotOwner

TOPIC = keys.topic("public/nyc/flights")
SEGMENT = "public/nyc/flights/0000-ffff-0"


def listing(*ledgers: int) -> LedgerRecord:
    return LedgerRecord(ledgers=[LedgerInfo(ledger_id=one) for one in ledgers])


async def put(store: MemoryStore, key: bytes) -> KeyValue:
    await store.commit(Commit(puts=(Put(key, b"{}"),)))
    found = await store.get(key)
    assert found is not None
    return found


async def owned(store: MemoryStore, *ledgers: int) -> LedgerList:
    """Of a new owner, which has written `ledgers`."""
    await store.commit(Commit(deletes=(Delete(keys.owner(SEGMENT)),)))
    owner = await put(store, keys.owner(SEGMENT))
    found = LedgerList(store, SEGMENT, epoch=owner.create_revision)
    await found.load()
    if ledgers:
        await found.rewrite(listing(*ledgers))
    return found


async def stored(store: MemoryStore) -> list[int]:
    owner = await store.get(keys.owner(SEGMENT))
    assert owner is not None
    found = LedgerList(store, SEGMENT, epoch=owner.create_revision)
    await found.load()
    return [info.ledger_id for info in found.record.ledgers]


async def test_a_former_owner_rewrites_nothing_though_its_successor_has_written_nothing(
    memory_store: MemoryStore,
) -> None:
    """▲ The record is as the former owner has left it: only the epoch tells."""
    former, topic = await owned(memory_store, 1), await put(memory_store, TOPIC)
    await owned(memory_store)
    with pytest.raises(NotOwner):
        await former.rewrite(listing(1, 2))
    with pytest.raises(NotOwner):
        await former.rewrite_while(listing(1, 2), topic)
    with pytest.raises(NotOwner):
        await former.rewrite_stored(lambda _: listing(1, 2))
    assert await stored(memory_store) == [1]


async def test_an_owner_that_was_replaced_before_it_has_read_the_list_does_not_go_on(memory_store: MemoryStore) -> None:
    """▲ It would fence the ledger of its successor."""
    former = await owned(memory_store, 1)
    await owned(memory_store, 1, 2)
    with pytest.raises(NotOwner):
        await former.load()


async def test_a_list_that_was_changed_under_the_same_ownership_is_not_replaced(memory_store: MemoryStore) -> None:
    """▲ As by a late write of its own: a ledger that only the newer list has would be lost."""
    one = await owned(memory_store, 1)
    owner = await memory_store.get(keys.owner(SEGMENT))
    assert owner is not None
    other = LedgerList(memory_store, SEGMENT, epoch=owner.create_revision)
    await other.load()
    await other.rewrite(listing(1, 2))
    with pytest.raises(InternalError):
        await one.rewrite(listing(1, 3))
    assert await stored(memory_store) == [1, 2]


async def test_a_list_is_rewritten_only_while_its_topic_is_as_it_was_read(memory_store: MemoryStore) -> None:
    """▲ A seal for a change that was given up meanwhile would stand for ever."""
    found, before = await owned(memory_store, 1), await put(memory_store, TOPIC)
    topic = await put(memory_store, TOPIC)
    assert not await found.rewrite_while(listing(1, 2), before)
    assert await stored(memory_store) == [1]
    assert await found.rewrite_while(listing(1, 2), topic)
    assert await stored(memory_store) == [1, 2]
