"""Backups and restores that are ended, fail for want of room, or run beside another one: what they leave behind."""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from segments.ledger.ledger_files import FOLDER_MARK
from tests.txnctl.command_line import txnctl
from tests.waiting import idle, until
from txnctl.backup.etcd_files import find_tool, restore_etcd
from txnctl.backup.folder import MANIFEST, BackupFolder
from txnctl.backup.manifest import BackupManifest, CopiedFile, EtcdCopy
from txnctl.backup.progress import in_thread
from txnctl.backup.restoring import Restored, _end, _restore_ledgers, _verified, expect_empty, restore_whole
from txnctl.backup.taking import TakenBackup, take_backup
from txnctl.checking.everything import Checked
from txnctl.commands.backups import _start
from txnctl.process.settings import ServerSettings
from txnctl.process.store_mark import StoreMark
from txnstore.etcd.etcd_store import EtcdStore
from txnwire.errors import DataCorrupt, InvalidArgument, NotAllowed, StoreFull

LEDGER = "tenant/space/topic/0000-ffff-0/1.ledger"


class Folders:
    """A data folder with one file, and a folder of backups beside it."""

    def __init__(self, path: Path, etcd: str, prefix: str) -> None:
        self.data_dir = path / "data"
        self.backups = BackupFolder(path / "backups")
        self.settings = ServerSettings(
            etcd=etcd, etcd_prefix=prefix, data_dir=self.data_dir, allow_development_etcd=True
        )
        (self.data_dir / "ledgers").mkdir(parents=True)
        (self.data_dir / "ledgers" / FOLDER_MARK).write_text("0123456789abcdef\n")

    def write(self, content: bytes, name: str = LEDGER) -> None:
        path = self.data_dir / "ledgers" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)

    async def back_up(self, *, keep: int | None = None) -> TakenBackup:
        return await take_backup(self.settings, self.backups.path, lambda _: None, keep=keep)

    def etcd_copies(self) -> list[Path]:
        return list(self.backups.backups.rglob("etcd.snapshot*"))


@pytest.fixture
async def folders(tmp_path: Path, etcd: str, store: EtcdStore, key_prefix: str) -> Folders:
    found = Folders(tmp_path, etcd, key_prefix)
    StoreMark(found.data_dir).write(await store.identity(), 1)
    return found


def small_disk(folders: Folders, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """The disk of the backups has room for so many bytes of ledgers."""

    def usage(_: Path) -> SimpleNamespace:
        used = sum(path.stat().st_size for path in folders.backups.objects.rglob("*") if path.is_file())
        return SimpleNamespace(free=size - used)

    monkeypatch.setattr(shutil, "disk_usage", usage)


async def test_backups_that_fail_one_after_the_other_leave_one_copy_of_etcd_at_most(
    folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders.write(bytes(1000))
    await folders.back_up()
    small_disk(folders, monkeypatch, 1500)
    folders.write(bytes(1001))
    for _ in range(3):
        with pytest.raises(StoreFull, match="smaller --keep"):
            await folders.back_up()
        assert len(folders.etcd_copies()) <= 2
    assert len(folders.backups.whole()) == 1


async def test_fewer_kept_backups_make_room_for_the_next(folders: Folders, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the error of a full disk says."""
    for size in (1000, 1001, 1002):
        folders.write(bytes(size))
        await folders.back_up()
    small_disk(folders, monkeypatch, 3500)
    folders.write(bytes(1003))
    with pytest.raises(StoreFull):
        await folders.back_up(keep=3)
    assert len(folders.backups.whole()) == 3
    taken = await folders.back_up(keep=2)
    assert folders.backups.whole()[-1] == taken.name


async def test_a_damaged_older_manifest_is_told_behind_the_new_backup(folders: Folders) -> None:
    """▲ Every backup with `--keep` would fail otherwise, before it has copied anything."""
    for size in (1000, 1001):
        folders.write(bytes(size))
        await folders.back_up()
    damaged, _ = folders.backups.whole()
    (folders.backups.backups / damaged / MANIFEST).write_bytes(b"{")
    folders.write(bytes(1002))
    with pytest.raises(DataCorrupt, match=damaged):
        await folders.back_up(keep=3)
    assert len(folders.backups.whole()) == 3


async def test_what_an_unfinished_backup_has_copied_stays_for_the_next(folders: Folders) -> None:
    folders.write(bytes(1000))
    await folders.back_up()
    name = folders.backups.begin("now")
    source = folders.backups.path.parent / "copied"
    source.write_bytes(b"by a run that was cut off")
    with source.open("rb") as file:
        copied = folders.backups.copy_in(file, "tenant/space/topic/0000-ffff-0/2.ledger", 0)
    folders.backups.note(name, copied)
    folders.backups.drop_unused()
    assert folders.backups.is_there(copied)


async def test_what_several_unfinished_backups_have_copied_is_not_copied_again_and_they_go(folders: Folders) -> None:
    """Nor what the newest whole one has."""
    root = folders.data_dir / "ledgers"
    names = [f"tenant/space/topic/0000-ffff-0/{number}.ledger" for number in range(7)]

    def write(some: list[str]) -> None:
        for name in some:
            folders.write(bytes(1000), name)
            os.utime(root / name, ns=(1, 1))  # long ago

    write(names[:2])
    first = await folders.back_up()
    assert (first.copied_files, first.copied_bytes) == (2, 2000)
    write(names[2:])
    for some in (names[2:4], names[4:6]):
        unfinished = folders.backups.begin("now")
        for name in some:
            with (root / name).open("rb") as file:
                folders.backups.note(unfinished, folders.backups.copy_in(file, name, 1))
    taken = await folders.back_up()
    assert (taken.copied_files, taken.copied_bytes, len(taken.manifest.files)) == (1, 1000, 7)
    assert folders.backups.unfinished() == []


async def test_a_restore_holds_its_backups_until_it_is_whole(
    folders: Folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another one into the same folder would take away what this one repairs. The environment is that of servers whose
    etcd has TLS."""
    await folders.back_up()
    monkeypatch.setenv("TXN_ETCD_CA", __file__)
    told: list[str] = []

    def beside(what: str) -> None:
        told.append(what)
        with pytest.raises(NotAllowed), BackupFolder(folders.backups.path).locked():
            pass

    await restore_whole(folders.backups, None, tmp_path / "restored", beside)
    assert "etcd" in told, "of the check after the repair"


async def test_what_is_wrong_in_the_environment_is_told_before_anything_is_restored(
    folders: Folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await folders.back_up()
    monkeypatch.setenv("TXN_LEASE_TTL_S", "soon")
    monkeypatch.setenv("TXN_ETCD_CA", str(tmp_path / "mounted elsewhere"))
    with pytest.raises(InvalidArgument, match=r"^wrong settings: lease_ttl_s: [^;]*$"):
        await restore_whole(folders.backups, None, tmp_path / "restored", lambda _: None)
    assert not list(tmp_path.glob("*restor*"))


class Copies:
    """A whole backup of a few files."""

    def __init__(self, path: Path) -> None:
        self.backups = BackupFolder(path / "backups")
        self.backups.claim("store", [])
        source = path / "source"
        source.write_bytes(b"content")
        files: list[CopiedFile] = []
        for number in range(5):
            with source.open("rb") as file:
                files.append(self.backups.copy_in(file, f"tenant/space/topic/0000-ffff-0/{number}.ledger", 0))
        etcd = EtcdCopy(size=0, sha256="", revision=1)
        self.manifest = BackupManifest(
            store="store", former=[], generation=1, segment_floor=0, prefix="", taken_ms=0, etcd=etcd, revision=1,
            files=files,
        )  # fmt: skip


async def test_a_restore_that_is_ended_writes_nothing_more(tmp_path: Path) -> None:
    """▲ The next restore may have begun by then, in the same folder."""
    copies, loop = Copies(tmp_path), asyncio.get_running_loop()

    async def end() -> None:
        restoring.cancel()
        for _ in range(10):
            await asyncio.sleep(0)

    def ended_after_one(what: str) -> None:
        if " 1 of 5 files" in what:
            asyncio.run_coroutine_threadsafe(end(), loop).result(20)

    restoring = asyncio.create_task(
        _restore_ledgers(copies.backups, copies.manifest, tmp_path / "restored", ended_after_one)
    )
    with pytest.raises(asyncio.CancelledError):
        await restoring
    await loop.shutdown_default_executor()
    assert len(list((tmp_path / "restored").rglob("*.ledger"))) <= 2


async def test_every_ledger_of_a_backup_is_restored_and_its_folder_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies, told = Copies(tmp_path), list[str]()
    assert copies.manifest.bytes == 35, "so much room is asked for"
    await _restore_ledgers(copies.backups, copies.manifest, tmp_path / "made" / "data", told.append)
    assert len(list((tmp_path / "made").rglob("*.ledger"))) == 5
    assert told[-1] == "restoring ledgers: 5 of 5 files, 35 B of 35 B (100 %)"
    synced: list[Path] = []
    monkeypatch.setattr("txnctl.backup.restoring.sync_directory", synced.append)
    folders = [path for path in (tmp_path / "made").rglob("*") if path.is_dir()]
    _end(tmp_path / "made", tmp_path / "restored")
    assert {*folders, tmp_path / "made", tmp_path} <= set(synced)


async def test_a_damaged_backup_is_refused_with_the_names_of_all_others(folders: Folders) -> None:
    names = [(await folders.back_up()).name for _ in range(3)]
    path = folders.backups.etcd_path(names[1])
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataCorrupt, match=f"names an older one: {names[0]}, {names[2]}$"):
        await _verified(folders.backups, names[1], lambda _: None)


async def test_a_restore_that_is_ended_leaves_no_tool_of_etcd_at_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """▲ It would write into the folder of the next restore."""
    tool, pid = tmp_path / "etcdutl", tmp_path / "pid"
    tool.write_text(f"#!/bin/sh\necho $$ > {pid}.new\nmv {pid}.new {pid}\nexec sleep 60\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    restoring = asyncio.ensure_future(restore_etcd(tmp_path / "etcd.snapshot", tmp_path / "etcd"))
    await until(pid.exists)
    restoring.cancel()
    with pytest.raises(asyncio.CancelledError):
        await restoring
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


def test_the_older_tool_of_etcd_is_taken_where_the_newer_one_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("etcd", "etcdctl"):
        (tmp_path / name).touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_tool() == tmp_path / "etcdctl"


async def test_who_is_ended_waits_for_its_thread() -> None:
    begun, go_on, done = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        go_on.wait(20)
        done.set()

    waiting = asyncio.create_task(in_thread(work, stop=go_on.set))
    await asyncio.to_thread(begun.wait, 20)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert done.is_set()


async def test_who_is_ended_twice_waits_for_its_thread_all_the_same() -> None:
    """As by a second SIGTERM."""
    begun, stopped, go_on, done = [threading.Event() for _ in range(4)]

    def work() -> None:
        begun.set()
        go_on.wait(20)
        done.set()

    waiting = asyncio.create_task(in_thread(work, stop=stopped.set))
    await asyncio.to_thread(begun.wait, 20)
    waiting.cancel()
    await until(stopped.is_set)
    waiting.cancel()
    await idle()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert done.is_set()


@pytest.mark.parametrize("kind", ["link", "mount"])
def test_a_folder_that_cannot_be_replaced_is_refused_before_anything_is_copied(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "disk").mkdir()
    to = tmp_path / "disk"
    if kind == "link":
        to = tmp_path / "link"
        to.symlink_to(tmp_path / "disk")
    else:
        disk = to
        monkeypatch.setattr(Path, "is_mount", lambda path: path == disk)
    with pytest.raises(NotAllowed, match="name a folder in it"):
        expect_empty(to)
    expect_empty(to / "new")


def test_a_folder_that_something_has_come_into_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    made, to = tmp_path / "made", tmp_path / "to"
    made.mkdir()
    to.mkdir()
    (to / "file").write_bytes(b"")
    with pytest.raises(NotAllowed, match="cannot become"):
        _end(made, to)
    assert (made.is_dir(), [path.name for path in to.iterdir()]) == (True, ["file"])


async def test_verify_tells_of_each_backup_whether_it_can_be_restored(folders: Folders) -> None:
    """At the first damaged one nobody would know which of the others to take."""
    names = []
    for size in (1000, 1001, 1002):
        folders.write(bytes(size))
        names.append((await folders.back_up()).name)
    for name in names[:2]:
        path = folders.backups.etcd_path(name)
        path.write_bytes(path.read_bytes()[:-1])
    words = ("backup", str(folders.backups.path), "--verify", "-o", "json")
    done = await txnctl(*words)
    assert (done.code, "2 of 3 backups cannot be restored" in done.err) == (1, True), done
    assert [(row["backup"], "error" in row) for row in done.json] == list(zip(names, (True, True, False), strict=True))
    with folders.backups.locked():
        refused = await txnctl(*words)
    assert (refused.code, "under way" in refused.err) == (1, True), refused


async def test_a_restored_cluster_is_started_with_the_prefix_of_its_keys(folders: Folders, tmp_path: Path) -> None:
    await folders.back_up()
    done = await txnctl("restore", str(folders.backups.path), "--to", str(tmp_path / "new one"))
    prefix = folders.settings.etcd_prefix
    assert f"start it with: TXN_ETCD_PREFIX={prefix} txnctl dev --data-dir '{tmp_path}/new one'" in done.out, done


@pytest.mark.parametrize(
    ("prefix", "inherited", "told"),
    [
        ("", None, "txnctl dev"),
        ("", "/other", "TXN_ETCD_PREFIX='' txnctl dev"),
        ("/a", None, "TXN_ETCD_PREFIX=/a txnctl dev"),
        ("/a", "/other", "TXN_ETCD_PREFIX=/a txnctl dev"),
    ],
)
def test_a_prefix_of_the_environment_is_not_that_of_what_was_restored(
    prefix: str, inherited: str | None, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """▲ `txnctl dev` heeds the environment, and would show a cluster without topics."""
    monkeypatch.delenv("TXN_ETCD_PREFIX", raising=False)
    if inherited is not None:
        monkeypatch.setenv("TXN_ETCD_PREFIX", inherited)
    copied = EtcdCopy(size=0, sha256="", revision=1)
    manifest = BackupManifest(
        store="", former=[], generation=0, segment_floor=0, prefix=prefix, taken_ms=0, etcd=copied, revision=1, files=[]
    )
    restored = Restored("one", manifest, Path("/restored"), Checked(1, [], []))
    assert _start(restored) == f"{told} --data-dir /restored"
