"""A watch that lasts: what it does where etcd has compacted away what it was to go on with."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from tests.segments.virtual_time import virtual_time
from txnstore.access.backend import Unanswered
from txnstore.access.following import FollowingWatch
from txnstore.store import Compacted, Event, EventKind, KeyValue, RangeResult
from txnwire.errors import StoreUnavailable, TxnError

RECORD = KeyValue(b"/a", b"", 1, 9, 9, 0)


class Events:
    """One stream of events, which then stays silent."""

    def __init__(self, *events: Event) -> None:
        self._events = events

    async def receive(self) -> tuple[Event, ...]:
        if not self._events:
            await asyncio.Event().wait()
        events, self._events = self._events, ()
        return events

    async def close(self) -> None: ...


class CompactedEtcd:
    """Keeps nothing below revision 10; reads of the range fail at first."""

    def __init__(self, *failures: TxnError | Compacted) -> None:
        self._failures = list(failures)

    async def wait_ready(self) -> None: ...

    async def open_watch(self, start: bytes, end: bytes, from_revision: int) -> Events:
        if from_revision < 10:
            raise Compacted("the oldest is 10")
        return Events(Event(EventKind.PUT, KeyValue(b"/b", b"", 1, from_revision, from_revision, 0)))

    async def relist(self, start: bytes, end: bytes) -> RangeResult:
        if self._failures:
            raise self._failures.pop(0)
        return RangeResult(records=(RECORD,), revision=12)


@pytest.mark.parametrize("failure", [Compacted("once more"), StoreUnavailable("etcd is away")])
async def test_e1_a_listing_that_fails_behind_a_compaction_is_made_again(failure: TxnError | Compacted) -> None:
    """▲ Its process would never again hear of an assignment, or of a decision."""
    etcd = CompactedEtcd(failure)
    watch = FollowingWatch(cast(Any, etcd), etcd.relist, b"/", b"0", 3, on_close=lambda _: None)
    async with asyncio.timeout(20):
        listed, further = await anext(watch), await anext(watch)
    assert (listed.resync, listed.revision, [event.record.key for event in listed.events]) == (True, 12, [b"/a"])
    assert (further.revision, [event.record.key for event in further.events]) == (13, [b"/b"])
    await watch.close()


class MuteEtcd(CompactedEtcd):
    """Is connected, and ends each watch."""

    opened = 0

    async def open_watch(self, start: bytes, end: bytes, from_revision: int) -> Events:
        self.opened += 1
        if self.opened > 1000:
            await asyncio.Event().wait()
        raise Unanswered("etcd ended the watch")


@virtual_time
async def test_a_watch_that_etcd_ends_again_and_again_is_opened_at_leisure() -> None:
    """Some twenty times a second: dies if it keeps a core busy with that."""
    etcd = MuteEtcd()
    watch = FollowingWatch(cast(Any, etcd), etcd.relist, b"/", b"0", 3, on_close=lambda _: None)
    await asyncio.sleep(10)
    assert 20 < etcd.opened <= 201
    await watch.close()
