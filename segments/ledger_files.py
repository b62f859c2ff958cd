"""Blocking file operations of the file ledger: durable creation and replacement, path layout. Run in its threads.

Everything here raises plain `OSError`; the store turns it into `LedgerFailed` with the ledger named.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from segments.ledger_format import ReadAt
from txnwire.errors import DataCorrupt, InvalidArgument
from txnwire.names import SegmentName


@dataclass(frozen=True, slots=True)
class LedgerPaths:
    """`<root>/<tenant>/<namespace>/<topic>/<descriptor>/<ledger id>.{ledger,footer,sidecar,fence}`."""

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
    """Create `path` and its missing parents, each durable in its own parent (▲ §7: directories are synced too)."""
    if path.is_dir():
        return
    make_directories(path.parent)
    path.mkdir(exist_ok=True)
    sync_directory(path.parent)


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
        try:
            os.close(create_file(path, f"{mark}\n".encode()))
        except FileExistsError:
            sync_directory(root)  # ▲ whoever gave it its name may have died before this
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        return None


class Fence(msgspec.Struct, frozen=True):
    """The fence file. `entries`: how many the ledger holds, once somebody has counted; None before."""

    v: int = 1
    entries: int | None = None


def write_fence(paths: LedgerPaths, fence: Fence) -> None:
    replace_file(paths.fence, msgspec.json.encode(fence) + b"\n")


def read_fence(paths: LedgerPaths) -> Fence | None:
    """None where the ledger is not fenced. Raises `DataCorrupt` for a fence file that does not parse."""
    try:
        data = paths.fence.read_bytes()
    except FileNotFoundError:
        return None
    try:
        fence = msgspec.json.decode(data, type=Fence)
    except msgspec.DecodeError as error:
        raise DataCorrupt(f"{paths.fence}: not a fence file of version 1: {error}") from error
    if fence.v != 1:
        raise DataCorrupt(f"{paths.fence}: fence version {fence.v}; this program reads 1")
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
    sync_directory(paths.directory)


def _was_counted(paths: LedgerPaths) -> bool:
    """A fence that says how many entries there were is no use once they are gone; a deletion was cut short before it.
    One that is damaged is kept: it still fences."""
    try:
        fence = read_fence(paths)
    except DataCorrupt:
        return False
    return fence is not None and fence.entries is not None


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
