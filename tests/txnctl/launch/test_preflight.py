"""The lock on a cluster's folder and whom it names; addresses that cannot be listened on, or that no machine has."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest

from txnctl.launch.preflight import LOCK_FILE, FolderLock, expect_free
from txnwire.errors import InvalidArgument, NotAllowed


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


def test_a_folder_whose_holder_has_not_said_who_it_is_is_told_as_in_use_all_the_same(tmp_path: Path) -> None:
    with (tmp_path / LOCK_FILE).open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(NotAllowed, match=rf"{tmp_path} is in use by process unknown: stop it"):
            FolderLock(tmp_path).take()
    FolderLock(tmp_path).take()


def test_a_host_that_no_machine_can_have_is_named_with_its_option() -> None:
    with pytest.raises(InvalidArgument, match=r"--admin '\[::g\]:1': '\[::g\]' is no host of this machine: Name or "):
        expect_free("[::g]:1", part="--admin")


def test_a_folder_that_cannot_be_locked_is_in_use_by_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(NotAllowed, match=rf"{tmp_path} cannot be locked: No locks available; name another"):
        FolderLock(tmp_path).take()


@pytest.mark.parametrize("host", ["a" * 64 + ".example", "a..example"], ids=["a part too long", "a part too short"])
def test_a_host_that_no_name_server_can_be_asked_for_is_told(host: str) -> None:
    with pytest.raises(InvalidArgument, match=rf"--listen '{host}:6650': '{host}' is no host of this machine: "):
        expect_free(f"{host}:6650", part="--listen")
