"""Expires names: the record of a collected named transaction is kept for 7 days, or as its begin or namespace says.
Source: DESIGN §4, table of records, and §10.

Run by the elected sweeper: finding the newest commit of a prefix takes all records. The same walk counts them, for the
bound of a namespace (`name_bounds`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Final

import structlog

from coordinator_v5.settings import NameSettings
from txnstore import keys, records
from txnstore.access.paging import in_pages, in_parts
from txnstore.records import NameCounts
from txnstore.store import Commit, Compare, KeyValue, MetadataStore, Put
from txnstore.writes.name_transitions import Expired, NameRetention, plan_expire_name
from txnwire.errors import DataCorrupt, TxnError
from txnwire.names import namespace_of
from txnwire.ports import Clock
from txnwire.tasks import all_of

PAGE: Final = 2_000
"""Names per read; etcd walks over all following keys for each page."""
AT_ONCE: Final = 100
"""Names judged and deleted between two yields."""
REST: Final = 20.0
"""A round is followed by a rest of so many times its length, if that is longer than the usual one."""
NAMESPACES_TOLD: Final = 200
"""▲ Publishes the fullest ones, measured by their own bounds: a namespace with few names may have a low bound. Each
takes up to 3 KB as JSON, so their record stays below 700 KB."""

log = structlog.get_logger(__name__)


class NameExpiry:
    """One holder's term. `guard` is compared with every deletion (`Leadership.still_held`). The first round, and each
    one after a failure, comes after `first_s`; the others after `every_s`. `settings`: their bounds
    choose the namespaces that are told."""

    def __init__(
        self,
        store: MetadataStore,
        clock: Clock,
        *,
        guard: Compare,
        first_s: float,
        every_s: float,
        settings: NameSettings | None = None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._guard = guard
        self._first_s = first_s
        self._every_s = every_s
        self._settings = settings or NameSettings()
        self._counts: NameCounts | None = None

    @property
    def counts(self) -> NameCounts | None:
        """As the last complete round has counted; None before it."""
        return self._counts

    async def run(self) -> None:
        """Runs until cancelled."""
        wait_s = self._first_s
        while True:
            await asyncio.sleep(wait_s)
            began = self._clock.monotonic()
            try:
                expired = await self.expire()
            except TxnError as error:
                log.warning("names_not_expired", error=str(error))
                wait_s = self._first_s
            else:
                wait_s = max(self._every_s, REST * (self._clock.monotonic() - began))
                if expired:
                    log.info("names_expired", count=expired)

    async def expire(self) -> int:
        """One round over all name records; returns the number deleted. Uses the cluster's clock, because the records
        outlive every process. Raises `StoreUnavailable`."""
        retention = NameRetention(self._clock.wall_ms())
        gone, counted = 0, dict[str, int]()
        async for page in in_pages(self._store, keys.TXN_NAME, keys.prefix_end(keys.TXN_NAME), at_once=PAGE):
            for part in in_parts(page, self._store.page_size(AT_ONCE)):
                forgotten = await self._forget(_expired(retention, part))
                gone += len(forgotten)
                _count(counted, (record.key for record in part), 1)
                _count(counted, (one.key for one in forgotten), -1)
        await self._publish(counted)
        return gone

    async def _publish(self, counted: dict[str, int]) -> None:
        counted = {namespace: count for namespace, count in counted.items() if count}
        most = sorted(counted.items(), key=self._room_left)[:NAMESPACES_TOLD]
        others = sum(counted.values()) - sum(count for _, count in most)
        counts = NameCounts(counted_ms=self._clock.wall_ms(), namespaces=dict(most), others=others)
        put = Put(keys.TXN_NAME_COUNTS, records.encode(counts))
        try:
            result = await self._store.commit(Commit(compares=(self._guard,), puts=(put,)))
        except TxnError as error:  # etcd is full: the round still counts as done; no new one starts at once
            log.warning("names_not_told", error=str(error))
            return
        if result.succeeded:
            self._counts = counts

    def _room_left(self, counted: tuple[str, int]) -> tuple[float, str]:
        """Sort key that puts the fullest namespace first."""
        namespace, count = counted
        return -count / self._settings.bound(namespace), namespace

    async def _forget(self, expired: list[Expired]) -> list[Expired]:
        """Returns those that are gone."""
        results = await all_of(self._store.commit(plan_expire_name(one, self._guard)) for one in expired)
        await asyncio.sleep(0)  # even if nothing is due
        return [one for one, result in zip(expired, results, strict=True) if result.succeeded]


def _expired(retention: NameRetention, found: Sequence[KeyValue]) -> list[Expired]:
    expired = []
    for record in found:
        try:
            one = retention.saw(record)
        except DataCorrupt as error:
            log.error("name_unreadable", error=str(error))
        else:
            if one is not None:
                expired.append(one)
    return expired


def _count(counted: dict[str, int], found: Iterable[bytes], by: int) -> None:
    for key in found:
        namespace = namespace_of(keys.txn_name_text(key))
        counted[namespace] = counted.get(namespace, 0) + by
