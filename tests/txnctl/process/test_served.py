"""What brokers note in their data folder of how to reach its etcd, and what is made of it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from txnctl.process.served import FILE, read_served, write_served
from txnctl.process.settings import ServerSettings
from txnwire.errors import InvalidArgument


def test_files_are_noted_by_their_whole_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """▲ Who reads the note works in another folder."""
    monkeypatch.chdir(tmp_path)
    files = {name: Path(f"{name}.pem") for name in ("etcd_ca", "etcd_cert", "etcd_key")}
    for path in files.values():
        path.write_text("a certificate")
    write_served(ServerSettings(data_dir=Path(), etcd="https://one:1", tcids=3, **files))  # type: ignore[arg-type]
    assert msgspec.json.decode((tmp_path / FILE).read_bytes()) == {
        **{"v": 1, "etcd": "https://one:1", "etcd_prefix": "", "etcd_user": None, "tcids": 3},
        **{name: str(tmp_path / path) for name, path in files.items()},
    }
    assert read_served(tmp_path) == {
        **{"etcd": "https://one:1", "etcd_prefix": "", "tcids": 3},
        **{name: str(tmp_path / path) for name, path in files.items()},
    }


def test_what_has_not_changed_is_not_written_again(tmp_path: Path) -> None:
    """▲ Brokers of one folder start at once, perhaps on a full disk."""
    write_served(ServerSettings(data_dir=tmp_path, etcd="http://one:1"))
    first = (tmp_path / FILE).stat().st_ino
    write_served(ServerSettings(data_dir=tmp_path, etcd="http://one:1", listen="other:1"))
    assert (tmp_path / FILE).stat().st_ino == first
    write_served(ServerSettings(data_dir=tmp_path, etcd="http://two:2"))
    assert read_served(tmp_path) == {"etcd": "http://two:2", "etcd_prefix": "", "tcids": 16}


def test_a_folder_that_is_none_has_no_note_and_what_is_no_note_is_named(tmp_path: Path) -> None:
    assert read_served(tmp_path / "none") is None
    (tmp_path / "file").write_text("")
    assert read_served(tmp_path / "file") is None
    for content in (b"{", b"[1]", b"\xff"):
        (tmp_path / FILE).write_bytes(content)
        with pytest.raises(InvalidArgument, match=rf"{tmp_path / FILE}: .*: name etcd with --etcd"):
            read_served(tmp_path)


def test_of_a_note_of_another_version_what_is_known_is_taken(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b'{"v": 2, "etcd": "http://one:1", "colour": "red", "etcd_user": null}')
    assert read_served(tmp_path) == {"etcd": "http://one:1"}
