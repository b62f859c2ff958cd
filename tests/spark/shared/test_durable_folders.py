"""The folder of versions is on the disk as its versions are."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pyspark_txnstore.shared.versioned_folder import VersionedFolder
from tests.segments.power_failures import RecordedDisk


def versions(path: Path) -> VersionedFolder:
    return VersionedFolder(path, prefix="version-", document="about.txt")


def make_as_killed(top: Path, folder: Path) -> None:
    """As a job makes it that is killed before it has synced the last one's name."""
    for part in [*reversed(folder.parents), folder][1:]:
        os.mkdir(top / part)
        if part != folder:
            handle = os.open((top / part).parent, os.O_RDONLY)
            os.fsync(handle)
            os.close(handle)


@pytest.mark.parametrize("there", ["", "deep", "deep/down"])
def test_the_folders_above_a_version_are_on_the_disk_before_it_counts(tmp_path: Path, there: str) -> None:
    """▲ A power failure behind the first version would take all of them. `there`: made by a job that was killed."""
    disk = RecordedDisk(tmp_path)
    with disk.recording():
        if there:
            make_as_killed(tmp_path, Path(there))
        folder = versions(tmp_path / "deep" / "down")
        with folder.locked():
            for _ in range(2):
                made = folder.making()
                made.mkdir()
                folder.publish(made, next(iter(folder.numbers()), 0) + 1, "text")
                newest = f"deep/down/version-{folder.numbers()[0]:06d}"
                assert [what for what, tree in disk.outcomes().items() if newest not in tree] == []


def test_a_folder_whose_parent_may_not_be_read_is_used_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was there before, and is somebody else's."""
    (tmp_path / "folder").mkdir()
    opened = os.open

    def refused(path: str | Path, *args: int) -> int:
        if Path(path) == tmp_path:
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, *args)

    monkeypatch.setattr(os, "open", refused)
    folder = versions(tmp_path / "folder")
    with folder.locked():
        made = folder.making()
        made.mkdir()
        folder.publish(made, 1, "text")
    assert folder.numbers() == [1]
