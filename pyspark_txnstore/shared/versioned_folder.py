"""A folder of numbered versions. Each is whole or absent, even after a kill at any moment.

    <folder>/<prefix>000007/part-….parquet     whatever its maker wrote
                            <document>         a text that says what the version is
             .making-<16 hex digits>/          a version that is being made, or was given up
             .lock                             held by the process that makes a version

▲ A maker writes a version in its own folder, syncs and renames it: otherwise a power failure leaves half a version,
or two makers mix theirs.

A published version never changes. The job export keeps its increments this way, and the job compact its generations.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from txnwire.errors import InvalidArgument, NotAllowed

MAKING: Final = ".making-"

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")


def folder_of(text: str) -> Path:
    """Returns the folder that an option or argument names: a path, or `file:` before an absolute one.

    ▲ Its file system must be visible to the driver and all executors and rename a folder atomically: a disk of this
    machine, or one mounted everywhere. Raises `InvalidArgument` for anything else, such as an object store."""
    scheme = _SCHEME.match(text)
    if scheme is not None and scheme[1].lower() != "file":
        raise InvalidArgument(
            f"{text!r}: expected a folder that the driver and all executors see, such as /mnt/data, not one in a "
            f"{scheme[1]} store, which cannot rename a folder at once"
        )
    path = text if scheme is None else re.sub(r"\A//(?=/)", "", text[scheme.end() :])
    if not path or (scheme is not None and not path.startswith("/")) or path.startswith("//"):
        raise InvalidArgument(f"{text!r}: expected a path, or file:///an/absolute/path")
    return Path(os.path.abspath(path))


class VersionedFolder:
    """`prefix`: of a version's name. `document`: name of the file that describes a version."""

    def __init__(self, path: Path, *, prefix: str, document: str) -> None:
        self.path = path
        self._prefix = prefix
        self._document = document
        self._name = re.compile(re.escape(prefix) + r"([0-9]{6,})\Z")

    def numbers(self) -> list[int]:
        """Numbers of published versions, newest first; empty if there is no folder yet."""
        try:
            names = os.listdir(self.path)
        except FileNotFoundError:
            return []
        return sorted((number for name in names if (number := self._number(name)) is not None), reverse=True)

    def path_of(self, number: int) -> Path:
        return self.path / f"{self._prefix}{number:06d}"

    def document_of(self, number: int) -> Path:
        return self.path_of(number) / self._document

    def strangers(self) -> list[str]:
        """Names that are no versions but that Spark would read along with them."""
        names = sorted(os.listdir(self.path))
        return [name for name in names if self._number(name) is None and not name.startswith((".", "_"))]

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Holds the lock under which one process makes a version; a dead holder releases it. Removes folders that it
        created and that stayed empty. Raises `NotAllowed` if another process holds it."""
        new = [folder for folder in (self.path, *self.path.parents) if not folder.exists()]
        _make(self.path)
        lock = self.path / ".lock"
        with open(lock, "w", encoding="ascii") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise NotAllowed(f"another job is writing to {self.path}: wait until it is done") from error
            try:
                yield
            finally:
                if new and os.listdir(self.path) == [lock.name]:
                    # Another process may hold the unlinked file while a third locks a new one: `publish` then lets one
                    # win.
                    lock.unlink()
                    _remove_empty(new)

    def making(self) -> Path:
        """Returns a new folder to write the next version in, and removes what earlier runs left. Only under the lock:
        otherwise it would remove another run's folder."""
        for name in os.listdir(self.path):
            if name.startswith(MAKING):
                shutil.rmtree(self.path / name)
        return self._hidden()

    def publish(self, made: Path, number: int, text: str) -> None:
        """Publishes `made` under its number, with `text` as its document. Raises `NotAllowed` if a version of this
        number exists: locks may not reach from machine to machine."""
        (made / self._document).write_text(text, encoding="utf-8")
        # ▲ Sync first, then rename.
        for path in [*sorted(made.iterdir()), made]:
            _sync(path)
        target = self.path_of(number)
        try:
            os.rename(made, target)  # fails on an existing target, which is never empty
        except OSError as error:
            if not target.exists():
                raise
            raise NotAllowed(f"{target} was published by another job meanwhile: run this one again") from error
        _sync(self.path)

    def forget(self, *, keep: int) -> list[int]:
        """Removes all but the newest `keep`; returns the removed ones. Only under the lock."""
        removed = self.numbers()[keep:]
        for number in removed:
            gone = self._hidden()  # ▲ hidden first, so that no reader finds half of it
            os.rename(self.path_of(number), gone)
            shutil.rmtree(gone)
        return removed

    def _number(self, name: str) -> int | None:
        match = self._name.match(name)
        return None if match is None else int(match[1])

    def _hidden(self) -> Path:
        return self.path / f"{MAKING}{secrets.token_hex(8)}"


def _make(folder: Path) -> None:
    """Makes a folder and its missing parents.

    ▲ Each is durable in its own parent before the next one is made: a power failure behind the first version would
    take it with its folder. The parent of an existing folder is synced, too: its maker may have died before."""
    if not folder.is_dir():
        _make(folder.parent)
        folder.mkdir(exist_ok=True)
    try:
        _sync(folder.parent)
    except PermissionError:
        return  # above the folder that the user may write to: it was there before


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _remove_empty(folders: list[Path]) -> None:
    """Removes empty folders, innermost first, up to the first non-empty one."""
    for folder in folders:
        try:
            folder.rmdir()
        except OSError as error:
            if error.errno != errno.ENOTEMPTY:
                raise
            return
