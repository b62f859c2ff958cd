"""`FileLedgerStore`: keeps ledgers as append-only files, one copy on one disk (DESIGN §7, "Ledger").

`ledger_format` encodes and scans, `ledger_files` does the durable file operations, `file_ledger_writer` appends. A
small pool of threads writes, syncs and reads; it runs the jobs of several segments concurrently.
"""

from __future__ import annotations

import asyncio
import os
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import structlog

from segments.ledger import ledger_files, ledger_format
from segments.ledger.file_ledger_writer import FileLedgerWriter, fenced_by, forget_unwritten
from segments.ledger.io_threads import IoThreads
from segments.ledger.ledger import DiskRoom, LedgerFailed, LedgerFenced, LedgerPlace, LedgerUnreadable, Recovered
from segments.ledger.ledger_files import LedgerPaths, OpenFile, close_file, reader_of
from segments.ledger.ledger_format import Footer, LedgerHeader, LedgerScan, OpenedHeader
from segments.ledger.ledger_reserve import Reserve
from txnwire.errors import DataCorrupt, InvalidArgument

log = structlog.get_logger(__name__)
T = TypeVar("T")

THREADS = 4
OPEN_CLOSED_LEDGERS = 128
CLOSE_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class _EndedLedger:
    """An open ledger file that this process does not write, with the result of its scan."""

    file: OpenFile
    paths: LedgerPaths
    marker: int
    found: LedgerScan


def _open_ledger(paths: LedgerPaths, segment: str) -> tuple[int, OpenedHeader]:
    """Raises `FileNotFoundError`, or `DataCorrupt` for a damaged header."""
    fd = os.open(paths.ledger, os.O_RDONLY | os.O_CLOEXEC)
    try:
        where = str(paths.ledger)
        opened = ledger_format.decode_header(reader_of(fd), where)
        return fd, ledger_format.expect_header(opened, segment, paths.ledger_id, where)
    except BaseException:
        os.close(fd)
        raise


def _scan_ledger(paths: LedgerPaths, segment: str, bound: int | None) -> _EndedLedger:
    fd, opened = _open_ledger(paths, segment)
    try:
        size = os.fstat(fd).st_size
        found = ledger_format.scan(reader_of(fd), size, opened, str(paths.ledger), bound=bound)
        os.fdatasync(fd)  # ▲ make durable what was read, before anyone relies on it
    except OSError:
        forget_unwritten(fd)  # ▲ otherwise the next try would count entries that are not on the disk
        os.close(fd)
        raise
    except BaseException:
        os.close(fd)
        raise
    return _EndedLedger(OpenFile(fd), paths, opened.marker, found)


def _fence_and_scan(paths: LedgerPaths, segment: str, end: int | None) -> _EndedLedger | None:
    """In a thread: fence, then count. None for a ledger that was never created; a creator that still lives finds the
    fence. Keeps the count beside the ledger, so that a second fencing gives the same. `end`: its number of entries, if
    a writer in this process had a failed sync and could not record it."""
    ledger_files.create_fence(paths)
    bound = ledger_files.read_count(paths) if end is None else ledger_files.create_count(paths, end)
    try:
        ledger = _scan_ledger(paths, segment, bound)
    except FileNotFoundError:
        if bound:
            raise DataCorrupt(f"{paths.ledger} is gone; {bound} entries were counted in it") from None
        return None
    try:
        counted = ledger_files.create_count(paths, ledger.found.entries)
    except BaseException:
        ledger.file.release()
        raise
    if counted == ledger.found.entries:
        return ledger
    ledger.file.release()  # ▲ another process counted first: its count stands
    return _scan_ledger(paths, segment, counted)


def _load_ledger(paths: LedgerPaths, segment: str, last: int) -> _EndedLedger:
    """In a thread: open for reading up to entry `last`, with the index in the footer, or by a scan."""
    found = _load_index(paths)
    if found is None or found.entries <= last:
        counted = ledger_files.read_count(paths)
        try:
            return _scan_ledger(paths, segment, counted)
        except DataCorrupt:
            if counted is None or counted <= last + 1:
                raise
            return _scan_ledger(paths, segment, None)  # the caller needs fewer entries, which may be whole
    fd, opened = _open_ledger(paths, segment)
    return _EndedLedger(OpenFile(fd), paths, opened.marker, found)


def _load_index(paths: LedgerPaths) -> LedgerScan | None:
    """▲ None also for a damaged footer: the entries are in another file, and whole. Only a caller that needs the
    footer's state of producers is refused."""
    try:
        footer = _load_footer(paths)
    except DataCorrupt as error:
        log.warning("ledger_scanned", error=str(error))
        return None
    return None if footer is None else footer.found


def _look_at_ledger(paths: LedgerPaths, segment: str) -> Recovered | None:
    """In a thread: what a ledger's file holds, ignoring any recorded count. Trusts the footer if the file is as long as
    it says."""
    try:
        fd, opened = _open_ledger(paths, segment)
    except FileNotFoundError:
        return None
    try:
        size, footer = os.fstat(fd).st_size, _load_footer(paths)
        if footer is not None and footer.found is not None and size >= footer.found.end:
            return Recovered(footer.found.entries, footer.found.bytes)
        found = ledger_format.scan(reader_of(fd), size, opened, str(paths.ledger))
        return Recovered(found.entries, found.bytes)
    finally:
        os.close(fd)


def _load_footer(paths: LedgerPaths) -> Footer | None:
    try:
        data = paths.footer.read_bytes()
    except FileNotFoundError:
        return None
    return ledger_format.decode_footer(data, paths.ledger_id, str(paths.footer))


def _load_sidecar(paths: LedgerPaths) -> bytes | None:
    try:
        data = paths.sidecar.read_bytes()
    except FileNotFoundError:
        return None
    return ledger_format.decode_sidecar(data, paths.ledger_id, str(paths.sidecar))


def _in_folder(root: Path, mark: str | None, job: Callable[[], T]) -> T:
    """In a thread: run `job` in the marked folder. ▲ Checks the mark before, so that no job creates a file at a bare
    mount point, and again if `job` finds nothing."""
    ledger_files.expect_folder(root, mark)
    try:
        found = job()
    except FileNotFoundError:
        ledger_files.expect_folder(root, mark)
        raise
    if found is None:
        ledger_files.expect_folder(root, mark)
    return found


def _release(ledger: _EndedLedger | None) -> None:
    if ledger is not None:
        ledger.file.release()


def _discard_result(discard: Callable[[T], None] | None, future: asyncio.Future[T]) -> None:
    if not future.cancelled() and future.exception() is None and discard is not None:
        discard(future.result())


class FileLedgerStore:
    """Implements `segments.ledger.ledger.LedgerStore` with files below `<data_dir>/ledgers`; see
    `ledger_files.LedgerPaths`."""

    def __init__(self, data_dir: str | os.PathLike[str], *, threads: int = THREADS) -> None:
        self._root = Path(data_dir) / "ledgers"
        self._reserve = Reserve(Path(data_dir))
        self._threads = IoThreads(threads, "ledger")
        self._stopped = False
        self._writers: dict[FileLedgerWriter, None] = {}
        self._ended: OrderedDict[tuple[str, int], _EndedLedger] = OrderedDict()
        self._ends: dict[tuple[str, int], int] = {}
        """Number of entries of ledgers whose writer could not record where they end."""
        self._mark: str | None = None
        """The folder's mark, once known."""

    @property
    def kind(self) -> str:
        return "file"

    def submit(self, job: Callable[[], T]) -> asyncio.Future[T]:
        self._expect_open()
        return self._threads.submit(job)

    def _expect_open(self) -> None:
        if self._stopped:
            raise LedgerFailed(f"the ledger store below {self._root} is closed")

    async def run(self, job: Callable[[], T], what: str, *, discard: Callable[[T], None] | None = None) -> T:
        """Run `job` in a thread, backed by the reserve; its `OSError` becomes `LedgerFailed` that says `what` failed. A
        job cannot be stopped: if the caller is cancelled, `discard` gets the job's result and closes it."""
        return await self._result(self.submit(self._reserve.backed(job)), what, discard)

    async def _work(self, job: Callable[[], T], what: str, *, discard: Callable[[T], None] | None = None) -> T:
        """`run` for a job that uses file names: it runs in the marked folder, else `LedgerFailed`."""
        return await self.run(partial(_in_folder, self._root, self._mark, job), what, discard=discard)

    async def _look(self, job: Callable[[], T], what: str, discard: Callable[[T], None] | None = None) -> T:
        """`_work` for a job that only reads: fails with `LedgerUnreadable`, and never uses the reserve."""
        looking = self.submit(partial(_in_folder, self._root, self._mark, job))
        return await self._result(looking, what, discard, LedgerUnreadable)

    async def _result(
        self,
        future: asyncio.Future[T],
        what: str,
        discard: Callable[[T], None] | None = None,
        failure: type[LedgerFailed] = LedgerFailed,
    ) -> T:
        task = asyncio.current_task()
        cancels = task.cancelling() if task is not None else 0
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            # ▲ A caller that was cancelled in the turn of the close must end, and not go on after a failure.
            if future.cancelled() and (task is None or task.cancelling() == cancels):
                raise failure(f"{what}: the ledger store was closed") from None
            future.add_done_callback(partial(_discard_result, discard))
            raise
        except OSError as error:
            raise failure(f"{what}: {error}") from error

    async def identity(self, mark: str | None) -> LedgerPlace:
        found = await self.run(partial(ledger_files.mark_folder, self._root, mark), f"marking {self._root}")
        self._mark = self._mark or found
        return LedgerPlace(found, str(self._root.absolute()))

    async def room(self) -> DiskRoom:
        found = await self._look(self._find_room, f"looking at the disk of {self._root}")
        return DiskRoom(found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize)

    def _find_room(self) -> os.statvfs_result:
        return os.statvfs(self._root if self._root.is_dir() else self._root.parent)

    async def keep_reserve(self, size: int) -> None:
        await self._look(partial(self._reserve.keep, size), "keeping the reserve")

    async def create(self, segment: str, ledger_id: int, *, incarnation: str) -> FileLedgerWriter:
        paths = ledger_files.paths_of(self._root, segment, ledger_id)
        data = ledger_format.encode_header(LedgerHeader(segment, ledger_id, incarnation))

        def create() -> tuple[int, str | None]:
            fd = ledger_files.create_file(paths.ledger, data)
            try:
                if (fenced := fenced_by(fd, paths)) is not None:
                    paths.ledger.unlink(missing_ok=True)  # no ledger list names it any more
            except OSError:
                os.close(fd)
                raise
            return fd, fenced

        try:
            fd, fenced = await self._work(create, f"creating {paths.ledger}", discard=lambda made: close_file(made[0]))
        except LedgerFailed as error:
            if isinstance(error.__cause__, FileExistsError):
                raise LedgerFailed(f"{paths.ledger} exists already: ledger ids are never used twice") from error
            raise
        if fenced is not None:
            close_file(fd)
            raise LedgerFenced(fenced)
        if self._stopped:
            close_file(fd)
        self._expect_open()  # ▲ if the store has closed its writers already, nothing would close this one
        opened = ledger_format.decode_header(lambda offset, length: data[offset : offset + length], str(paths.ledger))
        writer = FileLedgerWriter(self, OpenFile(fd), paths, opened)
        self._writers[writer] = None
        return writer

    def remember_end(self, segment: str, ledger_id: int, entries: int) -> None:
        self._ends[segment, ledger_id] = entries

    def forget_writer(self, writer: FileLedgerWriter) -> None:
        self._writers.pop(writer, None)

    async def fence(self, segment: str, ledger_id: int) -> Recovered:
        paths = ledger_files.paths_of(self._root, segment, ledger_id)
        job = partial(_fence_and_scan, paths, segment, self._ends.get((segment, ledger_id)))
        ledger = await self._work(job, f"fencing {paths.ledger}", discard=_release)
        self._ends.pop((segment, ledger_id), None)
        if ledger is None:
            return Recovered(entries=0, bytes=0, present=False)
        self._keep(segment, ledger)
        return Recovered(entries=ledger.found.entries, bytes=ledger.found.bytes)

    async def read(
        self, segment: str, ledger_id: int, first: int, last: int, *, max_bytes: int
    ) -> Sequence[tuple[int, bytes]]:
        if first < 0:
            raise InvalidArgument(f"first entry {first}: 0 or more expected")
        if first > last:
            return []
        ledger = self._ended.get((segment, ledger_id))
        if ledger is None or ledger.found.entries <= last:
            ledger = await self._load(segment, ledger_id, last)
        else:
            self._ended.move_to_end((segment, ledger_id))
        if ledger.found.entries <= last:
            raise DataCorrupt(
                f"{ledger.paths.ledger}: offset {ledger.found.end}: ends after {ledger.found.entries} whole entries, "
                f"entry {last} was acknowledged"
            )
        offset = ledger.found.index.floor(first)
        return await self.read_file(
            ledger.file, ledger.marker, offset, first, last, max_bytes, str(ledger.paths.ledger)
        )

    async def read_file(
        self, file: OpenFile, marker: int, offset: int, first: int, last: int, max_bytes: int, where: str
    ) -> list[tuple[int, bytes]]:
        def read() -> list[tuple[int, bytes]]:
            at = reader_of(file.fd)
            return ledger_format.read_entries(at, marker, offset, first, last, max_bytes=max_bytes, where=where)

        job = self.submit(read)
        file.use()
        job.add_done_callback(lambda _: file.done())
        return await self._result(job, f"reading {where}", failure=LedgerUnreadable)

    async def _load(self, segment: str, ledger_id: int, last: int) -> _EndedLedger:
        paths = ledger_files.paths_of(self._root, segment, ledger_id)
        try:
            job = partial(_load_ledger, paths, segment, last)
            ledger = await self._look(job, f"opening {paths.ledger}", discard=_release)
        except LedgerFailed as error:
            if isinstance(error.__cause__, FileNotFoundError):
                raise InvalidArgument(f"{paths.ledger} is not there: no such ledger, or deleted") from error
            raise
        self._keep(segment, ledger)
        return ledger

    def _keep(self, segment: str, ledger: _EndedLedger) -> None:
        if self._stopped:
            ledger.file.release()
        self._expect_open()
        key = (segment, ledger.paths.ledger_id)
        self._let_go(key)
        self._ended[key] = ledger
        while len(self._ended) > OPEN_CLOSED_LEDGERS:
            self._ended.popitem(last=False)[1].file.release()

    def _let_go(self, key: tuple[str, int]) -> None:
        ledger = self._ended.pop(key, None)
        if ledger is not None:
            ledger.file.release()

    async def read_footer(self, segment: str, ledger_id: int) -> bytes | None:
        paths = ledger_files.paths_of(self._root, segment, ledger_id)
        footer = await self._look(partial(_load_footer, paths), f"reading {paths.footer}")
        return None if footer is None else footer.payload

    async def write_footer(self, segment: str, ledger_id: int, footer: bytes) -> None:
        paths = ledger_files.paths_of(self._root, segment, ledger_id)
        ended = self._ended.get((segment, ledger_id))
        data = ledger_format.encode_footer(Footer(ledger_id, footer, ended.found if ended else None))
        await self._work(partial(ledger_files.replace_file, paths.footer, data), f"writing {paths.footer}")

    async def read_sidecar(self, segment: str, ledger_id: int) -> bytes | None:
        paths = ledger_files.paths_of(self._root, segment, ledger_id)
        return await self._look(partial(_load_sidecar, paths), f"reading {paths.sidecar}")

    async def write_sidecar(self, segment: str, ledger_id: int, sidecar: bytes) -> bytes:
        paths = ledger_files.paths_of(self._root, segment, ledger_id)
        data = ledger_format.encode_sidecar(ledger_id, sidecar)

        def write() -> bytes:
            ledger_files.create_once(paths.sidecar, data)
            return _load_sidecar(paths) or b""

        return await self._work(write, f"writing {paths.sidecar}")

    async def present(self, segment: str) -> Sequence[int]:
        """For a repair: ids of a segment's ledgers whose `.ledger` files exist, rising."""
        return await self._work(partial(ledger_files.present_ledgers, self._root, segment), f"listing {segment}")

    async def look_at(self, segment: str, ledger_id: int) -> Recovered | None:
        paths = ledger_files.paths_of(self._root, segment, ledger_id)
        return await self._look(partial(_look_at_ledger, paths, segment), f"reading {paths.ledger}")

    async def counted(self, segment: str, ledger_id: int) -> int:
        """For a repair: the recorded number of entries of a fenced ledger; 0 if there is none."""
        paths = ledger_files.paths_of(self._root, segment, ledger_id)
        return await self._look(partial(ledger_files.read_count, paths), f"reading {paths.count}") or 0

    async def cut(self, segment: str, ledger_id: int, entries: int) -> None:
        """▲ For a repair, and only while no broker serves: every other process relies on the first count."""
        paths = ledger_files.paths_of(self._root, segment, ledger_id)
        await self._work(partial(ledger_files.replace_count, paths, entries), f"shortening {paths.ledger}")

    async def discard_footer(self, segment: str, ledger_id: int) -> None:
        """▲ For a repair, and only while no broker serves."""
        paths = ledger_files.paths_of(self._root, segment, ledger_id)
        await self._work(partial(ledger_files.discard_footer, paths), f"deleting {paths.footer}")

    async def discard_sidecar(self, segment: str, ledger_id: int) -> None:
        """▲ For a repair, and only while no broker serves: every other process treats sidecars as immutable."""
        paths = ledger_files.paths_of(self._root, segment, ledger_id)
        await self._work(partial(ledger_files.discard_sidecar, paths), f"deleting {paths.sidecar}")

    async def set_aside(self, segment: str, folder: str) -> Path:
        """For a repair: move the whole segment into `<data_dir>/set-aside/<folder>`; returns its new path."""
        to = self._root.parent / "set-aside" / folder
        for key in [key for key in self._ended if key[0] == segment]:
            self._let_go(key)
        return await self._work(partial(ledger_files.set_aside, self._root, segment, to), f"setting aside {segment}")

    async def delete(self, segment: str, ledger_id: int) -> None:
        paths = ledger_files.paths_of(self._root, segment, ledger_id)
        self._let_go((segment, ledger_id))
        await self._work(partial(ledger_files.delete_ledger, paths), f"deleting {paths.ledger}")

    async def delete_segment(self, segment: str) -> None:
        job = partial(ledger_files.delete_segment, self._root, segment)
        for key in [key for key in self._ended if key[0] == segment]:
            self._let_go(key)
        await self._work(job, f"deleting {segment}")

    async def list(self) -> Sequence[tuple[str, int]]:
        return await self._work(partial(ledger_files.list_ledgers, self._root), f"listing {self._root}")

    async def close(self) -> None:
        for writer in tuple(self._writers):
            writer.abandon()
        for ledger in self._ended.values():
            ledger.file.release()
        self._ended.clear()
        self._stopped = True
        self._threads.end()
        if self._threads.under_way:
            _, left = await asyncio.wait(tuple(self._threads.under_way), timeout=CLOSE_TIMEOUT_S)
            if left:
                log.warning("ledger_jobs_left", jobs=len(left), advice="does the disk of the data folder answer?")
