"""The demo's folder, where nobody wants to keep it: gone with the demo, or with the next one if it was SIGKILLed."""

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
    """A new folder for a cluster, removed on exit, whatever is in it."""
    remove_abandoned()
    fresh = Path(tempfile.mkdtemp(prefix=f"new-{PREFIX}"))
    lock = FolderLock(fresh)
    lock.take()
    # Only now under its name: others remove what has the name and no lock.
    folder = fresh.rename(fresh.with_name(fresh.name.removeprefix("new-")))
    try:
        yield folder / "cluster"
    finally:
        # A second Ctrl-C leaves children that are dying still, and write; the next demo finds what they leave.
        shutil.rmtree(folder, ignore_errors=True)
        lock.release()


def remove_abandoned() -> None:
    """Folders of demos that were killed: ours, and locked by nobody."""
    for folder in sorted(Path(tempfile.gettempdir()).glob(f"{PREFIX}*")):
        if folder.is_symlink() or not folder.is_dir() or folder.stat().st_uid != os.getuid():
            continue
        lock = FolderLock(folder)
        try:
            lock.take()
        except NotAllowed:  # somebody is in it
            continue
        shutil.rmtree(folder, ignore_errors=True)
        lock.release()
