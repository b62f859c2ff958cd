"""A temporary folder for a demo. It goes with the demo, or with the next one after a SIGKILL."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from txnctl.launch.preflight import FolderLock
from txnwire.errors import NotAllowed

PREFIX = "txnstore-demo-"


@contextmanager
def passing_folder() -> Iterator[Path]:
    """A new folder for a cluster, removed on exit with its content."""
    remove_abandoned()
    fresh = Path(tempfile.mkdtemp(prefix=f"new-{PREFIX}"))
    lock = FolderLock(fresh)
    lock.take()
    # It gets its name only now: other demos remove a folder that has the name and no lock.
    folder = fresh.rename(fresh.with_name(fresh.name.removeprefix("new-")))
    try:
        yield folder / "cluster"
    finally:
        # After a second Ctrl-C children may still be dying and writing; the next demo removes what they leave.
        shutil.rmtree(folder, ignore_errors=True)
        lock.release()


def remove_abandoned() -> None:
    """Removes folders of killed demos: ours, and without a lock."""
    for folder in sorted(Path(tempfile.gettempdir()).glob(f"{PREFIX}*")):
        if folder.is_symlink() or not folder.is_dir() or folder.stat().st_uid != os.getuid():
            continue
        lock = FolderLock(folder)
        try:
            lock.take()
        except NotAllowed:  # a demo is using it
            continue
        shutil.rmtree(folder, ignore_errors=True)
        lock.release()
