"""Listings of a topic's subscriptions: what is deleted meanwhile, or unreadable, hides none of the others."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from segments.layout.subscription_queries import AT_ONCE, list_subscriptions
from txnstore import keys, records
from txnstore.memory.memory_etcd import MemoryEtcd
from txnstore.memory.memory_store import MemoryStore
from txnstore.records import AssignmentRecord, SubscriptionRecord
from txnstore.store import Commit, Delete, KeyValue, Put
from txnwire.clock import SystemClock
from txnwire.errors import DataCorrupt

TOPIC = "public/nyc/flights"
STREAM = records.encode(SubscriptionRecord(type="stream", start={"kind": "earliest"}))


class Deleting:
    """A store in which a key is deleted right before each read of several keys."""

    def __init__(self, store: MemoryStore, key: bytes) -> None:
        self._store = store
        self._key = key

    async def get_many(self, wanted: Sequence[bytes], **options: Any) -> tuple[int, list[KeyValue | None]]:
        await self._store.commit(Commit(deletes=(Delete(self._key),)))
        return await self._store.get_many(wanted, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


async def put(store: MemoryStore, **values: bytes) -> None:
    puts = tuple(Put(keys.subscription(TOPIC, name), value) for name, value in values.items())
    await store.commit(Commit(puts=puts))


async def test_one_that_is_deleted_while_they_are_listed_hides_no_other(memory_store: MemoryStore) -> None:
    await put(memory_store, a=STREAM, b=STREAM, c=STREAM)
    store: Any = Deleting(memory_store, keys.subscription(TOPIC, "b"))
    assert [info.name for info in await list_subscriptions(store, TOPIC)] == ["a", "c"]


async def test_one_that_cannot_be_read_is_told_and_hides_no_other(memory_store: MemoryStore) -> None:
    await put(memory_store, a=STREAM, b=b"no record", c=STREAM, d=STREAM)
    await memory_store.commit(Commit(puts=(Put(keys.assignment(TOPIC, "c"), b"no record"),)))
    unreadable: dict[str, str] = {}
    assert [info.name for info in await list_subscriptions(memory_store, TOPIC, unreadable)] == ["a", "d"]
    assert list(unreadable) == ["b", "c"]
    with pytest.raises(DataCorrupt):
        await list_subscriptions(memory_store, TOPIC)


async def test_of_more_subscriptions_than_one_page_all_are_listed() -> None:
    store = MemoryStore(MemoryEtcd(SystemClock(), pages_divided_by=AT_ONCE // 2), SystemClock(), random.Random(0))
    await put(store, **dict.fromkeys("abcde", STREAM))
    assert [info.name for info in await list_subscriptions(store, TOPIC)] == list("abcde")
    await store.close()


async def test_each_segment_is_shown_with_its_consumer(memory_store: MemoryStore) -> None:
    await put(memory_store, a=STREAM)
    record = AssignmentRecord(epoch=3, consumers={"w@01": ["s1", "s3"], "v@02": ["s2"], "standby@03": []})
    await memory_store.commit(Commit(puts=(Put(keys.assignment(TOPIC, "a"), records.encode(record)),)))
    [info] = await list_subscriptions(memory_store, TOPIC)
    assert info.consumers_of_segments() == {"s1": "w@01", "s3": "w@01", "s2": "v@02"}
