"""A watch that survives lost connections, restarts and compaction (DESIGN §4, "What a careful etcd client does").

It resumes from the last event's revision + 1, drops older events, and after compaction lists the range at one revision
and continues from there. ▲ Only events count as followed; etcd's progress answers, whose revision runs ahead of events
still to come, never get here (the backend drops them).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

from txnstore.access.backend import Backend, Refused, Unanswered
from txnstore.store import Compacted, Event, EventKind, RangeResult, WatchBatch
from txnwire.errors import InternalError, StoreUnavailable, TxnError, Unauthorized
from txnwire.tasks import errand
from txnwire.turns import in_turns

_QUEUED_BATCHES: Final = 64
_PAUSE_S: Final = 0.05
_LISTED_AT_ONCE: Final = 10_000

Relist = Callable[[bytes, bytes], Awaitable[RangeResult]]


class FollowingWatch:
    """`txnstore.store.StoreWatch`. One task reads ahead, so that a cancelled `__anext__` loses nothing."""

    def __init__(
        self,
        backend: Backend,
        relist: Relist,
        start: bytes,
        end: bytes,
        from_revision: int,
        *,
        on_close: Callable[[FollowingWatch], None],
    ) -> None:
        self._backend = backend
        self._relist = relist
        self._start = start
        self._end = end
        self._next_revision = from_revision
        self._on_close = on_close
        self._batches: deque[WatchBatch] = deque()
        self._moved = asyncio.Event()  # a batch came, or the end
        self._room = asyncio.Event()
        self._room.set()
        self._closed = False
        self._error: TxnError | None = None
        self._task = errand(self._follow(), name="watch")

    def __aiter__(self) -> FollowingWatch:
        return self

    async def __anext__(self) -> WatchBatch:
        while not self._batches:
            if self._error is not None:
                raise self._error
            if self._closed:
                raise StopAsyncIteration
            self._moved.clear()
            await self._moved.wait()
        batch = self._batches.popleft()
        self._room.set()
        return batch

    async def close(self) -> None:
        """Idempotent. Ends a waiting `__anext__`; batches that have arrived can still be taken."""
        self._closed = True
        self._on_close(self)
        self._task.cancel()
        await asyncio.wait([self._task])
        self._moved.set()

    async def _follow(self) -> None:
        try:
            while True:
                await self._backend.wait_ready()
                try:
                    await self._follow_one_stream()
                except Unanswered:
                    await asyncio.sleep(_PAUSE_S)
                except Compacted:
                    await self._list_anew()
        except Refused as refusal:
            self._end_with(Unauthorized(f"watching [{self._start!r}, {self._end!r}): {refusal}"))
        except TxnError as error:
            self._end_with(error)
        except Exception as error:
            self._end_with(InternalError(f"watching [{self._start!r}, {self._end!r}): {error!r}"))
            raise

    def _end_with(self, error: TxnError) -> None:
        self._error = error
        self._moved.set()

    async def _follow_one_stream(self) -> None:
        stream = await self._backend.open_watch(self._start, self._end, self._next_revision)
        try:
            while True:
                events = await stream.receive()
                if events[0].record.mod_revision < self._next_revision:
                    events = tuple([event for event in events if event.record.mod_revision >= self._next_revision])
                if events:
                    # ▲ resume point and followed revision come from events only, never from a progress answer
                    revision = events[-1].record.mod_revision
                    self._next_revision = revision + 1
                    await self._deliver(WatchBatch(revision, events))
        finally:
            await stream.close()

    async def _list_anew(self) -> None:
        try:
            listed = await self._relist(self._start, self._end)
        except (StoreUnavailable, Compacted):
            return  # the next stream finds it compacted again
        self._next_revision = listed.revision + 1
        events: list[Event] = []
        async for part in in_turns(listed.records, _LISTED_AT_ONCE):
            events += [Event(EventKind.PUT, record) for record in part]
        await self._deliver(WatchBatch(listed.revision, tuple(events), resync=True))

    async def _deliver(self, batch: WatchBatch) -> None:
        self._batches.append(batch)
        self._moved.set()
        while len(self._batches) >= _QUEUED_BATCHES:
            self._room.clear()
            await self._room.wait()
