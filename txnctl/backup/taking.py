"""Takes a backup while the cluster works: etcd, then the ledgers, then all of it is read back, then the manifest.

A run that is killed leaves no manifest; the next one goes on with the files that it finds there.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from segments.ledger import ledger_files, ledger_format
from segments.ledger.data_folder import expect_shared_folder
from segments.ledger.file_ledger import FileLedgerStore
from segments.ledger.ledger_files import reader_of
from txnctl.backup.folder import BackupFolder, verify_file
from txnctl.backup.ledger_sources import SourceFile, SourceLedger, ledger_ids, ledgers_of, segment_folders, source_file
from txnctl.backup.manifest import BackupManifest, CopiedFile, EtcdCopy
from txnctl.backup.progress import CopyProgress, in_thread, size_text
from txnctl.checking.everything import connect_etcd, folder_of_ledgers
from txnctl.process.settings import ServerSettings
from txnctl.process.store_mark import Mark, StoreMark
from txnstore import keys
from txnstore.etcd.etcd_store import EtcdStore
from txnstore.records import Incarnation, decode
from txnwire.clock import SystemRandom
from txnwire.errors import DataCorrupt, InvalidArgument, NotAllowed, StoreFull

SETTLED_NS: Final = 2_000_000_000
"""▲ Only the time of a file that was left alone for so long tells that it is unchanged: clocks of file systems tick."""
SHA256_BYTES: Final = 32
SECTOR_BYTES: Final = 512
OnProgress = Callable[[str], None]


class TakenBackup(NamedTuple):
    """`copied`: files and bytes that this run wrote; all others of the manifest were there already."""

    name: str
    manifest: BackupManifest
    copied_files: int
    copied_bytes: int


async def take_backup(
    settings: ServerSettings, to: Path, on_progress: OnProgress, *, keep: int | None = None
) -> TakenBackup:
    """`keep`: so many newest backups stay. Raises `InvalidArgument`, `NotAllowed`, `StoreUnfit` (etcd must be repaired
    first), `DataCorrupt` (what was written reads back differently), `StoreFull`, `StoreUnavailable`, `OSError`."""
    data_dir = await folder_of_ledgers(settings)
    if to.absolute().is_relative_to(data_dir.absolute()):  # noqa: ASYNC240 (only asks for the current folder)
        raise InvalidArgument(f"{to} lies in the data folder {data_dir}: a backup belongs on another disk")
    store = await connect_etcd(settings, repairing=False)
    try:
        mark = await _expect_folder_of(store, data_dir)
        identity = await _identity(store)
        folder = BackupFolder(to)
        await asyncio.to_thread(folder.claim, identity.id, identity.former)
        with folder.locked():
            if keep is not None:
                # First: it may make the room for this backup. ▲ A damaged manifest is reported after this backup is
                # whole: otherwise no backup would be taken until an operator looks.
                with suppress(DataCorrupt):
                    await in_thread(lambda: _keep_newest(folder, keep))
            taking = _Taking(store, settings, data_dir, folder, on_progress)
            taken = await taking.run(identity, mark)
            if keep is not None:
                await in_thread(lambda: _keep_newest(folder, keep))
            return taken
    finally:
        await store.close()


async def _identity(store: EtcdStore) -> Incarnation:
    found = await store.get(keys.INCARNATION)
    if found is None:
        raise InvalidArgument("this etcd is no cluster's: there is nothing to back up")
    return decode(Incarnation, found.value, key=found.key)


async def _expect_folder_of(store: EtcdStore, data_dir: Path) -> Mark:
    """▲ Etcd and ledgers of two clusters would make a backup that no repair can mend."""
    identity = await _identity(store)
    revision, _ = await store.get_many([keys.INCARNATION])
    mark = StoreMark(data_dir)
    mark.judge(identity, revision)
    ledgers = FileLedgerStore(data_dir)
    try:
        await expect_shared_folder(store, ledgers, SystemRandom(), broker_id="this backup", claim=False)
    finally:
        await ledgers.close()
    found = mark.read()
    if found is None:
        raise NotAllowed(f"{data_dir} is no data folder of brokers: no `store-mark` is in it")
    return found


def _keep_newest(folder: BackupFolder, keep: int) -> None:
    for name in folder.whole()[:-keep]:
        folder.discard(name)
    folder.drop_unused()


class _Taking:
    def __init__(
        self, store: EtcdStore, settings: ServerSettings, data_dir: Path, folder: BackupFolder, on_progress: OnProgress
    ) -> None:
        self._store = store
        self._settings = settings
        self._root = data_dir / "ledgers"
        self._mark = ledger_files.read_mark(self._root)
        self._folder = folder
        self._on_progress = on_progress
        self._known: dict[str, CopiedFile] = {}
        """Files that are copied already, by path: by the newest backup, and by interrupted runs."""
        self._verified: set[CopiedFile] = set()
        self._damaged: list[str] = []
        self._told: list[str] = []
        """Damage in the data folder that the newest backup has reported."""

    async def run(self, identity: Incarnation, mark: Mark) -> TakenBackup:
        now = datetime.now(UTC)
        left = await in_thread(self._recall)
        name = self._folder.begin(now.strftime("%Y%m%dT%H%M%SZ"))
        etcd = await self._copy_etcd(name)
        files, written = await self._copy_ledgers(name)
        await self._read_back(name, etcd, files)
        revision = await self._expect_same(identity)
        manifest = BackupManifest(
            store=identity.id,
            former=identity.former,
            generation=identity.generation,
            segment_floor=mark.segment_floor,
            prefix=self._settings.etcd_prefix,
            taken_ms=int(now.timestamp() * 1000),
            etcd=etcd,
            revision=revision,
            files=files,
            damaged=self._damaged,
        )
        await in_thread(lambda: self._folder.finish(name, manifest))
        for one in left:
            await asyncio.to_thread(self._folder.discard, one)
        return TakenBackup(name, manifest, len(written), sum(one.size for one in written))

    def _recall(self) -> list[str]:
        """Fills `_known`; returns the unfinished backups, which may go once this one is whole."""
        self._folder.drop_leftovers()
        names = self._folder.whole()
        if names:
            newest = self._folder.read(names[-1])[1]
            self._told = newest.damaged
            for one in newest.files:
                self._known[one.path] = one
                self._verified.add(one)
        left = self._folder.unfinished()
        for name in left:
            self._known.update({one.path: one for one in self._folder.noted(name)})
        return left

    async def _copy_etcd(self, name: str) -> EtcdCopy:
        """▲ The copy must have at least the revision that is read first."""
        revision, _ = await self._store.get_many([keys.INCARNATION])
        path, size, digest = self._folder.etcd_path(name), 0, hashlib.sha256()
        temporary = path.with_name(f"{path.name}.tmp")
        with await asyncio.to_thread(temporary.open, "wb") as file:
            async for piece in self._store.snapshot():
                await asyncio.to_thread(file.write, piece)
                digest.update(piece)
                size += len(piece)
                self._on_progress(f"copying etcd: {size_text(size)}")
            file.flush()
            await asyncio.to_thread(os.fsync, file.fileno())
        temporary.rename(path)
        await asyncio.to_thread(expect_whole_snapshot, path)
        return EtcdCopy(size=size, sha256=digest.hexdigest(), revision=revision)

    # ---- ledgers ----

    async def _copy_ledgers(self, name: str) -> tuple[list[CopiedFile], list[CopiedFile]]:
        """Returns the files of the backup, and those that were copied now.

        ▲ It lists each segment when its turn comes. With an older list it would copy a footer that was renewed
        meanwhile beside an earlier copy of its ledger, and the footer would count more entries than that copy has."""
        folders = await asyncio.to_thread(segment_folders, self._root)
        ledgers = await asyncio.to_thread(lambda: [one for folder in folders for one in ledgers_of(self._root, folder)])
        await asyncio.to_thread(self._expect_room, ledgers)
        files: list[CopiedFile] = []
        written: list[CopiedFile] = []
        count = sum(len(one.files) for one in ledgers)
        progress = CopyProgress(self._on_progress, "copying ledgers", count, sum(one.size for one in ledgers))
        for folder in folders:
            copied = await in_thread(partial(self._copy_segment, name, folder, progress), stop=progress.stop)
            for file, is_new in copied:
                files.append(file)
                if is_new:
                    written.append(file)
        return files, written

    def _copy_segment(self, name: str, folder: Path, progress: CopyProgress) -> list[tuple[CopiedFile, bool]]:
        """Each file, and whether it was copied now. ▲ If retention or a deletion takes ledgers meanwhile, it leaves out
        all up to the newest of them. With a gap, transactions in a missing ledger would be shown by half, or aborted
        though they are whole; ledgers missing at the beginning count as trimmed."""
        listed = list(ledgers_of(self._root, folder))
        copied = {}
        for ledger in listed:
            found = self._copy_ledger(name, ledger)
            if found is not None:
                copied[ledger.ledger_id] = found
            progress.add(ledger.size, files=len(ledger.files))
        still = set(ledger_ids(folder))
        gone = [one.ledger_id for one in listed if one.ledger_id not in still or one.ledger_id not in copied]
        if gone:
            ledger_files.expect_folder(self._root, self._mark)
        kept = (found for ledger_id, found in copied.items() if not gone or ledger_id > max(gone))
        return [one for found in kept for one in found]

    def _copy_ledger(self, name: str, ledger: SourceLedger) -> list[tuple[CopiedFile, bool]] | None:
        """Each file, and whether it was copied now. None if the ledger has gone meanwhile."""
        found = []
        for source in ledger.files:
            try:
                found.append(self._copy(name, source.path))
            except FileNotFoundError:
                ledger_files.expect_folder(self._root, self._mark)
                if (self._root / source.path).suffix == ".ledger":
                    return None
        return found

    def _copy(self, name: str, path: str) -> tuple[CopiedFile, bool]:
        source = source_file(self._root, self._root / path)
        if source is None:
            raise FileNotFoundError(path)
        known = self._copy_of(source)
        if known is not None:
            self._folder.note(name, known)
            return known, False
        with (self._root / source.path).open("rb") as file:
            settled = source.mtime_ns < time.time_ns() - SETTLED_NS
            copied = self._folder.copy_in(file, source.path, source.mtime_ns if settled else 0)
        self._folder.note(name, copied)
        return copied, True

    def _copy_of(self, source: SourceFile) -> CopiedFile | None:
        """The copy of a file that has not changed since; None if there is none, or it is not there any more."""
        known = self._known.get(source.path)
        if known is None or (known.size, known.mtime_ns) != (source.size, source.mtime_ns):
            return None
        return known if self._folder.is_there(known) else None

    def _expect_room(self, ledgers: list[SourceLedger]) -> None:
        """Raises `StoreFull` before anything is copied."""
        files = (file for ledger in ledgers for file in ledger.files)
        new = sum(source.size for source in files if self._copy_of(source) is None)
        free = shutil.disk_usage(self._folder.path).free
        if new > free:
            raise StoreFull(
                f"{self._folder.path}: {size_text(new)} are to be copied and {size_text(free)} are free: make room, "
                "or keep fewer backups: a smaller --keep drops older ones first"
            )

    # ---- verification ----

    async def _read_back(self, name: str, etcd: EtcdCopy, files: list[CopiedFile]) -> None:
        """Reads what no earlier backup has verified."""
        new = [one for one in files if one not in self._verified]
        progress = CopyProgress(
            self._on_progress, "reading back", 1 + len(new), etcd.size + sum(one.size for one in new)
        )
        path = self._folder.etcd_path(name)
        await asyncio.to_thread(verify_file, path, size=etcd.size, sha256=etcd.sha256)
        progress.add(etcd.size)
        old = [one.path for one in files if one in self._verified]
        # ▲ The whole path: a tenant's name may end in that of another one, whose damaged ledger is gone.
        self._damaged += [told for told in self._told if any(f"/{path}:" in told for path in old)]
        for one in new:
            await asyncio.to_thread(self._folder.verify, one)
            if one.path.endswith(".ledger"):
                await asyncio.to_thread(self._look_into, one)
            progress.add(one.size)

    def _look_into(self, file: CopiedFile) -> None:
        """A ledger that is damaged in the data folder is copied as it is, and told."""
        where = str(self._root / file.path)
        with self._folder.open(file) as copy:
            try:
                opened = ledger_format.decode_header(reader_of(copy.fileno()), where)
                ledger_format.scan(reader_of(copy.fileno()), file.size, opened, where)
            except DataCorrupt as error:
                self._damaged.append(str(error))

    async def _expect_same(self, identity: Incarnation) -> int:
        """Returns etcd's revision. ▲ A repair during the backup has changed ledgers that were copied before."""
        now = await self._identity()
        if now.id != identity.id:
            raise NotAllowed("etcd was repaired during the backup: take it again")
        # ▲ A folder that has gone away would have looked like one without ledgers.
        await asyncio.to_thread(ledger_files.expect_folder, self._root, self._mark)
        revision, _ = await self._store.get_many([keys.INCARNATION])
        return revision

    async def _identity(self) -> Incarnation:
        return await _identity(self._store)


def expect_whole_snapshot(path: Path) -> None:
    """Etcd's own checksum follows its records. Raises `DataCorrupt` if a snapshot is cut off or damaged."""
    size = path.stat().st_size
    if size % SECTOR_BYTES != SHA256_BYTES:
        raise DataCorrupt(f"{path}: {size} bytes are no whole snapshot of etcd: it was cut off")
    digest, left = hashlib.sha256(), size - SHA256_BYTES
    with path.open("rb") as file:
        while left and (piece := file.read(min(SECTOR_BYTES * 2048, left))):
            digest.update(piece)
            left -= len(piece)
        told = file.read(SHA256_BYTES)
    if told != digest.digest():
        raise DataCorrupt(f"{path}: this snapshot of etcd is damaged: its checksum does not match")


async def verify_backup(folder: BackupFolder, name: str, manifest: BackupManifest, on_progress: OnProgress) -> None:
    """Reads all of a backup. Raises `DataCorrupt` that names the first file that is not as it was written, and counts
    the others.

    ▲ It sets every damaged copy of a ledger aside, so that the next backup copies the ledger again: otherwise all later
    backups would name the damaged copy, too."""
    progress = CopyProgress(on_progress, f"verifying {name}", 1 + len(manifest.files), manifest.bytes)
    path = folder.etcd_path(name)
    damaged: list[DataCorrupt] = []
    try:
        await asyncio.to_thread(verify_file, path, size=manifest.etcd.size, sha256=manifest.etcd.sha256)
        await asyncio.to_thread(expect_whole_snapshot, path)
    except DataCorrupt as error:
        damaged.append(error)
    progress.add(manifest.etcd.size)
    for one in manifest.files:
        try:
            await asyncio.to_thread(folder.verify, one)
        except DataCorrupt as error:
            await asyncio.to_thread(folder.set_aside, one)
            damaged.append(error)
        progress.add(one.size)
    if len(damaged) > 1:
        raise DataCorrupt(f"{damaged[0]}; damaged besides: {len(damaged) - 1}") from damaged[0]
    if damaged:
        raise damaged[0]
