"""A folder of numbered versions, of which each is there whole or not at all, whoever is killed at whatever moment.

    <folder>/<prefix>000007/part-….parquet     whatever its maker wrote
                            <document>         a text that says what the version is
             .making-<16 hex digits>/          one that is being made, or was given up
             .lock                             held by who makes one

▲ A version is made in a folder of its own, synced, and renamed. So data and document appear at one moment, who sees the
name finds every byte, also after a power failure, and of two that are made at once one gets the name. A published one
never changes. This is how the job export keeps its increments, and the job compact its generations.
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
    """The folder that an option or argument names: a path, or `file:` before an absolute one.

    ▲ Of a file system that the driver and all executors see and that renames a folder at once: a disk of this machine,
    or one that is mounted everywhere. Raises `InvalidArgument` for anything else, an object store say."""
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
    """`prefix`: of a version's name. `document`: name of the file that says what a version is."""

    def __init__(self, path: Path, *, prefix: str, document: str) -> None:
        self.path = path
        self._prefix = prefix
        self._document = document
        self._name = re.compile(re.escape(prefix) + r"([0-9]{6,})\Z")

    def numbers(self) -> list[int]:
        """Of what is published, newest first; none where there is no folder yet."""
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
        """Names of what is neither a version nor passed over by Spark, which would read it along with them."""
        names = sorted(os.listdir(self.path))
        return [name for name in names if self._number(name) is None and not name.startswith((".", "_"))]

    @contextmanager
    def locked(self) -> Iterator[None]:
        """One makes a version at a time; who dies lets go. Folders that were not there before, and in which nothing
        was made, go again. Raises `NotAllowed` where another one does."""
        new = [folder for folder in (self.path, *self.path.parents) if not folder.exists()]
        self.path.mkdir(parents=True, exist_ok=True)
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
                    # Somebody may hold the file that goes while others lock a new one: then `publish` parts them.
                    lock.unlink()
                    _remove_empty(new)

    def making(self) -> Path:
        """A new name to write the next version under; what earlier ones left there is removed. Only when locked:
        another one's would be removed under its hands."""
        for name in os.listdir(self.path):
            if name.startswith(MAKING):
                shutil.rmtree(self.path / name)
        return self._hidden()

    def publish(self, made: Path, number: int, text: str) -> None:
        """`made`, with `text` as its document, under its number. Raises `NotAllowed` if a version of this number has
        appeared, as it may where locks do not reach from machine to machine."""
        (made / self._document).write_text(text, encoding="utf-8")
        # ▲ Synced, then named.
        for path in [*sorted(made.iterdir()), made]:
            _sync(path)
        target = self.path_of(number)
        try:
            os.rename(made, target)  # onto one that is there it fails, for that is not empty
        except OSError as error:
            if not target.exists():
                raise
            raise NotAllowed(f"{target} was published by another job meanwhile: run this one again") from error
        _sync(self.path)

    def forget(self, *, keep: int) -> list[int]:
        """Remove all but the newest `keep`; which they were. Only when locked."""
        removed = self.numbers()[keep:]
        for number in removed:
            gone = self._hidden()  # ▲ first, so that nobody finds half of it
            os.rename(self.path_of(number), gone)
            shutil.rmtree(gone)
        return removed

    def _number(self, name: str) -> int | None:
        match = self._name.match(name)
        return None if match is None else int(match[1])

    def _hidden(self) -> Path:
        return self.path / f"{MAKING}{secrets.token_hex(8)}"


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _remove_empty(folders: list[Path]) -> None:
    """Innermost first, up to one that somebody has put something into."""
    for folder in folders:
        try:
            folder.rmdir()
        except OSError as error:
            if error.errno != errno.ENOTEMPTY:
                raise
            return
