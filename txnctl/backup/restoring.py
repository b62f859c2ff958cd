"""Restores a backup, and repairs it: transactions that were not committed when etcd was copied are aborted.

Either into a folder with an etcd of its own (`restore_whole`), or the ledgers alone, beside an etcd whose members the
operator has restored from the snapshot (`restore_beside`). ▲ The restored folder gets its name only when it
is complete, and every process refuses its etcd until the repair has ended.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from segments.ledger.ledger_files import (
    FOLDER_MARK,
    make_directories,
    replace_file,
    sync_directory,
)
from txnctl.backup.etcd_files import restore_etcd
from txnctl.backup.folder import BackupFolder, pieces_of, write_whole
from txnctl.backup.manifest import BackupManifest
from txnctl.backup.progress import CopyProgress, in_thread, size_text
from txnctl.backup.taking import verify_backup
from txnctl.checking.everything import Checked, check_everything, connect_etcd
from txnctl.process.settings import ServerSettings, load
from txnctl.process.store_mark import FILE, Mark
from txnstore import keys
from txnstore.access.lineage import StoreUnfit
from txnstore.access.paging import in_pages
from txnstore.etcd.embedded_etcd import EmbeddedEtcd, EtcdCommand, free_port
from txnstore.records import DataFolder, Incarnation, decode, encode
from txnstore.store import Commit, MetadataStore, Put, unchanged_since
from txnwire.clock import SystemRandom
from txnwire.errors import DataCorrupt, NotAllowed, StoreFull

RESTORING: Final = ".restoring"
"""End of the name of a folder that is being restored."""
AHEAD: Final = 1_000_000
"""▲ The restored folder is newer than the restored etcd, and its mark says so by a revision that etcd had not reached.
So far ahead, because every lease that ends in the restored etcd raises its revision."""
CERTIFICATES: Final = ("etcd_ca", "etcd_cert", "etcd_key")
OnProgress = Callable[[str], None]


class Restored(NamedTuple):
    """`checked`: what the repair did, and what `check` found after it."""

    name: str
    manifest: BackupManifest
    folder: Path
    checked: Checked


async def restore_whole(backups: BackupFolder, name: str | None, to: Path, on_progress: OnProgress) -> Restored:
    """Makes `to`, as `txnctl dev` has it: `to/etcd` and `to/data`. Raises `InvalidArgument`, `NotAllowed` (there is
    something), `DataCorrupt` (the backup is damaged), `InternalError` (etcd's tool), `OSError`."""
    expect_empty(to)
    # ▲ Without the certificates of the environment, which are for the etcd that was backed up: this one has no TLS. A
    # user may be needed: the snapshot decides whether etcd asks for one. Wrong settings fail before the long copy.
    environment = load(None, without=CERTIFICATES, etcd="http://127.0.0.1:2379", allow_development_etcd=True)
    with backups.locked():  # ▲ to the end: another restore into this folder would delete the files of this one
        chosen, manifest = await _verified(backups, name, on_progress)
        made = await in_thread(lambda: _begin(to, manifest.bytes))
        await restore_etcd(backups.etcd_path(chosen), made / "etcd")
        folder_id = await _restore_ledgers(backups, manifest, made / "data", on_progress)
        etcd = EmbeddedEtcd(EtcdCommand(data_dir=made / "etcd", client_port=free_port()), log_path=made / "etcd.log")
        await etcd.start()
        try:
            here = {"etcd": etcd.url, "etcd_prefix": manifest.prefix, "data_dir": made / "data"}
            settings = environment.model_copy(update=here)
            await _announce(settings, folder_id, to / "data")
            checked = await check_everything(settings, on_progress, repair=True)
        finally:
            await etcd.stop()
        (made / "etcd.log").unlink()
        await in_thread(lambda: _end(made, to))
    return Restored(chosen, manifest, to, checked)


async def restore_beside(
    backups: BackupFolder, name: str | None, settings: ServerSettings, on_progress: OnProgress
) -> Restored:
    """Makes `settings.data_dir` beside an etcd that was restored from the same backup. Raises as `restore_whole`;
    `NotAllowed` if that etcd is empty, in use, or another cluster's."""
    to = settings.data_dir
    expect_empty(to)
    with backups.locked():
        chosen, manifest = await _verified(backups, name, on_progress)
        settings = settings.model_copy(update={"etcd_prefix": settings.etcd_prefix or manifest.prefix})
        await _expect_restored(settings, manifest, backups.etcd_path(chosen))
        made = await in_thread(lambda: _begin(to, manifest.bytes - manifest.etcd.size))
        folder_id = await _restore_ledgers(backups, manifest, made, on_progress)
        # ▲ First the announcement: without it no broker could use the folder, and no repair could mend it.
        await _announce(settings, folder_id, to)
        await in_thread(lambda: _end(made, to))
        checked = await check_everything(settings, on_progress, repair=True)
    return Restored(chosen, manifest, to, checked)


def expect_empty(folder: Path) -> None:
    """Raises `NotAllowed` if there is something, or the folder that is made beside cannot take this one's place."""
    if folder.is_symlink() or folder.is_mount():
        what = "a symbolic link" if folder.is_symlink() else "where a disk is mounted"
        raise NotAllowed(
            f"{folder} is {what}, and a restore takes a folder's place as a whole: name a folder in it that does not "
            "exist yet"
        )
    if not folder.exists():
        return
    if not folder.is_dir():
        raise NotAllowed(f"{folder} is a file: name a folder that is empty or does not exist yet")
    if any(folder.iterdir()):
        raise NotAllowed(
            f"{folder} holds something: a restore never writes over anything, name a folder that is empty or does not "
            "exist yet. (If a restore into it ended before its repair, `txnctl check --repair` goes on.)"
        )


async def _verified(backups: BackupFolder, name: str | None, on_progress: OnProgress) -> tuple[str, BackupManifest]:
    chosen, manifest = await asyncio.to_thread(backups.read, name)
    try:
        await verify_backup(backups, chosen, manifest, on_progress)
    except DataCorrupt as error:
        others = [one for one in backups.whole() if one != chosen]
        told = f"; --backup names an older one: {', '.join(others)}" if others else ""
        raise DataCorrupt(f"{error}. Nothing was restored{told}") from error
    return chosen, manifest


def _begin(to: Path, size: int) -> Path:
    """An empty folder beside `to`; what an interrupted restore has left there goes. Raises `StoreFull` if `size` bytes
    have no room."""
    made = to.absolute().with_name(f".{to.absolute().name}{RESTORING}")
    if made.exists():
        shutil.rmtree(made)
    make_directories(made)
    free = shutil.disk_usage(made).free
    if size > free:
        raise StoreFull(f"{to}: {size_text(size)} are to be restored and {size_text(free)} are free: make room")
    return made


def _end(made: Path, to: Path) -> None:
    for folder, _, _ in os.walk(made, topdown=False):
        sync_directory(Path(folder))
    try:
        made.rename(to)
    except OSError as error:
        raise NotAllowed(
            f"{made} cannot become {to} ({error.strerror}): name a folder that does not exist yet, on the same disk"
        ) from error
    sync_directory(to.absolute().parent)


async def _restore_ledgers(
    backups: BackupFolder, manifest: BackupManifest, data_dir: Path, on_progress: OnProgress
) -> str:
    """Returns the mark of the new folder. ▲ A new one: the folder that was copied may still exist."""
    root = data_dir / "ledgers"
    progress = CopyProgress(
        on_progress, "restoring ledgers", len(manifest.files), sum(one.size for one in manifest.files)
    )

    def restore() -> str:
        for one in manifest.files:
            target = root / one.path
            make_directories(target.parent)

            def named(size: int, sha256: str, one: object = one, target: Path = target) -> Path:
                return target

            with backups.open(one) as source:
                write_whole(target, pieces_of(source, one.size), named)
            progress.add(one.size)
        folder_id = f"{SystemRandom().getrandbits(64):016x}"
        replace_file(root / FOLDER_MARK, f"{folder_id}\n".encode())
        mark = Mark(
            incarnation=manifest.store,
            revision=manifest.revision + AHEAD,
            former=manifest.former,
            generation=manifest.generation,
            segment_floor=manifest.segment_floor,
        )
        replace_file(data_dir / FILE, msgspec.json.encode(mark) + b"\n")
        return folder_id

    return await in_thread(restore, stop=progress.stop)


async def _expect_restored(settings: ServerSettings, manifest: BackupManifest, snapshot: Path) -> None:
    """▲ A repair of an etcd that is at work would abort all that is open in it."""
    how = (
        f"stop it, restore every member from {snapshot} (`etcdctl snapshot restore`, docs/operations.md), start them "
        "and run this again"
    )
    store = await connect_etcd(settings, repairing=True)
    try:
        found = await store.get(keys.INCARNATION)
        revision, newest = await _revisions(store)
    finally:
        await store.close()
    if found is None:
        raise NotAllowed(f"etcd at {settings.etcd} holds nothing of a cluster: {how}")
    identity = decode(Incarnation, found.value, key=found.key)
    if identity.id != manifest.store:
        raise NotAllowed(
            f"etcd at {settings.etcd} holds something else: it is store {identity.id}, the backup is of "
            f"{manifest.store}. If it may go, {how}"
        )
    try:
        store = await connect_etcd(settings, repairing=False)
    except StoreUnfit:
        if revision >= manifest.etcd.revision and newest <= manifest.revision:
            return
    else:
        await store.close()
        raise NotAllowed(f"etcd at {settings.etcd} is in use, it was not restored from a backup: {how}")
    # ▲ With ledgers older than etcd, transactions that were committed between both would be shown by half.
    raise NotAllowed(
        f"etcd at {settings.etcd} was restored from another backup than this one (etcd has changes up to revision "
        f"{newest}, the backup was taken at revisions {manifest.etcd.revision} to {manifest.revision}): {how}"
    )


async def _revisions(store: MetadataStore) -> tuple[int, int]:
    """Etcd's revision, and that of its newest change but for what a restore itself writes."""
    revision, _ = await store.get_many([keys.INCARNATION])
    newest = 0
    async for page in in_pages(store, b"/", b"0", at_once=1024, revision=revision, keys_only=True):
        newest = max([newest, *(one.mod_revision for one in page if one.key != keys.DATA_FOLDER)])
    return revision, newest


async def _announce(settings: ServerSettings, folder_id: str, data_dir: Path) -> None:
    """Have the restored etcd know the new folder, before its repair makes it fit. Raises `NotAllowed` while another
    repair runs."""
    store = await connect_etcd(settings, repairing=True)
    try:
        found = await store.get(keys.INCARNATION)
        same = unchanged_since(keys.INCARNATION, 0 if found is None else found.mod_revision)
        path = str((data_dir / "ledgers").absolute())
        record = DataFolder(id=folder_id, broker="txnctl restore", path=path)
        if not (await store.commit(Commit((same,), (Put(keys.DATA_FOLDER, encode(record)),)))).succeeded:
            raise NotAllowed("another repair of this etcd has begun meanwhile: wait for its end")
    finally:
        await store.close()
