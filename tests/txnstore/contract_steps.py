"""Keys, commits and watches that the contract of a metadata store is tested with."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from txnstore.access.store_client import StoreClient
from txnstore.store import (
    Commit,
    Compare,
    Event,
    Put,
    StoreWatch,
)

A, B, C = b"/k/a", b"/k/b", b"/k/c"
KEYS = (b"/k/", b"/k0")
IN_TIME_S = 10.0


def put(key: bytes, value: bytes = b"v", *compares: Compare, lease: int = 0) -> Commit:
    return Commit(compares, (Put(key, value, lease),))


async def written(store: StoreClient, *commits: Commit) -> list[int]:
    """The revisions of commits that must succeed, made one after the other."""
    revisions = []
    for commit in commits:
        result = await store.commit(commit)
        assert result.succeeded
        revisions.append(result.revision)
    return revisions


async def values(store: StoreClient) -> dict[bytes, bytes]:
    return {record.key: record.value for record in (await store.range(*KEYS)).records}


async def events_until(watch: StoreWatch, key: bytes, value: bytes) -> list[Event]:
    """Everything up to the put of `key` to `value`."""
    events: list[Event] = []
    async with asyncio.timeout(IN_TIME_S):
        async for batch in watch:
            assert [event.record.mod_revision for event in batch.events] == sorted(
                event.record.mod_revision for event in batch.events
            )
            events += batch.events
            if batch.events[-1].record.key == key and batch.events[-1].record.value == value:
                return events
    raise AssertionError("the watch ended")


def summary(events: Sequence[Event]) -> list[tuple[str, bytes, bytes]]:
    return [(event.kind.name, event.record.key, event.record.value) for event in events]
