"""What servers of `txnctl dev` take from the environment that it is started in."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.processes import process_cluster
from txnctl.launch.dev import DevCluster, DevSettings

FOREIGN = ("TXN_ADVERTISE", "txn_advertise", "TXN_CONFIG", "TXN_ETCD_CA")


def test_a_cluster_of_this_machine_does_not_say_that_it_is_where_another_one_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Started in the environment of a server, such as by tests in its container: clients would be led to that one."""
    for name in FOREIGN:
        monkeypatch.setenv(name, "broker-1.example.org:6651" if name.upper() == "TXN_ADVERTISE" else __file__)
    monkeypatch.setenv("TXN_LEASE_TTL_S", "5")
    monkeypatch.setenv("TXN_ETCD_PREFIX", "/shop")
    cluster = DevCluster(DevSettings(data_dir=tmp_path, listen="127.0.0.1:0", admin="127.0.0.1:0", etcd_port=0))
    for name in ("server", "broker-1"):
        found = cluster.children[name].spec.whole_environment()
        assert not set(FOREIGN) & found.keys()
        assert (found["TXN_LEASE_TTL_S"], found["TXN_ETCD_PREFIX"]) == ("5", "/shop")
        assert "PATH" in found


def test_certificates_of_another_cluster_need_not_be_on_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TXN_ETCD_CA", str(tmp_path / "mounted elsewhere"))
    monkeypatch.setenv("TXN_ADVERTISE", "broker-1.example.org")
    cluster = DevCluster(DevSettings(data_dir=tmp_path, listen="127.0.0.1:0", admin="127.0.0.1:0", etcd_port=0))
    assert {"server", "broker-1"} <= cluster.children.keys()


@pytest.mark.process
async def test_a_cluster_is_ready_with_as_many_coordinator_ids_as_the_environment_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TXN_TCIDS", "2")
    async with process_cluster(tmp_path) as cluster:
        await cluster.wait_ready(timeout_s=5.0)
        left = {task.get_name() for task in asyncio.all_tasks()}
        assert not left & {"ready", "crash loop"}, "nobody waits for the start any more"
