"""The folder of backups: names in order, one process at a time, and what must be durable before a manifest."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from txnctl.backup import folder as folders
from txnctl.backup.folder import BackupFolder
from txnctl.backup.manifest import BackupManifest, CopiedFile, EtcdCopy
from txnwire.errors import NotAllowed


@pytest.fixture
def folder(tmp_path: Path) -> BackupFolder:
    made = BackupFolder(tmp_path / "backups")
    made.claim("store", [])
    return made


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


def test_all_copies_have_durable_names_before_the_manifest_has_one(
    folder: BackupFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """▲ After a power failure a manifest would name files that are gone."""
    name = folder.begin("now")
    files: list[CopiedFile] = []
    synced: list[Path] = []
    monkeypatch.setattr(folders, "sync_directory", synced.append)
    source = folder.path / "source"
    source.write_bytes(b"entries")
    for path in ("a/0.ledger", "a/1.ledger", "b/0.ledger"):
        with source.open("rb") as file:
            files.append(folder.copy_in(file, path, 0))
    synced.clear()
    manifest = BackupManifest(
        store="store",
        former=[],
        generation=0,
        segment_floor=0,
        prefix="",
        taken_ms=1,
        etcd=EtcdCopy(size=0, sha256="", revision=1),
        revision=1,
        files=files,
    )

    def replace(path: Path, data: bytes) -> None:
        assert {folder.objects / "a", folder.objects / "b"} <= set(synced), "not durable yet"
        path.write_bytes(data)

    monkeypatch.setattr(folders, "replace_file", replace)
    folder.finish(name, manifest)
    assert folder.whole() == [name]
