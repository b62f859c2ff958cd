"""The files of a data folder's ledgers, in the order in which a backup must copy them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

KINDS: Final = ("count", "footer", "sidecar", "fence", "ledger")
"""▲ Copied in this order. The files beside a ledger give its least number of entries: if they were copied after the
ledger, they could count more entries than its copy has."""


class SourceFile(NamedTuple):
    """`path`: relative to the folder `ledgers`."""

    path: str
    size: int
    mtime_ns: int


class SourceLedger(NamedTuple):
    """The files of one ledger, in the order of `KINDS`."""

    ledger_id: int
    files: tuple[SourceFile, ...]

    @property
    def size(self) -> int:
        return sum(one.size for one in self.files)


def segment_folders(root: Path) -> list[Path]:
    return sorted(path for path in root.glob("*/*/*/*") if path.is_dir())


def ledgers_of(root: Path, directory: Path) -> Iterator[SourceLedger]:
    """Every ledger of a segment that has its `.ledger` file, by rising id.

    ▲ A ledger is complete once the next ledger of its segment has a file: so a copy has no gap."""
    for ledger_id in ledger_ids(directory):
        files = [source_file(root, directory / f"{ledger_id}.{kind}") for kind in KINDS]
        if files[-1] is not None:
            yield SourceLedger(ledger_id, tuple(one for one in files if one is not None))


def ledger_ids(directory: Path) -> list[int]:
    """Rising; none if the folder has gone."""
    return sorted({int(path.stem) for path in directory.glob("*.ledger") if path.stem.isdecimal()})


def source_file(root: Path, path: Path) -> SourceFile | None:
    """The file as it is now, None if it is not there."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return SourceFile(str(path.relative_to(root)), found.st_size, found.st_mtime_ns)
