"""Reserves disk space with a file that is deleted when the disk is full. Fencing, closing, opening and trimming a
ledger need a few blocks; without them a full disk would prevent every take-over, read and deletion.

All brokers of a data folder share one. ▲ Appends never use it: they would fill it at once.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

import structlog

T = TypeVar("T")

log = structlog.get_logger(__name__)

NAME: Final = "reserve"
MOST_BYTES: Final = 32 * 1024 * 1024
NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT)


class Reserve:
    """Keeps the file `<data folder>/reserve`. All methods run in threads of the ledger store."""

    def __init__(self, data_dir: Path) -> None:
        self._path = data_dir / NAME

    def keep(self, size: int) -> None:
        """Allocate the file unless it is large enough. Raises `OSError`, also if the folder is not there; deletes a
        partly allocated file then."""
        if not size:
            return  # without a watermark there is no reserve, and nothing to allocate
        size = min(size, MOST_BYTES)
        try:
            if self._path.stat().st_size >= size:
                return
        except FileNotFoundError:
            pass
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            os.posix_fallocate(fd, 0, size)
        except OSError:
            self._path.unlink(missing_ok=True)
            raise
        finally:
            os.close(fd)

    def give_up(self) -> bool:
        """Delete the file; returns whether it existed."""
        try:
            self._path.unlink()
        except FileNotFoundError:
            return False
        log.warning("reserve_given_up", path=str(self._path))
        return True

    def backed(self, job: Callable[[], T]) -> Callable[[], T]:
        """Wrap `job`: on a full disk, give up the reserve and run it once more. Only for jobs that write a small file
        atomically."""

        def work() -> T:
            try:
                return job()
            except OSError as error:
                if error.errno not in NO_ROOM:
                    raise
            # ▲ Once more, also if it is gone: another job, perhaps of another broker, has just made room with it.
            self.give_up()
            return job()

        return work
