"""The lock on a cluster's folder, and whom it names."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from txnctl.launch.preflight import LOCK_FILE, FolderLock
from txnwire.errors import NotAllowed


@pytest.mark.parametrize("left", ["", "7\n", f"{os.getpid()}12345\n"], ids=["nothing", "shorter", "longer"])
def test_a_folder_in_use_is_told_with_its_holder_whatever_an_earlier_one_has_left(tmp_path: Path, left: str) -> None:
    """▲ Whoever is told of a process ends it."""
    folder = tmp_path / "of" / "dev"
    folder.mkdir(parents=True)
    (folder / LOCK_FILE).write_text(left)
    holder, other = FolderLock(folder), FolderLock(folder)
    holder.take()
    for _ in range(2):
        with pytest.raises(NotAllowed, match=rf"{folder} is in use by process {os.getpid()}: stop it"):
            other.take()
    holder.release()
    holder.release()
    other.take()
    other.release()
