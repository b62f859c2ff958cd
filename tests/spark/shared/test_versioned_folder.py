"""Versions in a folder: there whole or not at all, one maker at a time, whatever the moment of a kill."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pyspark_txnstore.shared.versioned_folder import VersionedFolder, folder_of
from tests.spark.killed_steps import killed_at_each
from txnwire.errors import InvalidArgument, NotAllowed

DOCUMENT = "about.txt"


def versions(path: Path) -> VersionedFolder:
    return VersionedFolder(path, prefix="version-", document=DOCUMENT)


def make(folder: VersionedFolder, *, keep: int = 99) -> None:
    """The next one, in two files and the document, each of which holds its number; the oldest go."""
    with folder.locked():
        number = next(iter(folder.numbers()), 0) + 1
        made = folder.making()
        made.mkdir()
        for name in ("one", "two"):
            (made / name).write_text(str(number))
        folder.publish(made, number, str(number))
        folder.forget(keep=keep)


def held(path: Path) -> dict[int, dict[str, str]]:
    """What a reader finds, who knows nothing but names."""
    return {
        int(version.name.removeprefix("version-")): {file.name: file.read_text() for file in version.iterdir()}
        for version in path.glob("version-*")
    }


def whole(*numbers: int) -> dict[int, dict[str, str]]:
    return {number: dict.fromkeys(("one", "two", DOCUMENT), str(number)) for number in numbers}


def left_over(path: Path) -> list[str]:
    return [name for name in os.listdir(path) if name.startswith(".making")]


def test_all_that_earlier_makers_have_left_goes(tmp_path: Path) -> None:
    """Also where none of them got as far as a version."""
    left = [tmp_path / f".making-{number}" for number in range(3)]
    for path in left:
        path.mkdir(parents=True)
        (path / "one").touch()
    make(versions(tmp_path))
    assert left_over(tmp_path) == []
    for _ in range(4):
        make(versions(tmp_path))
    folder = versions(tmp_path)
    with folder.locked():
        assert folder.forget(keep=2) == [3, 2, 1]
    assert held(tmp_path) == whole(4, 5)
    assert left_over(tmp_path) == []


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_kill_at_any_step_leaves_whole_versions_and_the_next_goes_on(tmp_path: Path, after: bool) -> None:
    def run(at: int) -> None:
        make(versions(tmp_path / f"kill-{at}"), keep=2)

    def fill(at: int) -> None:
        for _ in range(3):
            make(versions(tmp_path / f"kill-{at}"))

    fill(1)
    # Two folders, three files, five syncs, three renames; of two versions three files each, and the folder.
    for at in killed_at_each(run, after=after, least=20):
        path = tmp_path / f"kill-{at}"
        assert held(path) in (whole(1, 2, 3), whole(1, 2, 3, 4), whole(1, 3, 4), whole(1, 4), whole(3, 4))
        make(versions(path), keep=2)
        newest = max(held(path))
        assert held(path) == whole(newest - 1, newest)
        assert left_over(path) == []
        fill(at + 1)


def test_nothing_of_a_version_that_is_made_stays_open(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    make(versions(tmp_path / "folder"))
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_version_is_on_the_disk_before_it_has_its_name_and_its_name_before_it_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """▲ A power failure behind `publish` takes nothing of it."""
    happened: list[str] = []
    sync, rename = os.fsync, os.rename

    def synced(handle: int) -> None:
        happened.append(Path(os.readlink(f"/proc/self/fd/{handle}")).name)
        sync(handle)

    def renamed(source: Path, target: Path) -> None:
        happened.append("named")
        rename(source, target)

    folder = versions(tmp_path / "folder")
    with folder.locked():
        made = folder.making()
        made.mkdir()
        for name in ("one", "two"):
            (made / name).write_text("1")
        monkeypatch.setattr(os, "fsync", synced)
        monkeypatch.setattr(os, "rename", renamed)
        folder.publish(made, 1, "1")
    assert sorted(happened[:3]) == [DOCUMENT, "one", "two"]
    assert happened[3:] == [made.name, "named", "folder"]


def test_versions_are_counted_newest_first_and_the_oldest_go(tmp_path: Path) -> None:
    folder = versions(tmp_path / "new" / "folder")
    assert folder.numbers() == []
    for _ in range(3):
        make(folder)
    folder.path_of(3).rename(folder.path_of(1_000_000))  # more digits than names are padded to
    assert folder.numbers() == [1_000_000, 2, 1]
    with folder.locked():
        assert folder.forget(keep=2) == [1]
        assert folder.forget(keep=2) == []
    assert folder.numbers() == [1_000_000, 2]
    assert left_over(folder.path) == []


def test_who_is_making_one_keeps_what_is_made_while_the_oldest_go(tmp_path: Path) -> None:
    folder = versions(tmp_path)
    make(folder)
    make(folder)
    with folder.locked():
        made = folder.making()
        made.mkdir()
        assert folder.forget(keep=1) == [1]
        assert made.is_dir()


def test_one_at_a_time_and_a_dead_one_holds_nobody_up(tmp_path: Path) -> None:
    hold = (
        "import sys, pathlib\n"
        "from pyspark_txnstore.shared.versioned_folder import VersionedFolder\n"
        "with VersionedFolder(pathlib.Path(sys.argv[1]), prefix='version-', document='about.txt').locked():\n"
        "    print('held', flush=True)\n"
        "    sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", hold, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(NotAllowed, match="another job is writing to"), versions(tmp_path).locked():
            pytest.fail("it was locked twice")
        other.kill()
        other.wait(30)
    make(versions(tmp_path))


def test_where_nothing_was_made_nothing_is_left(tmp_path: Path) -> None:
    folder = versions(tmp_path / "deep" / "down")
    with pytest.raises(KeyError), folder.locked():
        raise KeyError
    assert list(tmp_path.iterdir()) == []
    with folder.locked():
        (tmp_path / "deep" / "of somebody else").touch()
    assert [path.name for path in tmp_path.rglob("*")] == ["deep", "of somebody else"]
    with versions(tmp_path).locked():  # which was there before
        pass
    assert tmp_path.exists()
    make(folder)
    assert folder.numbers() == [1]


def test_one_that_appeared_meanwhile_stays(tmp_path: Path) -> None:
    """Where locks do not reach from machine to machine."""
    folder = versions(tmp_path)
    mine = tmp_path / ".making-mine"
    mine.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shutil, "rmtree", lambda path: None)  # another machine's, which is not seen by this one
        make(folder)
    with pytest.raises(NotAllowed, match="published by another job"):
        folder.publish(mine, 1, "mine")
    assert held(tmp_path) == whole(1)


def test_a_disk_that_fails_is_no_other_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """▲ Told to run again, a job would fail for ever."""
    folder = versions(tmp_path)

    def failing(*_: Path) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with folder.locked():
        made = folder.making()
        made.mkdir()
        with monkeypatch.context() as patch:
            patch.setattr(os, "rename", failing)
            with pytest.raises(OSError, match="Input/output error"):
                folder.publish(made, 1, "1")
    assert folder.numbers() == []
    deep = versions(tmp_path / "deep" / "down")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "rmdir", failing)
        with pytest.raises(OSError, match="Input/output error"), deep.locked():
            pass


def test_nothing_of_a_version_whose_sync_fails_stays_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = versions(tmp_path)

    def failing(_: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with folder.locked():
        made = folder.making()
        made.mkdir()
        before = len(os.listdir("/proc/self/fd"))
        monkeypatch.setattr(os, "fsync", failing)
        for _ in range(3):
            with pytest.raises(OSError, match="Input/output error"):
                folder.publish(made, 1, "1")
        assert len(os.listdir("/proc/self/fd")) == before
    assert folder.numbers() == []


def test_what_is_neither_a_version_nor_hidden_is_told(tmp_path: Path) -> None:
    folder = versions(tmp_path)
    make(folder)
    for name in ("_SUCCESS", ".crc", "version-7", "report.csv"):
        (tmp_path / name).touch()
    assert folder.strangers() == ["report.csv", "version-7"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [("/mnt/a", "/mnt/a"), ("file:/mnt/a", "/mnt/a"), ("file:///mnt/a/", "/mnt/a"), ("b/c", os.path.abspath("b/c"))],
)
def test_a_folder_is_a_path_or_a_file_url(text: str, expected: str) -> None:
    assert folder_of(text) == Path(expected)


@pytest.mark.parametrize(
    "text", ["", "s3a://bucket/a", "hdfs:///a", "hdfs://name/a", "file:a", "file:relative", "file://host/a"]
)
def test_a_folder_that_not_everybody_sees_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match=r"expected a path|all executors see"):
        folder_of(text)
