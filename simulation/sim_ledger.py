"""Ledgers on simulated disks: `LedgerStore` with crash semantics, over the production format.

A disk outlives the processes of its host. What a killed process had handed to the kernel stays; of a write that was
under way, and of everything not synced when the power fails, any part may be lost or torn.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from segments import ledger_format
from segments.ledger import LedgerFailed, LedgerFenced, Recovered
from segments.ledger_format import Footer, LedgerHeader, OpenedHeader, Scan, SparseIndex
from simulation.trace import Trace
from txnwire.errors import DataCorrupt, InvalidArgument
from txnwire.names import SegmentName

Key = tuple[str, int]


@dataclass(frozen=True, slots=True)
class DiskFaults:
    """Shares of syncs. Slow ones take up to `slow_s`; failing ones kill their ledger."""

    sync_s: tuple[float, float] = (0.0, 0.0)
    slow_s: tuple[float, float] = (0.1, 2.0)
    slow_share: float = 0.0
    failing_share: float = 0.0


@dataclass(slots=True)
class SimFile:
    """`data` is what the kernel has, `durable` how much of it is on the disk; `bound`: entries once counted."""

    data: bytearray = field(default_factory=bytearray)
    durable: int = 0
    fenced: bool = False
    bound: int | None = None
    created: bool = False
    deleted: bool = False
    footer: bytes | None = None
    sidecar: bytes | None = None

    @property
    def present(self) -> bool:
        """Anything but a fence."""
        return self.created or self.footer is not None or self.sidecar is not None


class SimDisk:
    """One host's files, and what befalls them."""

    def __init__(self, seed: int | str, *, faults: DiskFaults | None = None, trace: Trace | None = None) -> None:
        self.random = random.Random(f"{seed}/disk")
        self.faults = faults or DiskFaults()
        self.files: dict[Key, SimFile] = {}
        self.trace = trace or Trace()

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def power_failure(self) -> None:
        """Everything not synced is lost, torn, or there after all, sector by sector."""
        for key, file in self.files.items():
            self._tear(file)
            self.trace.record(0.0, "power", *key, len(file.data))

    def _tear(self, file: SimFile) -> None:
        suffix = bytes(file.data[file.durable :])
        if not suffix:
            return
        match self.random.randrange(3):
            case 0:
                del file.data[file.durable :]
            case 1:
                del file.data[file.durable + self.random.randrange(len(suffix)) :]
            case _:
                self._lose_sectors(file)
        file.durable = len(file.data)

    def _lose_sectors(self, file: SimFile) -> None:
        sector = ledger_format.SECTOR_BYTES
        for start in range(file.durable // sector * sector, len(file.data), sector):
            if self.random.random() < 0.5:
                begin, end = max(start, file.durable), min(start + sector, len(file.data))
                file.data[begin:end] = bytes(end - begin)

    def flip_bit(self, key: Key) -> int:
        """Damage one bit somewhere in a ledger; returns its offset in the file."""
        file = self.files[key]
        offset = self.random.randrange(len(file.data))
        file.data[offset] ^= 1 << self.random.randrange(8)
        return offset

    async def sync_pause(self) -> bool:
        """As long as a sync takes; whether it fails."""
        slow = self.random.random() < self.faults.slow_share
        await asyncio.sleep(self.random.uniform(*(self.faults.slow_s if slow else self.faults.sync_s)))
        return self.random.random() < self.faults.failing_share


def _name(key: Key) -> str:
    return f"{key[0]}/{key[1]}.ledger"


def _opened(file: SimFile, key: Key) -> OpenedHeader:
    found = ledger_format.decode_header(_reader(file), _name(key))
    return ledger_format.expect_header(found, *key, _name(key))


def _reader(file: SimFile) -> ledger_format.ReadAt:
    return lambda offset, length: bytes(file.data[offset : offset + length])


class SimLedgerWriter:
    """See `segments.ledger.LedgerWriter`."""

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
        """▲ A round that has begun goes to its end whoever is cancelled: in a thread it could not be stopped either."""
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
        failed = await self._disk.sync_pause() if entries else False
        if failed:
            # ▲ The ledger ends at what was acknowledged; nobody may take the unsynced rest for durable later on.
            if not self._file.fenced:
                self._file.fenced, self._file.bound = True, self._last_confirmed + 1
            self._dead = LedgerFailed(f"{_name(self._key)}: writing or syncing failed (input/output error)")
            return
        self._file.durable = max(self._file.durable, offset + len(encoded.data))
        if self._file.fenced or self._file.deleted:
            self._dead = LedgerFenced(f"{_name(self._key)}: another owner has taken the ledger over")
        if self._dead is None:
            for group, at in encoded.starts:
                self._index.add(group, offset + at)
            self._last_confirmed += len(entries)
            self._disk.trace.record(self._disk.now(), "synced", *self._key, self._last_confirmed, data=encoded.data)

    async def _write(self, data: bytes) -> None:
        """In two parts, with a moment between them in which the process may be killed."""
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
            raise LedgerFailed(f"{_name(self._key)} has been given up by this process")
        await asyncio.sleep(0)
        offset = self._index.floor(first)
        return ledger_format.read_entries(
            _reader(self._file), self._marker, offset, first, last, max_bytes=max_bytes, where=_name(self._key)
        )

    async def close(self, footer: bytes) -> Recovered:
        self._check_alive()
        self._closed = True
        await self._sync()
        found = Scan(self._next_id, self._appended_bytes, len(self._file.data), self._index, None)
        await asyncio.sleep(0)
        self._file.footer = ledger_format.encode_footer(Footer(self.ledger_id, footer, found))
        return Recovered(entries=found.entries, bytes=found.bytes)

    def abandon(self) -> None:
        if self._dead is None:
            self._dead = LedgerFailed(f"{_name(self._key)} has been given up by this process")


class SimLedgerStore:
    """See `segments.ledger.LedgerStore`: one process's view of its host's disk."""

    def __init__(self, disk: SimDisk) -> None:
        self._disk = disk
        self._writers: dict[SimLedgerWriter, None] = {}
        self._closed = False

    @property
    def kind(self) -> str:
        return "memory"

    def _check(self, segment: str, ledger_id: int) -> Key:
        if self._closed:
            raise LedgerFailed("the ledger store is closed")
        SegmentName.from_path(segment)
        if ledger_id < 0:
            raise InvalidArgument(f"ledger id {ledger_id} of {segment}: 0 or more expected")
        return segment, ledger_id

    async def create(self, segment: str, ledger_id: int, *, incarnation: str) -> SimLedgerWriter:
        key = self._check(segment, ledger_id)
        await self._disk.sync_pause()
        file = self._disk.files.setdefault(key, SimFile())
        if file.created:
            raise LedgerFailed(f"{_name(key)} exists already: ledger ids are never used twice")
        if file.fenced:
            raise LedgerFenced(f"{_name(key)}: another owner has taken the ledger over")
        header = ledger_format.encode_header(LedgerHeader(segment, ledger_id, incarnation))
        file.data, file.durable, file.created = bytearray(header), len(header), True
        self._disk.trace.record(self._disk.now(), "created", *key)
        writer = SimLedgerWriter(self._disk, self, key, file, _opened(file, key))
        self._writers[writer] = None
        return writer

    async def fence(self, segment: str, ledger_id: int) -> Recovered:
        key = self._check(segment, ledger_id)
        file = self._disk.files.setdefault(key, SimFile())
        file.fenced = True
        await self._disk.sync_pause()
        self._disk.trace.record(self._disk.now(), "fenced", *key)
        if not file.created:
            if file.bound:
                raise DataCorrupt(f"{_name(key)} is gone; {file.bound} entries were counted in it")
            return Recovered(entries=0, bytes=0)
        found = self._scan(key, file)
        file.durable = max(file.durable, found.end)  # ▲ what is counted is synced first
        file.bound = found.entries
        return Recovered(entries=found.entries, bytes=found.bytes)

    def _scan(self, key: Key, file: SimFile) -> Scan:
        return ledger_format.scan(_reader(file), len(file.data), _opened(file, key), _name(key), bound=file.bound)

    async def read(
        self, segment: str, ledger_id: int, first: int, last: int, *, max_bytes: int
    ) -> Sequence[tuple[int, bytes]]:
        key = self._check(segment, ledger_id)
        if first < 0:
            raise InvalidArgument(f"first entry {first}: 0 or more expected")
        if first > last:
            return []
        await asyncio.sleep(0)
        file = self._disk.files.get(key)
        if file is None or not file.created:
            raise InvalidArgument(f"{_name(key)} is not there: no such ledger, or deleted")
        found = self._scan(key, file)
        if found.entries <= last:
            raise DataCorrupt(
                f"{_name(key)}: offset {found.end}: ends after {found.entries} whole entries, entry {last} was "
                "acknowledged"
            )
        marker, offset = _opened(file, key).marker, found.index.floor(first)
        return ledger_format.read_entries(
            _reader(file), marker, offset, first, last, max_bytes=max_bytes, where=_name(key)
        )

    async def read_footer(self, segment: str, ledger_id: int) -> bytes | None:
        key = self._check(segment, ledger_id)
        await asyncio.sleep(0)
        file = self._disk.files.get(key)
        if file is None or file.footer is None:
            return None
        return ledger_format.decode_footer(file.footer, ledger_id, f"{segment}/{ledger_id}.footer").payload

    async def write_footer(self, segment: str, ledger_id: int, footer: bytes) -> None:
        key = self._check(segment, ledger_id)
        await self._disk.sync_pause()
        file = self._disk.files.setdefault(key, SimFile())
        file.footer = ledger_format.encode_footer(Footer(ledger_id, footer))

    async def read_sidecar(self, segment: str, ledger_id: int) -> bytes | None:
        key = self._check(segment, ledger_id)
        await asyncio.sleep(0)
        file = self._disk.files.get(key)
        if file is None or file.sidecar is None:
            return None
        return ledger_format.decode_sidecar(file.sidecar, ledger_id, f"{segment}/{ledger_id}.sidecar")

    async def write_sidecar(self, segment: str, ledger_id: int, sidecar: bytes) -> bytes:
        key = self._check(segment, ledger_id)
        await self._disk.sync_pause()
        file = self._disk.files.setdefault(key, SimFile())
        if file.sidecar is None:
            file.sidecar = ledger_format.encode_sidecar(ledger_id, sidecar)
        return await self.read_sidecar(segment, ledger_id) or b""

    async def delete(self, segment: str, ledger_id: int) -> None:
        key = self._check(segment, ledger_id)
        await asyncio.sleep(0)
        self._delete(key)

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
        await asyncio.sleep(0)
        for key in [key for key in self._disk.files if key[0] == segment]:
            self._delete(key)

    async def list(self) -> Sequence[tuple[str, int]]:
        await asyncio.sleep(0)
        return sorted(key for key, file in self._disk.files.items() if file.present)

    async def close(self) -> None:
        self._closed = True
        for writer in self._writers:
            writer.abandon()
