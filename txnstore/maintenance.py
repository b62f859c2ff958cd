"""Keeping etcd small: compaction, defragmentation and the quota's alarm, run by one elected process (DESIGN §4).

Without compaction a 2 GiB quota is full after some 5 million mutations: in minutes. Pure functions and `CompactionPlan`
decide; `Maintenance` acts.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, Protocol

import msgspec
import structlog

from txnstore import keys
from txnstore.access.backend import StoreStatus
from txnstore.access.soft_limit import FILE_LIMIT_SHARE, SOFT_LIMIT_SHARE
from txnstore.records import CompactionMark, Pin, decode, encode
from txnstore.store import NO_LEASE, Compare, KeyValue, RangeResult
from txnwire.errors import DataCorrupt, NotOwner, StoreFull, TxnError
from txnwire.ports import Clock

PRESSING_SHARE: Final = 0.85

log = structlog.get_logger(__name__)


class MaintenanceSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`keep_s`: how long a watch may be cut off without a re-listing; must be above `pins.REPORT_AFTER_S`. Two
    defragmentations are at least a cooldown apart: etcd serves nothing while it defragments."""

    every_s: float = 10.0
    keep_s: float = 60.0
    cooldown_s: float = 600.0
    pressing_cooldown_s: float = 30.0


class MaintainedStore(Protocol):
    """The part of a store that `Maintenance` needs; `StoreClient` has it."""

    @property
    def quota_bytes(self) -> int: ...

    def oldest_pin(self) -> int | None: ...
    async def mark_revision(self, key: bytes, value: bytes, guard: Compare | None) -> int: ...
    async def range(self, start: bytes, end: bytes) -> RangeResult: ...
    async def status(self) -> StoreStatus: ...
    async def compact(self, revision: int) -> None: ...
    async def defragment(self) -> None: ...
    async def disarm(self) -> None: ...


class CompactionPlan:
    """Decides which revision may be compacted when. Pure."""

    def __init__(self, keep_s: float) -> None:
        self._keep_s = keep_s
        self._samples: deque[tuple[float, int]] = deque()
        self._compacted = 0

    def sample(self, now: float, revision: int) -> None:
        """`revision` was the store's newest at `now` (monotonic seconds)."""
        if not self._samples or revision > self._samples[-1][1]:
            self._samples.append((now, revision))

    def due(self, now: float, oldest_pin: int | None) -> int | None:
        """The newest sampled revision that is `keep_s` old and not above a pinned one; None if there is none."""
        found = None
        while self._samples:
            sampled_at, revision = self._samples[0]
            if sampled_at > now - self._keep_s or (oldest_pin is not None and revision > oldest_pin):
                break
            found = revision
            self._samples.popleft()
        if found is None or found <= self._compacted:
            return None
        self._compacted = found
        return found


def worth_defragmenting(status: StoreStatus, quota_bytes: int) -> bool:
    """True if the file is at least half the quota and more than half of it is free pages; or if the file, by which etcd
    measures the quota, is close to it while the bytes in use are not."""
    mostly_free = 2 * status.db_bytes >= quota_bytes and 2 * status.db_bytes_in_use < status.db_bytes
    return mostly_free or is_pressing(status, quota_bytes)


def is_sparse(status: StoreStatus, quota_bytes: int, in_use_before: int) -> bool:
    """True if half of the quota is in use, and a tenth more than at `in_use_before`. Bytes in use count whole pages.
    Where long-lived records (names) were written between records that were compacted later, half of each page is
    empty, and only a defragmentation fills the pages."""
    grown = status.db_bytes_in_use - in_use_before
    return 2 * status.db_bytes_in_use >= quota_bytes and 10 * grown >= quota_bytes


def is_pressing(status: StoreStatus, quota_bytes: int) -> bool:
    """True if puts fail or soon will. If they fail, the reported bytes in use are out of date until the next write."""
    near = status.db_bytes >= PRESSING_SHARE * quota_bytes
    return status.no_space or (near and status.db_bytes_in_use < SOFT_LIMIT_SHARE * quota_bytes)


class Maintenance:
    """One holder's term. Every mark compares `guard` (`Leadership.still_held`): `run` ends once it fails."""

    def __init__(
        self,
        store: MaintainedStore,
        clock: Clock,
        *,
        by: str,
        guard: Compare | None = None,
        settings: MaintenanceSettings | None = None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._by = by
        self._guard = guard
        self._settings = settings or MaintenanceSettings()
        self._plan = CompactionPlan(self._settings.keep_s)
        self._defragmented_at = float("-inf")
        self._in_use_before: int | None = None
        """Bytes in use at the term's beginning, or after its last defragmentation."""

    async def run(self) -> None:
        """Runs until cancelled, or until another process holds the role."""
        while True:
            try:
                await self.step()
            except NotOwner:
                return
            except TxnError as error:
                log.warning("etcd maintenance failed, trying again", error=str(error))
            await asyncio.sleep(self._settings.every_s)

    async def step(self) -> None:
        """Sample, compact, defragment and disarm as needed. Raises `NotOwner`, `StoreUnavailable`."""
        await self._sample()
        revision = self._plan.due(self._clock.monotonic(), await self._oldest_pin())
        if revision is not None:
            await self._store.compact(revision)
        await self.mind_size()

    async def _sample(self) -> None:
        """Sample by writing a record that has a revision to itself.

        Etcd releases before mid-2024 forget a deletion if compacted at its revision, and a watch resumed just there
        misses it (etcd-io/etcd#18089). The revision of our own put is never one of a deletion."""
        now = self._clock.monotonic()
        mark = encode(CompactionMark(by=self._by, time_ms=self._clock.wall_ms()))
        try:
            revision = await self._store.mark_revision(keys.COMPACTION, mark, self._guard)
        except StoreFull:  # no put succeeds: compaction is all the more urgent
            revision = (await self._store.status()).revision
        self._plan.sample(now, revision)

    async def _oldest_pin(self) -> int | None:
        reported = await self._store.range(keys.PIN, keys.prefix_end(keys.PIN))
        pins = [pin for record in reported.records if (pin := _pinned(record)) is not None]
        own = self._store.oldest_pin()
        return min(pins if own is None else [*pins, own], default=None)

    async def mind_size(self) -> None:
        """Defragment and disarm as needed; puts nothing. Raises `StoreUnavailable`."""
        status = await self._store.status()
        quota_bytes = status.quota_bytes or self._store.quota_bytes
        now = self._clock.monotonic()
        pressing = is_pressing(status, quota_bytes)
        cooldown_s = self._settings.pressing_cooldown_s if pressing else self._settings.cooldown_s
        if self._in_use_before is None:
            self._in_use_before = status.db_bytes_in_use
        wanted = worth_defragmenting(status, quota_bytes) or is_sparse(status, quota_bytes, self._in_use_before)
        if wanted and now - self._defragmented_at >= cooldown_s:
            log.info("defragmenting etcd", file_bytes=status.db_bytes, in_use_bytes=status.db_bytes_in_use)
            self._defragmented_at = now
            await self._store.defragment()
            status = await self._store.status()
            self._in_use_before = status.db_bytes_in_use
        if status.no_space and status.db_bytes < FILE_LIMIT_SHARE * quota_bytes:
            log.warning("etcd has space again", file_bytes=status.db_bytes, quota_bytes=quota_bytes)
            await self._store.disarm()


def _pinned(record: KeyValue) -> int | None:
    """None if the record cannot be read and no process keeps it: ▲ nothing would be compacted as long as it is there,
    and etcd fills up. Raises `DataCorrupt` if it has a lease: a process of another version reads there, and the record
    goes with it."""
    try:
        return decode(Pin, record.value, key=record.key).revision
    except DataCorrupt as error:
        if record.lease != NO_LEASE:
            raise
        log.error("unreadable pin left alone", error=str(error))
        return None
