"""An etcd in one process's memory: the server side of `MemoryStore`, with all faults that a simulation injects.

Single-threaded and deterministic: it acts only when a request arrives or one of its timers (lease expiry, deliveries to
watches) fires on the running event loop, and takes the time from the clock it is given.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextvars import copy_context
from typing import Final

import msgspec

from txnstore.access.backend import Reason, Refused, StoreStatus, Unanswered
from txnstore.memory.mvcc import Change, Mvcc
from txnstore.store import Commit, Compacted, Event, KeyValue
from txnwire.ports import Clock

MIN_TTL_S: Final = 2
DEFAULT_QUOTA_BYTES: Final = 2 * 1024**3
DEFAULT_REQUEST_BYTES: Final = 1536 * 1024
_CHANGES_PER_DELIVERY: Final = 1000


class Arrival(msgspec.Struct, frozen=True, kw_only=True):
    """One request as an etcd received it, for checkers and counters. `commits`: of a commit. `outcome`: the client's
    answer, an exception for a refusal; None if `lost`: it never arrived. `late`: the client has stopped waiting;
    `unheard`: the answer will be lost. `answered_s`: seconds until the answer arrives otherwise."""

    request: str
    client: str
    commits: tuple[Commit, ...] = ()
    outcome: object = None
    lost: bool = False
    late: bool = False
    unheard: bool = False
    answered_s: float = 0.0


class _Lease:
    __slots__ = ("expires_at", "ttl_s")

    def __init__(self, ttl_s: int, expires_at: float) -> None:
        self.ttl_s = ttl_s
        self.expires_at = expires_at


class MemoryEtcd:
    """Serves requests from memory. `mvcc` is the key space, for checkers to read. A fault injector may call:

    - `pause()` / `resume()`: as SIGSTOP: requests wait, leases run on, all answers are late;
    - `pause()` / `elect(lost)`: no leader for that time: the new one restarts all leases, some waiting requests
      are lost, watches are cut;
    - `cut()`: every connection breaks; unanswered requests end as `Unanswered`, applied or not; watches are lost;
    - `crash()` / `restart()`: unreachable in between; nothing applied is lost, leases restart their TTL;
    - `compact(revision)`: also under a watch that still needs older ones;
    - `expire_lease(id)`: early; `delay_expiry(id, seconds)`: late, until `end_delays()`;
    - `quota_bytes`: lower it to raise the alarm.

    `max_txn_ops`, `max_request_bytes`: as etcd's own options, with the same refusals. `pages_divided_by`: divides the
    page sizes of its clients.

    Calls `on_change` with every change as soon as it is made, `on_arrival` with every request as soon as it is
    answered.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        quota_bytes: int = DEFAULT_QUOTA_BYTES,
        max_txn_ops: int = 10_000,
        max_request_bytes: int = DEFAULT_REQUEST_BYTES,
        pages_divided_by: int = 1,
    ) -> None:
        self._clock = clock
        self._context = copy_context()
        self.on_change: Callable[[Change], None] | None = None
        self.on_arrival: Callable[[Arrival], None] | None = None
        self.mvcc = Mvcc()
        self.quota_bytes = quota_bytes
        self.max_txn_ops = max_txn_ops
        self.max_request_bytes = max_request_bytes
        self.pages_divided_by = pages_divided_by
        self.no_space = False
        self.paused = False
        self.running = True
        self._db_bytes = 0
        self._next_lease = 1
        self._leases: dict[int, _Lease] = {}
        self._expiry_timer: asyncio.Handle | None = None
        self._told_revision = self.mvcc.revision
        self._streams: dict[MemoryWatchStream, None] = {}
        self._held_back: list[Callable[[], None]] = []
        self._on_cut: dict[Callable[[], None], None] = {}
        self._on_start: list[Callable[[], None]] = []

    # --- faults injected into it ---

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False
        held_back, self._held_back = self._held_back, []
        for request in held_back:
            self.arrive(request)
        for stream in self._streams:
            stream.notify()

    def elect(self, lost: Callable[[], bool]) -> None:
        """Calls `lost` for each waiting request: true if only the old leader had it, so that it is never answered."""
        self._held_back = [request for request in self._held_back if not lost()]
        self._start_leases_anew()
        for stream in list(self._streams):
            stream.lose()
        self.resume()

    def cut(self) -> None:
        for stream in list(self._streams):
            stream.lose()
        for notify in list(self._on_cut):
            notify()

    def crash(self) -> None:
        self.running = False
        self._held_back.clear()
        self.cut()

    def restart(self) -> None:
        self.running = True
        self.paused = False
        self._start_leases_anew()
        started, self._on_start = self._on_start, []
        for notify in started:
            notify()

    def expire_lease(self, lease_id: int) -> None:
        if lease_id in self._leases:
            del self._leases[lease_id]
            self.mvcc.end_lease(lease_id)
            self._tell_watches()

    def delay_expiry(self, lease_id: int, seconds: float) -> None:
        self._leases[lease_id].expires_at += seconds
        self._set_expiry_timer()

    def end_delays(self) -> None:
        """No lease lasts longer than its TTL from now."""
        latest = self._clock.monotonic()
        for lease in self._leases.values():
            lease.expires_at = min(lease.expires_at, latest + lease.ttl_s)
        self._set_expiry_timer()

    def leases(self) -> list[int]:
        return list(self._leases)

    # --- requests, as they arrive ---

    def call_later(self, delay_s: float, call: Callable[[], None]) -> asyncio.Handle:
        """On the running loop, in the context that created this etcd: pending work here continues when the simulated
        process that caused it is killed."""
        loop = asyncio.get_running_loop()
        if delay_s:
            return loop.call_later(delay_s, call, context=self._context)
        return loop.call_soon(call, context=self._context)

    def arrive(self, request: Callable[[], None]) -> None:
        """Run a request now, or once resumed, or never (the process is down)."""
        if self.paused:
            self._held_back.append(request)
        elif self.running:
            self._expire_due()
            request()
            self._tell_watches()

    def met(self, arrival: Arrival) -> None:
        if self.on_arrival is not None:
            self.on_arrival(arrival)

    def when_started(self, notify: Callable[[], None]) -> None:
        self._on_start.append(notify)

    def on_cut(self, notify: Callable[[], None]) -> Callable[[], None]:
        """Have `notify` called at the next cuts; returns a function that ends this."""
        self._on_cut[notify] = None
        return lambda: self._on_cut.pop(notify, None)

    def check_quota(self) -> None:
        """etcd refuses every request that could write once its file has reached the quota, until defragmented and
        disarmed.
        """
        self._db_bytes = max(self._db_bytes, self.mvcc.bytes_in_use)
        if self._db_bytes >= self.quota_bytes:
            self.no_space = True
        if self.no_space:
            raise Refused(Reason.FULL, "etcdserver: mvcc: database space exceeded")

    def check_request(self, *, ops: int, nested_ops: int, size: int) -> None:
        """etcd counts the longest list of a transaction, and allows nested ones the rest of its limit. `size`: of the
        request as sent."""
        if ops > self.max_txn_ops or ops + nested_ops > self.max_txn_ops:
            raise Refused(Reason.MALFORMED, "etcdserver: too many operations in txn request")
        if size > self.max_request_bytes:
            raise Refused(Reason.MALFORMED, "etcdserver: request is too large")

    def grant(self, ttl_s: int) -> tuple[int, float]:
        self.check_quota()
        lease_id, self._next_lease = self._next_lease, self._next_lease + 1
        ttl_s = max(ttl_s, MIN_TTL_S)
        self._leases[lease_id] = _Lease(ttl_s, self._clock.monotonic() + ttl_s)
        self.mvcc.add_lease(lease_id)
        self._set_expiry_timer()
        return lease_id, float(ttl_s)

    def keep_alive(self, lease_id: int) -> float:
        lease = self._leases.get(lease_id)
        if lease is None:
            return 0.0
        lease.expires_at = self._clock.monotonic() + lease.ttl_s
        return float(lease.ttl_s)

    def revoke(self, lease_id: int) -> None:
        self.expire_lease(lease_id)

    def status(self) -> StoreStatus:
        self._db_bytes = max(self._db_bytes, self.mvcc.bytes_in_use)
        return StoreStatus(
            version="memory",
            revision=self.mvcc.revision,
            db_bytes=self._db_bytes,
            db_bytes_in_use=self.mvcc.bytes_in_use,
            quota_bytes=self.quota_bytes,
            no_space=self.no_space,
        )

    def compact(self, revision: int) -> None:
        self.mvcc.compact(revision)

    def defragment(self) -> None:
        self._db_bytes = self.mvcc.bytes_in_use

    def disarm(self) -> None:
        self.no_space = False

    def open_watch(
        self, start: bytes, end: bytes, from_revision: int, delay_s: Callable[[], float]
    ) -> MemoryWatchStream:
        stream = MemoryWatchStream(self, start, end, from_revision, delay_s)
        self._streams[stream] = None
        stream.notify()
        return stream

    def drop_stream(self, stream: MemoryWatchStream) -> None:
        self._streams.pop(stream, None)

    # --- inside ---

    def _tell_watches(self) -> None:
        told, self._told_revision = self._told_revision, self.mvcc.revision
        if told == self._told_revision:
            return
        changes = self.mvcc.changes_since(told + 1, at_most=_CHANGES_PER_DELIVERY)
        if self.on_change is not None:
            for change in changes:
                self.on_change(change)
        keys = [event.record.key for change in changes for event in change.events]
        for stream in self._streams:
            stream.changed(told, changes[-1].revision, keys)

    def _start_leases_anew(self) -> None:
        now = self._clock.monotonic()
        for lease in self._leases.values():
            lease.expires_at = now + lease.ttl_s
        self._set_expiry_timer()

    def _expire_due(self) -> None:
        now = self._clock.monotonic()
        due = [lease_id for lease_id, lease in self._leases.items() if lease.expires_at <= now]
        for lease_id in due:
            self.expire_lease(lease_id)

    def _set_expiry_timer(self) -> None:
        if self._expiry_timer is not None:
            self._expiry_timer.cancel()
            self._expiry_timer = None
        if self._leases:
            next_at = min(lease.expires_at for lease in self._leases.values())
            wait_s = max(next_at - self._clock.monotonic(), 0.0) + 0.01
            self._expiry_timer = self.call_later(wait_s, self._on_expiry_timer)

    def _on_expiry_timer(self) -> None:
        self._expiry_timer = None
        if self.running and not self.paused:
            self._expire_due()
        self._set_expiry_timer()


class MemoryWatchStream:
    """One watch at the server. Deliveries read the history, so delay and loss can cause neither gaps nor disorder."""

    def __init__(
        self, etcd: MemoryEtcd, start: bytes, end: bytes, from_revision: int, delay_s: Callable[[], float]
    ) -> None:
        self._etcd = etcd
        self._start = start
        self._end = end
        self._next_revision = from_revision
        self._delay_s = delay_s
        self._timer: asyncio.Handle | None = None
        self._ready: list[tuple[Event, ...]] = []
        self._lost = False
        self._error: Compacted | None = None
        self._waiter: asyncio.Future[None] | None = None

    def changed(self, told: int, last: int, keys: Sequence[bytes]) -> None:
        """Changes of `keys` follow revision `told`, up to `last`. A stream that had caught up and watches none of them
        has caught up with them too."""
        if self._timer is None and self._next_revision == told + 1:
            for key in keys:
                if self._start <= key < self._end:
                    break
            else:
                self._next_revision = last + 1
                return
        self.notify()

    @property
    def lost(self) -> bool:
        """Closed, or cut: no more events come."""
        return self._lost

    def notify(self) -> None:
        if self._timer is None and not self._lost:
            self._timer = self._etcd.call_later(self._delay_s(), self._deliver)

    def lose(self) -> None:
        self._lost = True
        if self._timer is not None:
            self._timer.cancel()
        self._etcd.drop_stream(self)
        self._wake()

    async def receive(self) -> tuple[Event, ...]:
        while not self._ready:
            if self._error is not None:
                raise self._error
            if self._lost:
                raise Unanswered("the watch was cut")
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return self._ready.pop(0)

    async def close(self) -> None:
        self.lose()

    def _deliver(self) -> None:
        self._timer = None
        if self._etcd.paused or self._lost:
            return
        try:
            changes = self._etcd.mvcc.changes_since(self._next_revision, at_most=_CHANGES_PER_DELIVERY)
        except Compacted as error:
            self._etcd.met(Arrival(request="watch", client="", outcome=error))
            self._error = error
            self.lose()
            return
        if not changes:
            return
        self._next_revision = changes[-1].revision + 1
        events = [event for change in changes for event in change.events if self._concerns(event.record)]
        if events:
            self._ready.append(tuple(events))
            self._wake()
        if len(changes) == _CHANGES_PER_DELIVERY:
            self.notify()

    def _concerns(self, record: KeyValue) -> bool:
        return self._start <= record.key < self._end

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
