"""The folder that holds backups: its layout, its lock, and files that are whole before they have their names.

All functions here block, and may raise `OSError` besides the documented errors.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from segments.ledger.ledger_files import make_directories, replace_file, sync_directory
from txnctl.backup.manifest import BackupManifest, CopiedFile, decode_manifest, encode_manifest
from txnwire.errors import DataCorrupt, InvalidArgument, NotAllowed

MARKER: Final = "txnstore-backups.json"
MANIFEST: Final = "manifest.json"
ETCD: Final = "etcd.snapshot"
JOURNAL: Final = "copied.jsonl"
PIECE_BYTES: Final = 1024 * 1024


class Owner(msgspec.Struct, frozen=True):
    """`DIR/txnstore-backups.json`: the etcd store whose backups these are."""

    v: int
    store: str


class BackupFolder:
    """`DIR`. Constructing it touches nothing."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.objects = path / "ledgers"
        self.backups = path / "backups"

    def claim(self, store: str, former: list[str]) -> None:
        """Make the folder one for backups of this store. Raises `NotAllowed` if it holds something else."""
        marker = self.path / MARKER
        if self.path.exists() and not self.path.is_dir():
            raise NotAllowed(f"{self.path} is no folder: name a folder that is empty or holds backups of this cluster")
        if not marker.exists():
            if self.path.is_dir() and any(not one.name.startswith(MARKER) for one in self.path.iterdir()):
                raise NotAllowed(
                    f"{self.path} holds something else than backups: name a folder that is empty, or that holds "
                    "backups of this cluster"
                )
        elif (owner := self.owner()).store not in (store, *former):
            raise NotAllowed(
                f"{self.path} holds backups of another cluster (etcd store {owner.store}, this is {store}): "
                "name another folder"
            )
        make_directories(self.path)
        replace_file(marker, msgspec.json.encode(Owner(1, store)) + b"\n")

    def owner(self) -> Owner:
        """Raises `InvalidArgument` if there are no backups here, `DataCorrupt`."""
        try:
            return msgspec.json.decode((self.path / MARKER).read_bytes(), type=Owner)
        except (FileNotFoundError, NotADirectoryError):
            raise InvalidArgument(
                f"{self.path} holds no backups: `txnctl backup` makes them, and marks its folder by {MARKER}"
            ) from None
        except msgspec.DecodeError as error:
            raise DataCorrupt(f"{self.path / MARKER}: {error}") from error

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Raises `NotAllowed` while another process works on these backups, `InvalidArgument` if there are none."""
        self.owner()
        descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)  # a medium may be read-only
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise NotAllowed(
                    f"another backup into {self.path}, or a restore from it, is under way: wait for its end"
                ) from None
            yield
        finally:
            os.close(descriptor)

    # ---- backups ----

    def whole(self) -> list[str]:
        """Names of the backups with a manifest, oldest first."""
        return sorted(path.parent.name for path in self.backups.glob(f"*/{MANIFEST}"))

    def unfinished(self) -> list[str]:
        if not self.backups.is_dir():
            return []
        return sorted(path.name for path in self.backups.iterdir() if not (path / MANIFEST).exists())

    def begin(self, time: str) -> str:
        """Make the folder of a new backup; returns its name. `time`: for people, as `20261122T100000Z`."""
        numbers = [int(number) for name in self._names() if (number := name.partition("-")[0]).isdecimal()]
        name = f"{max(numbers, default=0) + 1:06d}-{time}"
        make_directories(self.backups / name)
        return name

    def _names(self) -> list[str]:
        return [path.name for path in self.backups.iterdir()] if self.backups.is_dir() else []

    def read(self, name: str | None) -> tuple[str, BackupManifest]:
        """A backup by its name, or the newest. Raises `InvalidArgument` if there is none, `DataCorrupt`."""
        self.owner()
        names = self.whole()
        if name is None and not names:
            raise InvalidArgument(f"{self.path} holds no whole backup")
        if name is not None and name not in names:
            known = ", ".join(names) or "none"
            raise InvalidArgument(f"{self.path} holds no whole backup {name!r}; there are: {known}")
        chosen = name or names[-1]
        path = self.backups / chosen / MANIFEST
        return chosen, decode_manifest(path.read_bytes(), str(path))

    def finish(self, name: str, manifest: BackupManifest) -> None:
        """▲ Last of all, once everything else is durable: a backup without a manifest counts as none."""
        folder = self.backups / name
        for directory in {path.parent for path in map(self._object, manifest.files)}:
            sync_directory(directory)
        replace_file(folder / MANIFEST, encode_manifest(manifest))
        (folder / JOURNAL).unlink(missing_ok=True)

    def discard(self, name: str) -> None:
        """▲ Deletes the manifest first: the rest of an interrupted deletion counts as no backup."""
        (self.backups / name / MANIFEST).unlink(missing_ok=True)
        sync_directory(self.backups / name)
        shutil.rmtree(self.backups / name)

    def drop_unused(self) -> int:
        """Delete contents that neither a backup nor an unfinished one, which the next run continues, names; return how
        many. Raises `DataCorrupt` for a damaged manifest: the contents that it needs are not known."""
        used = {self._object(one) for name in self.whole() for one in self.read(name)[1].files}
        used |= {self._object(one) for name in self.unfinished() for one in self.noted(name)}
        unused = [path for path in self.objects.rglob("*") if path.is_file() and path not in used]
        for path in unused:
            path.unlink()
        return len(unused)

    def drop_leftovers(self) -> None:
        """Delete files that a kill has left half written, and copies of etcd without a manifest, which are useless:
        repeated runs that fail, because the disk is full for example, would fill it with them."""
        for path in self.objects.rglob("*.tmp-*"):
            if path.is_file():  # a topic may be called so
                path.unlink()
        for name in self.unfinished():
            for path in (self.backups / name).glob(f"{ETCD}*"):
                path.unlink()

    # ---- files ----

    def _object(self, file: CopiedFile) -> Path:
        return self.objects / file.object

    def is_there(self, file: CopiedFile) -> bool:
        """Whether the content stands there with its size; `verify` reads it."""
        try:
            return self._object(file).stat().st_size == file.size
        except FileNotFoundError:
            return False

    def copy_in(self, source: BinaryIO, path: str, mtime_ns: int) -> CopiedFile:
        """Copy as much of an open file as there is now."""
        target = self.objects / path
        make_directories(target.parent)
        copied: list[CopiedFile] = []

        def named(size: int, sha256: str) -> Path:
            copied.append(CopiedFile(path=path, size=size, sha256=sha256, mtime_ns=mtime_ns))
            return self._object(copied[0])

        size = os.fstat(source.fileno()).st_size
        write_whole(target, pieces_of(source, size), named)
        return copied[0]

    def etcd_path(self, name: str) -> Path:
        return self.backups / name / ETCD

    def verify(self, file: CopiedFile) -> None:
        """Raises `DataCorrupt` if the content is not as the manifest says."""
        verify_file(self._object(file), size=file.size, sha256=file.sha256)

    def set_aside(self, file: CopiedFile) -> None:
        """Rename damaged content, which then counts as not there. Nothing happens on a medium that is only read."""
        path = self._object(file)
        try:
            path.rename(path.with_name(f"{path.name}.damaged"))
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.EROFS, errno.EACCES):
                raise

    def open(self, file: CopiedFile) -> BinaryIO:
        return self._object(file).open("rb")

    def note(self, name: str, file: CopiedFile) -> None:
        """Record the copied files: a backup that runs again after a kill copies only the rest."""
        with (self.backups / name / JOURNAL).open("ab") as journal:
            journal.write(msgspec.json.encode(file) + b"\n")

    def noted(self, name: str) -> list[CopiedFile]:
        try:
            lines = (self.backups / name / JOURNAL).read_bytes().splitlines()
        except (FileNotFoundError, NotADirectoryError):
            return []
        found = []
        for line in lines:
            try:
                found.append(msgspec.json.decode(line, type=CopiedFile))
            except msgspec.DecodeError:
                break  # cut off by the kill; the rest is copied again
        return found


def pieces_of(source: BinaryIO, size: int) -> Iterator[bytes]:
    """The first `size` bytes, fewer if the file is shorter."""
    while size and (piece := source.read(min(PIECE_BYTES, size))):
        size -= len(piece)
        yield piece


def write_whole(target: Path, pieces: Iterator[bytes], named: Callable[[int, str], Path]) -> None:
    """Write a file beside `target`, sync it, and give it the name that `named(size, sha256)` returns."""
    temporary = target.with_name(f"{target.name}.tmp-{os.getpid()}")
    digest, size = hashlib.sha256(), 0
    try:
        with temporary.open("wb") as file:
            for piece in pieces:
                digest.update(piece)
                file.write(piece)
                size += len(piece)
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(named(size, digest.hexdigest()))
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def verify_file(path: Path, *, size: int, sha256: str) -> None:
    """Read a file from its disk, not from memory. Raises `DataCorrupt` if it is not as expected."""
    digest, found = hashlib.sha256(), 0
    try:
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            while piece := file.read(PIECE_BYTES):
                digest.update(piece)
                found += len(piece)
    except FileNotFoundError:
        raise DataCorrupt(f"{path}: this file of the backup is not there") from None
    if found != size:
        raise DataCorrupt(f"{path}: this file of the backup has {found} bytes, {size} were written")
    if digest.hexdigest() != sha256:
        raise DataCorrupt(f"{path}: this file of the backup is damaged: its checksum does not match")
