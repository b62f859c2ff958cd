"""What a backup or a restore says while it works."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

UNITS: Final = ("B", "kB", "MB", "GB", "TB")


def size_text(size: float) -> str:
    """For example `12.3 MB`; a kB has 1,000 bytes."""
    for unit in UNITS:
        if size < 1000 or unit == UNITS[-1]:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    raise AssertionError("unreachable")


class Progress:
    """Counts files and bytes of one step, and tells `on_progress`."""

    def __init__(self, on_progress: Callable[[str], None], what: str, files: int, size: int) -> None:
        self._on_progress = on_progress
        self._what = what
        self._files, self._of_files = 0, files
        self._size, self._of_size = 0, size
        self.add(0, files=0)

    def add(self, size: int, *, files: int = 1) -> None:
        self._files += files
        self._size += size
        share = 100 * self._size // max(self._of_size, 1)
        self._on_progress(
            f"{self._what}: {self._files:,} of {self._of_files:,} files, "
            f"{size_text(self._size)} of {size_text(self._of_size)} ({min(share, 100)} %)"
        )
