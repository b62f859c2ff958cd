"""`FileLedgerStore`: ledgers as append-only files, one copy on one disk (DESIGN §7, "Ledger"; formats: `ledger_format`).

The event loop's side keeps all state; a small pool of threads writes, syncs and reads. One job writes what has
gathered in one ledger, syncs it and checks the fence, so that one sync serves many appends; the jobs of several
segments run side by side.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

from segments import ledger_files, ledger_format
from segments.ledger import LedgerFailed, LedgerFenced, Recovered
from segments.ledger_files import Fence, LedgerPaths
from segments.ledger_format import EncodedGroups, Footer, LedgerHeader, OpenedHeader, SparseIndex
from txnwire.errors import DataCorrupt, InvalidArgument

T = TypeVar("T")

THREADS = 4
TAIL_CACHE_BYTES = 1024 * 1024
OPEN_CLOSED_LEDGERS = 128


@dataclass(frozen=True, slots=True)
class FileLedgerStatistics:
    """Since the store was opened. `sync_seconds` is the sum over `syncs` (write, fdatasync and fence check)."""

    syncs: int
    sync_seconds: float
    slowest_sync_seconds: float
    appended_bytes: int
    tail_reads: int
    disk_reads: int


class _Round(NamedTuple):
    """What one job in a thread did for one ledger."""

    starts: list[tuple[int, int]]
    written: int
    seconds: float
    fenced: str | None


class _OpenFile:
    """A file descriptor shared by jobs in threads: closed when the last one has ended, never under a running one."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._users = 0
        self._released = False

    def use(self) -> None:
        self._users += 1

    def done(self) -> None:
        self._users -= 1
        self._close_if_idle()

    def release(self) -> None:
        self._released = True
        self._close_if_idle()

    def _close_if_idle(self) -> None:
        if self._released and self._users == 0 and self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def _read_at(fd: int) -> ledger_format.ReadAt:
    def read_at(offset: int, length: int) -> bytes:
        return os.pread(fd, length, offset)

    return read_at


def _sync_round(
    fd: int, groups: Callable[[], EncodedGroups], offset: int, paths: LedgerPaths, ledger_id: int
) -> _Round:
    """In a thread: write, sync, ▲ then look at the fence, before anybody hears of it."""
    begin = time.perf_counter()
    encoded = groups()
    if encoded.data:
        try:
            ledger_files.write_all(fd, encoded.data, offset)
            os.fdatasync(fd)
        except OSError:
            _fence_own_failure(paths, encoded.starts[0][0])
            raise
    return _Round(encoded.starts, len(encoded.data), time.perf_counter() - begin, _fenced_by(fd, paths))


def _fenced_by(fd: int, paths: LedgerPaths) -> str | None:
    """▲ The order matters: `delete_ledger` unlinks the ledger before it takes the fence away."""
    if paths.fence.exists():
        return f"{paths.fence} exists: another owner has taken the ledger over"
    if os.fstat(fd).st_nlink == 0:
        return f"{paths.ledger} has been deleted by another owner"
    return None


def _fence_own_failure(paths: LedgerPaths, confirmed: int) -> None:
    """▲ A failed sync is never retried, not by a successor's sync either: the kernel may have dropped what it could
    not write and report success the next time. So the ledger is closed here and now at what was acknowledged."""
    try:
        if not paths.fence.exists():
            ledger_files.write_fence(paths, Fence(entries=confirmed))
    except OSError:
        return  # the disk takes nothing more; the writer is dead all the same


class FileLedgerWriter:
    """See `segments.ledger.LedgerWriter`. Created by `FileLedgerStore.create`."""

    def __init__(self, store: FileLedgerStore, file: _OpenFile, paths: LedgerPaths, opened: OpenedHeader) -> None:
        self._store = store
        self._file = file
        self._paths = paths
        self._header = opened.header
        self._marker = opened.marker
        self._end = opened.size
        self._index = SparseIndex()
        self._next_id = 0
        self._bytes = 0
        self._last_confirmed = -1
        self._pending: list[bytes] = []
        self._waiting: list[asyncio.Future[int]] = []
        self._in_round: list[asyncio.Future[int]] = []
        self._syncing = False
        self._tail: deque[bytes] = deque()
        self._tail_bytes = 0
        self._dead: LedgerFenced | LedgerFailed | None = None
        self._closed = False

    @property
    def ledger_id(self) -> int:
        return self._header.ledger_id

    @property
    def last_confirmed(self) -> int:
        return self._last_confirmed

    @property
    def bytes(self) -> int:
        return self._bytes

    def append(self, entry: bytes) -> int:
        self._check_alive()
        entry_id = self._next_id
        self._pending.append(entry)
        self._next_id += 1
        self._bytes += len(entry)
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
            raise type(self._dead)(str(self._dead))
        if self._closed:
            raise LedgerFailed(f"{self._paths.ledger} has been closed: append to the segment's next ledger")

    def _start_round(self) -> None:
        entries, self._pending = self._pending, []
        self._in_round, self._waiting = self._waiting, []
        self._syncing = True
        groups = partial(
            ledger_format.encode_groups, self._marker, self._next_id - len(entries), entries, self._last_confirmed + 1
        )
        job = partial(_sync_round, self._file.fd, groups, self._end, self._paths, self.ledger_id)
        self._file.use()
        self._store.submit(job).add_done_callback(partial(self._round_done, entries))

    def _round_done(self, entries: list[bytes], job: asyncio.Future[_Round]) -> None:
        self._syncing = False
        self._file.done()
        failure = LedgerFailed(f"{self._paths.ledger}: stopped during a sync") if job.cancelled() else job.exception()
        if failure is None and job.result().fenced is not None:
            failure = LedgerFenced(str(job.result().fenced))
        if self._dead is None and failure is not None:
            self._die(failure)
        if self._dead is None:
            self._confirm(entries, job.result())
        self._answer(self._in_round)
        if self._dead is not None:
            self._answer(self._waiting)
        elif self._waiting:
            self._start_round()

    def _die(self, failure: BaseException) -> None:
        if isinstance(failure, LedgerFenced | LedgerFailed):
            self._dead = failure
        else:
            self._dead = LedgerFailed(
                f"{self._paths.ledger}: writing or syncing failed ({failure}); the ledger is given up at entry "
                f"{self._last_confirmed}, its segment needs a new one"
            )
            self._dead.__cause__ = failure

    def _confirm(self, entries: list[bytes], done: _Round) -> None:
        for first, offset in done.starts:
            self._index.add(first, self._end + offset)
        self._end += done.written
        self._last_confirmed += len(entries)
        self._tail.extend(entries)
        self._tail_bytes += sum(map(len, entries))
        while self._tail_bytes > self._store.tail_cache_bytes:
            self._tail_bytes -= len(self._tail.popleft())
        self._store.count_sync(done.seconds, done.written)

    def _answer(self, futures: list[asyncio.Future[int]]) -> None:
        for future in futures:
            if future.done():
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
        tail_first = self._last_confirmed + 1 - len(self._tail)
        if first >= tail_first:
            self._store.count_read(tail=True)
            return _take(self._tail, tail_first, first, last, max_bytes)
        if self._closed:
            return await self._store.read(self._header.segment, self.ledger_id, first, last, max_bytes=max_bytes)
        if self._file.fd < 0:
            raise LedgerFailed(f"{self._paths.ledger} has been given up by this process")
        self._store.count_read(tail=False)
        return await self._store.read_file(
            self._file, self._marker, self._index.floor(first), first, last, max_bytes, str(self._paths.ledger)
        )

    async def close(self, footer: bytes) -> Recovered:
        self._check_alive()
        self._closed = True
        await self._sync()
        recovered = Recovered(entries=self._next_id, bytes=self._bytes)
        content = Footer(self.ledger_id, self._next_id, self._bytes, self._end, self._index, footer)
        await self._store.run(partial(_put_footer, self._paths, content), f"the footer of {self._paths.ledger}")
        self._file.release()
        return recovered

    def abandon(self) -> None:
        if self._dead is None:
            self._dead = LedgerFailed(f"{self._paths.ledger} has been given up by this process")
        if not self._syncing:
            self._answer(self._waiting)
        self._file.release()
        self._store.forget_writer(self)


def _take(tail: deque[bytes], tail_first: int, first: int, last: int, max_bytes: int) -> list[tuple[int, bytes]]:
    found: list[tuple[int, bytes]] = []
    taken = 0
    for entry_id in range(first, last + 1):
        entry = tail[entry_id - tail_first]
        if found and taken + len(entry) > max_bytes:
            break
        found.append((entry_id, entry))
        taken += len(entry)
    return found


def _put_footer(paths: LedgerPaths, footer: Footer) -> None:
    ledger_files.replace_file(paths.footer, ledger_format.encode_footer(footer))


@dataclass(slots=True)
class _ClosedLedger:
    """An open ledger file of which this process is not the writer, and what is known of its insides."""

    file: _OpenFile
    paths: LedgerPaths
    marker: int
    entries: int
    bytes: int
    end: int
    index: SparseIndex


def _open_ledger(paths: LedgerPaths, segment: str) -> tuple[int, OpenedHeader]:
    """Raises `FileNotFoundError`, or `DataCorrupt` for a damaged header."""
    fd = os.open(paths.ledger, os.O_RDONLY | os.O_CLOEXEC)
    try:
        where = str(paths.ledger)
        opened = ledger_format.decode_header(_read_at(fd), where)
        return fd, ledger_format.expect_header(opened, segment, paths.ledger_id, where)
    except BaseException:
        os.close(fd)
        raise


def _scan_ledger(paths: LedgerPaths, segment: str, bound: int | None) -> _ClosedLedger:
    fd, opened = _open_ledger(paths, segment)
    try:
        found = ledger_format.scan(_read_at(fd), os.fstat(fd).st_size, opened, str(paths.ledger), bound=bound)
        os.fdatasync(fd)  # ▲ what was read is made durable before anybody counts on it
    except BaseException:
        os.close(fd)
        raise
    return _ClosedLedger(_OpenFile(fd), paths, opened.marker, found.entries, found.bytes, found.end, found.index)


def _fence_and_scan(paths: LedgerPaths, segment: str) -> _ClosedLedger | None:
    """In a thread: fence, then count. None for a ledger that was never created: its creator, should it still live,
    finds the fence. The count is kept in the fence file, so that fencing again tells the same."""
    fence = ledger_files.read_fence(paths)
    if fence is None:
        fence = Fence()
        ledger_files.write_fence(paths, fence)
    try:
        ledger = _scan_ledger(paths, segment, fence.entries)
    except FileNotFoundError:
        if fence.entries:
            raise DataCorrupt(f"{paths.ledger} is gone; {fence.entries} entries were counted in it") from None
        return None
    if fence.entries is None:
        ledger_files.write_fence(paths, Fence(entries=ledger.entries))
    return ledger


def _load_ledger(paths: LedgerPaths, segment: str) -> _ClosedLedger:
    """In a thread: open for reading, with the index of the footer, or of a scan where there is none."""
    footer = _load_footer(paths)
    if footer is None:
        fence = ledger_files.read_fence(paths)
        return _scan_ledger(paths, segment, fence.entries if fence else None)
    fd, opened = _open_ledger(paths, segment)
    return _ClosedLedger(_OpenFile(fd), paths, opened.marker, footer.entries, footer.bytes, footer.end, footer.index)


def _load_footer(paths: LedgerPaths) -> Footer | None:
    try:
        data = paths.footer.read_bytes()
    except FileNotFoundError:
        return None
    return ledger_format.decode_footer(data, paths.ledger_id, str(paths.footer))


class FileLedgerStore:
    """See `segments.ledger.LedgerStore`. `data_dir` is this process's; ledgers stand below `<data_dir>/ledgers`.

    `tail_cache_bytes`: newest entries of each open ledger kept in memory for readers that follow closely.
    """

    def __init__(
        self, data_dir: str | os.PathLike[str], *, threads: int = THREADS, tail_cache_bytes: int = TAIL_CACHE_BYTES
    ) -> None:
        self._root = Path(data_dir) / "ledgers"
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="ledger")
        self.tail_cache_bytes = tail_cache_bytes
        self._writers: dict[FileLedgerWriter, None] = {}
        self._closed_ledgers: OrderedDict[tuple[str, int], _ClosedLedger] = OrderedDict()
        self._syncs = 0
        self._sync_seconds = 0.0
        self._slowest = 0.0
        self._appended = 0
        self._tail_reads = 0
        self._disk_reads = 0

    @property
    def kind(self) -> str:
        return "file"

    def statistics(self) -> FileLedgerStatistics:
        return FileLedgerStatistics(
            self._syncs, self._sync_seconds, self._slowest, self._appended, self._tail_reads, self._disk_reads
        )

    def count_sync(self, seconds: float, written: int) -> None:
        self._syncs += 1
        self._sync_seconds += seconds
        self._slowest = max(self._slowest, seconds)
        self._appended += written

    def count_read(self, *, tail: bool) -> None:
        if tail:
            self._tail_reads += 1
        else:
            self._disk_reads += 1

    def submit(self, job: Callable[[], T]) -> asyncio.Future[T]:
        return asyncio.get_running_loop().run_in_executor(self._threads, job)

    async def run(self, job: Callable[[], T], what: str) -> T:
        try:
            return await self.submit(job)
        except OSError as error:
            raise LedgerFailed(f"{what}: {error}") from error

    async def create(self, segment: str, ledger_id: int, *, incarnation: str) -> FileLedgerWriter:
        paths = ledger_files.paths_of(self._root, segment, ledger_id)
        data = ledger_format.encode_header(LedgerHeader(segment, ledger_id, incarnation))

        def create() -> tuple[int, str | None]:
            fd = ledger_files.create_file(paths.ledger, data)
            return fd, _fenced_by(fd, paths)

        try:
            fd, fenced = await self.submit(create)
        except FileExistsError as error:
            raise LedgerFailed(f"{paths.ledger} exists already: ledger ids are never used twice") from error
        except OSError as error:
            raise LedgerFailed(f"creating {paths.ledger}: {error}") from error
        if fenced is not None:
            os.close(fd)
            raise LedgerFenced(fenced)
        opened = ledger_format.decode_header(lambda offset, length: data[offset : offset + length], str(paths.ledger))
        writer = FileLedgerWriter(self, _OpenFile(fd), paths, opened)
        self._writers[writer] = None
        return writer

    def forget_writer(self, writer: FileLedgerWriter) -> None:
        self._writers.pop(writer, None)

    async def fence(self, segment: str, ledger_id: int) -> Recovered:
        paths = ledger_files.paths_of(self._root, segment, ledger_id)
        ledger = await self.run(partial(_fence_and_scan, paths, segment), f"fencing {paths.ledger}")
        if ledger is None:
            return Recovered(entries=0, bytes=0)
        self._keep(segment, ledger_id, ledger)
        return Recovered(entries=ledger.entries, bytes=ledger.bytes)

    async def read(
        self, segment: str, ledger_id: int, first: int, last: int, *, max_bytes: int
    ) -> Sequence[tuple[int, bytes]]:
        if first < 0:
            raise InvalidArgument(f"first entry {first}: 0 or more expected")
        if first > last:
            return []
        ledger = self._closed_ledgers.get((segment, ledger_id))
        if ledger is None or ledger.entries <= last:
            ledger = await self._load(segment, ledger_id)
        if ledger.entries <= last:
            raise DataCorrupt(
                f"{ledger.paths.ledger}: offset {ledger.end}: ends after {ledger.entries} whole entries, "
                f"entry {last} was acknowledged"
            )
        self._closed_ledgers.move_to_end((segment, ledger_id))
        self.count_read(tail=False)
        return await self.read_file(
            ledger.file, ledger.marker, ledger.index.floor(first), first, last, max_bytes, str(ledger.paths.ledger)
        )

    async def read_file(
        self, file: _OpenFile, marker: int, offset: int, first: int, last: int, max_bytes: int, where: str
    ) -> list[tuple[int, bytes]]:
        def read() -> list[tuple[int, bytes]]:
            return ledger_format.read_entries(
                _read_at(file.fd), marker, offset, first, last, max_bytes=max_bytes, where=where
            )

        file.use()
        job = self.submit(read)
        job.add_done_callback(lambda _: file.done())
        try:
            return await job
        except OSError as error:
            raise LedgerFailed(f"reading {where}: {error}") from error

    async def _load(self, segment: str, ledger_id: int) -> _ClosedLedger:
        paths = ledger_files.paths_of(self._root, segment, ledger_id)
        try:
            ledger = await self.submit(partial(_load_ledger, paths, segment))
        except FileNotFoundError as error:
            raise InvalidArgument(f"{paths.ledger} is not there: no such ledger, or deleted") from error
        except OSError as error:
            raise LedgerFailed(f"opening {paths.ledger}: {error}") from error
        self._keep(segment, ledger_id, ledger)
        return ledger

    def _keep(self, segment: str, ledger_id: int, ledger: _ClosedLedger) -> None:
        self._let_go(segment, ledger_id)
        self._closed_ledgers[segment, ledger_id] = ledger
        while len(self._closed_ledgers) > OPEN_CLOSED_LEDGERS:
            self._closed_ledgers.popitem(last=False)[1].file.release()

    def _let_go(self, segment: str, ledger_id: int) -> None:
        ledger = self._closed_ledgers.pop((segment, ledger_id), None)
        if ledger is not None:
            ledger.file.release()

    async def read_footer(self, segment: str, ledger_id: int) -> bytes | None:
        paths = ledger_files.paths_of(self._root, segment, ledger_id)
        footer = await self.run(partial(_load_footer, paths), f"reading {paths.footer}")
        return None if footer is None else footer.payload

    async def write_footer(self, segment: str, ledger_id: int, footer: bytes) -> None:
        paths = ledger_files.paths_of(self._root, segment, ledger_id)

        def write() -> None:
            try:
                ledger = _fence_and_scan(paths, segment)
            except FileNotFoundError:
                ledger = None
            if ledger is None:
                _put_footer(paths, Footer(ledger_id, 0, 0, 0, SparseIndex(), footer))
                return
            _put_footer(paths, Footer(ledger_id, ledger.entries, ledger.bytes, ledger.end, ledger.index, footer))
            ledger.file.release()

        await self.run(write, f"writing {paths.footer}")

    async def delete(self, segment: str, ledger_id: int) -> None:
        paths = ledger_files.paths_of(self._root, segment, ledger_id)
        self._let_go(segment, ledger_id)
        await self.run(partial(ledger_files.delete_ledger, paths), f"deleting {paths.ledger}")

    async def list(self) -> Sequence[tuple[str, int]]:
        return await self.run(partial(ledger_files.list_ledgers, self._root), f"listing {self._root}")

    async def close(self) -> None:
        for writer in list(self._writers):
            writer.abandon()
        for ledger in self._closed_ledgers.values():
            ledger.file.release()
        self._closed_ledgers.clear()
        self._threads.shutdown(wait=False, cancel_futures=True)
