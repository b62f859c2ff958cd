"""The in-memory store with faults that are scripted: what becomes of the next requests."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from tests.segments.virtual_time import LoopClock
from txnstore.access.backend import Reason, Refused
from txnstore.memory.memory_etcd import MemoryEtcd
from txnstore.memory.memory_store import NO_FAULT, Fate, MemoryBackend, MemoryStore
from txnstore.store import (
    Commit,
    KeyValue,
    Put,
    Read,
    absent,
)

A, B = b"/k/a", b"/k/b"
LOST_BEFORE = Fate(arrive_s=None, fail_s=0.5)
LOST_AFTER = Fate(arrive_s=0.001, fail_s=0.5)
LANDS_LATE = Fate(arrive_s=3.0, fail_s=0.5)
HANGS = Fate(arrive_s=None)
UNKNOWN = [LOST_BEFORE, LOST_AFTER, LANDS_LATE, HANGS]


class Script:
    """`Faults`: the given fates for the next requests of one kind, no fault for the others."""

    def __init__(
        self, kind: str = "commit", fates: Sequence[Fate] = (), watch_delays_s: Sequence[float] = (0.0,)
    ) -> None:
        self.kind = kind
        self.fates = list(fates)
        self.sent = 0
        self._watch_delays_s = watch_delays_s
        self._turn = 0

    def fate(self, request: str, client: str) -> Fate:
        if request != self.kind:
            return NO_FAULT
        self.sent += 1
        return self.fates.pop(0) if self.fates else NO_FAULT

    def watch_delay_s(self, client: str) -> float:
        self._turn += 1
        return self._watch_delays_s[self._turn % len(self._watch_delays_s)]


def client(etcd: MemoryEtcd, faults: Script | None = None, name: str = "client") -> MemoryStore:
    return MemoryStore(etcd, LoopClock(), random.Random(name), name=name, faults=faults)


def create(key: bytes, value: bytes) -> Commit:
    return Commit((absent(key),), (Put(key, value),), (), (Read(key),))


def record(etcd: MemoryEtcd, key: bytes) -> KeyValue:
    found = etcd.mvcc.get(key)
    assert found is not None
    return found


class Broken:
    """A backend whose renewals end by a defect."""

    def __init__(self, backend: MemoryBackend) -> None:
        self._backend = backend

    async def keep_alive(self, lease_id: int) -> float:
        raise ZeroDivisionError(f"lease {lease_id}")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)


class Busy:
    """A backend that refuses some renewals and reads, being overloaded."""

    def __init__(self, backend: MemoryBackend, times: int) -> None:
        self._backend = backend
        self.left = times

    async def keep_alive(self, lease_id: int) -> float:
        self._refuse()
        return await self._backend.keep_alive(lease_id)

    async def read_many(self, keys: Sequence[bytes], revision: int) -> tuple[int, list[KeyValue | None]]:
        self._refuse()
        return await self._backend.read_many(keys, revision)

    def _refuse(self) -> None:
        if self.left:
            self.left -= 1
            raise Refused(Reason.BUSY, "etcdserver: too many requests")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)
