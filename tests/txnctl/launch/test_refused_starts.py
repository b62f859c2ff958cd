"""A cluster that cannot start leaves its folder, its ports and no process."""

from __future__ import annotations

import socket
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from txnctl.launch.dev import DevCluster, DevSettings
from txnctl.launch.preflight import FolderLock, expect_free
from txnwire.errors import InternalError, InvalidArgument, NotAllowed


def settings(folder: Path, *, listen: str = "127.0.0.1:0") -> DevSettings:
    return DevSettings(data_dir=folder, listen=listen, admin="127.0.0.1:0", etcd_port=0)


@pytest.mark.parametrize("brokers", [0, -1])
def test_a_cluster_without_a_broker_is_refused(tmp_path: Path, brokers: int) -> None:
    with pytest.raises(InvalidArgument, match=f"--brokers {brokers}: expected at least 1"):
        DevCluster(DevSettings(data_dir=tmp_path, brokers=brokers))


async def test_a_start_at_a_taken_port_leaves_the_folder_to_others_and_starts_nothing(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        cluster = DevCluster(settings(tmp_path, listen=listen))
        with pytest.raises(NotAllowed, match=rf"--listen {listen} cannot be used: Address already in use; .*port 0"):
            await cluster.__aenter__()
    assert not (tmp_path / "logs").exists()
    other = FolderLock(tmp_path)
    other.take()
    other.release()


@pytest.mark.process
async def test_a_start_whose_server_dies_again_and_again_ends_with_its_log_and_stops_the_others(tmp_path: Path) -> None:
    """▲ Not after the minute for which a cluster may start."""
    cluster = DevCluster(settings(tmp_path))
    broker = cluster.children["broker-1"]
    broker.spec = replace(broker.spec, command=[sys.executable, "-c", "raise SystemExit('no such data folder')"])
    with pytest.raises(InternalError, match=r"broker-1 died 3 times; (?s:.*)no such data folder"):
        await cluster.__aenter__()
    assert {name: child.pid for name, child in cluster.children.items()} == dict.fromkeys(cluster.children)
    for address, part in cluster._addresses():
        expect_free(address, part=part)
    other = FolderLock(tmp_path)
    other.take()
    other.release()
