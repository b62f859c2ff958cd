"""A watch that lasts: what it does where etcd has compacted away what it was to go on with."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from tests.segments.virtual_time import virtual_time
from txnstore.access.backend import Reason, Refused, Unanswered
from txnstore.access.following import _LISTED_AT_ONCE, FollowingWatch
from txnstore.store import Compacted, Event, EventKind, KeyValue, RangeResult, WatchBatch
from txnwire.errors import InternalError, StoreUnavailable, TxnError, Unauthorized
from txnwire.turns import turns_divided_by

RECORDS = tuple(KeyValue(key, b"", 1, 9, 9, 0) for key in (b"/a", b"/aa", b"/ab"))


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
        return RangeResult(records=RECORDS, revision=12)


@pytest.mark.parametrize("failure", [Compacted("once more"), StoreUnavailable("etcd is away")])
async def test_e1_a_listing_that_fails_behind_a_compaction_is_made_again(failure: TxnError | Compacted) -> None:
    """▲ Its process would never again hear of an assignment, or of a decision."""
    etcd = CompactedEtcd(failure)
    with turns_divided_by(_LISTED_AT_ONCE):  # one at once
        watch = FollowingWatch(cast(Any, etcd), etcd.relist, b"/", b"0", 3, on_close=lambda _: None)
    async with asyncio.timeout(20):
        listed, further = await anext(watch), await anext(watch)
    assert (listed.resync, listed.revision, tuple(event.record for event in listed.events)) == (True, 12, RECORDS)
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


def put(revision: int) -> Event:
    return Event(EventKind.PUT, KeyValue(b"/%d" % revision, b"", 1, revision, revision, 0))


class ToldEtcd(CompactedEtcd):
    """Each stream gives the next of `streams`: batches of events, then the error that ends it, or silence."""

    def __init__(self, *streams: tuple[list[Event] | Exception, ...]) -> None:
        super().__init__()
        self._streams = list(streams)
        self._batches: list[list[Event] | Exception] = []
        self.opened_at: list[int] = []
        self.given = self.closed = 0

    async def open_watch(self, start: bytes, end: bytes, from_revision: int) -> Any:
        self.opened_at.append(from_revision)
        self._batches = list(self._streams.pop(0))
        return self

    async def receive(self) -> tuple[Event, ...]:
        if not self._batches:
            await asyncio.Event().wait()
        await asyncio.sleep(0)
        batch = self._batches.pop(0)
        if isinstance(batch, Exception):
            await asyncio.sleep(1)  # so that somebody waits
            raise batch
        self.given += 1
        return tuple(batch)

    async def close(self) -> None:
        self.closed += 1


def follow(etcd: ToldEtcd) -> FollowingWatch:
    return FollowingWatch(cast(Any, etcd), etcd.relist, b"/", b"0", 10, on_close=lambda _: None)


def revisions(batch: WatchBatch) -> list[int]:
    return [event.record.mod_revision for event in batch.events]


@virtual_time
async def test_e1_a_watch_goes_on_behind_its_last_event_and_tells_nothing_twice() -> None:
    """▲ What comes again is older than what it waits for, alone or before news."""
    etcd = ToldEtcd(
        ([put(10), put(11)], [put(12)], Unanswered("it went")), ([put(11), put(12)], [put(12), put(13)], [put(14)])
    )
    watch = follow(etcd)
    batches = [await asyncio.wait_for(anext(watch), 5) for _ in range(4)]
    assert [revisions(batch) for batch in batches] == [[10, 11], [12], [13], [14]]
    assert [batch.revision for batch in batches] == [11, 12, 13, 14]
    assert etcd.opened_at == [10, 13]
    await watch.close()
    assert etcd.closed == 2


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (Refused(Reason.DENIED, "permission denied"), Unauthorized),
        (StoreUnavailable("its store is another one"), StoreUnavailable),
        (ZeroDivisionError("a defect"), InternalError),
    ],
)
@virtual_time
async def test_a_watch_that_cannot_go_on_says_so_behind_what_has_come(error: Exception, told: type[TxnError]) -> None:
    """▲ Or its process would wait for ever."""
    watch = follow(ToldEtcd(([put(10)], error)))
    assert revisions(await anext(watch)) == [10]
    for _ in range(2):
        with pytest.raises(told):
            await asyncio.wait_for(anext(watch), 5)
    await watch.close()


@virtual_time
async def test_a_watch_that_nobody_reads_keeps_a_bounded_number_of_batches_and_loses_none() -> None:
    etcd = ToldEtcd(tuple([put(revision)] for revision in range(10, 10 + 10_000)))
    watch = follow(etcd)
    await asyncio.sleep(1)
    assert etcd.given < 1_000
    for revision in range(10, 10 + 10_000):
        assert revisions(await asyncio.wait_for(anext(watch), 5)) == [revision]
    await watch.close()
    with pytest.raises(StopAsyncIteration):
        await asyncio.wait_for(anext(watch), 5)


@virtual_time
async def test_what_has_come_before_a_watch_was_closed_is_told_yet() -> None:
    watch = follow(ToldEtcd(([put(10)], [put(11)])))
    await asyncio.sleep(1)
    await watch.close()
    assert [revisions(batch) async for batch in watch] == [[10], [11]]
