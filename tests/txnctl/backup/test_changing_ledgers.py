"""Ledgers that change while a backup copies them. The hook for progress makes the change between two ledgers."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from segments.ledger.ledger_files import FOLDER_MARK
from txnctl.backup.folder import BackupFolder
from txnctl.backup.manifest import BackupManifest, CopiedFile, EtcdCopy
from txnctl.backup.taking import _Taking, verify_backup
from txnctl.process.settings import ServerSettings
from txnwire.errors import DataCorrupt, StoreFull

NAME = "000001-now"


class Ledgers:
    def __init__(self, tmp_path: Path) -> None:
        self.data_dir = tmp_path / "data"
        self.root = self.data_dir / "ledgers"
        self.backups = BackupFolder(tmp_path / "backups")
        self.root.mkdir(parents=True)
        (self.root / FOLDER_MARK).write_text("0123456789abcdef\n")
        self.backups.claim("store", [])
        self.backups.begin("now")

    def write(self, path: str, size: int) -> None:
        file = self.root / "tenant/space/topic" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(bytes(size))

    def remove(self, path: str) -> None:
        (self.root / "tenant/space/topic" / path).unlink()

    async def copied(
        self, change: Callable[[], None] = lambda: None, known: list[CopiedFile] | None = None, *, behind: int = 1
    ) -> list[CopiedFile]:
        """`change` is called once so many ledgers have been copied."""
        changes = [change, *[lambda: None] * behind]  # progress is told of before the first one too

        def on_progress(_: str) -> None:
            if changes:
                changes.pop()()

        taking = _Taking(cast(Any, None), ServerSettings(), self.data_dir, self.backups, on_progress)
        taking._known = {one.path: one for one in known or ()}
        files, _written = await taking._copy_ledgers(NAME)
        return files


def sizes(files: list[CopiedFile]) -> dict[str, int]:
    return {one.path.removeprefix("tenant/space/topic/"): one.size for one in files}


async def test_a_ledger_that_grows_before_its_turn_is_not_taken_for_the_one_of_the_last_backup(tmp_path: Path) -> None:
    """▲ Its footer was renewed too: beside the earlier copy it would cover entries that are not there."""
    ledgers = Ledgers(tmp_path)
    for path in ("a/0.ledger", "b/0.ledger", "b/0.footer"):
        ledgers.write(path, 10)
    known = [settled(one, ledgers.root) for one in await ledgers.copied()]

    def grow() -> None:
        ledgers.write("b/0.footer", 12)
        ledgers.write("b/0.ledger", 20)

    found = sizes(await ledgers.copied(grow, known))
    assert found == {"a/0.ledger": 10, "b/0.footer": 12, "b/0.ledger": 20}


def settled(file: CopiedFile, root: Path) -> CopiedFile:
    """As copied long after its last change."""
    return CopiedFile(
        path=file.path, size=file.size, sha256=file.sha256, mtime_ns=(root / file.path).stat().st_mtime_ns
    )


async def test_what_retention_takes_meanwhile_leaves_no_gap(tmp_path: Path) -> None:
    """▲ A gap is taken for lost data: whole transactions would be aborted, or half ones shown."""
    ledgers = Ledgers(tmp_path)
    for number in range(4):
        ledgers.write(f"a/{number}.ledger", 10 + number)

    def trim() -> None:
        ledgers.remove("a/0.ledger")
        ledgers.remove("a/1.ledger")

    assert sizes(await ledgers.copied(trim)) == {"a/2.ledger": 12, "a/3.ledger": 13}


@pytest.mark.parametrize("behind", [1, 2])
async def test_what_retention_takes_of_what_was_copied_and_of_what_was_not_leaves_no_gap_in_between(
    tmp_path: Path, behind: int
) -> None:
    ledgers = Ledgers(tmp_path)
    for number in range(5):
        ledgers.write(f"a/{number}.ledger", 10 + number)

    def trim() -> None:
        for number in range(3):
            ledgers.remove(f"a/{number}.ledger")

    assert sizes(await ledgers.copied(trim, behind=behind)) == {"a/3.ledger": 13, "a/4.ledger": 14}


async def test_what_goes_right_after_it_was_copied_takes_all_before_it_along(tmp_path: Path) -> None:
    ledgers = Ledgers(tmp_path)
    for number in range(3):
        ledgers.write(f"a/{number}.ledger", 10 + number)
    known = [settled(one, ledgers.root) for one in await ledgers.copied()]
    assert sizes(await ledgers.copied(lambda: ledgers.remove("a/0.ledger"), known)) == {
        "a/1.ledger": 11,
        "a/2.ledger": 12,
    }


async def test_a_topic_may_be_called_as_a_half_written_file_is(tmp_path: Path) -> None:
    backups = Ledgers(tmp_path).backups
    folder = backups.objects / "tenant/space/orders.tmp-old"
    folder.mkdir(parents=True)
    half = folder / "0.ledger.tmp-17"
    half.write_bytes(b"")
    backups.drop_leftovers()
    assert (folder.exists(), half.exists()) == (True, False)


async def test_a_copy_that_is_found_damaged_is_not_taken_for_that_ledger_by_the_next_backup(tmp_path: Path) -> None:
    """▲ Each later one would name it too, for as long as the ledger stays as it is."""
    ledgers = Ledgers(tmp_path)
    ledgers.write("a/0.ledger", 10)
    (copy,) = [settled(one, ledgers.root) for one in await ledgers.copied()]
    manifest = with_snapshot(ledgers.backups, [copy])
    await verify_backup(ledgers.backups, NAME, manifest, lambda _: None)
    with ledgers.backups.open(copy) as stored:
        Path(stored.name).chmod(0o600)
        Path(stored.name).write_bytes(bytes(9) + b"\1")
    for _ in range(2):
        with pytest.raises(DataCorrupt):
            await verify_backup(ledgers.backups, NAME, manifest, lambda _: None)
    (again,) = await ledgers.copied(known=[copy])
    assert again.sha256 == copy.sha256
    await verify_backup(ledgers.backups, NAME, manifest, lambda _: None)


async def test_a_ledger_that_has_just_changed_is_copied_again_whatever_its_time_says(tmp_path: Path) -> None:
    """▲ Within one tick of the file system's clock it may change once more, and keep its size."""
    ledgers = Ledgers(tmp_path)
    ledgers.write("a/0.ledger", 10)
    file = ledgers.root / "tenant/space/topic/a/0.ledger"
    (before,) = await ledgers.copied()
    at = file.stat()
    file.write_bytes(b"\1" * 10)
    os.utime(file, ns=(at.st_atime_ns, at.st_mtime_ns))
    (again,) = await ledgers.copied(known=[before])
    assert again.sha256 != before.sha256


def with_snapshot(backups: BackupFolder, files: list[CopiedFile]) -> BackupManifest:
    """Of an etcd without any record."""
    snapshot = hashlib.sha256(b"").digest()
    backups.etcd_path(NAME).write_bytes(snapshot)
    etcd = EtcdCopy(size=len(snapshot), sha256=hashlib.sha256(snapshot).hexdigest(), revision=1)
    return BackupManifest(
        store="store",
        former=[],
        generation=0,
        segment_floor=0,
        prefix="",
        taken_ms=1,
        etcd=etcd,
        revision=1,
        files=files,
    )


async def test_damage_is_told_no_more_once_the_ledger_is_gone_though_a_tenant_s_name_ends_like_its(
    tmp_path: Path,
) -> None:
    ledgers = Ledgers(tmp_path)
    for tenant in ("prod", "preprod"):
        file = ledgers.root / tenant / "space/topic/0000-ffff-0/1.ledger"
        file.parent.mkdir(parents=True)
        file.write_bytes(bytes(10))
    files = await ledgers.copied()
    etcd = with_snapshot(ledgers.backups, files).etcd
    taking = _Taking(cast(Any, None), ServerSettings(), ledgers.data_dir, ledgers.backups, lambda _: None)
    taking._verified, of_both = set(files), [f"{ledgers.data_dir}/ledgers/{one.path}: cut off" for one in files]
    taking._told = of_both
    await taking._read_back(NAME, etcd, [one for one in files if one.path.startswith("prod/")])
    assert taking._damaged == [text for text in of_both if "/prod/" in text]


async def test_damage_is_told_by_every_backup_that_has_the_damaged_ledgers(tmp_path: Path) -> None:
    """The second one copies and reads nothing of them: the manifest of the first one tells it."""
    ledgers = Ledgers(tmp_path)
    paths = ("a/0.ledger", "a/1.ledger", "b/0.ledger")
    for path in paths:
        ledgers.write(path, 10)
    files = await ledgers.copied()
    manifest = with_snapshot(ledgers.backups, files)
    told: list[list[str]] = []
    for _ in range(2):
        taking = _Taking(cast(Any, None), ServerSettings(), ledgers.data_dir, ledgers.backups, lambda _: None)
        if told:
            taking._recall()
        await taking._read_back(NAME, manifest.etcd, files)
        told.append(taking._damaged)
        ledgers.backups.finish(NAME, msgspec.structs.replace(manifest, damaged=taking._damaged))
    assert [path in text for path, text in zip(paths, told[0], strict=True)] == [True] * 3
    assert told[1] == told[0]


async def test_a_damaged_copy_behind_others_that_are_whole_is_found(tmp_path: Path) -> None:
    ledgers = Ledgers(tmp_path)
    for path in ("a/0.ledger", "b/0.ledger"):
        ledgers.write(path, 10)
    manifest = with_snapshot(ledgers.backups, await ledgers.copied())
    await verify_backup(ledgers.backups, NAME, manifest, lambda _: None)
    with ledgers.backups.open(manifest.files[1]) as stored:
        Path(stored.name).chmod(0o600)
        Path(stored.name).write_bytes(bytes(9) + b"\1")
    with pytest.raises(DataCorrupt, match=r"b/0\.ledger"):
        await verify_backup(ledgers.backups, NAME, manifest, lambda _: None)


async def test_room_is_expected_for_all_files_of_all_segments_before_anything_is_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledgers = Ledgers(tmp_path)
    for path in ("a/0.footer", "a/0.ledger", "a/1.ledger", "b/0.ledger"):
        ledgers.write(path, 1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=3999))
    with pytest.raises(StoreFull, match=r"4\.0 kB are to be copied"):
        await ledgers.copied()
    assert not list(ledgers.backups.objects.rglob("*.ledger*"))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=4000))
    told: list[str] = []
    taking = _Taking(cast(Any, None), ServerSettings(), ledgers.data_dir, ledgers.backups, told.append)
    files, _ = await taking._copy_ledgers(NAME)
    assert (len(files), told[-1]) == (4, "copying ledgers: 4 of 4 files, 4.0 kB of 4.0 kB (100 %)")
    etcd = with_snapshot(ledgers.backups, files).etcd
    await taking._read_back(NAME, etcd, files)
    assert told[-1] == "reading back: 5 of 5 files, 4.0 kB of 4.0 kB (100 %)"


async def test_room_is_expected_also_for_what_is_copied_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """▲ Otherwise a backup begins, fills the disk and fails."""
    ledgers = Ledgers(tmp_path)
    for path in ("a/0.ledger", "b/0.ledger"):
        ledgers.write(path, 1000)
    known = [settled(one, ledgers.root) for one in await ledgers.copied()]
    ledgers.backups.set_aside(known[0])
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=999))
    with pytest.raises(StoreFull, match=r"1\.0 kB are to be copied"):
        await ledgers.copied(known=known)


async def test_all_copies_that_are_damaged_are_copied_again_by_the_next_backup(tmp_path: Path) -> None:
    """▲ Read up to the first one, the next backup would name the second one, and still be damaged."""
    ledgers = Ledgers(tmp_path)
    for path in ("a/0.ledger", "b/0.ledger", "c/0.ledger"):
        ledgers.write(path, 10)
    copies = [settled(one, ledgers.root) for one in await ledgers.copied()]
    manifest = with_snapshot(ledgers.backups, copies)
    for one in copies[::2]:
        with ledgers.backups.open(one) as stored:
            Path(stored.name).chmod(0o600)
            Path(stored.name).write_bytes(bytes(9) + b"\1")
    with pytest.raises(DataCorrupt, match="; damaged besides: 1"):
        await verify_backup(ledgers.backups, NAME, manifest, lambda _: None)
    await ledgers.copied(known=copies)
    await verify_backup(ledgers.backups, NAME, manifest, lambda _: None)
