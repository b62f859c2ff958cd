"""Revisions that must stay readable for a while: in this process and, for long reads, reported to the compacting one.

Compaction keeps the last 60 s anyway (DESIGN §4), so only a pin held longer than `REPORT_AFTER_S` costs a record:
`/pin/<process>` on a lease, with the oldest revision pinned here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import structlog

from txnstore import keys
from txnstore.records import Pin, encode
from txnstore.store import Commit, Put
from txnwire.errors import TxnError
from txnwire.ports import Random
from txnwire.tasks import errand

if TYPE_CHECKING:
    from txnstore.access.store_client import StoreClient

REPORT_AFTER_S: Final = 15.0
LEASE_TTL_S: Final = 30.0
_PAUSE_S: Final = 1.0

log = structlog.get_logger(__name__)


class Pins:
    """Keeps revisions readable. Pins are objects, not revisions: the same revision may be pinned twice."""

    def __init__(self, store: StoreClient, random: Random) -> None:
        self._store = store
        self._key = keys.PIN + f"{random.getrandbits(64):016x}".encode()
        self._pinned: dict[object, int] = {}
        self._reporter: asyncio.Task[None] | None = None

    @contextmanager
    def pin(self, revision: int) -> Iterator[None]:
        token = object()
        self._pinned[token] = revision
        if self._reporter is None or self._reporter.done():
            self._reporter = errand(self._report(), name="pin report")
        try:
            yield
        finally:
            del self._pinned[token]

    def oldest(self) -> int | None:
        return min(self._pinned.values(), default=None)

    async def close(self) -> None:
        if self._reporter is not None:
            self._reporter.cancel()
            await asyncio.wait([self._reporter])

    async def _report(self) -> None:
        """Ends once nothing is pinned; most pins are gone before its first report."""
        await asyncio.sleep(REPORT_AFTER_S)
        while self._pinned:
            try:
                await self._keep_record()
            except TxnError as error:
                log.warning("pinned revision not reported, trying again", error=str(error))
                await asyncio.sleep(_PAUSE_S)

    async def _keep_record(self) -> None:
        lease = await self._store.grant_lease(LEASE_TTL_S)
        reported = None
        try:
            while self._pinned and lease.valid():
                oldest = self.oldest()
                if oldest is not None and oldest != reported:
                    record = encode(Pin(revision=oldest))
                    await self._store.commit(Commit(puts=(Put(self._key, record, lease.id),)))
                    reported = oldest
                await asyncio.sleep(_PAUSE_S)
        finally:
            await lease.revoke()
