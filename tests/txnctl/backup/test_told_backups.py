"""What backups and restores say: of their size, of what is in the way, and of what was damaged already."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import typer

from txnctl.backup import taking
from txnctl.backup.etcd_files import find_tool
from txnctl.backup.folder import BackupFolder
from txnctl.backup.manifest import BackupManifest, CopiedFile, EtcdCopy, decode_manifest, encode_manifest
from txnctl.backup.progress import size_text
from txnctl.backup.restoring import _begin, expect_empty
from txnctl.backup.taking import TakenBackup, take_backup
from txnctl.commands.backups import backup, expect_folder, restore
from txnctl.commands.shared.output import Format
from txnctl.process import logs
from txnctl.process.settings import ServerSettings
from txnwire.errors import DataCorrupt, InternalError, InvalidArgument, NotAllowed, StoreFull


def manifest(*, files: int = 0, damaged: list[str] | None = None, v: int = 1) -> BackupManifest:
    return BackupManifest(
        v=v,
        store="a",
        former=[],
        generation=0,
        segment_floor=0,
        prefix="",
        revision=9,
        taken_ms=1_700_000_000_000,
        etcd=EtcdCopy(size=1000, sha256="", revision=7),
        files=[CopiedFile(path=f"{number}.ledger", size=500, sha256="") for number in range(files)],
        damaged=damaged or [],
    )


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (1_250_000, "1.2 MB"),
        (999_949_999, "999.9 MB"),
        (10**9, "1.0 GB"),
        (10**12, "1.0 TB"),
        (5 * 10**15, "5000.0 TB"),
    ],
)
def test_a_size_is_told_in_the_largest_unit_that_it_has_one_of(size: int, text: str) -> None:
    assert size_text(size) == text


def test_a_manifest_has_all_bytes_and_comes_back_as_it_was() -> None:
    written = manifest(files=3, damaged=["a ledger"])
    assert written.bytes == 2500
    assert decode_manifest(encode_manifest(written), "there") == written


def test_a_manifest_of_a_later_version_or_a_changed_one_is_named_with_what_it_is() -> None:
    with pytest.raises(DataCorrupt, match=r"^there: manifest version 2; this program reads 1$"):
        decode_manifest(encode_manifest(manifest(v=2)), "there")
    changed = encode_manifest(manifest()).replace(b'"revision":9', b'"revision":8')
    with pytest.raises(DataCorrupt, match=r"^there: its checksum does not match: .* take its folder away$"):
        decode_manifest(changed, "there")
    other = b"[]\n" + hashlib.sha256(b"[]").hexdigest().encode() + b"\n"
    with pytest.raises(DataCorrupt, match=r"^there: not a manifest of version 1: Expected"):
        decode_manifest(other, "there")


def test_where_etcds_tool_is_not_installed_it_is_said_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "etcd").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InternalError, match="neither etcdutl nor etcdctl is found: install Debian's etcd-client"):
        find_tool()
    for tool in ("etcdctl", "etcdutl"):  # the newer one before the other
        (tmp_path / tool).touch(mode=0o755)
        assert find_tool() == tmp_path / tool


def test_a_folder_that_is_in_the_way_of_a_restore_is_named_with_what_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty, full, file, link = [tmp_path / name for name in ("empty", "full", "file", "link")]
    empty.mkdir()
    full.mkdir()
    (full / "kept").touch()
    file.touch()
    link.symlink_to(empty)
    expect_empty(empty)
    expect_empty(tmp_path / "none")
    for folder, said in (
        (full, f"^{full} holds something: .*`txnctl check --repair` goes on"),
        (file, f"^{file} is a file: name a folder that is empty"),
        (link, f"^{link} is a symbolic link, and a restore takes a folder's place as a whole"),
    ):
        with pytest.raises(NotAllowed, match=said):
            expect_empty(folder)
    monkeypatch.setattr(Path, "is_mount", lambda path: path == empty)
    with pytest.raises(NotAllowed, match=f"^{empty} is where a disk is mounted, and a restore"):
        expect_empty(empty)


def test_a_restore_begins_in_a_new_folder_beside_and_only_where_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    to = tmp_path / "new"
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1500))
    with pytest.raises(StoreFull, match=rf"^{to}: 1\.5 kB are to be restored and 1\.5 kB are free: make room$"):
        _begin(to, 1501)
    made = _begin(to, 1500)
    (made / "left").touch()
    again = _begin(to, 0)
    assert (again, list(again.iterdir()), to.exists()) == (made, [], False)
    assert made.parent == tmp_path
    shutil.rmtree(made)


async def test_a_backup_into_the_data_folder_is_refused(tmp_path: Path) -> None:
    """▲ It would be lost with the disk that it is to stand in for."""
    settings = ServerSettings(data_dir=tmp_path)
    for to in (tmp_path, tmp_path / "backups"):
        with pytest.raises(InvalidArgument, match=f"^{to} lies in the data folder {tmp_path}: a backup belongs on an"):
            await take_backup(settings, to, lambda _: None)


def test_a_folder_of_backups_is_no_address() -> None:
    assert expect_folder("backups/of/it") == Path("backups/of/it")
    for text in ("s3://bucket", "file:///there"):
        with pytest.raises(InvalidArgument, match=f"{text}: backups are kept in folders"):
            expect_folder(text)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "give either --to FOLDER, or --data-dir FOLDER"),
        ({"to": Path("a"), "data_dir": Path("b")}, "give either --to FOLDER, or --data-dir FOLDER"),
        ({"to": Path("a"), "etcd": "http://h:1"}, "--to makes an etcd of its own; --etcd goes with --data-dir"),
    ],
)
def test_a_restore_goes_to_a_whole_cluster_or_beside_an_etcd(
    tmp_path: Path, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidArgument, match=said):
        restore(str(tmp_path), **options)


@pytest.fixture(autouse=True)
def logging_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command sets up the logging of its process, which is that of all tests here."""
    monkeypatch.setattr(logs, "configure", lambda _: None)


def told_by(command: Any) -> int:
    with pytest.raises(typer.Exit) as ended:
        command()
    return ended.value.exit_code


@pytest.mark.parametrize("damaged", [[], ["1.ledger is cut off", "2.ledger is cut off"]], ids=["sound", "damaged"])
def test_a_backup_is_told_with_its_size_and_each_file_that_was_damaged_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], damaged: list[str]
) -> None:
    async def taken(*_: object, **__: object) -> TakenBackup:
        return TakenBackup("one", manifest(files=3, damaged=damaged), 1, 500)

    monkeypatch.setattr(taking, "take_backup", taken)
    code = int(bool(damaged))
    assert told_by(lambda: backup(str(tmp_path), etcd="http://h:1")) == code
    assert capsys.readouterr().out.splitlines() == [
        f"{tmp_path}: backup one is whole, everything as of etcd's revision 7",
        "3 files of ledgers, 2,500 bytes in all with etcd",
        "copied now: 1 file, 500 bytes, and etcd",
        *(f"damaged in the data folder already, and copied as it is: {text}" for text in damaged),
    ]
    assert told_by(lambda: backup(str(tmp_path), etcd="http://h:1", output=Format.JSON)) == code
    assert msgspec.json.decode(capsys.readouterr().out) == {
        **{"backup": "one", "taken": "2023-11-14T22:13:20Z", "files": 3, "bytes": 2500, "revision": 7},
        **{"copied_files": 1, "copied_bytes": 500, "damaged": damaged},
    }


def test_where_there_is_no_whole_backup_verifying_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    BackupFolder(tmp_path / "backups").claim("a" * 16, [])
    assert told_by(lambda: backup(str(tmp_path / "backups"), verify=True)) == 1
    assert f"{tmp_path / 'backups'} holds no whole backup" in capsys.readouterr().err
