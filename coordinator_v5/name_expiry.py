"""Names expire: the record of a collected named transaction is kept for 30 days. Source: DESIGN §4, table of records.

Run by the elected sweeper: which commit is the newest of its prefix is a question over all records.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final

import structlog

from txnstore import keys
from txnstore.name_transitions import NameRetention, plan_expire_name
from txnstore.store import Compare, KeyValue, MetadataStore
from txnwire.errors import DataCorrupt, TxnError
from txnwire.ports import Clock

NAME_RETENTION_S: Final = 30 * 24 * 3600.0
EVERY_S: Final = 3600.0
PAGE: Final = 1000
EXPIRED_AT_ONCE: Final = 10_000
"""In one round; what is left waits for the next."""

log = structlog.get_logger(__name__)


class NameExpiry:
    """One holder's term. `guard` is compared with every deletion (`Leadership.still_held`)."""

    def __init__(
        self, store: MetadataStore, clock: Clock, *, guard: Compare, retention_s: float = NAME_RETENTION_S
    ) -> None:
        self._store = store
        self._clock = clock
        self._guard = guard
        self._retention_s = retention_s

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(EVERY_S)
            try:
                expired = await self.expire()
            except TxnError as error:
                log.warning("names_not_expired", error=str(error))
            else:
                if expired:
                    log.info("names_expired", count=expired)

    async def expire(self) -> int:
        """One round over all name records; how many went. The wall clock counts: they outlive every process. Raises
        `StoreUnavailable`."""
        retention = NameRetention(self._clock.wall_ms() - int(self._retention_s * 1000), EXPIRED_AT_ONCE)
        async for record in self._names():
            try:
                retention.saw(record)
            except DataCorrupt as error:
                log.error("name_unreadable", error=str(error))
        gone, expired = 0, retention.expired()
        for at in range(0, len(expired), PAGE):
            results = await asyncio.gather(
                *(self._store.commit(plan_expire_name(*one, self._guard)) for one in expired[at : at + PAGE])
            )
            gone += sum(result.succeeded for result in results)
        return gone

    async def _names(self) -> AsyncIterator[KeyValue]:
        """Their keys first: a range is bounded by keys, not by a limit (DESIGN §4)."""
        listed = await self._store.range(keys.TXN_NAME, keys.prefix_end(keys.TXN_NAME), keys_only=True)
        for at in range(0, len(listed.records), PAGE):
            page = listed.records[at : at + PAGE]
            for record in (await self._store.range(page[0].key, page[-1].key + b"\0")).records:
                yield record
