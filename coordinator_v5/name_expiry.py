"""Expires names: the record of a collected named transaction is kept for 30 days, or as its begin asked for. Source:
DESIGN §4, table of records.

Run by the elected sweeper: finding the newest commit of a prefix takes all records.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

import structlog

from txnstore import keys
from txnstore.access.paging import in_pages, in_parts
from txnstore.store import Compare, KeyValue, MetadataStore
from txnstore.writes.name_transitions import Expired, NameRetention, plan_expire_name
from txnwire.errors import DataCorrupt, TxnError
from txnwire.ports import Clock
from txnwire.tasks import all_of

PAGE: Final = 2_000
"""Names per read; etcd walks over all following keys for each page."""
AT_ONCE: Final = 100
"""Names judged and deleted between two yields."""

log = structlog.get_logger(__name__)


class NameExpiry:
    """One holder's term. `guard` is compared with every deletion (`Leadership.still_held`). The first round, and each
    one after a failure, comes after `first_s`; the others after `every_s`."""

    def __init__(
        self,
        store: MetadataStore,
        clock: Clock,
        *,
        guard: Compare,
        first_s: float,
        every_s: float,
    ) -> None:
        self._store = store
        self._clock = clock
        self._guard = guard
        self._first_s = first_s
        self._every_s = every_s

    async def run(self) -> None:
        """Runs until cancelled."""
        wait_s = self._first_s
        while True:
            await asyncio.sleep(wait_s)
            try:
                expired = await self.expire()
            except TxnError as error:
                log.warning("names_not_expired", error=str(error))
                wait_s = self._first_s
            else:
                wait_s = self._every_s
                if expired:
                    log.info("names_expired", count=expired)

    async def expire(self) -> int:
        """One round over all name records; returns the number deleted. Uses the cluster's clock, because the records
        outlive every process. Raises `StoreUnavailable`."""
        retention = NameRetention(self._clock.wall_ms())
        gone = 0
        async for page in in_pages(self._store, keys.TXN_NAME, keys.prefix_end(keys.TXN_NAME), at_once=PAGE):
            for part in in_parts(page, self._store.page_size(AT_ONCE)):
                gone += await self._forget(_expired(retention, part))
        return gone

    async def _forget(self, expired: list[Expired]) -> int:
        results = await all_of(self._store.commit(plan_expire_name(one, self._guard)) for one in expired)
        await asyncio.sleep(0)  # even if nothing is due
        return sum(result.succeeded for result in results)


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
