"""A file that only takes room, given up where the disk has none left: what fencing, closing and opening a ledger and
trimming need is a few blocks, and without them nothing could be taken over, read or deleted on a full disk.

One for all brokers of a data folder. ▲ Appends never get it: they would fill it at once.
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
    """`<data folder>/reserve`. Everything here runs in threads of the ledger store."""

    def __init__(self, data_dir: Path) -> None:
        self._path = data_dir / NAME

    def keep(self, size: int) -> None:
        """Make it as large as it should be, if it is not. Raises `OSError`, also where the folder is not there; what is
        half made takes no room then."""
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
        """Whether there was one. Of several at once each may try again: the room is for all of them."""
        try:
            self._path.unlink()
        except FileNotFoundError:
            return False
        log.warning("reserve_given_up", path=str(self._path))
        return True

    def backed(self, job: Callable[[], T]) -> Callable[[], T]:
        """`job`, tried once more with the reserve where there was no room: jobs that write a whole small file, which
        is not there unless all of it is."""

        def work() -> T:
            try:
                return job()
            except OSError as error:
                if error.errno not in NO_ROOM or not self.give_up():
                    raise
            return job()

        return work
