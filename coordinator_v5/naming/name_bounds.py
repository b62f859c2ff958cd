"""Bounds how many transaction names a namespace has. Source: DESIGN §10.

The elected sweeper counts all names round by round (`name_expiry`); a coordinator adds those that it has begun since.
So the bound is soft: it misses the recent names of other coordinators, and still counts recently deleted names.
"""

from __future__ import annotations

from typing import Final

import structlog

from coordinator_v5.settings import NameSettings
from txnstore import keys, records
from txnstore.records import NameCounts
from txnstore.store import MetadataStore
from txnwire.errors import DataCorrupt, TooManyNames
from txnwire.names import namespace_of
from txnwire.ports import Clock

NAMESPACES_COUNTED: Final = 10_000
"""A coordinator counts its own begins of a round for at most this many namespaces."""

log = structlog.get_logger(__name__)


class NameBounds:
    """`look_every_s`: how often the sweeper's count is read, while new names are begun."""

    def __init__(self, store: MetadataStore, clock: Clock, settings: NameSettings, look_every_s: float) -> None:
        self._store = store
        self._clock = clock
        self._settings = settings
        self._look_every_s = look_every_s
        self._look_at = float("-inf")
        self._counted: NameCounts | None = None
        self._begun: dict[str, int] = {}
        """Names begun here since `_counted`, by namespace."""

    async def check(self, name: str) -> None:
        """Raises `TooManyNames` if the namespace of `name`, which is new, has no room; `StoreUnavailable`."""
        if self._clock.monotonic() >= self._look_at:
            await self._look()
        namespace = namespace_of(name)
        counted = 0 if self._counted is None else self._counted.namespaces.get(namespace, 0)
        count, most = counted + self._begun.get(namespace, 0), self._settings.bound(namespace)
        if count >= most:
            where = f"the namespace {namespace!r} has" if namespace else "there are"
            which = "--namespace '' shows those" if not namespace else f"--prefix {namespace}/ shows those"
            raise TooManyNames(
                f"{where} {count} names of transactions{'' if namespace else ' without a namespace'}, {most} are "
                f"allowed (setting names_max): `txnctl names list {which}`, `txnctl names delete` forgets names that "
                "are no longer needed; begin names with a shorter `keep`"
            )

    def begun(self, name: str) -> None:
        """`name` is new and begun here."""
        namespace = namespace_of(name)
        if namespace in self._begun or len(self._begun) < NAMESPACES_COUNTED:
            self._begun[namespace] = self._begun.get(namespace, 0) + 1

    async def _look(self) -> None:
        self._look_at = self._clock.monotonic() + self._look_every_s
        try:
            found = await self._store.get(keys.TXN_NAME_COUNTS)
            counted = None if found is None else records.decode(NameCounts, found.value, key=found.key)
        except DataCorrupt as error:
            log.error("name_counts_unreadable", error=str(error))
            return
        if counted is not None and (self._counted is None or counted.counted_ms != self._counted.counted_ms):
            self._begun.clear()
        self._counted = counted
