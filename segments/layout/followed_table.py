"""Keeps one range of etcd in memory, from a watch's batches, its re-listings and single reads. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Generic, TypeVar

from txnstore.store import Event, EventKind, KeyValue, WatchBatch
from txnwire.errors import DataCorrupt, InvalidArgument

T = TypeVar("T")


class FollowedTable(Generic[T]):
    """Holds the parsed records under `prefix` by name (the key behind the prefix), as of `revision`.

    A record that does not parse is kept as its error: `get` raises it, `entries` omits it, other records stay usable.
    """

    def __init__(self, prefix: bytes, parse: Callable[[KeyValue], T]) -> None:
        self.prefix = prefix
        self.revision = 0
        self._parse = parse
        self._entries: dict[str, T] = {}
        self._broken: dict[str, DataCorrupt] = {}
        self._mod_revisions: dict[str, int] = {}

    @property
    def entries(self) -> Mapping[str, T]:
        return self._entries

    @property
    def broken(self) -> Mapping[str, DataCorrupt]:
        return self._broken

    def get(self, name: str) -> T | None:
        """The record, or None. Raises `DataCorrupt` if it exists but cannot be read."""
        if name in self._broken:
            raise self._broken[name]
        return self._entries.get(name)

    def as_of(self, name: str) -> int:
        """The mod revision of the record; if there is none, the revision up to which there is none."""
        return self._mod_revisions.get(name, self.revision)

    def apply(self, batch: WatchBatch) -> tuple[str, ...]:
        """Apply one batch; returns the names that changed. Applying a batch twice changes nothing."""
        changed = dict.fromkeys(self.apply_part(batch.events))
        return self.apply_end(batch, changed)

    def apply_part(self, events: Iterable[Event]) -> tuple[str, ...]:
        """Apply some events of a batch; returns the names that changed. ▲ `revision` stays until `apply_end`: until
        then the table holds at least all changes up to `revision`, and perhaps later ones."""
        changed: dict[str, None] = {}
        for event in events:
            if self._apply_event(event.kind, event.record):
                changed[self._name(event.record.key)] = None
        return tuple(changed)

    def apply_end(self, batch: WatchBatch, changed: dict[str, None]) -> tuple[str, ...]:
        """Finish `batch`, whose events are all applied and changed the names `changed`; returns all that changed."""
        if batch.resync:
            present = {self._name(event.record.key) for event in batch.events}
            for name, mod_revision in list(self._mod_revisions.items()):
                if mod_revision <= batch.revision and name not in present:
                    self._remove(name)
                    changed[name] = None
        self.revision = max(self.revision, batch.revision)
        return tuple(changed)

    def learn(self, record: KeyValue) -> bool:
        """Apply a record that a linearizable read found; returns whether it changed the table.

        Ignores records at or below the followed revision: the watch has reported all of those, so a record that is
        missing here has been deleted since it was read.
        """
        return record.mod_revision > self.revision and self._apply_event(EventKind.PUT, record)

    def _apply_event(self, kind: EventKind, record: KeyValue) -> bool:
        name = self._name(record.key)
        if record.mod_revision <= self._mod_revisions.get(name, 0):
            return False
        if kind is EventKind.DELETE:
            return self._remove(name)
        self._remove(name)
        self._mod_revisions[name] = record.mod_revision
        try:
            self._entries[name] = self._parse(record)
        except DataCorrupt as error:
            self._broken[name] = error
        except (InvalidArgument, ValueError) as error:
            self._broken[name] = DataCorrupt(f"{record.key.decode(errors='replace')}: {error}")
        return True

    def _remove(self, name: str) -> bool:
        self._entries.pop(name, None)
        self._broken.pop(name, None)
        return self._mod_revisions.pop(name, None) is not None

    def _name(self, key: bytes) -> str:
        return key[len(self.prefix) :].decode(errors="replace")
