"""A store and a ledger store whose writes can be held back, to stop a broker between any two of its steps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from segments.ledger.file_ledger import FileLedgerStore
from segments.ledger.ledger import LedgerFailed, LedgerWriter
from tests.segments.brokering import Cluster
from txnstore import keys
from txnstore.store import Commit, CommitVerdict, KeyValue, MetadataStore


def is_write_op(commit: Commit) -> bool:
    return any(put.key.startswith(keys.TXN_OP) and b"/w/" in put.key for put in commit.puts)


def is_ack_op(commit: Commit) -> bool:
    return any(put.key.startswith(keys.TXN_OP) and b"/a/" in put.key for put in commit.puts)


def is_clean_up(commit: Commit) -> bool:
    return any(delete.key.startswith(keys.TXN_OP) for delete in commit.deletes)


class GatedStore:
    """Commits for which `held` is true are not sent before `open`; with `hold_answers` they are, and nobody hears."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._held: Callable[[Commit], bool] = lambda _: False
        self._held_reads: Callable[[Sequence[bytes]], bool] = lambda _: False
        self._answered: Callable[[Commit], bool] = lambda _: True
        self._gate = asyncio.Event()
        self.waiting = 0
        self.sent: list[Commit] = []
        self.applied: list[Commit] = []
        """Of those that nobody hears of, what the store has answered."""

    def hold(self, held: Callable[[Commit], bool]) -> None:
        self._held = held
        self._gate = asyncio.Event()

    def hold_reads(self, held: Callable[[Sequence[bytes]], bool]) -> None:
        """Of several keys at once."""
        self._held_reads = held
        self._gate = asyncio.Event()

    def hold_answers(self, held: Callable[[Commit], bool]) -> None:
        self._answered = lambda commit: not held(commit)
        self._gate = asyncio.Event()

    def open(self) -> None:
        self._held = lambda _: False
        self._held_reads = lambda _: False
        self._answered = lambda _: True
        self._gate.set()

    async def commit(self, commit: Commit, *, timeout_s: float = 10.0) -> CommitVerdict:
        await self._pass(commit)
        return await self._store.commit(commit, timeout_s=timeout_s)

    def commit_nowait(self, commit: Commit) -> asyncio.Future[CommitVerdict]:
        if not self._answered(commit):

            async def unheard(sent: asyncio.Future[CommitVerdict]) -> CommitVerdict:
                result = await sent
                self.applied.append(commit)
                await self._gate.wait()
                return result

            self.sent.append(commit)
            return asyncio.ensure_future(unheard(self._store.commit_nowait(commit)))
        if not self._held(commit):
            self.sent.append(commit)
            return self._store.commit_nowait(commit)

        async def later() -> CommitVerdict:
            await self._pass(commit)
            return await self._store.commit_nowait(commit)

        return asyncio.ensure_future(later())

    async def get_many(self, wanted: Sequence[bytes], **options: Any) -> tuple[int, list[KeyValue | None]]:
        if self._held_reads(wanted):
            self.waiting += 1
            await self._gate.wait()
            self.waiting -= 1
        return await self._store.get_many(wanted, **options)

    async def _pass(self, commit: Commit) -> None:
        if self._held(commit):
            self.waiting += 1
            gate = self._gate
            await gate.wait()
            self.waiting -= 1
        self.sent.append(commit)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def gate_stores(cluster: Cluster) -> None:
    """Of the brokers that are started from now on."""
    make_store = cluster.make_store

    async def make_gated() -> MetadataStore:
        return GatedStore(await make_store())

    cluster.make_store = make_gated


class GatedLedgers:
    """File ledgers whose syncs wait while `hold` is on; `fail_syncs` makes them fail as a disk would."""

    def __init__(self, data_dir: Path) -> None:
        self._store = FileLedgerStore(data_dir)
        self._gate = asyncio.Event()
        self._gate.set()
        self.fail_syncs = False
        self.waiting = 0

    def hold(self) -> None:
        self._gate.clear()

    def open(self) -> None:
        self._gate.set()

    async def create(self, segment: str, ledger_id: int, *, incarnation: str) -> LedgerWriter:
        return _GatedWriter(self, await self._store.create(segment, ledger_id, incarnation=incarnation))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


class _GatedWriter:
    def __init__(self, gates: GatedLedgers, writer: LedgerWriter) -> None:
        self._gates = gates
        self._writer = writer

    async def sync(self) -> int:
        self._gates.waiting += 1
        await self._gates._gate.wait()
        self._gates.waiting -= 1
        if self._gates.fail_syncs:
            raise LedgerFailed("the disk failed (planned by the test)")
        return await self._writer.sync()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._writer, name)


class SlowDisks:
    """File ledgers of which those of some segments stop storing, until they go on."""

    def __init__(self, data_dir: Path) -> None:
        self._store = FileLedgerStore(data_dir)
        self._stopped: dict[str, asyncio.Event] = {}

    def stop(self, segment: str) -> None:
        self._stopped[segment] = asyncio.Event()

    def go_on(self) -> None:
        for event in self._stopped.values():
            event.set()
        self._stopped.clear()

    async def create(self, segment: str, ledger_id: int, *, incarnation: str) -> LedgerWriter:
        return _SlowWriter(self, segment, await self._store.create(segment, ledger_id, incarnation=incarnation))

    async def wait(self, segment: str) -> None:
        if (stopped := self._stopped.get(segment)) is not None:
            await stopped.wait()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


class _SlowWriter:
    def __init__(self, disks: SlowDisks, segment: str, writer: LedgerWriter) -> None:
        self._disks = disks
        self._segment = segment
        self._writer = writer

    async def sync(self) -> int:
        await self._disks.wait(self._segment)
        return await self._writer.sync()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._writer, name)


class HeldReads:
    """File ledgers of which reads of closed ones wait while `hold` is on."""

    def __init__(self, data_dir: Path) -> None:
        self._store = FileLedgerStore(data_dir)
        self._gate = asyncio.Event()
        self._gate.set()
        self.waiting = 0

    def hold(self) -> None:
        self._gate.clear()

    def open(self) -> None:
        self._gate.set()

    async def read(
        self, segment: str, ledger_id: int, first: int, last: int, *, max_bytes: int
    ) -> Sequence[tuple[int, bytes]]:
        found = await self._store.read(segment, ledger_id, first, last, max_bytes=max_bytes)
        self.waiting += 1
        await self._gate.wait()
        self.waiting -= 1
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)
