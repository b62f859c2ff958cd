"""`txnctl check` and `backup` beside a running server find etcd and the data folder without flags."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.processes import process_cluster
from tests.txnctl.command_line import txnctl
from txnctl.process.served import FILE, read_served, write_served
from txnctl.process.settings import ServerSettings
from txnwire.errors import InvalidArgument

SOUND = "sound at revision"


@pytest.mark.process
async def test_check_finds_the_settings_of_the_server_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with process_cluster(tmp_path / "cluster") as cluster:
        by_folder = await txnctl("check", "--data-dir", str(tmp_path / "cluster" / "data"))
        assert (by_folder.code, by_folder.out[: len(SOUND)]) == (0, SOUND), by_folder
        assert f"etcd {cluster.etcd_url}, as the brokers of" in by_folder.err
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        monkeypatch.chdir(elsewhere)
        by_server = await txnctl("check", url=cluster.url)
        assert (by_server.code, by_server.out[: len(SOUND)]) == (0, SOUND), by_server
        assert f"etcd {cluster.etcd_url}, as server server at {cluster.url} has it" in by_server.err
        monkeypatch.chdir(tmp_path / "cluster")
        backed_up = await txnctl("backup", str(tmp_path / "backups"))
        assert backed_up.code == 0, backed_up
        named = await txnctl("check", "--etcd", cluster.etcd_url)
        assert (named.code, named.err) == (0, "")
        monkeypatch.undo()
    assert os.getcwd()


def test_no_password_is_noted(tmp_path: Path) -> None:
    settings = ServerSettings(data_dir=tmp_path, etcd="http://one:1", etcd_user="root", etcd_password="secret")
    write_served(settings)
    assert "secret" not in (tmp_path / FILE).read_text()
    assert read_served(tmp_path) == {"etcd": "http://one:1", "etcd_prefix": "", "etcd_user": "root", "tcids": 16}
    assert read_served(tmp_path / "none") is None
    (tmp_path / FILE).write_text("{")
    with pytest.raises(InvalidArgument, match="name etcd with --etcd"):
        read_served(tmp_path)
