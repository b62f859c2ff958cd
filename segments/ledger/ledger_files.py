"""Blocking file operations of the file ledger, run in its threads: durable creation and replacement, path layout.

Everything here raises plain `OSError`; the store turns it into `LedgerFailed` that names the ledger.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import msgspec
import structlog

from segments.ledger.ledger_format import ReadAt
from txnwire.errors import DataCorrupt, InvalidArgument
from txnwire.names import SegmentName

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class LedgerPaths:
    """Names `<root>/<tenant>/<namespace>/<topic>/<descriptor>/<ledger id>.{ledger,footer,sidecar,fence,count}`."""

    directory: Path
    ledger_id: int

    @cached_property
    def ledger(self) -> Path:
        return self.directory / f"{self.ledger_id}.ledger"

    @cached_property
    def footer(self) -> Path:
        return self.directory / f"{self.ledger_id}.footer"

    @cached_property
    def sidecar(self) -> Path:
        return self.directory / f"{self.ledger_id}.sidecar"

    @cached_property
    def fence(self) -> Path:
        return self.directory / f"{self.ledger_id}.fence"

    @cached_property
    def count(self) -> Path:
        return self.directory / f"{self.ledger_id}.count"


def paths_of(root: Path, segment: str, ledger_id: int) -> LedgerPaths:
    """Raises `InvalidArgument` for a malformed segment path or ledger id, so that no path lies outside `root`."""
    name = SegmentName.from_path(segment)
    if ledger_id < 0:
        raise InvalidArgument(f"ledger id {ledger_id} of {segment}: 0 or more expected")
    return LedgerPaths(root.joinpath(*name.topic, name.descriptor), ledger_id)


def list_ledgers(root: Path) -> list[tuple[str, int]]:
    """Every (segment path, ledger id) with a ledger, footer or sidecar, sorted. A fence alone remains of a ledger that
    was never created, or whose deletion was interrupted."""
    return sorted(dict.fromkeys(_ledgers_below(root)))


def _ledgers_below(root: Path) -> Iterator[tuple[str, int]]:
    for path in root.glob("*/*/*/*/*"):
        stem, _, suffix = path.name.partition(".")
        if suffix in ("ledger", "footer", "sidecar") and stem.isdecimal():
            yield "/".join(path.parts[-5:-1]), int(stem)


def present_ledgers(root: Path, segment: str) -> list[int]:
    """Ids of a segment's ledgers whose `.ledger` files exist, rising."""
    directory = paths_of(root, segment, 0).directory
    stems = [path.stem for path in directory.glob("*.ledger")]
    return sorted(int(stem) for stem in stems if stem.isdecimal())


def discard_sidecar(paths: LedgerPaths) -> None:
    """Only for a repair: no process has yet relied on a sidecar that is not listed."""
    paths.sidecar.unlink(missing_ok=True)
    if paths.directory.is_dir():
        sync_directory(paths.directory)


class FolderGone(OSError):
    """The data folder is no longer here: its disk is not mounted, or it was moved."""


def expect_folder(root: Path, mark: str | None) -> None:
    """▲ A file missing from a lost folder must not count as never created. `mark`: the folder's mark, None if not
    known yet. Raises `FolderGone`."""
    if mark is not None and (found := read_mark(root)) != mark:
        now = "has no mark" if found is None else f"is another one ({found})"
        raise FolderGone(f"the data folder {root} (marked {mark}) is missing: its place {now}")


def is_there(path: Path) -> bool:
    """As `Path.exists`, but ▲ raises errors that leave it open (EIO, EACCES): a failed check must not count as an
    absent fence."""
    try:
        os.stat(path)
    except FileNotFoundError:
        return False
    return True


def expect_in_place(fd: int, paths: LedgerPaths) -> None:
    """Raises `FolderGone` if the path of an open ledger no longer leads to it."""
    mine = os.fstat(fd)
    try:
        named = os.stat(paths.ledger)
    except FileNotFoundError:
        raise FolderGone(f"{paths.ledger} is missing: its folder was deleted or moved") from None
    if (named.st_dev, named.st_ino) != (mine.st_dev, mine.st_ino):
        raise FolderGone(f"{paths.ledger} is another file by now: its folder was moved, and another one put in place")


def set_aside(root: Path, segment: str, to: Path) -> Path:
    """Move a segment's folder below `to`, which no process reads; returns its new path. Repeatable."""
    directory = paths_of(root, segment, 0).directory
    target = to.joinpath(*directory.parts[-4:])
    if directory.is_dir():
        make_directories(target.parent)
        directory.rename(target)
        sync_directory(target.parent)
        sync_directory(directory.parent)
    return target


def close_file(fd: int) -> None:
    """Close `fd`; an error (EIO from a network file system) is only logged. What counts in the file is synced by then,
    and the descriptor is free all the same."""
    try:
        os.close(fd)
    except OSError as error:
        log.warning("file_not_closed", error=str(error))


class OpenFile:
    """Shares a file descriptor between jobs in threads: after `release`, closes it when the last job has ended. Use it
    only from the event loop's thread."""

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
            # ▲ Forget the number first: a second close would hit the file that has it by then, and acked entries of one
            # ledger would go into another's file.
            fd, self.fd = self.fd, -1
            close_file(fd)


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

    ▲ Also syncs the parent of an existing directory: its creator may not have done so yet, and a power failure would
    lose all files we put into it. The parent itself was durable before the directory was created."""
    if not path.is_dir():
        make_directories(path.parent)
        path.mkdir(exist_ok=True)
    try:
        sync_directory(path.parent)
    except PermissionError:
        return  # above the data folder: no process of ours can create anything there


def write_all(fd: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, offset)
        view = view[written:]
        offset += written


def _open_temporary(target: Path) -> tuple[int, Path]:
    """Create a new file beside `target`; tries names until one is free, as another process may have one open."""
    number = 0
    while True:
        path = target.with_name(f"{target.name}.tmp-{number}")
        try:
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640), path
        except FileExistsError:
            number += 1


def create_file(target: Path, data: bytes) -> int:
    """Create `target` with `data` and return it open; it is whole and synced before it gets its name.
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
    """Create `target` with `data`, durably. Returns False if it was there before; it is durable then too."""
    if not target.exists():
        try:
            os.close(create_file(target, data))
        except FileExistsError:
            pass
        else:
            return True
    sync_directory(target.parent)  # ▲ its creator may have died before this sync
    return False


def replace_file(target: Path, data: bytes) -> None:
    """Create or replace `target` with `data`, atomically and durably."""
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
    """Mark the folder with `mark` unless it has a mark or `mark` is None; returns its mark. The first mark wins."""
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
    """The content of the fence file, and of the count file of a fenced ledger. `entries`: how many the ledger holds.
    (Former versions kept it in the fence file.)"""

    v: int = 1
    entries: int | None = None


def create_fence(paths: LedgerPaths) -> None:
    """The fence is durable when this returns, whichever process wrote it."""
    create_once(paths.fence, _encode_fence(FenceFile()))


def create_count(paths: LedgerPaths, entries: int) -> int:
    """Record durably and for ever how many entries the ledger holds; returns the recorded count.

    ▲ The first count stands: etcd may hold it, and readers use it, already. A later caller, which may have counted a
    shorter or a longer ledger, adopts it."""
    create_once(paths.count, _encode_fence(FenceFile(entries=entries)))
    counted = read_count(paths)
    if counted is None:
        raise FileNotFoundError(errno.ENOENT, "disappeared right after it was written", str(paths.count))
    return counted


def replace_count(paths: LedgerPaths, entries: int) -> None:
    """Only for a repair of a ledger that has lost counted entries."""
    replace_file(paths.count, _encode_fence(FenceFile(entries=entries)))
    create_fence(paths)


def discard_footer(paths: LedgerPaths) -> None:
    """Only for a repair of a ledger that has lost entries its footer covers."""
    paths.footer.unlink(missing_ok=True)
    if paths.directory.is_dir():
        sync_directory(paths.directory)


def _encode_fence(fence: FenceFile) -> bytes:
    return msgspec.json.encode(fence) + b"\n"


def read_count(paths: LedgerPaths) -> int | None:
    """The recorded number of entries, or None. Raises `DataCorrupt` for a file that does not parse."""
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
    """▲ Deletes the ledger before its fence: a writer that wakes up late finds either the fence or its file unlinked.
    The fence of a ledger that was never created stays for ever: its creator may still come."""
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
        paths.count.unlink(missing_ok=True)  # last: after a crash it shows that the ledger existed
    sync_directory(paths.directory)


def _was_counted(paths: LedgerPaths) -> bool:
    """Whether a count remains of a ledger that an interrupted deletion has removed; it may go too. A damaged fence
    gives False and stays: it still fences."""
    try:
        return read_count(paths) is not None
    except DataCorrupt:
        return False


def delete_segment(root: Path, segment: str) -> None:
    """Delete every ledger there is, then the folders of the segment and its topic if empty. Keeps a fence that
    `delete_ledger` keeps. Leaves the folders above: another process may be about to use them."""
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
            return  # not empty, or another segment's deletion was quicker
        try:
            sync_directory(empty.parent)
        except FileNotFoundError:
            return  # another segment's deletion removed that too, durably
