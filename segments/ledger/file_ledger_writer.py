"""Writes the open ledger of one segment: gathers appends; one job in a thread writes, syncs and checks the fence.

Part of `file_ledger`. All state belongs to the event loop's thread; a job gets its input and returns what it did.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

from segments.ledger import ledger_files, ledger_format
from segments.ledger.ledger import LedgerFailed, LedgerFenced, LedgerUnreadable, Recovered
from segments.ledger.ledger_files import LedgerPaths, OpenFile
from segments.ledger.ledger_format import EncodedGroups, Footer, LedgerScan, OpenedHeader, SparseIndex
from txnwire.errors import DataCorrupt, InvalidArgument

T = TypeVar("T")


class WriterHost(Protocol):
    """The part of the ledger store that a writer needs."""

    def submit(self, job: Callable[[], T]) -> asyncio.Future[T]: ...
    async def run(self, job: Callable[[], T], what: str) -> T: ...
    async def read(
        self, segment: str, ledger_id: int, first: int, last: int, *, max_bytes: int
    ) -> Sequence[tuple[int, bytes]]: ...
    async def read_file(
        self, file: OpenFile, marker: int, offset: int, first: int, last: int, max_bytes: int, where: str
    ) -> list[tuple[int, bytes]]: ...
    def forget_writer(self, writer: FileLedgerWriter) -> None: ...
    def remember_end(self, segment: str, ledger_id: int, entries: int) -> None: ...


class _SyncRound(NamedTuple):
    """The result of one job. `fenced`: the reason why its entries must not be acked, or None."""

    starts: list[tuple[int, int]]
    written: int
    fenced: str | None


def _sync_round(fd: int, groups: Callable[[], EncodedGroups], offset: int, paths: LedgerPaths) -> _SyncRound:
    """In a thread: write, sync, ▲ then check the fence, before any entry is acked."""
    encoded = groups()
    if encoded.data:
        try:
            ledger_files.write_all(fd, encoded.data, offset)
            os.fdatasync(fd)
        except OSError as error:
            forget_unwritten(fd)
            if not _fence_own_failure(fd, paths, encoded.starts[0][0]):
                raise EndNotRecorded(str(error)) from error
            raise
    fenced = fenced_by(fd, paths)
    if fenced is None:
        ledger_files.expect_in_place(fd, paths)  # ▲ a fence is not seen here after the file was moved
    return _SyncRound(encoded.starts, len(encoded.data), fenced)


def fenced_by(fd: int, paths: LedgerPaths) -> str | None:
    """Why this ledger is no longer ours, or None. ▲ In this order: `delete_ledger` unlinks the ledger before it removes
    the fence, so a writer that wakes up late always finds one of the two."""
    if ledger_files.is_there(paths.fence):
        return f"{paths.fence} exists: another owner has taken the ledger over"
    if os.fstat(fd).st_nlink == 0:
        return f"{paths.ledger} has been deleted by another owner"
    return None


class EndNotRecorded(OSError):
    """A sync failed, and the ledger's end could not be written to the disk either."""


def forget_unwritten(fd: int) -> None:
    """After a failed sync: ask the kernel to drop the file's cached pages, so that a successor reads what is on the
    disk. The kernel may ignore this (and keeps dirty pages), so the caller records the ledger's end as well."""
    with suppress(OSError):
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)


def _fence_own_failure(fd: int, paths: LedgerPaths, confirmed: int) -> bool:
    """▲ Never retry a failed sync, nor let a successor's sync do so: the kernel may have dropped the unwritten pages
    and report success the next time. So the ledger ends now, at its last acknowledged entry. Returns False if the disk
    cannot store that: ▲ then the owner records it in `/ledger`."""
    try:
        ledger_files.expect_in_place(fd, paths)  # create no file at a bare mount point
        ledger_files.create_count(paths, confirmed)
        ledger_files.create_fence(paths)
    except (OSError, DataCorrupt):
        return False
    return True


class FileLedgerWriter:
    """Implements `segments.ledger.ledger.LedgerWriter`. `FileLedgerStore.create` makes it."""

    def __init__(self, store: WriterHost, file: OpenFile, paths: LedgerPaths, opened: OpenedHeader) -> None:
        self._store = store
        self._file = file
        self._paths = paths
        self._header = opened.header
        self._marker = opened.marker
        self._end = opened.size
        self._index = SparseIndex()
        self._next_id = 0
        self._appended_bytes = 0
        self._last_confirmed = -1
        self._pending: list[bytes] = []
        self._waiting: list[asyncio.Future[int]] = []
        self._in_round: list[asyncio.Future[int]] = []
        self._syncing = False
        self._dead: LedgerFenced | LedgerFailed | None = None
        self._closed = False
        self._confirmed_bytes = 0
        self._job: asyncio.Future[_SyncRound] | None = None
        self._unrecorded: Recovered | None = None

    @property
    def ledger_id(self) -> int:
        return self._header.ledger_id

    @property
    def last_confirmed(self) -> int:
        return self._last_confirmed

    @property
    def appended_bytes(self) -> int:
        return self._appended_bytes

    def append(self, entry: bytes) -> int:
        self._check_alive()
        entry_id = self._next_id
        self._pending.append(entry)
        self._next_id += 1
        self._appended_bytes += len(entry)
        return entry_id

    async def sync(self) -> int:
        self._check_alive()
        return await self._sync()

    async def _sync(self) -> int:
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        if not self._syncing:
            self._start_round()
        return await future

    def _check_alive(self) -> None:
        if self._dead is not None:
            raise type(self._dead)(str(self._dead)) from self._dead.__cause__
        if self._closed:
            raise LedgerFailed(f"{self._paths.ledger} has been closed: append to the segment's next ledger")

    def _start_round(self) -> None:
        entries, self._pending = self._pending, []
        self._in_round, self._waiting = self._waiting, []
        self._syncing = True
        first = self._next_id - len(entries)
        groups = partial(ledger_format.encode_groups, self._marker, first, entries, self._last_confirmed + 1)
        job = self._store.submit(partial(_sync_round, self._file.fd, groups, self._end, self._paths))
        self._file.use()
        self._job = job
        job.add_done_callback(partial(self._round_done, len(entries), sum(map(len, entries))))

    def _round_done(self, entries: int, size: int, job: asyncio.Future[_SyncRound]) -> None:
        self._syncing = False
        self._file.done()
        if not job.cancelled() and isinstance(job.exception(), EndNotRecorded):
            self._unrecorded = Recovered(self._last_confirmed + 1, self._confirmed_bytes)
            self._store.remember_end(self._header.segment, self.ledger_id, self._last_confirmed + 1)
        if self._dead is None:
            self._dead = self._failure_of(job)
        if self._dead is None:
            self._confirm(entries, size, job.result())
        self._answer(self._in_round)
        if self._dead is not None:
            self._answer(self._waiting)
        elif self._waiting:
            self._start_round()

    def _failure_of(self, job: asyncio.Future[_SyncRound]) -> LedgerFenced | LedgerFailed | None:
        if job.cancelled():
            return LedgerFailed(f"{self._paths.ledger}: the store was closed during a sync")
        failure = job.exception()
        if failure is None:
            fenced = job.result().fenced
            return None if fenced is None else LedgerFenced(fenced)
        dead = LedgerFailed(
            f"{self._paths.ledger}: writing or syncing failed ({failure}); the ledger ends at entry "
            f"{self._last_confirmed}, the segment needs another"
        )
        dead.__cause__ = failure
        return dead

    def _confirm(self, entries: int, size: int, done: _SyncRound) -> None:
        for first, offset in done.starts:
            self._index.add(first, self._end + offset)
        self._end += done.written
        self._last_confirmed += entries
        self._confirmed_bytes += size

    def _answer(self, futures: list[asyncio.Future[int]]) -> None:
        for future in futures:
            if future.done():  # its caller was cancelled
                continue
            if self._dead is None:
                future.set_result(self._last_confirmed)
            else:
                future.set_exception(type(self._dead)(str(self._dead)))
        futures.clear()

    async def read(self, first: int, last: int, *, max_bytes: int) -> Sequence[tuple[int, bytes]]:
        if first < 0:
            raise InvalidArgument(f"first entry {first}: 0 or more expected")
        last = min(last, self._last_confirmed)
        if first > last:
            return []
        if not self._file.released:
            offset = self._index.floor(first)
            return await self._store.read_file(
                self._file, self._marker, offset, first, last, max_bytes, str(self._paths.ledger)
            )
        if self._closed:
            return await self._store.read(self._header.segment, self.ledger_id, first, last, max_bytes=max_bytes)
        raise LedgerUnreadable(f"{self._paths.ledger} has been given up by this process")

    async def close(self, footer: bytes) -> Recovered:
        self._check_alive()
        self._closed = True
        await self._sync()
        found = LedgerScan(self._next_id, self._appended_bytes, self._end, self._index, None)
        data = ledger_format.encode_footer(Footer(self.ledger_id, footer, found))
        await self._store.run(
            partial(ledger_files.replace_file, self._paths.footer, data), f"writing {self._paths.footer}"
        )
        self._file.release()
        self._store.forget_writer(self)
        return Recovered(entries=found.entries, bytes=found.bytes)

    def abandon(self) -> None:
        if self._dead is None:
            self._dead = LedgerFailed(f"{self._paths.ledger} has been given up by this process")
        if not self._syncing:
            self._answer(self._waiting)
        self._file.release()
        self._store.forget_writer(self)

    async def unrecorded_end(self) -> Recovered | None:
        if self._job is not None:
            await asyncio.wait([self._job])
        return self._unrecorded
