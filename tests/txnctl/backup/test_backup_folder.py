"""The folder of backups: what counts as one, what is deleted, and what a backup must not be taken of."""

from __future__ import annotations

import hashlib
import os
import shutil
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest

from segments.ledger import ledger_files
from segments.ledger.ledger_files import FOLDER_MARK, FolderGone
from txnctl.backup import folder as folders
from txnctl.backup.folder import BackupFolder
from txnctl.backup.ledger_sources import ledgers_of, source_file
from txnctl.backup.manifest import BackupManifest, CopiedFile, EtcdCopy, decode_manifest
from txnctl.backup.progress import CopyProgress
from txnctl.backup.taking import SECTOR_BYTES, _expect_folder_of, _keep_newest, _Taking, expect_whole_snapshot
from txnctl.process.settings import ServerSettings
from txnctl.process.store_mark import Mark, StoreMark
from txnstore import keys
from txnstore.access.lineage import StoreUnfit
from txnstore.memory.memory_etcd import MemoryEtcd
from txnstore.memory.memory_store import MemoryStore
from txnstore.records import DataFolder, Incarnation, encode
from txnstore.store import Commit, Put
from txnwire.clock import SystemClock
from txnwire.errors import DataCorrupt, InvalidArgument, NotAllowed

STORE = Incarnation(id="a" * 16, created_ms=1)


@pytest.fixture
async def store() -> AsyncIterator[MemoryStore]:
    store = MemoryStore(MemoryEtcd(SystemClock()), SystemClock(), Random(1))
    yield store
    await store.close()


def copied(folder: BackupFolder, source: Path, path: str = "1.ledger") -> CopiedFile:
    with source.open("rb") as file:
        return folder.copy_in(file, path, 0)


def finished(folder: BackupFolder, *files: CopiedFile) -> str:
    name = folder.begin("now")
    etcd = EtcdCopy(size=0, sha256="", revision=1)
    folder.finish(
        name,
        BackupManifest(
            store=STORE.id, former=[], generation=1, segment_floor=0, prefix="", taken_ms=0, etcd=etcd, revision=1,
            files=list(files),
        ),
    )  # fmt: skip
    return name


@pytest.fixture
def folder(tmp_path: Path) -> BackupFolder:
    folder = BackupFolder(tmp_path / "backups")
    folder.claim(STORE.id, [])
    return folder


def test_a_backup_whose_deletion_was_cut_off_counts_as_none(
    folder: BackupFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = finished(folder)
    assert folder.whole() == [name]

    def cut_off(_: Path) -> None:
        raise OSError("killed")

    monkeypatch.setattr(shutil, "rmtree", cut_off)
    with pytest.raises(OSError, match="killed"):
        folder.discard(name)
    assert folder.whole() == []
    assert folder.unfinished() == [name]


def test_contents_that_a_kept_backup_needs_stay(folder: BackupFolder, tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(b"one")
    (tmp_path / "two").write_bytes(b"two")
    shared, only_old = copied(folder, tmp_path / "one"), copied(folder, tmp_path / "two")
    finished(folder, shared, only_old)
    newest = finished(folder, shared)
    _keep_newest(folder, 1)
    assert folder.whole() == [newest]
    assert folder.is_there(shared)
    assert not folder.is_there(only_old)


def test_of_several_older_backups_all_go_beyond_those_that_are_kept(folder: BackupFolder) -> None:
    names = [finished(folder) for _ in range(5)]
    _keep_newest(folder, 2)
    assert folder.whole() == names[3:]


def contents(folder: BackupFolder, tmp_path: Path, count: int) -> list[CopiedFile]:
    found = []
    for number in range(count):
        (tmp_path / "source").write_bytes(b"%d" % number)
        found.append(copied(folder, tmp_path / "source", f"{number}.ledger"))
    return found


def test_of_several_backups_and_unfinished_ones_all_contents_stay_and_all_others_go(
    folder: BackupFolder, tmp_path: Path
) -> None:
    files = contents(folder, tmp_path, 10)
    finished(folder, *files[0:2])
    finished(folder, *files[2:4])
    for some in (files[4:6], files[6:8]):
        name = folder.begin("now")
        for one in some:
            folder.note(name, one)
    assert folder.drop_unused() == 2
    assert [folder.is_there(one) for one in files] == [True] * 8 + [False] * 2


def test_of_several_backups_that_were_cut_off_no_copy_of_etcd_and_nothing_half_written_stays(
    folder: BackupFolder,
) -> None:
    folder.objects.mkdir(parents=True)
    left = [folder.objects / f"{number}.ledger.tmp-17" for number in range(2)]
    for name in [folder.begin("now") for _ in range(2)]:
        snapshot = folder.etcd_path(name)
        left += [snapshot, snapshot.with_name(f"{snapshot.name}.tmp")]
    for path in left:
        path.write_bytes(b"")
    folder.drop_leftovers()
    assert [path for path in left if path.exists()] == []


def test_a_folder_that_holds_anything_else_beside_an_unfinished_mark_is_not_taken(tmp_path: Path) -> None:
    path = tmp_path / "elsewhere"
    path.mkdir()
    (path / "holiday.jpg").write_bytes(b"")
    for number in range(16):  # in whichever order they are listed
        (path / f"{folders.MARKER}.tmp-{number}").write_bytes(b"")
    with pytest.raises(NotAllowed, match="something else"):
        BackupFolder(path).claim(STORE.id, [])


def test_a_file_of_several_pieces_is_copied_to_where_it_ended(
    folder: BackupFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folders, "PIECE_BYTES", 4)
    source = tmp_path / "source"
    source.write_bytes(b"0123456789")
    whole = copied(folder, source)
    folder.verify(whole)
    with folder.open(whole) as copy:
        assert (whole.size, copy.read()) == (10, b"0123456789")
    with source.open("rb") as file:
        assert list(folders.pieces_of(file, 6)) == [b"0123", b"45"], "it has grown since"


def test_what_a_damaged_manifest_names_is_not_deleted(folder: BackupFolder, tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(b"one")
    needed = copied(folder, tmp_path / "one")
    damaged = finished(folder, needed)
    manifest = folder.backups / damaged / "manifest.json"
    manifest.write_bytes(manifest.read_bytes()[:-9])
    finished(folder)
    with pytest.raises(DataCorrupt):
        folder.drop_unused()
    assert folder.is_there(needed)


def test_a_folder_is_one_cluster_s_also_after_a_repair_has_renamed_it(folder: BackupFolder) -> None:
    with pytest.raises(NotAllowed, match="another cluster"):
        folder.claim("b" * 16, [])
    folder.claim("b" * 16, [STORE.id])
    assert folder.owner().store == "b" * 16


def test_a_new_backup_comes_behind_all_others_also_once_old_ones_are_dropped(folder: BackupFolder) -> None:
    """▲ By their names the newest is restored, and the oldest are dropped."""
    first, *kept = [folder.begin("20261122T100000Z") for _ in range(3)]
    folder.discard(first)
    assert folder.begin("20261122T100000Z") > max(kept)


def test_a_second_process_is_refused_at_once(folder: BackupFolder) -> None:
    outcomes: list[object] = []

    def enter() -> None:
        try:
            with BackupFolder(folder.path).locked():
                outcomes.append("entered")
        except NotAllowed as error:
            outcomes.append(error)

    with folder.locked():
        second = threading.Thread(target=enter, daemon=True)
        second.start()
        second.join(20)
        assert [type(one) for one in outcomes] == [NotAllowed]


def test_a_folder_is_free_again_behind_each_who_has_held_it(folder: BackupFolder) -> None:
    for _ in range(2):
        with folder.locked():
            assert folder.owner().store == STORE.id


def test_what_is_no_folder_of_backups_and_one_with_a_damaged_mark_are_told_apart(
    folder: BackupFolder, tmp_path: Path
) -> None:
    (tmp_path / "file").write_bytes(b"")
    for path in (tmp_path / "none", tmp_path / "file"):
        with pytest.raises(InvalidArgument, match="holds no backups"):
            BackupFolder(path).owner()
    (folder.path / folders.MARKER).write_bytes(b"{")
    with pytest.raises(DataCorrupt, match=folders.MARKER):
        folder.owner()


def test_a_manifest_of_another_form_is_none_though_its_checksum_matches() -> None:
    with pytest.raises(DataCorrupt, match="not a manifest of version"):
        decode_manifest(b"{}\n" + hashlib.sha256(b"{}").hexdigest().encode(), "there")


def test_a_content_that_is_gone_is_told_and_is_set_aside_already(folder: BackupFolder, tmp_path: Path) -> None:
    (gone,) = contents(folder, tmp_path, 1)
    (folder.objects / gone.object).unlink()
    with pytest.raises(DataCorrupt, match="is not there"):
        folder.verify(gone)
    folder.set_aside(gone)
    assert not folder.is_there(gone)


def test_of_a_journal_that_was_cut_off_all_whole_lines_count(folder: BackupFolder, tmp_path: Path) -> None:
    name = folder.begin("now")
    assert folder.noted(name) == []
    files = contents(folder, tmp_path, 3)
    for one in files:
        folder.note(name, one)
    journal = folder.backups / name / folders.JOURNAL
    journal.write_bytes(journal.read_bytes()[:-5])
    assert folder.noted(name) == files[:2]


def test_a_copy_that_fails_leaves_nothing_half_written(tmp_path: Path) -> None:
    def pieces() -> Iterator[bytes]:
        yield b"some"
        raise OSError("the disk fails")

    with pytest.raises(OSError, match="the disk fails"):
        folders.write_whole(tmp_path / "target", pieces(), lambda _size, _digest: tmp_path / "target")
    assert list(tmp_path.iterdir()) == []


def test_progress_counts_all_files_and_bytes() -> None:
    told: list[str] = []
    progress = CopyProgress(told.append, "copying", 5, 1000)
    progress.add(300, files=3)
    progress.add(200)
    assert "4 of 5 files" in told[-1]
    assert "50 %" in told[-1]


def test_a_new_content_does_not_replace_what_an_earlier_backup_relies_on(folder: BackupFolder, tmp_path: Path) -> None:
    source = tmp_path / "one"
    source.write_bytes(b"one")
    earlier = copied(folder, source)
    source.write_bytes(b"ONE, and more")
    later = copied(folder, source)
    folder.verify(earlier)
    folder.verify(later)


def test_all_copies_have_durable_names_before_the_manifest_has_one(
    folder: BackupFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """▲ After a power failure a manifest would name files that are gone."""
    (tmp_path / "one").write_bytes(b"one")
    files = [copied(folder, tmp_path / "one", path) for path in ("a/0.ledger", "a/1.ledger", "b/0.ledger")]
    synced: list[Path] = []

    def replace(path: Path, data: bytes) -> None:
        assert {folder.objects / "a", folder.objects / "b"} <= set(synced), "not durable yet"
        path.write_bytes(data)

    monkeypatch.setattr(folders, "sync_directory", synced.append)
    monkeypatch.setattr(folders, "replace_file", replace)
    name = finished(folder, *files)
    assert folder.whole() == [name]


def test_what_stands_beside_a_ledger_is_copied_before_it(tmp_path: Path) -> None:
    """▲ A footer or sidecar copied later might tell of entries that the copy of the ledger lacks."""
    for kind in ("ledger", "count", "footer", "sidecar", "fence"):
        (tmp_path / f"1.{kind}").write_bytes(b"")
    [ledger] = ledgers_of(tmp_path, tmp_path)
    assert ledger.files[-1].path == "1.ledger"
    assert len(ledger.files) == 5


def test_every_ledger_of_a_segment_is_listed_and_what_has_gone_meanwhile_is_not(tmp_path: Path) -> None:
    for name in ("10.ledger", "1.ledger", "2.ledger", "3.fence"):
        (tmp_path / name).write_bytes(b"")
    assert [one.ledger_id for one in ledgers_of(tmp_path, tmp_path)] == [1, 2, 10]
    assert source_file(tmp_path, tmp_path / "3.ledger") is None


def test_etcd_s_own_checksum_tells_a_snapshot_that_is_cut_off_or_damaged(tmp_path: Path) -> None:
    path = tmp_path / "snapshot"
    records = os.urandom(3 * SECTOR_BYTES)
    whole = records + hashlib.sha256(records).digest()
    path.write_bytes(whole)
    expect_whole_snapshot(path)
    for wrong, told in (
        (whole[:-1], "cut off"),
        (records, "cut off"),
        (whole[:700] + bytes([whole[700] ^ 1]) + whole[701:], "damaged"),
    ):
        path.write_bytes(wrong)
        with pytest.raises(DataCorrupt, match=told):
            expect_whole_snapshot(path)


def taking(store: MemoryStore, data_dir: Path, folder: BackupFolder) -> _Taking:
    return _Taking(cast(Any, store), ServerSettings(), data_dir, folder, lambda _: None)


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    root = tmp_path / "data" / "ledgers"
    root.mkdir(parents=True)
    (root / FOLDER_MARK).write_text("0123456789abcdef\n")
    return tmp_path / "data"


class Snapshots(MemoryStore):
    async def snapshot(self) -> AsyncIterator[bytes]:
        """In two pieces."""
        records = bytes(2 * SECTOR_BYTES)
        yield records
        yield hashlib.sha256(records).digest()


async def test_a_copy_of_etcd_that_comes_in_pieces_has_all_of_them(data_dir: Path, folder: BackupFolder) -> None:
    store = Snapshots(MemoryEtcd(SystemClock()), SystemClock(), Random(1))
    name = folder.begin("now")
    etcd = await taking(store, data_dir, folder)._copy_etcd(name)
    await store.close()
    assert etcd.size == folder.etcd_path(name).stat().st_size == 2 * SECTOR_BYTES + 32
    folders.verify_file(folder.etcd_path(name), size=etcd.size, sha256=etcd.sha256)


async def identified(store: MemoryStore, identity: Incarnation) -> None:
    await store.commit(Commit(puts=(Put(keys.INCARNATION, encode(identity)),)))


async def test_a_repair_or_a_lost_folder_during_the_backup_ends_it(
    data_dir: Path, folder: BackupFolder, store: MemoryStore
) -> None:
    await identified(store, STORE)
    backup = taking(store, data_dir, folder)
    assert await backup._expect_same(STORE) > 0
    shutil.move(data_dir, data_dir.with_name("unmounted"))
    (data_dir / "ledgers").mkdir(parents=True)
    with pytest.raises(FolderGone):
        await backup._expect_same(STORE)
    await identified(store, Incarnation(id="b" * 16, created_ms=1, former=[STORE.id], generation=2))
    with pytest.raises(NotAllowed, match="repaired during the backup"):
        await backup._expect_same(STORE)


async def test_etcd_and_ledgers_of_two_clusters_make_no_backup(data_dir: Path, store: MemoryStore) -> None:
    await identified(store, STORE)
    with pytest.raises(NotAllowed, match="no data folder of brokers"):
        await _expect_folder_of(cast(Any, store), data_dir)
    StoreMark(data_dir).write(STORE, 1)
    found = await _expect_folder_of(cast(Any, store), data_dir)
    assert found.incarnation == STORE.id
    record = DataFolder(id="f" * 16, broker="b1", path="/elsewhere")
    await store.commit(Commit(puts=(Put(keys.DATA_FOLDER, encode(record)),)))
    with pytest.raises(NotAllowed, match="/elsewhere"):
        await _expect_folder_of(cast(Any, store), data_dir)
    ledger_files.replace_file(data_dir / "store-mark", b'{"incarnation": "%s", "revision": 1}' % (b"c" * 16))
    assert isinstance(StoreMark(data_dir).read(), Mark)
    with pytest.raises(StoreUnfit, match="another"):
        await _expect_folder_of(cast(Any, store), data_dir)
