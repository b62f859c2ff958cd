"""The image as a cluster of containers: it starts confined, serves, and ends in order."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.containers.cluster import DATA, SERVERS, ContainerCluster
from tests.containers.engine import Container, Engine
from tests.containers.transaction import commit_and_abort

pytestmark = [pytest.mark.process, pytest.mark.timeout(400)]


def confined(one: Container) -> None:
    """As the restricted pod security of Kubernetes wants it, seen from inside."""
    code, said = one.run(
        "sh", "-c", "id -u; touch /opt/txnstore/x; grep -E 'CapEff|NoNewPrivs' /proc/1/status; command -v pip gcc cc"
    )
    assert "10001" in said.splitlines()
    assert "Read-only file system" in said
    assert "CapEff:\t0000000000000000" in said
    assert "NoNewPrivs:\t1" in said
    assert code != 0, "neither pip nor a compiler"


async def test_a_cluster_of_confined_containers_commits_aborts_and_reads(engine: Engine, tmp_path: Path) -> None:
    async with ContainerCluster(engine, tmp_path) as cluster:
        await cluster.start_servers()
        await commit_and_abort(cluster.url)
        await cluster.each(SERVERS, confined)
        code, said = cluster["broker-1"].run("txnctl", "health")
        assert (code, said.strip()) == (0, "ready")
        code, said = cluster["admin-1"].run("txnctl", "brokers", "list", "-o", "json")
        assert code == 0, said
        assert "broker-2" in said
        code, _ = cluster["broker-1"].run("test", "-w", DATA)
        assert code == 0
        assert await cluster.stop() == []
