"""Ports that stop a process after its n-th write, so that a successor can be tried behind every step."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from segments.ledger.file_ledger import FileLedgerStore
from segments.ledger.file_ledger_writer import FileLedgerWriter
from segments.ledger.ledger import LedgerFailed, Recovered
from txnstore.memory.memory_etcd import MemoryEtcd
from txnstore.memory.memory_store import MemoryStore
from txnstore.store import Commit, CommitVerdict
from txnwire.clock import SystemClock
from txnwire.errors import StoreUnavailable


@dataclass
class Steps:
    """So many writes go well, to the store and to ledgers together; the next one does not, nor any after it. `silent`:
    that one lands all the same."""

    left: int = 1 << 30
    silent: bool = False
    taken: int = 0

    def stopped(self) -> bool:
        return self.taken > self.left

    def take(self) -> bool:
        """Whether this write is to be made."""
        self.taken += 1
        return self.taken <= self.left or (self.silent and self.taken == self.left + 1)


class StoppingStore(MemoryStore):
    def __init__(self, etcd: MemoryEtcd, steps: Steps, *, counts: Callable[[Commit], bool] = lambda _: True) -> None:
        super().__init__(etcd, SystemClock(), random.Random(1), name="stopping")
        self._steps = steps
        self._counts = counts

    async def commit(self, commit: Commit, *, timeout_s: float = 10.0) -> CommitVerdict:
        if not self._counts(commit):
            return await super().commit(commit, timeout_s=timeout_s)
        result = await super().commit(commit, timeout_s=timeout_s) if self._steps.take() else None
        if result is None or self._steps.stopped():
            raise StoreUnavailable("this process has stopped")
        return result


class StoppingLedgers(FileLedgerStore):
    def __init__(self, data_dir: Path, steps: Steps) -> None:
        super().__init__(data_dir)
        self._steps = steps

    def _check(self) -> None:
        if self._steps.stopped():
            raise LedgerFailed("this process has stopped")

    def _begin(self) -> None:
        if not self._steps.take():
            self._check()

    async def create(self, segment: str, ledger_id: int, *, incarnation: str) -> FileLedgerWriter:
        self._begin()
        writer = await super().create(segment, ledger_id, incarnation=incarnation)
        self._check()
        return writer

    async def fence(self, segment: str, ledger_id: int) -> Recovered:
        self._begin()
        recovered = await super().fence(segment, ledger_id)
        self._check()
        return recovered

    async def write_sidecar(self, segment: str, ledger_id: int, sidecar: bytes) -> bytes:
        self._begin()
        written = await super().write_sidecar(segment, ledger_id, sidecar)
        self._check()
        return written

    async def write_footer(self, segment: str, ledger_id: int, footer: bytes) -> None:
        self._begin()
        await super().write_footer(segment, ledger_id, footer)
        self._check()

    async def delete(self, segment: str, ledger_id: int) -> None:
        self._begin()
        await super().delete(segment, ledger_id)
        self._check()

    async def delete_segment(self, segment: str) -> None:
        self._begin()
        await super().delete_segment(segment)
        self._check()
