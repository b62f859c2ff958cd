"""`MetadataStore` over any `Backend`: a careful etcd client, shared by the real and the simulated etcd."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Final, TypeVar

from txnstore import keys
from txnstore.access.backend import Backend, Reason, Refused, StoreStatus, Unanswered
from txnstore.access.following import FollowingWatch
from txnstore.access.group_commit import GroupCommit, Statistics
from txnstore.access.grouping import GroupMember
from txnstore.access.leases import KeptLease
from txnstore.access.pins import Pins
from txnstore.access.soft_limit import SoftLimit
from txnstore.records import Incarnation, decode, encode
from txnstore.store import (
    Commit,
    CommitVerdict,
    Compacted,
    Compare,
    KeyValue,
    Put,
    RangeResult,
    Read,
    absent,
)
from txnwire.errors import InternalError, InvalidArgument, NotOwner, StoreFull, StoreUnavailable, TxnError, Unauthorized
from txnwire.histogram import Histogram, HistogramSnapshot
from txnwire.ports import Clock, Random

PAGE_RECORDS: Final = 5000
_READ_PAUSE_S: Final = 0.05
_KEYS_PER_READ: Final = 500
_RANGES_PER_READ: Final = 100
_RECORDS_PER_RANGE: Final = 4
"""The first limit per range: most ranges have one record, and one may be as large as a request."""

T = TypeVar("T")


class StoreClient:
    """Implements `txnstore.store.MetadataStore`; `EtcdStore` and `MemoryStore` only add a backend.

    `quota_bytes`: etcd's quota as configured, used if etcd does not report it."""

    def __init__(self, backend: Backend, clock: Clock, random: Random, *, quota_bytes: int) -> None:
        self._backend = backend
        self._clock = clock
        self._random = random
        self._commits = GroupCommit(backend, clock, random)
        self._soft_limit = SoftLimit(backend, quota_bytes)
        self._pins = Pins(self, random)
        self._leases: dict[KeptLease, None] = {}
        self._watches: dict[FollowingWatch, None] = {}
        self._incarnation: Incarnation | None = None
        self._index_queries = Histogram()
        self._closed = False

    # --- reads ---

    def page_size(self, records: int) -> int:
        return max(1, records // self._backend.pages_divided_by)

    async def get(self, key: bytes, *, timeout_s: float = 10.0) -> KeyValue | None:
        _, (record,) = await self._reading(_until(timeout_s), partial(self._backend.read_many, (key,), 0))
        return record

    async def get_many(
        self, keys: Sequence[bytes], *, revision: int = 0, timeout_s: float = 10.0
    ) -> tuple[int, list[KeyValue | None]]:
        if not keys:
            raise InvalidArgument("get_many was asked for no key at all: then there is no revision either")
        return await _again_if_compacted(revision, lambda: self._read_many(keys, revision, timeout_s))

    async def _read_many(
        self, keys: Sequence[bytes], revision: int, timeout_s: float
    ) -> tuple[int, list[KeyValue | None]]:
        chunk = min(self.page_size(_KEYS_PER_READ), self._backend.max_txn_ops)
        first = partial(self._backend.read_many, keys[:chunk], revision)
        found_at, records = await self._reading(_until(timeout_s), first)
        pinned = revision or found_at
        if len(keys) > chunk:
            with self._pins.pin(pinned):
                for start in range(chunk, len(keys), chunk):
                    more = keys[start : start + chunk]
                    read = partial(self._backend.read_many, more, pinned)
                    _, found = await self._reading(_until(timeout_s), read)
                    records += found
        return pinned, records

    async def range(
        self,
        start: bytes,
        end: bytes,
        *,
        revision: int = 0,
        keys_only: bool = False,
        limit: int = 0,
        timeout_s: float = 30.0,
    ) -> RangeResult:
        if start >= end:
            raise InvalidArgument(f"range [{start!r}, {end!r}) is empty: its end must be above its start")
        asked_at = self._clock.monotonic()
        found = await _again_if_compacted(
            revision, lambda: self._read_range(start, end, revision, keys_only, limit, timeout_s)
        )
        if start.startswith(keys.INDEXES):
            self._index_queries.observe(self._clock.monotonic() - asked_at)
        return found

    async def _read_range(
        self, start: bytes, end: bytes, revision: int, keys_only: bool, limit: int, timeout_s: float
    ) -> RangeResult:
        read_page = partial(self._backend.read_page, end=end, keys_only=keys_only)
        most = self.page_size(PAGE_RECORDS)
        size = _left(limit, 0, most)
        page = await self._reading(_until(timeout_s), partial(read_page, start, revision=revision, limit=size))
        pinned, records = revision or page.revision, list(page.records)
        if page.more and len(records) != limit:
            with self._pins.pin(pinned):
                while page.more and len(records) != limit:
                    following, size = records[-1].key + b"\0", _left(limit, len(records), most)
                    read = partial(read_page, following, revision=pinned, limit=size)
                    page = await self._reading(_until(timeout_s), read)
                    records += page.records
        return RangeResult(pinned, tuple(records))

    async def ranges(
        self, ranges: Sequence[tuple[bytes, bytes]], *, revision: int, timeout_s: float = 30.0
    ) -> list[tuple[KeyValue, ...]]:
        found: list[tuple[KeyValue, ...]] = []
        chunk = min(self.page_size(_RANGES_PER_READ), self._backend.max_txn_ops)
        for at in range(0, len(ranges), chunk):
            asked = ranges[at : at + chunk]
            read = partial(self._backend.read_pages, asked, revision=revision, limit=_RECORDS_PER_RANGE)
            for (_, end), page in zip(asked, await self._reading(_until(timeout_s), read), strict=True):
                records = page.records
                if page.more:
                    rest = await self._read_range(records[-1].key + b"\0", end, revision, False, 0, timeout_s)
                    records += rest.records
                found.append(records)
        return found

    async def count(self, start: bytes, end: bytes, *, timeout_s: float = 10.0) -> int:
        """The number of keys in [start, end). Raises `StoreUnavailable`."""
        return await self._reading(_until(timeout_s), partial(self._backend.count, start, end))

    async def status(self, *, timeout_s: float = 10.0) -> StoreStatus:
        """Sizes and revision as one store process reports them. Raises `StoreUnavailable`."""
        return await self._reading(_until(timeout_s), self._backend.status)

    # --- maintenance (`txnstore.maintenance`) ---

    @property
    def quota_bytes(self) -> int:
        """etcd's quota as configured."""
        return self._soft_limit.quota_bytes

    async def mark_revision(self, key: bytes, value: bytes, guard: Compare | None) -> int:
        """Put `key`, alone in its request, and return its revision. Raises `NotOwner` if `guard` fails, `StoreFull`,
        `StoreUnavailable` (the put may still have been applied)."""
        commit = Commit(() if guard is None else (guard,), (Put(key, value),))
        member = GroupMember(commit, self._backend.encode(commit))
        (result,) = await self._reading(_until(10.0), lambda: self._backend.commit([member], repeated=False))
        if not result.succeeded:
            raise NotOwner(f"{key!r} is kept by another process now")
        return result.revision

    async def compact(self, revision: int) -> None:
        await self._reading(_until(60.0), lambda: self._backend.compact(revision))

    async def defragment(self) -> None:
        await self._reading(_until(600.0), self._backend.defragment)

    async def disarm(self) -> None:
        await self._reading(_until(10.0), self._backend.disarm)

    # --- writes ---

    async def commit(self, commit: Commit, *, timeout_s: float = 10.0) -> CommitVerdict:
        return await self._submit(commit, timeout_s)

    def commit_nowait(self, commit: Commit) -> asyncio.Future[CommitVerdict]:
        try:
            return self._submit(commit, None)
        except (StoreFull, StoreUnavailable, InternalError) as error:
            # ▲ A refusal comes the way an answer does: the caller has registered the write by then (▲ §6, before the op
            # is sent), and undoes that in one place only.
            refused: asyncio.Future[CommitVerdict] = asyncio.get_running_loop().create_future()
            refused.set_exception(error)
            return refused

    def _submit(self, commit: Commit, timeout_s: float | None) -> asyncio.Future[CommitVerdict]:
        if not commit.reserve and self._soft_limit.exceeded():
            raise StoreFull(self._soft_limit.message())
        return self._commits.submit(commit, timeout_s)

    def statistics(self) -> Statistics:
        """Statistics of group commit."""
        return self._commits.statistics()

    def index_queries(self) -> HistogramSnapshot:
        """Seconds taken by range queries of the secondary indexes (`/idx/…`), retries and all pages included."""
        return self._index_queries.snapshot()

    @property
    def refuses_new(self) -> bool:
        """Whether the soft limit refuses new work, as of the last sample."""
        return self._soft_limit.exceeded()

    # --- watches, pins, leases, identity ---

    def watch(self, start: bytes, end: bytes, *, from_revision: int) -> FollowingWatch:
        if from_revision < 1:
            raise InvalidArgument(f"a watch from revision {from_revision}: the first revision is 1")
        if start >= end:
            raise InvalidArgument(f"range [{start!r}, {end!r}) is empty: its end must be above its start")
        self._check_open()
        watch = FollowingWatch(self._backend, self.range, start, end, from_revision, on_close=self._forget_watch)
        self._watches[watch] = None
        return watch

    def _forget_watch(self, watch: FollowingWatch) -> None:
        self._watches.pop(watch, None)

    def pin(self, revision: int) -> AbstractContextManager[None]:
        return self._pins.pin(revision)

    def oldest_pin(self) -> int | None:
        """The lowest revision pinned in this process."""
        return self._pins.oldest()

    async def incarnation(self, *, timeout_s: float = 10.0) -> str:
        return (await self.identity(timeout_s=timeout_s)).id

    async def identity(self, *, timeout_s: float = 10.0) -> Incarnation:
        """`/incarnation`, created if absent. Raises `StoreUnavailable`."""
        if self._incarnation is None:
            record = await self.get(keys.INCARNATION, timeout_s=timeout_s)
            value = await self._found_store(timeout_s) if record is None else record.value
            self._incarnation = decode(Incarnation, value, key=keys.INCARNATION)
            self._backend.known_as(self._incarnation.id)
        return self._incarnation

    async def wait_unfit(self) -> TxnError:
        """Return, with the reason, once this store must no longer be used: etcd was restored from a backup."""
        return await self._backend.wait_unfit()

    async def raft_lead(self) -> int | None:
        """See `Backend.raft_lead`. Raises `StoreUnavailable`."""
        return await self._reading(_until(10.0), self._backend.raft_lead)

    async def _found_store(self, timeout_s: float) -> bytes:
        mine = encode(
            Incarnation(
                id=f"{self._random.getrandbits(64):016x}",
                created_ms=self._clock.wall_ms(),
                raft_lead=await self.raft_lead(),
            )
        )
        result = await self.commit(
            Commit((absent(keys.INCARNATION),), (Put(keys.INCARNATION, mine),), (), (Read(keys.INCARNATION),)),
            timeout_s=timeout_s,
        )
        return mine if result.succeeded else result.reads[0][0].value

    async def grant_lease(self, ttl_s: float, *, timeout_s: float = 10.0) -> KeptLease:
        sent_at = self._clock.monotonic()

        async def grant() -> tuple[int, float]:
            nonlocal sent_at
            sent_at = self._clock.monotonic()
            return await self._backend.grant(max(1, round(ttl_s)))

        # An unanswered grant is repeated: a lease that is not kept alive expires.
        lease_id, granted_s = await self._reading(_until(timeout_s), grant)
        self._check_open()
        lease = KeptLease(self._backend, self._clock, lease_id, granted_s, sent_at, on_end=self._forget_lease)
        self._leases[lease] = None
        return lease

    def leases_good_until(self) -> float:
        """Monotonic: when the last lease held here is lost, unless it is renewed before; -1 without any."""
        return max((lease.good_until for lease in self._leases), default=-1.0)

    def _forget_lease(self, lease: KeptLease) -> None:
        self._leases.pop(lease, None)

    async def revoke_lease(self, lease_id: int, *, timeout_s: float = 10.0) -> None:
        await self._reading(_until(timeout_s), lambda: self._backend.revoke(lease_id))

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for watch in list(self._watches):
            await watch.close()
        for lease in list(self._leases):
            await lease.abandon()
        await self._pins.close()
        await self._soft_limit.close()
        await self._commits.close()
        await self._backend.close()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreUnavailable("the store is closed")

    async def _reading(self, until: float, request: Callable[[], Awaitable[T]]) -> T:
        """Send a repeatable request until it is answered. Raises `StoreUnavailable` after the time limit."""
        self._check_open()
        why = ""
        try:
            async with asyncio.timeout_at(until):
                while True:
                    await self._backend.wait_ready()
                    try:
                        return await request()
                    except Unanswered as error:
                        why = str(error)
                    except Refused as refusal:
                        if refusal.reason is not Reason.BUSY:
                            raise _read_error(refusal) from refusal
                        why = str(refusal)
                    await asyncio.sleep(_READ_PAUSE_S)
        except TimeoutError:
            raise StoreUnavailable(f"no answer from etcd in time: {why or self._backend.why_not_ready()}") from None


async def _again_if_compacted(revision: int, read: Callable[[], Awaitable[T]]) -> T:
    """▲ Repeats a read of several requests, without a given `revision`, at a newer revision if etcd has compacted its
    own (by hand perhaps). Otherwise the caller would take `Compacted` for its own failure."""
    while True:
        try:
            return await read()
        except Compacted:
            if revision:
                raise


def _until(timeout_s: float) -> float:
    """The end of a time limit, on the running loop's clock."""
    return asyncio.get_running_loop().time() + timeout_s


def _left(limit: int, found: int, most: int) -> int:
    return min(limit - found, most) if limit else most


def _read_error(refusal: Refused) -> TxnError:
    match refusal.reason:
        case Reason.DENIED:
            return Unauthorized(str(refusal))
        case Reason.FULL:
            return StoreFull(str(refusal))
        case _:
            return InvalidArgument(str(refusal))
