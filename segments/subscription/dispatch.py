"""Dispatches entries to consumers: permits, isolation, filtering, catch-up and tailing (DESIGN §7, "Dispatch").

One pass serves every attached consumer from memory; it runs at most once per turn of the event loop. A consumer that
must wait (for a disk read, a slow connection, a revision) does so in one owned task, which then triggers a new pass.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from enum import Enum
from functools import partial
from typing import Final, NamedTuple, Protocol

import structlog

from segments.log.ledgers.segment_log import SegmentLog
from segments.log.tail_cache import LogEntry, TailCache, large_value_key
from segments.subscription.shares import DeliveryShares
from txnwire.entry import parse_metadata, txn_of
from txnwire.errors import ConnectionLost, DataTrimmed, InternalError, InvalidArgument, TxnError
from txnwire.ids import Position, TxnId
from txnwire.tasks import errand
from txnwire.turns import in_turns, turn_size
from watchers.acks import WHOLE, bitmap_bytes

log = structlog.get_logger(__name__)


class Isolation(Enum):
    """Selects the entries that a consumer or reader receives."""

    READ_COMMITTED = "up to the read position, without what was aborted"
    READ_UNCOMMITTED = "everything that is confirmed (V7)"
    SNAPSHOT = "everything that is confirmed, without what is known to be aborted: its reader leaves out the rest"


BATCH_ENTRIES: Final = 500
"""Entries delivered or passed over for one consumer before the other consumers have their turn."""

PASS_ENTRIES: Final = 1_000
"""Entries delivered or passed over for all consumers in one pass, before other tasks of the event loop run."""

PARSED_AT_ONCE: Final = 500
"""Entries of one read."""


class Delivery(NamedTuple):
    """`skip`: bitmap, LSB first, of the message indexes not to deliver; empty for none. `data`: empty for further
    messages of an entry that the consumer has."""

    position: Position
    data: bytes
    skip: bytes
    redelivery_count: int


class DeliverySink(Protocol):
    """Sends one consumer's deliveries over its connection. Calls on a closed one do nothing.

    `passed`: no entry between the last delivered one and `through` will ever be delivered to it. `sharing`: a queue's
    consumer is not alone (odd), or alone again (even)."""

    @property
    def closed(self) -> bool: ...
    @property
    def pending_bytes(self) -> int: ...
    async def drain(self, below_bytes: int) -> None: ...
    def deliver(self, deliveries: Sequence[Delivery]) -> None: ...
    def passed(self, through: Position) -> None: ...
    def sharing(self, told: int) -> None: ...
    def rewind(self) -> None: ...
    def end_of_segment(self, *, sealed: bool) -> None: ...
    def consumer_closed(self, error: TxnError) -> None: ...


class Visibility(Protocol):
    """The transaction buffer, as dispatch reads it."""

    @property
    def max_read_position(self) -> Position: ...
    @property
    def last_confirmed(self) -> Position: ...
    def is_aborted(self, txn_id: TxnId, writer: int) -> bool: ...


class AckState(Protocol):
    """A subscription, as dispatch reads it. A reader has none."""

    def holds_back(self) -> bool:
        """▲ P12: whether a predecessor's pending acks are still undecided."""

    def skip(self, position: Position, messages: int = 0) -> int:
        """Bitmap of the indexes acked or pending; `WHOLE` for the whole entry."""

    def redelivery_count(self, position: Position) -> int: ...

    def pass_over(self, position: Position, messages: int) -> None:
        """Count an aborted entry as consumed: no consumer will ever ack it."""


class DispatchConsumer:
    """Holds one attached stream consumer or reader and its read position. Created by `Dispatcher.attach`'s callers."""

    def __init__(
        self,
        sink: DeliverySink,
        *,
        next_read: Position,
        acks: AckState | None = None,
        end: Position | None = None,
        left_out: int = 0,
        min_revision: int = 0,
        isolation: Isolation = Isolation.READ_COMMITTED,
        holder: str = "",
        whole: bool = False,
        permits_are_kib: bool = False,
    ) -> None:
        """`whole`: it fails if an entry is trimmed before it is read, and never skips it. `permits_are_kib`: permits
        count KiB of entries, not messages."""
        self.holder = holder
        self.whole = whole
        self.sink = sink
        self.acks = acks
        self.isolation = isolation
        self.next_read = next_read
        self.end = end
        self.first_entry = (next_read, left_out)
        self.min_revision = min_revision
        self.permits = 0
        self.permits_are_kib = permits_are_kib
        self.ended = False
        self.detached = False
        self.delivered = 0
        self.read_ahead: deque[LogEntry] = deque()
        self.waiting: asyncio.Task[None] | None = None

    def rewind_to(self, position: Position) -> None:
        """Continue from `position`; the client drops its buffered entries."""
        self.next_read = position
        self.read_ahead.clear()
        self.ended = False
        self.sink.rewind()


class DispatchSource(Protocol):
    """Serves its own consumers in each pass: a queue subscription."""

    def serve(self) -> None: ...
    def close(self, error: TxnError) -> None: ...


class Dispatcher:
    """Serves the consumers of one segment. Callers `wake` it after anything that may unblock a consumer."""

    def __init__(
        self,
        ledgers: SegmentLog,
        visibility: Visibility,
        cache: TailCache,
        shares: DeliveryShares,
        *,
        followed_revision: Callable[[], int],
        wait_followed: Callable[[int], Awaitable[None]],
    ) -> None:
        self._ledgers = ledgers
        self._visibility = visibility
        self._cache = cache
        self.shares = shares
        self._followed_revision = followed_revision
        self._wait_followed = wait_followed
        self._consumers: dict[DispatchConsumer, None] = {}
        self._sources: dict[DispatchSource, None] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._scheduled = False
        self._closed = False

    @property
    def consumers(self) -> tuple[DispatchConsumer, ...]:
        return tuple(self._consumers)

    def attach(self, consumer: DispatchConsumer) -> None:
        self._consumers[consumer] = None
        self.shares.join(consumer)
        self.wake()

    def add_source(self, source: DispatchSource) -> None:
        """Serve `source` in every pass from now on."""
        self._sources[source] = None
        self.wake()

    def remove_source(self, source: DispatchSource) -> None:
        self._sources.pop(source, None)

    def detach(self, consumer: DispatchConsumer) -> None:
        consumer.detached = True
        consumer.read_ahead.clear()
        self._consumers.pop(consumer, None)
        self.shares.leave(consumer)
        if consumer.waiting is not None:
            consumer.waiting.cancel()

    def add_permits(self, consumer: DispatchConsumer, permits: int, min_revision: int = 0) -> None:
        consumer.permits += permits
        consumer.min_revision = max(consumer.min_revision, min_revision)
        self.wake()

    def wake(self) -> None:
        if not self._scheduled and not self._closed and (self._consumers or self._sources):
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._pass)

    def close(self, error: TxnError) -> None:
        """Detach every consumer and close it with `error`."""
        self._closed = True
        for consumer in self.consumers:
            self.detach(consumer)
            consumer.sink.consumer_closed(error)
        for source in list(self._sources):
            source.close(error)

    def _pass(self) -> None:
        self._scheduled = False
        left = turn_size(PASS_ENTRIES)
        for consumer in self.consumers:
            if left <= 0:
                self.wake()
                break
            if consumer.waiting is not None or consumer.detached:
                continue
            looked_at = self._serve(consumer)
            left -= looked_at
            if looked_at and consumer in self._consumers:
                self._consumers[consumer] = self._consumers.pop(consumer)  # behind those not reached
        for source in list(self._sources):
            source.serve()

    def _serve(self, consumer: DispatchConsumer) -> int:
        """Returns the number of entries examined."""
        if consumer.acks is not None and consumer.acks.holds_back():
            return 0
        if self._followed_revision() < consumer.min_revision:
            self._wait(consumer, partial(self._wait_followed, consumer.min_revision))
            return 0
        if consumer.sink.pending_bytes > self.shares.pending_bytes:
            self._wait(consumer, partial(consumer.sink.drain, self.shares.pending_bytes // 2))
            return 0
        if consumer.whole and self._has_lost_some(consumer):
            self._fail(consumer, trimmed_from_snapshot(self._ledgers.trimmed_through))
            return 0
        consumer.next_read = self._ledgers.settle(consumer.next_read)
        limit = self._limit(consumer.isolation)
        if consumer.end is not None and consumer.end < limit:
            limit = consumer.end
        looked_at = self._deliver_up_to(consumer, limit)
        if consumer.waiting is None and not consumer.ended:
            self._tell_end(consumer)
        return looked_at

    def _has_lost_some(self, consumer: DispatchConsumer) -> bool:
        """▲ A reader of or from a snapshot that skipped a trimmed gap would see part of a transaction."""
        end = consumer.end or consumer.next_read
        return not consumer.ended and consumer.next_read <= min(end, self._ledgers.trimmed_through)

    def _limit(self, isolation: Isolation) -> Position:
        committed = isolation is Isolation.READ_COMMITTED
        return self._visibility.max_read_position if committed else self._visibility.last_confirmed

    def _deliver_up_to(self, consumer: DispatchConsumer, limit: Position) -> int:
        """Returns the number of entries examined, at most one turn's worth."""
        batch: list[Delivery] = []
        batch_bytes = looked_at = 0
        through = consumer.next_read
        while consumer.permits > 0 and consumer.next_read <= limit:
            if batch_bytes >= self.shares.deliver_bytes or looked_at >= turn_size(BATCH_ENTRIES):
                self.wake()  # the others' turn
                break
            skip = self._skip(consumer)
            if skip != WHOLE:
                entry = self._find(consumer)
                if entry is None:
                    self._wait(consumer, partial(self._read_ahead, consumer, limit))
                    break
                # V4: filter at delivery, even if the read waited long.
                delivery = self._filter(consumer, entry, skip)
                if delivery is not None:
                    batch.append(delivery)
                    batch_bytes += len(entry.data)
            through = consumer.next_read
            consumer.next_read = self._ledgers.next_after(through)
            looked_at += 1
        if batch:
            consumer.sink.deliver(batch)
        elif looked_at:
            # ▲ Name an examined entry, never the place behind it: only entries up to `limit` are decided. A reader told
            # a later position would skip, when it comes back, entries that an open transaction has written there.
            consumer.sink.passed(through)
        return looked_at

    def _find(self, consumer: DispatchConsumer) -> LogEntry | None:
        ahead = consumer.read_ahead
        while ahead and ahead[0].position < consumer.next_read:
            ahead.popleft()
        if ahead and ahead[0].position == consumer.next_read:
            return ahead.popleft()
        return self._cache.get(consumer.next_read)

    def _skip(self, consumer: DispatchConsumer) -> int:
        """Bitmap of the indexes of the entry at `next_read` not to deliver."""
        if consumer.acks is not None:
            return consumer.acks.skip(consumer.next_read)
        position, left_out = consumer.first_entry
        return (1 << left_out) - 1 if consumer.next_read == position else 0

    def _filter(self, consumer: DispatchConsumer, entry: LogEntry, skip: int) -> Delivery | None:
        acks = consumer.acks
        if (
            entry.txn_id is not None
            and consumer.isolation is not Isolation.READ_UNCOMMITTED
            and self._visibility.is_aborted(entry.txn_id, entry.writer)
        ):
            if acks is not None:
                acks.pass_over(entry.position, entry.messages)
            return None
        shown = entry.messages - skip.bit_count()
        if shown <= 0:
            return None
        consumer.permits -= (len(entry.data) + 1023) // 1024 if consumer.permits_are_kib else shown
        consumer.delivered += shown
        count = acks.redelivery_count(entry.position) if acks is not None else 0
        return Delivery(entry.position, entry.data, bitmap_bytes(skip), count)

    def _tell_end(self, consumer: DispatchConsumer) -> None:
        if consumer.end is not None and consumer.next_read > consumer.end:
            consumer.ended = True
            consumer.sink.end_of_segment(sealed=False)
        elif (end := self._ledgers.end) is not None and consumer.next_read > end:
            # Sent again after a rewind. For a subscription it means that all entries were delivered, not that all are
            # acked: no further piece of a chunked value will come.
            consumer.ended = True
            consumer.sink.end_of_segment(sealed=True)

    async def wait_closed(self) -> None:
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _wait(self, consumer: DispatchConsumer, condition: Callable[[], Awaitable[None]]) -> None:
        consumer.waiting = self.own(self._waiting(consumer, condition))

    def own(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Start a task that `wait_closed` waits for."""
        task = errand(work, name="dispatch")
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        return task

    async def _waiting(self, consumer: DispatchConsumer, condition: Callable[[], Awaitable[None]]) -> None:
        try:
            await condition()
        except ConnectionLost:
            pass  # the connection's end detaches the consumer
        except TxnError as error:
            self._fail(consumer, error)
        except Exception as error:
            self._fail(consumer, InternalError(f"what was waited for ended: {error!r}"))
            raise
        finally:
            consumer.waiting = None
        self.wake()

    def _fail(self, consumer: DispatchConsumer, error: TxnError) -> None:
        """Close one consumer with `error`; the others continue."""
        if not consumer.detached:
            log.warning("consumer_failed", position=str(consumer.next_read), error=str(error))
            consumer.detached = True
            self._consumers.pop(consumer, None)
            self.shares.leave(consumer)
            consumer.sink.consumer_closed(error)

    def cached(self, position: Position) -> LogEntry | None:
        return self._cache.get(position)

    def followed(self, revision: int) -> bool:
        """Whether this broker has followed every decision up to `revision`."""
        return self._followed_revision() >= revision

    async def wait_followed(self, revision: int) -> None:
        """Raises `Timeout`."""
        await self._wait_followed(revision)

    async def read_run(self, first: Position, last: Position) -> deque[LogEntry]:
        """Entries from `first`, which exists, up to `last` at most, as many as one read takes. Raises `DataCorrupt`."""
        try:
            found = await self._ledgers.read(first, last, max_bytes=self.shares.read_bytes)
        except InvalidArgument:
            if self._ledgers.contains(first):
                raise
            return deque()  # trimmed meanwhile: the caller goes on behind it
        entries: deque[LogEntry] = deque()
        async for some in in_turns(found, PARSED_AT_ONCE):  # one read holds tens of thousands of small entries
            entries.extend(to_log_entry(position, data) for position, data in some)
        return entries

    async def read_entry(self, position: Position) -> LogEntry:
        """One confirmed entry. Raises `DataCorrupt`."""
        entry = self._cache.get(position)
        if entry is None:
            [(_, data)] = await self._ledgers.read(position, position, max_bytes=1)
            entry = to_log_entry(position, data)
        return entry

    async def _read_ahead(self, consumer: DispatchConsumer, limit: Position) -> None:
        at = consumer.next_read
        found = await self.read_run(at, limit)
        if consumer.next_read == at:
            consumer.read_ahead = found


def to_log_entry(position: Position, data: bytes) -> LogEntry:
    """Raises `DataCorrupt` naming the fault in the entry's header or metadata."""
    metadata = parse_metadata(data)
    return LogEntry(
        position,
        data,
        metadata.count,
        txn_of(metadata),
        metadata.writer,
        large_value_key(metadata),
        metadata.deliver_at_ms,
    )


def trimmed_from_snapshot(through: Position) -> DataTrimmed:
    """The error for a reader of a snapshot, or between two, that has not read the trimmed entries."""
    return DataTrimmed(
        f"the messages to read up to {through} have been trimmed: take a snapshot and read it from the earliest message"
    )
