"""Settings come from a file, then the environment, then flags (API.md, "Command line")."""

from __future__ import annotations

from pathlib import Path

import pytest

from txnctl.settings import ROLES, load
from txnwire.errors import InvalidArgument


def test_defaults_serve_every_role() -> None:
    assert load(None).roles == ROLES


def test_environment_beats_file_and_flags_beat_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "txnstore.toml"
    config.write_text('id = "from-file"\netcd_prefix = "/file"\nlease_ttl_s = 7\n')
    monkeypatch.setenv("TXN_ETCD_PREFIX", "/environment")
    monkeypatch.setenv("TXN_ID", "from-environment")
    settings = load(config, id="from-flag")
    assert (settings.id, settings.etcd_prefix, settings.lease_ttl_s) == ("from-flag", "/environment", 7)


def test_roles_are_split_at_commas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TXN_ROLES", "broker, admin")
    assert load(None).roles == ("broker", "admin")


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ({"roles": "broker,king"}, "unknown role king"),
        ({"id": "a b"}, "server id 'a b'"),
        ({"tcids": 0}, "tcids"),
        ({"lease_ttl_s": 0.1}, "lease_ttl_s"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_wrong_settings_are_named(flags: dict[str, object], named: str) -> None:
    with pytest.raises(InvalidArgument, match=named):
        load(None, **flags)


def test_missing_and_malformed_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"nowhere\.toml"):
        load(tmp_path / "nowhere.toml")
    broken = tmp_path / "broken.toml"
    broken.write_text("id = ")
    with pytest.raises(InvalidArgument, match=r"broken\.toml"):
        load(broken)
