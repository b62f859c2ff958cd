"""The image as a cluster of containers: it starts confined, serves, and is rolled without an error."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import txnclient
from tests.containers.cluster import DATA, GRACE_S, MEMBERS, SERVERS, ContainerCluster
from tests.containers.engine import Container, Engine
from tests.containers.load import Load
from tests.containers.transaction import commit_and_abort

pytestmark = [pytest.mark.process, pytest.mark.timeout(400)]
P99_MS = 500.0


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


async def test_rolling_every_container_shows_no_error_to_clients_that_retry(engine: Engine, tmp_path: Path) -> None:
    """As a StatefulSet's controller would: SIGTERM, grace, start, wait for ready, the next one."""
    async with ContainerCluster(engine, tmp_path) as cluster:
        await cluster.start_servers()
        async with txnclient.connect(cluster.url, timeout=60.0) as client:
            async with Load(client, "topic://public/default/rolled") as load:
                await load.wait_committed(20)
                for name in (*SERVERS, *MEMBERS):
                    code = await asyncio.to_thread(cluster[name].stop, grace_s=GRACE_S)
                    assert code == 0, f"{name} ended with {code}"
                    await asyncio.to_thread(cluster[name].start)
                    await cluster.wait_back(name)
                    await load.wait_committed(10)
            read = await load.read_back()
        print(
            f"{load.committed} transactions, {len(load.sends_s)} sends: p50 {load.percentile_ms(50):.0f} ms, "
            f"p99 {load.percentile_ms(99):.0f} ms, longest {load.percentile_ms(100):.0f} ms; "
            f"repeated {dict(load.repeated)}"
        )
        assert load.errors == []
        assert sorted(read) == sorted(load.kept), "acknowledged once, there once"
        assert load.percentile_ms(99) <= P99_MS
        assert await cluster.stop() == []
