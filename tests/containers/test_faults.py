"""Containers killed, parted and on a bad network, judged as in the simulation by what clients saw; a full disk."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

import txnclient
from tests.containers.chaos import run
from tests.containers.cluster import ContainerCluster
from tests.containers.engine import Engine, why_no_faults
from tests.processes import read_all
from txnclient import StoreFull

pytestmark = [pytest.mark.process, pytest.mark.timeout(560)]
DISK_MB = 80
GIVEN_UP_S = 15.0
CHAOS_S = float(os.environ.get("CHAOS_SECONDS", "60"))
FILLING, KEPT = "topic://public/default/filling", "topic://public/default/kept"


@pytest.mark.skipif(why_no_faults() is not None, reason=str(why_no_faults()))
async def test_containers_killed_and_parted_lose_double_and_tear_nothing(engine: Engine, tmp_path: Path) -> None:
    verdict = await run(engine, tmp_path, seed=1)
    print(f"{dict(verdict.operations)}, healed in {verdict.healed_s:.1f} s, clients met {dict(verdict.errors)}")
    assert verdict.findings == []
    assert verdict.operations["txn ok"] > 20
    assert len(verdict.faults) == 8


@pytest.mark.skipif(
    os.environ.get("CHAOS") != "containers", reason="drawn faults: make test-containers CHAOS=containers"
)
@pytest.mark.skipif(why_no_faults() is not None, reason=str(why_no_faults()))
@pytest.mark.timeout(560 + CHAOS_S)
async def test_drawn_faults_lose_double_and_tear_nothing(engine: Engine, tmp_path: Path) -> None:
    """For `CHAOS_SECONDS` beyond one of each kind, drawn from `CHAOS_SEED`."""
    verdict = await run(engine, tmp_path, seed=int(os.environ.get("CHAOS_SEED", "1")), seconds=CHAOS_S)
    print(f"{dict(verdict.faults)}, {dict(verdict.operations)}, healed in {verdict.healed_s:.1f} s")
    assert verdict.findings == []
    assert verdict.operations["txn ok"] > 20


async def fill(producer: txnclient.Producer[bytes]) -> None:
    for _ in range(4 * DISK_MB):
        await producer.send(random.randbytes(500_000))


async def test_a_full_disk_refuses_sends_and_takes_them_again(engine: Engine, tmp_path: Path) -> None:
    """The volume is small, in memory, and of the size that the broker sees."""
    options = {"type": "tmpfs", "device": "tmpfs", "o": f"size={DISK_MB}m,uid=10001,gid=10001"}
    volume = engine.volume("ledgers", options)
    async with ContainerCluster(engine, tmp_path, data=volume.name) as cluster:
        await cluster.start_servers()
        async with txnclient.connect(cluster.url, timeout=GIVEN_UP_S) as client:
            for topic in (FILLING, KEPT):
                await client.create_topic(topic, segments=1)
            kept = await client.producer(KEPT)
            await kept.send(b"first")
            with pytest.raises(StoreFull):
                await fill(await client.producer(FILLING))
            assert await read_all(client, KEPT) == [b"first"]
            await client.delete_topic(FILLING, force=True)
            await kept.send(b"second")
            assert await read_all(client, KEPT) == [b"first", b"second"]
        assert await cluster.stop() == []
