"""`txnctl backup` and `txnctl restore`"""

from __future__ import annotations

import os
import shlex
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from txnctl.commands.check import show_checked
from txnctl.commands.shared.beside import settings_beside
from txnctl.commands.shared.output import Format, Output, cell, counted, say, show_json, show_rows
from txnctl.commands.shared.running import run
from txnctl.process import logs
from txnctl.process.settings import load
from txnwire.errors import DataCorrupt, InvalidArgument

if TYPE_CHECKING:
    from rich.status import Status

    from txnctl.backup.manifest import BackupManifest
    from txnctl.backup.restoring import Restored

Folder = Annotated[str, typer.Argument(metavar="DIR", help="folder of the backups, on another disk")]
Etcd = Annotated[str | None, typer.Option(help="etcd endpoints, comma-separated")]
EtcdPrefix = Annotated[str | None, typer.Option(help="put before every key")]
COLUMNS = ("backup", "taken", "files", "bytes", "revision")

Config = Annotated[Path | None, typer.Option(help="TOML file with any of the settings")]

PREFIX = "TXN_ETCD_PREFIX"


def backup(
    folder: Folder,
    keep: Annotated[
        int | None,
        typer.Option(min=1, help="the newest backups to keep, older ones are deleted; default: all"),
    ] = None,
    verify: Annotated[bool, typer.Option("--verify", help="make none: read all that is there, and list it")] = False,
    etcd: Etcd = None,
    data_dir: Annotated[Path | None, typer.Option(help="where ledgers are kept")] = None,
    etcd_prefix: EtcdPrefix = None,
    config: Config = None,
    output: Output = Format.TABLE,
) -> None:
    """Back the cluster up while it works: etcd, then the ledgers.

    What DIR holds of earlier backups is not copied again. All that is written is read back. A backup that was cut off
    counts as none; run it again, it goes on. Without --etcd and --data-dir it looks
    where a server on this machine, or at TXN_URL, works."""
    from txnctl.backup.folder import BackupFolder
    from txnctl.backup.taking import take_backup, verify_backup

    logs.configure("critical")
    path = expect_folder(folder)

    async def check_all() -> int:
        backups = BackupFolder(path)
        rows: list[dict[str, object]] = []
        damaged: list[str] = []
        with backups.locked(), _progress() as status:
            for name in backups.whole():
                try:
                    _, manifest = backups.read(name)
                    await verify_backup(backups, name, manifest, status.update)
                except DataCorrupt as error:
                    damaged.append(f"{name}: {error}")
                    rows.append({**dict.fromkeys(COLUMNS), "backup": name, "error": str(error)})
                else:
                    rows.append(_row(name, manifest))
        columns = [*COLUMNS, *["error"] * bool(damaged)]
        show_rows(rows, columns, output, empty=f"{path} holds no whole backup")
        if damaged:
            raise DataCorrupt(f"{len(damaged)} of {len(rows)} backups cannot be restored: {'; '.join(damaged)}")
        return 0 if rows else 1

    async def work() -> int:
        settings = await settings_beside(config, etcd=etcd, data_dir=data_dir, etcd_prefix=etcd_prefix)
        with _progress() as status:
            taken = await take_backup(settings, path, status.update, keep=keep)
        manifest = taken.manifest
        if output is Format.JSON:
            copied = {"copied_files": taken.copied_files, "copied_bytes": taken.copied_bytes}
            show_json(_row(taken.name, manifest) | copied | {"damaged": manifest.damaged})
        else:
            say(f"{path}: backup {taken.name} is whole, everything as of etcd's revision {manifest.etcd.revision}")
            listed = counted(len(manifest.files), "file", "files")
            say(f"{listed} of ledgers, {cell(manifest.bytes)} bytes in all with etcd")
            copied_now = counted(taken.copied_files, "file", "files")
            say(f"copied now: {copied_now}, {cell(taken.copied_bytes)} bytes, and etcd")
            for text in manifest.damaged:
                say(f"damaged in the data folder already, and copied as it is: {text}")
        return 1 if manifest.damaged else 0

    run(check_all() if verify else work())


def restore(
    folder: Folder,
    to: Annotated[
        Path | None, typer.Option(help="new folder for all of it, with an etcd of its own, for txnctl dev")
    ] = None,
    name: Annotated[str | None, typer.Option("--backup", help="its name; default: the newest")] = None,
    data_dir: Annotated[
        Path | None, typer.Option(help="new data folder of brokers, beside an etcd restored from this backup")
    ] = None,
    etcd: Etcd = None,
    etcd_prefix: EtcdPrefix = None,
    config: Config = None,
    output: Output = Format.TABLE,
) -> None:
    """Put a backup back into a folder that is empty or new, and repair it.

    The backup is verified first. What was not committed when etcd was copied is aborted. With --to: a cluster on one
    machine. With --data-dir and --etcd: restore every member of etcd from etcd.snapshot before, see
    docs/operations.md."""
    from txnctl.backup.folder import BackupFolder
    from txnctl.backup.restoring import restore_beside, restore_whole

    logs.configure("critical")
    backups = BackupFolder(expect_folder(folder))
    if (to is None) == (data_dir is None):
        raise InvalidArgument("give either --to FOLDER, or --data-dir FOLDER and --etcd with the restored members")
    if to is not None and etcd is not None:
        raise InvalidArgument("--to makes an etcd of its own; --etcd goes with --data-dir")

    async def work() -> int:
        with _progress() as status:
            if to is not None:
                restored = await restore_whole(backups, name, to, status.update)
            else:
                settings = load(
                    config, etcd=etcd, data_dir=data_dir, etcd_prefix=etcd_prefix, allow_development_etcd=True
                )
                restored = await restore_beside(backups, name, settings, status.update)
        show_checked(
            restored.checked, output, repair=True, also={"backup": restored.name, "folder": str(restored.folder)}
        )
        if output is Format.TABLE:
            say(f"{restored.folder}: restored from backup {restored.name} of {_time(restored.manifest)}")
            say(f"start it with: {_start(restored)}" if to else "start the processes again")
        return 1 if restored.checked.findings else 0

    run(work())


def expect_folder(text: str) -> Path:
    """Raises `InvalidArgument` for a URL."""
    if "://" in text:
        raise InvalidArgument(f"{text}: backups are kept in folders; object stores are not supported yet")
    return Path(text)


def _progress() -> AbstractContextManager[Status]:
    return Console(stderr=True).status("looking")


def _row(name: str, manifest: BackupManifest) -> dict[str, object]:
    return {
        "backup": name,
        "taken": _time(manifest),
        "files": len(manifest.files),
        "bytes": manifest.bytes,
        "revision": manifest.etcd.revision,
    }


def _start(restored: Restored) -> str:
    """▲ Without the prefix of its keys, or with that of another cluster which the environment may hold, the servers
    would look into an empty part of etcd."""
    prefix = restored.manifest.prefix
    inherited = any(name.upper() == PREFIX for name in os.environ)
    variable = f"{PREFIX}={shlex.quote(prefix)} " if prefix or inherited else ""
    return f"{variable}txnctl dev --data-dir {shlex.quote(str(restored.folder))}"


def _time(manifest: BackupManifest) -> str:
    return datetime.fromtimestamp(manifest.taken_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
