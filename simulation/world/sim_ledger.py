"""Ledgers on simulated disks: `LedgerStore` with crash semantics, over the production format.

A disk outlives the processes of its host. What a killed process had passed to the kernel stays. Any part of a write
under way, and of unsynced data in a power failure, may be lost or torn. `simulation.world.sim_disk` has the faults of
the disk itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from segments.ledger import ledger_format
from segments.ledger.ledger import DiskRoom, LedgerFailed, LedgerFenced, LedgerPlace, LedgerUnreadable, Recovered
from segments.ledger.ledger_format import Footer, LedgerHeader, LedgerScan, OpenedHeader, SparseIndex
from simulation.world.sim_disk import GONE, NO_SPACE, Key, SimDisk, SimFile
from txnwire.errors import DataCorrupt, InvalidArgument
from txnwire.names import SegmentName

LARGE_BYTES = 1 << 50


def _name(key: Key) -> str:
    return f"{key[0]}/{key[1]}.ledger"


def _opened(read_at: ledger_format.ReadAt, key: Key) -> OpenedHeader:
    found = ledger_format.decode_header(read_at, _name(key))
    return ledger_format.expect_header(found, *key, _name(key))


class SimLedgerWriter:
    """See `segments.ledger.ledger.LedgerWriter`."""

    def __init__(self, disk: SimDisk, store: SimLedgerStore, key: Key, file: SimFile, opened: OpenedHeader) -> None:
        self._disk = disk
        self._store = store
        self._key = key
        self._file = file
        self._marker = opened.marker
        self._index = SparseIndex()
        self._next_id = 0
        self._appended_bytes = 0
        self._last_confirmed = -1
        self._pending: list[bytes] = []
        self._rounds = asyncio.Lock()
        self._dead: LedgerFenced | LedgerFailed | None = None
        self._closed = False
        self._confirmed_bytes = 0
        self._unrecorded: Recovered | None = None

    @property
    def ledger_id(self) -> int:
        return self._key[1]

    @property
    def last_confirmed(self) -> int:
        return self._last_confirmed

    @property
    def appended_bytes(self) -> int:
        return self._appended_bytes

    def _check_alive(self) -> None:
        if self._dead is not None:
            raise type(self._dead)(str(self._dead))
        if self._closed:
            raise LedgerFailed(f"{_name(self._key)} has been closed: append to the segment's next ledger")

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
        """▲ A round that has begun goes to its end even if the caller is cancelled: in a thread it could not be stopped
        either."""
        wanted = self._next_id
        await asyncio.shield(asyncio.ensure_future(self._round(wanted)))
        if self._dead is not None:
            raise type(self._dead)(str(self._dead))
        return self._last_confirmed

    async def _round(self, wanted: int) -> None:
        async with self._rounds:
            if self._dead is None and (self._last_confirmed + 1 < wanted or not self._pending):
                await self._write_and_sync()

    async def _write_and_sync(self) -> None:
        entries, self._pending = self._pending, []
        first, offset = self._next_id - len(entries), len(self._file.data)
        encoded = ledger_format.encode_groups(self._marker, first, entries, self._last_confirmed + 1)
        await self._write(encoded.data)
        failed = await self._disk.sync_pause() if entries else None
        if failed is not None:
            self._disk.did["failed"] += 1
            self._file.dropped = offset
            self._end_here()
            self._dead = LedgerFailed(f"{_name(self._key)}: writing or syncing failed ({failed})")
            return
        self._disk.sync_to(self._file, offset + len(encoded.data))
        if self._file.fenced or self._file.deleted:
            self._disk.did["refused"] += bool(entries)
            self._dead = LedgerFenced(f"{_name(self._key)}: another owner has taken the ledger over")
        elif self._disk.gone:  # ▲ the fence could not be seen here
            self._dead = LedgerFailed(f"{_name(self._key)}: {GONE}")
        if self._dead is None:
            for group, at in encoded.starts:
                self._index.add(group, offset + at)
            self._last_confirmed += len(entries)
            self._confirmed_bytes += sum(map(len, entries))
            self._disk.trace.record(self._disk.now(), "synced", *self._key, self._last_confirmed, data=encoded.data)
            self._disk.tell("sync", self._key[0])

    def _end_here(self) -> None:
        """▲ The ledger ends at what was acknowledged; the unsynced rest must not be taken for durable later on."""
        if self._disk.gone or not self._disk.takes_the_end():
            self._unrecorded = Recovered(self._last_confirmed + 1, self._confirmed_bytes)
            self._store.ends[self._key] = self._last_confirmed + 1
            return
        self._file.fenced = True
        if self._file.bound is None:
            self._file.bound = self._last_confirmed + 1

    async def _write(self, data: bytes) -> None:
        """Writes in two parts; the process may be killed between them."""
        cut = self._disk.random.randrange(len(data) + 1)
        self._file.data += data[:cut]
        await asyncio.sleep(0)
        self._file.data += data[cut:]

    async def read(self, first: int, last: int, *, max_bytes: int) -> Sequence[tuple[int, bytes]]:
        if first < 0:
            raise InvalidArgument(f"first entry {first}: 0 or more expected")
        last = min(last, self._last_confirmed)
        if first > last:
            return []
        if self._dead is not None and not self._closed:
            raise LedgerUnreadable(f"{_name(self._key)} has been given up by this process")
        await self._disk.read_pause(_name(self._key))
        offset = self._index.floor(first)
        return ledger_format.read_entries(
            self._disk.reader(self._file),
            self._marker,
            offset,
            first,
            last,
            max_bytes=max_bytes,
            where=_name(self._key),
        )

    async def close(self, footer: bytes) -> Recovered:
        self._check_alive()
        self._closed = True
        await self._sync()
        found = LedgerScan(self._next_id, self._appended_bytes, len(self._file.data), self._index, None)
        encoded = ledger_format.encode_footer(Footer(self.ledger_id, footer, found))

        def put() -> None:
            self._file.footer = encoded

        await self._disk.put_in_place(f"writing {self._key[0]}/{self.ledger_id}.footer", put)
        self._disk.tell("footer", self._key[0])
        self._store.forget_writer(self)
        return Recovered(entries=found.entries, bytes=found.bytes)

    def abandon(self) -> None:
        if self._dead is None:
            self._dead = LedgerFailed(f"{_name(self._key)} has been given up by this process")
        self._store.forget_writer(self)

    async def unrecorded_end(self) -> Recovered | None:
        async with self._rounds:
            return self._unrecorded


class SimLedgerStore:
    """See `segments.ledger.ledger.LedgerStore`: one process's view of its host's disk."""

    def __init__(self, disk: SimDisk) -> None:
        self._disk = disk
        self._writers: dict[SimLedgerWriter, None] = {}
        self._closed = False
        self.ends: dict[Key, int] = {}
        """Ledgers whose writer could not record where they end."""

    @property
    def kind(self) -> str:
        return "memory"

    async def identity(self, mark: str | None) -> LedgerPlace:
        if self._disk.gone:
            return LedgerPlace(None, "a simulated disk")
        self._disk.mark = self._disk.mark or mark
        return LedgerPlace(self._disk.mark, "a simulated disk")

    async def room(self) -> DiskRoom:
        return DiskRoom(0 if self._disk.is_full else LARGE_BYTES, LARGE_BYTES)

    async def keep_reserve(self, size: int) -> None:
        """Does nothing: a full simulated disk takes no writes at all."""

    def _check(self, segment: str, ledger_id: int) -> Key:
        if self._closed:
            raise LedgerFailed("the ledger store is closed")
        SegmentName.from_path(segment)
        if ledger_id < 0:
            raise InvalidArgument(f"ledger id {ledger_id} of {segment}: 0 or more expected")
        return segment, ledger_id

    async def create(self, segment: str, ledger_id: int, *, incarnation: str) -> SimLedgerWriter:
        key = self._check(segment, ledger_id)
        header = ledger_format.encode_header(LedgerHeader(segment, ledger_id, incarnation))

        def put() -> None:
            file = self._disk.files.setdefault(key, SimFile())
            if file.created:
                raise LedgerFailed(f"{_name(key)} exists already: ledger ids are never used twice")
            if file.fenced:
                raise LedgerFenced(f"{_name(key)}: another owner has taken the ledger over")
            file.data, file.durable, file.created = bytearray(header), len(header), True
            made.append(file)

        made: list[SimFile] = []
        await self._disk.put_in_place(f"creating {_name(key)}", put)
        (file,) = made
        if file.fenced or file.deleted:
            raise LedgerFenced(f"{_name(key)}: another owner has taken the ledger over")
        self._disk.trace.record(self._disk.now(), "created", *key)
        self._disk.tell("create", segment)
        opened = _opened(lambda offset, length: header[offset : offset + length], key)
        writer = SimLedgerWriter(self._disk, self, key, file, opened)
        self._writers[writer] = None
        return writer

    def forget_writer(self, writer: SimLedgerWriter) -> None:
        self._writers.pop(writer, None)

    @property
    def open_ledgers(self) -> int:
        """Ledgers whose files a process would have open."""
        return len(self._writers)

    async def fence(self, segment: str, ledger_id: int) -> Recovered:
        key = self._check(segment, ledger_id)
        self._disk.expect_here(f"fencing {_name(key)}")
        file = self._disk.files.setdefault(key, SimFile())
        file.fenced = True
        if (end := self.ends.get(key)) is not None and file.bound is None:
            file.bound = end
        self._disk.counted_by_another(file)
        await self._sync(f"fencing {_name(key)}")
        self._disk.trace.record(self._disk.now(), "fenced", *key)
        self._disk.tell("fence", segment)
        self.ends.pop(key, None)
        if not file.created:
            if file.bound:
                raise DataCorrupt(f"{_name(key)} is gone; {file.bound} entries were counted in it")
            return Recovered(entries=0, bytes=0, present=False)
        return await self._count(key, file)

    async def _count(self, key: Key, file: SimFile) -> Recovered:
        """Does not see what others do to the ledger during its sync."""
        found = self._scan(key, file)
        try:
            await self._sync(f"fencing {_name(key)}")  # ▲ what is counted is synced first
        except LedgerFailed:
            self._disk.forget_unwritten(file)
            raise
        self._disk.sync_to(file, found.end)
        if file.bound is None:
            file.bound = found.entries
        if file.bound != found.entries:
            found = self._scan(key, file)  # ▲ another process has counted meanwhile: that count stands
        return Recovered(entries=found.entries, bytes=found.bytes)

    async def _sync(self, what: str) -> None:
        failed = await self._disk.sync_pause()
        if failed is not None:
            raise LedgerFailed(f"{what}: {failed}")
        self._disk.expect_here(what)

    async def look_at(self, segment: str, ledger_id: int) -> Recovered | None:
        key = self._check(segment, ledger_id)
        await self._disk.read_pause(_name(key), by_name=True)
        file = self._disk.files.get(key)
        if file is None or not file.created:
            return None
        read_at = self._disk.reader(file)
        found = ledger_format.scan(read_at, len(file.data), _opened(read_at, key), _name(key))
        return Recovered(found.entries, found.bytes)

    def _scan(self, key: Key, file: SimFile) -> LedgerScan:
        read_at = self._disk.reader(file)
        return ledger_format.scan(read_at, len(file.data), _opened(read_at, key), _name(key), bound=file.bound)

    async def read(
        self, segment: str, ledger_id: int, first: int, last: int, *, max_bytes: int
    ) -> Sequence[tuple[int, bytes]]:
        key = self._check(segment, ledger_id)
        if first < 0:
            raise InvalidArgument(f"first entry {first}: 0 or more expected")
        if first > last:
            return []
        await self._disk.read_pause(_name(key), by_name=True)
        file = self._disk.files.get(key)
        if file is None or not file.created:
            raise InvalidArgument(f"{_name(key)} is not there: no such ledger, or deleted")
        found = self._scan(key, file)
        if found.entries <= last:
            raise DataCorrupt(
                f"{_name(key)}: offset {found.end}: ends after {found.entries} whole entries, entry {last} was "
                "acknowledged"
            )
        read_at = self._disk.reader(file)
        marker, offset = _opened(read_at, key).marker, found.index.floor(first)
        return ledger_format.read_entries(read_at, marker, offset, first, last, max_bytes=max_bytes, where=_name(key))

    async def read_footer(self, segment: str, ledger_id: int) -> bytes | None:
        key, name = self._check(segment, ledger_id), f"{segment}/{ledger_id}.footer"
        await self._disk.read_pause(name, by_name=True)
        file = self._disk.files.get(key)
        if file is None or file.footer is None:
            return None
        return ledger_format.decode_footer(self._disk.as_read(file.footer), ledger_id, name).payload

    async def write_footer(self, segment: str, ledger_id: int, footer: bytes) -> None:
        key = self._check(segment, ledger_id)

        def put() -> None:
            file = self._disk.files.setdefault(key, SimFile())
            file.footer = ledger_format.encode_footer(Footer(ledger_id, footer))

        await self._disk.put_in_place(f"writing {segment}/{ledger_id}.footer", put)
        self._disk.tell("footer", segment)

    async def read_sidecar(self, segment: str, ledger_id: int) -> bytes | None:
        key, name = self._check(segment, ledger_id), f"{segment}/{ledger_id}.sidecar"
        await self._disk.read_pause(name, by_name=True)
        file = self._disk.files.get(key)
        if file is None or file.sidecar is None:
            return None
        return ledger_format.decode_sidecar(self._disk.as_read(file.sidecar), ledger_id, name)

    async def write_sidecar(self, segment: str, ledger_id: int, sidecar: bytes) -> bytes:
        key = self._check(segment, ledger_id)

        def put() -> None:
            file = self._disk.files.setdefault(key, SimFile())
            if file.sidecar is None:
                file.sidecar = ledger_format.encode_sidecar(ledger_id, sidecar)

        await self._disk.put_in_place(f"writing {segment}/{ledger_id}.sidecar", put)
        self._disk.tell("sidecar", segment)
        return await self.read_sidecar(segment, ledger_id) or b""

    async def delete(self, segment: str, ledger_id: int) -> None:
        key = self._check(segment, ledger_id)
        await self._unlinked(_name(key))
        self._delete(key)

    async def _unlinked(self, what: str) -> None:
        """There is always room for that."""
        self._disk.expect_here(f"deleting {what}")
        failed = await self._disk.sync_pause()
        if failed not in (None, NO_SPACE):
            raise LedgerFailed(f"deleting {what}: {failed}")
        self._disk.expect_here(f"deleting {what}")

    def _delete(self, key: Key) -> None:
        file = self._disk.files.get(key)
        if file is None:
            return
        if file.created or not file.fenced:
            del self._disk.files[key]
            file.deleted = True
        else:
            file.footer = file.sidecar = None

    async def delete_segment(self, segment: str) -> None:
        self._check(segment, 0)
        await self._unlinked(segment)
        for key in [key for key in self._disk.files if key[0] == segment]:
            self._delete(key)

    async def list(self) -> Sequence[tuple[str, int]]:
        await asyncio.sleep(0)
        self._disk.expect_here("listing ledgers")
        return sorted(key for key, file in self._disk.files.items() if file.present)

    async def close(self) -> None:
        self._closed = True
        for writer in tuple(self._writers):
            writer.abandon()
