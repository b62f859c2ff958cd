"""`txnctl check` and `backup` beside a running server find etcd and the data folder without flags."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.cluster import running_cluster
from tests.processes import process_cluster
from tests.txnctl.command_line import txnctl
from txnctl.commands.shared.beside import settings_beside
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


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with an environment that names nothing."""
    for name in [name for name in os.environ if name.startswith("TXN_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


async def test_all_flags_count_before_what_is_found(elsewhere: Path) -> None:
    write_served(ServerSettings(data_dir=elsewhere, etcd="http://other:1"))
    settings = await settings_beside(None, etcd="http://one:1", data_dir=elsewhere, etcd_prefix="/p")
    assert (settings.etcd, settings.data_dir, settings.etcd_prefix) == ("http://one:1", elsewhere, "/p")


async def test_a_flag_counts_before_what_brokers_noted_of_the_rest(elsewhere: Path) -> None:
    """▲ A check would look at another cluster in the same etcd."""
    write_served(ServerSettings(data_dir=elsewhere, etcd="http://one:1", etcd_prefix="/p"))
    settings = await settings_beside(None, data_dir=elsewhere, etcd_prefix="/q")
    assert (settings.etcd, settings.etcd_prefix) == ("http://one:1", "/q")


@pytest.mark.parametrize(("noted", "named"), [("named", "named"), ("named/data", "named"), ("data", "none")])
async def test_what_brokers_noted_is_found_in_each_folder_where_their_data_may_be(
    elsewhere: Path, noted: str, named: str
) -> None:
    (elsewhere / noted).mkdir(parents=True)
    write_served(ServerSettings(data_dir=elsewhere / noted, etcd="http://one:1", etcd_prefix="/p"))
    settings = await settings_beside(None, data_dir=elsewhere / named)
    assert (settings.etcd, settings.etcd_prefix) == ("http://one:1", "/p")


async def test_a_server_tells_the_prefix_of_its_keys_too(
    elsewhere: Path, etcd: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """▲ A check without it would look at an empty etcd, or at another cluster's."""
    async with running_cluster(etcd, elsewhere / "cluster", etcd_prefix="/p") as cluster:
        monkeypatch.setenv("TXN_URL", cluster.url)
        settings = await settings_beside(None, data_dir=elsewhere / "none")
        named = await settings_beside(None, data_dir=elsewhere / "none", etcd_prefix="/q")
    assert settings.etcd_prefix == "/p"
    assert (named.etcd, named.etcd_prefix) == (settings.etcd, "/q"), "a flag counts first"


def test_no_password_is_noted(tmp_path: Path) -> None:
    settings = ServerSettings(data_dir=tmp_path, etcd="http://one:1", etcd_user="root", etcd_password="secret")
    write_served(settings)
    assert "secret" not in (tmp_path / FILE).read_text()
    assert read_served(tmp_path) == {"etcd": "http://one:1", "etcd_prefix": "", "etcd_user": "root", "tcids": 16}
    assert read_served(tmp_path / "none") is None
    (tmp_path / FILE).write_text("{")
    with pytest.raises(InvalidArgument, match="name etcd with --etcd"):
        read_served(tmp_path)
