"""Folders of the demo: gone with it; what a killed one leaves goes with the next."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from txnctl.demo.folders import PREFIX, passing_folder
from txnctl.launch.preflight import FolderLock


def test_a_folder_goes_with_its_demo_and_abandoned_ones_with_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """▲ Whether the abandoned ones stand before or behind one that is used."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before, used, behind = (tmp_path / f"{PREFIX}{name}" for name in "abc")
    foreign = tmp_path / "other"
    for folder in (before, used, behind, foreign):
        (folder / "cluster").mkdir(parents=True)
    lock = FolderLock(used)
    lock.take()
    with passing_folder() as folder:
        (folder / "etcd").mkdir(parents=True)
        assert sorted(tmp_path.iterdir()) == sorted([used, foreign, folder.parent])
        with passing_folder() as second:
            assert folder.exists()
            assert second != folder
    assert sorted(tmp_path.iterdir()) == [foreign, used]
    lock.release()
