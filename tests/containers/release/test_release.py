"""The rendered pods as containers: they serve, pass the program of `helm test`, and are rolled without an error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.charts.rendering import render
from tests.containers.engine import Engine
from tests.containers.release.client import ContainerLoad
from tests.containers.release.controller import roll
from tests.containers.release.kubelet import ContainerKubelet, ContainerPod, running_containers
from tests.containers.release.names import why_no_names

pytestmark = [
    pytest.mark.process,
    pytest.mark.timeout(600),
    pytest.mark.skipif(why_no_names() is not None, reason=str(why_no_names())),
]
P99_MS = 500.0
VALUES: dict[str, Any] = {
    "settings": {"min_free_bytes": 64 << 20, "lease_ttl_s": 5, "client_grace_s": 2, "header_retention_s": 2},
    "coordinator": {"replicas": 2},
    "controller": {"replicas": 2},
    "broker": {"replicas": 2, "persistence": {"accessMode": "ReadWriteMany"}},
    "admin": {"replicas": 2},
}
TOPIC = "topic://public/charts/rolled"


async def passes_helm_test(kubelet: ContainerKubelet) -> None:
    code, said = await kubelet.run("demo-txnstore-test")
    assert code == 0, said
    assert "is committed and read" in said


async def test_rolling_every_pod_shows_no_error_to_clients_that_retry(engine: Engine, tmp_path: Path) -> None:
    async with running_containers(engine, render(VALUES), tmp_path) as kubelet:
        await passes_helm_test(kubelet)
        before = {pod.name: pod.address for pod in kubelet.pods.values()}
        async with ContainerLoad(kubelet, TOPIC) as load:

            async def told(old: ContainerPod, code: int) -> None:
                assert code == 0, f"{old.name} ended with {code}"
                await load.wait_committed(10)

            await roll(kubelet, told)
        await passes_helm_test(kubelet)
        assert len(kubelet.pods) == len(before)
        assert not {pod.address for pod in kubelet.pods.values()} & set(before.values()), "all are others by now"
        assert {pod.name: pod.restarts for pod in kubelet.pods.values() if pod.restarts} == {}
        report = load.report
        print(
            f"{report['committed']} transactions, {report['sends']} sends: p50 {report['p50_ms']:.0f} ms, "
            f"p99 {report['p99_ms']:.0f} ms, longest {report['longest_ms']:.0f} ms; repeated {report['repeated']}"
        )
        assert (report["errors"], report["missing"], report["too many"]) == ([], [], [])
        assert report["p99_ms"] <= P99_MS
