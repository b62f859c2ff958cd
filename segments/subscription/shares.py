"""Divides a broker's memory: queued deliveries among its consumers, cached entries among its segments. Pure.

A consumer that does not read costs the bytes queued on its connection and those read ahead for it. A few consumers get
as much as helps; thousands share the bound.
"""

from __future__ import annotations

from typing import Final

from segments.log.settings import BrokerSettings
from segments.log.tail_cache import TailCache

LEAST_BYTES: Final = 64 * 1024
"""The smallest share: less would mean one message at a time."""


class DeliveryShares:
    """Divides the memory for deliveries evenly among the attached consumers. `pending_bytes`: queued on a connection
    before dispatch to it pauses; `deliver_bytes`: of one push; `read_bytes`: of one read ahead."""

    def __init__(self, settings: BrokerSettings) -> None:
        self._settings = settings
        self._consumers: dict[object, None] = {}
        self.pending_bytes = self.deliver_bytes = self.read_bytes = 0
        self._divide()

    @property
    def consumers(self) -> int:
        return len(self._consumers)

    def join(self, consumer: object) -> None:
        """Idempotent."""
        self._consumers[consumer] = None
        self._divide()

    def leave(self, consumer: object) -> None:
        """Idempotent."""
        self._consumers.pop(consumer, None)
        self._divide()

    def _divide(self) -> None:
        settings = self._settings
        share = max(LEAST_BYTES, settings.broker_deliveries_bytes // max(1, len(self._consumers)))
        # Half of a share waits on the connection, a quarter is on its way there, a quarter is read ahead.
        self.pending_bytes = min(settings.connection_pending_bytes, share // 2)
        self.deliver_bytes = min(settings.deliver_bytes, share // 4)
        self.read_bytes = min(settings.read_bytes, share // 4)


class CacheShares:
    """Divides `broker_cache_bytes` evenly among the caches of a broker's segments."""

    def __init__(self, settings: BrokerSettings) -> None:
        self._settings = settings
        self._caches: dict[TailCache, None] = {}

    def __len__(self) -> int:
        return len(self._caches)

    def join(self, cache: TailCache) -> None:
        """O(segments)."""
        self._caches[cache] = None
        self._divide()

    def leave(self, cache: TailCache) -> None:
        """Idempotent. O(segments)."""
        if self._caches.pop(cache, cache) is None:
            self._divide()

    def _divide(self) -> None:
        share = max(LEAST_BYTES, self._settings.broker_cache_bytes // max(1, len(self._caches)))
        for cache in self._caches:
            cache.resize(min(self._settings.tail_cache_bytes, share))
