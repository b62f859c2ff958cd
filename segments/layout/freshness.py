"""Tells whether this process's view of the cluster is still reliable, by its last answer from the metadata store.

A process that is cut off from the store answers from memory, as it should for a while. After one lease time, another
broker may serve every segment that it names.
▲ So it marks its view as stale: former owners would refuse a client that relied on it, for as long as the cut lasts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

from txnstore import keys
from txnstore.store import MetadataStore
from txnwire.errors import TxnError
from txnwire.ports import Clock

ASKED_PER_LEASE: Final = 4

log = structlog.get_logger(__name__)


class Freshness:
    """Asks the store regularly (`run`) and calls its listeners whenever `stale` changes."""

    def __init__(self, store: MetadataStore, clock: Clock, *, lease_ttl_s: float) -> None:
        self._store = store
        self._clock = clock
        self._lease_ttl_s = lease_ttl_s
        self._pause_s = lease_ttl_s / ASKED_PER_LEASE
        self._heard_at = clock.monotonic()
        self._listeners: list[Callable[[], None]] = []
        self.stale = False

    @property
    def silent_s(self) -> float:
        """Seconds since the store last answered, counted from the request."""
        return self._clock.monotonic() - self._heard_at

    def add_listener(self, callback: Callable[[], None]) -> None:
        self._listeners.append(callback)

    async def run(self) -> None:
        """Runs for ever. Uses a linearizable read: a stuck watch looks like an idle one, and an etcd member that is
        cut off from its peers still answers all other reads."""
        while True:
            asked_at = self._clock.monotonic()
            try:
                await self._store.get(keys.INCARNATION, timeout_s=2 * self._pause_s)
            except TxnError as error:
                log.debug("store not heard", error=str(error))
            else:
                self._heard_at = asked_at
            self._judge()
            await asyncio.sleep(max(0.0, asked_at + self._pause_s - self._clock.monotonic()))

    def _judge(self) -> None:
        stale = self.silent_s > self._lease_ttl_s
        if stale == self.stale:
            return
        self.stale = stale
        log.warning("view_of_the_cluster", stale=stale, silent_s=round(self.silent_s, 1))
        for callback in self._listeners:
            callback()
