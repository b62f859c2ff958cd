"""Blocking file operations of the file ledger: durable creation and replacement, path layout. Run in its threads.

Everything here raises plain `OSError`; the store turns it into `LedgerFailed` with the ledger named.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from segments.ledger.ledger_format import ReadAt
from txnwire.errors import DataCorrupt, InvalidArgument
from txnwire.names import SegmentName


@dataclass(frozen=True, slots=True)
class LedgerPaths:
    """`<root>/<tenant>/<namespace>/<topic>/<descriptor>/<ledger id>.{ledger,footer,sidecar,fence,count}`."""

    directory: Path
    ledger_id: int

    @property
    def ledger(self) -> Path:
        return self.directory / f"{self.ledger_id}.ledger"

    @property
    def footer(self) -> Path:
        return self.directory / f"{self.ledger_id}.footer"

    @property
    def sidecar(self) -> Path:
        return self.directory / f"{self.ledger_id}.sidecar"

    @property
    def fence(self) -> Path:
        return self.directory / f"{self.ledger_id}.fence"

    @property
    def count(self) -> Path:
        return self.directory / f"{self.ledger_id}.count"


def paths_of(root: Path, segment: str, ledger_id: int) -> LedgerPaths:
    """Raises `InvalidArgument` for a malformed segment path or ledger id: nothing outside `root` is ever named."""
    name = SegmentName.from_path(segment)
    if ledger_id < 0:
        raise InvalidArgument(f"ledger id {ledger_id} of {segment}: 0 or more expected")
    return LedgerPaths(root.joinpath(*name.topic, name.descriptor), ledger_id)


def list_ledgers(root: Path) -> list[tuple[str, int]]:
    """Every (segment path, ledger id) with a ledger, footer or sidecar, sorted. A fence alone is the trace of one that
    was never created, or whose deletion was cut short."""
    return sorted(dict.fromkeys(_ledgers_below(root)))


def _ledgers_below(root: Path) -> Iterator[tuple[str, int]]:
    for path in root.glob("*/*/*/*/*"):
        stem, _, suffix = path.name.partition(".")
        if suffix in ("ledger", "footer", "sidecar") and stem.isdecimal():
            yield "/".join(path.parts[-5:-1]), int(stem)


def present_ledgers(root: Path, segment: str) -> list[int]:
    """Ids of the ledgers of a segment whose own files stand, rising."""
    directory = paths_of(root, segment, 0).directory
    stems = [path.stem for path in directory.glob("*.ledger")]
    return sorted(int(stem) for stem in stems if stem.isdecimal())


def discard_sidecar(paths: LedgerPaths) -> None:
    """For a repair alone: of a sidecar that nobody has listed nothing has been believed yet."""
    paths.sidecar.unlink(missing_ok=True)
    if paths.directory.is_dir():
        sync_directory(paths.directory)


class FolderGone(OSError):
    """The data folder was here and is not any more: its disk is not mounted, or it was moved."""


def expect_folder(root: Path, mark: str | None) -> None:
    """▲ What is not found in a folder that has gone was not "never made". `mark`: what it is marked with, as far as is
    known. Raises `FolderGone`."""
    if mark is not None and (found := read_mark(root)) != mark:
        now = "has no mark" if found is None else f"is another one ({found})"
        raise FolderGone(f"the data folder {root} (marked {mark}) is not there any more: what is there {now}")


def expect_in_place(fd: int, paths: LedgerPaths) -> None:
    """Raises `FolderGone` where the name of an open ledger does not lead to it any more."""
    mine = os.fstat(fd)
    try:
        named = paths.ledger.stat()
    except FileNotFoundError:
        raise FolderGone(f"{paths.ledger} is not there any more: its folder has gone or was moved") from None
    if (named.st_dev, named.st_ino) != (mine.st_dev, mine.st_ino):
        raise FolderGone(f"{paths.ledger} is another file by now: its folder was moved, and another one put in place")


def set_aside(root: Path, segment: str, to: Path) -> Path:
    """Move a segment's folder below `to`, out of reach of everybody; returns where it stands. Repeatable."""
    directory = paths_of(root, segment, 0).directory
    target = to.joinpath(*directory.parts[-4:])
    if directory.is_dir():
        make_directories(target.parent)
        directory.rename(target)
        sync_directory(target.parent)
        sync_directory(directory.parent)
    return target


class OpenFile:
    """A file descriptor shared by jobs in threads: closed when the last one has ended, never under a running one.
    Used from the event loop's thread only."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._users = 0
        self._released = False

    @property
    def released(self) -> bool:
        return self._released

    def use(self) -> None:
        self._users += 1

    def done(self) -> None:
        self._users -= 1
        self._close_if_idle()

    def release(self) -> None:
        self._released = True
        self._close_if_idle()

    def _close_if_idle(self) -> None:
        if self._released and self._users == 0 and self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def reader_of(fd: int) -> ReadAt:
    return lambda offset, length: os.pread(fd, length, offset)


def sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_directories(path: Path) -> None:
    """Create `path` and its missing parents, each durable in its own parent (▲ §7: directories are synced too).

    ▲ One that is there is synced into its parent all the same: whoever made it may not have come to that yet, and a
    power failure would take all that we put into it. Its parent needs no more: that was durable before it was made."""
    if not path.is_dir():
        make_directories(path.parent)
        path.mkdir(exist_ok=True)
    try:
        sync_directory(path.parent)
    except PermissionError:
        return  # above the data folder: no process of ours can have made something there


def write_all(fd: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, offset)
        view = view[written:]
        offset += written


def _open_temporary(target: Path) -> tuple[int, Path]:
    """A new file beside `target`. Never one that somebody else may have open: names are tried until one is free."""
    number = 0
    while True:
        path = target.with_name(f"{target.name}.tmp-{number}")
        try:
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640), path
        except FileExistsError:
            number += 1


def create_file(target: Path, data: bytes) -> int:
    """Create `target` with `data`, whole and durable the moment it has its name, and return it open.
    Raises `FileExistsError` if it is there already."""
    make_directories(target.parent)
    fd, temporary = _open_temporary(target)
    try:
        try:
            write_all(fd, data, 0)
            os.fsync(fd)
            os.link(temporary, target)
        finally:
            os.unlink(temporary)
        sync_directory(target.parent)
    except OSError:
        os.close(fd)
        raise
    return fd


def create_once(target: Path, data: bytes) -> bool:
    """Create `target` with `data`, durable; False where it was there before, and is durable from now on."""
    if not target.exists():
        try:
            os.close(create_file(target, data))
        except FileExistsError:
            pass
        else:
            return True
    sync_directory(target.parent)  # ▲ whoever gave it its name may have died before this
    return False


def replace_file(target: Path, data: bytes) -> None:
    """Put `data` at `target`, atomically and durably, whether or not it was there."""
    make_directories(target.parent)
    fd, temporary = _open_temporary(target)
    try:
        try:
            write_all(fd, data, 0)
            os.fsync(fd)
        finally:
            os.close(fd)
        os.replace(temporary, target)
    except OSError:
        os.unlink(temporary)
        raise
    sync_directory(target.parent)


FOLDER_MARK = "folder-id"


def mark_folder(root: Path, mark: str | None) -> str | None:
    """What the folder is marked with; `mark` from now on where it was not. Whoever marks it first counts."""
    path = root / FOLDER_MARK
    if mark is not None:
        create_once(path, f"{mark}\n".encode())
    return read_mark(root)


def read_mark(root: Path) -> str | None:
    try:
        return (root / FOLDER_MARK).read_text().strip()
    except FileNotFoundError:
        return None


class FenceFile(msgspec.Struct, frozen=True):
    """The fence file, and the file with the count of a fenced ledger. `entries`: how many the ledger holds. (Fences of
    former versions have it; by now it has a file of its own.)"""

    v: int = 1
    entries: int | None = None


def create_fence(paths: LedgerPaths) -> None:
    """Durable when it returns, whoever wrote it."""
    create_once(paths.fence, _encode_fence(FenceFile()))


def create_count(paths: LedgerPaths, entries: int) -> int:
    """How many entries the ledger holds, for good, durably.

    ▲ The first count stands: it may be in etcd, and be read, already. One that comes later counted a shorter ledger,
    or a longer one, and takes over what it finds."""
    create_once(paths.count, _encode_fence(FenceFile(entries=entries)))
    counted = read_count(paths)
    if counted is None:
        raise FileNotFoundError(errno.ENOENT, "has gone as soon as it was written", str(paths.count))
    return counted


def replace_count(paths: LedgerPaths, entries: int) -> None:
    """For a repair alone: of a ledger that has lost what was counted in it."""
    replace_file(paths.count, _encode_fence(FenceFile(entries=entries)))
    create_fence(paths)


def discard_footer(paths: LedgerPaths) -> None:
    """For a repair alone: of a ledger that has lost what its footer covers."""
    paths.footer.unlink(missing_ok=True)
    if paths.directory.is_dir():
        sync_directory(paths.directory)


def _encode_fence(fence: FenceFile) -> bytes:
    return msgspec.json.encode(fence) + b"\n"


def read_count(paths: LedgerPaths) -> int | None:
    """How many entries the ledger holds, once somebody has counted. Raises `DataCorrupt` for a file that does not
    parse."""
    for path in (paths.count, paths.fence):
        fence = _read_fence(path)
        if fence is not None and fence.entries is not None:
            return fence.entries
    return None


def _read_fence(path: Path) -> FenceFile | None:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        fence = msgspec.json.decode(data, type=FenceFile)
    except msgspec.DecodeError as error:
        raise DataCorrupt(f"{path}: not a fence file of version 1: {error}") from error
    if fence.v != 1:
        raise DataCorrupt(f"{path}: fence version {fence.v}; this program reads 1")
    return fence


def delete_ledger(paths: LedgerPaths) -> None:
    """▲ The ledger goes before its fence: a writer that wakes up late finds either the fence or its file unlinked.
    Of a ledger that was never created the fence stays for ever: its creator may still come."""
    if not paths.directory.is_dir():
        return
    created = paths.ledger.exists() or _was_counted(paths)
    paths.ledger.unlink(missing_ok=True)
    sync_directory(paths.directory)
    for leftover in sorted(paths.directory.glob(f"{paths.ledger_id}.*.tmp-*")):
        leftover.unlink(missing_ok=True)
    paths.footer.unlink(missing_ok=True)
    paths.sidecar.unlink(missing_ok=True)
    if created:
        paths.fence.unlink(missing_ok=True)
        paths.count.unlink(missing_ok=True)  # last: it says that the ledger was there, should this be cut short
    sync_directory(paths.directory)


def _was_counted(paths: LedgerPaths) -> bool:
    """A count is no use once what was counted is gone; a deletion was cut short before it. A fence that is damaged is
    kept: it still fences."""
    try:
        return read_count(paths) is not None
    except DataCorrupt:
        return False


def delete_segment(root: Path, segment: str) -> None:
    """Every ledger there is, then its folder and its topic's, where they hold nothing any more. A fence that
    `delete_ledger` leaves stays. Other topics' folders are let alone: somebody may be about to use them."""
    directory = paths_of(root, segment, 0).directory
    if not directory.is_dir():
        return
    ids = {int(stem): None for path in directory.iterdir() if (stem := path.name.partition(".")[0]).isdecimal()}
    for ledger_id in sorted(ids):
        delete_ledger(LedgerPaths(directory, ledger_id))
    for empty in (directory, directory.parent):
        try:
            empty.rmdir()
        except OSError:
            return  # it holds something, or another segment's deletion was quicker
        try:
            sync_directory(empty.parent)
        except FileNotFoundError:
            return  # another segment's deletion has removed that, too, and made it durable
