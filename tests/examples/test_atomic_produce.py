"""The example that loads files, large and small, in one transaction; a load that fails or is killed leaves nothing."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from random import Random

import pytest

from tests.cluster import InProcessCluster
from tests.examples.test_streams_and_queues import said, start

pytestmark = [pytest.mark.process]

NAME = "atomic_produce.py"


async def test_a7_files_are_loaded_all_or_none(cluster: InProcessCluster, tmp_path: Path) -> None:
    film, table, huge = tmp_path / "film.mp4", tmp_path / "table.csv", tmp_path / "huge.bin"
    film.write_bytes(Random(1).randbytes(6_000_000))
    table.write_text("".join(f"{number},{number**2}\n" for number in range(20_000)))
    huge.write_bytes(bytes(100_000_000))
    assert "film.mp4, table.csv: whole" in await said(await start(NAME, cluster.url, "--load", str(film), str(table)))
    missing = await start(NAME, cluster.url, "--load", str(film), str(tmp_path / "missing"))
    output, _ = await asyncio.wait_for(missing.communicate(), 60)
    assert (missing.returncode, b"nothing was loaded" in output) == (1, True)
    everything = {"start": "latest", "isolation": "read_uncommitted"}
    async with cluster.connect() as client, client.reader("topic://public/archive/files", **everything) as reader:
        victim = await start(NAME, cluster.url, "--load", str(film), str(huge))
        await reader.receive(timeout=30)  # the first of it is stored
    victim.send_signal(signal.SIGKILL)
    await victim.communicate()
    lines = (await said(await start(NAME, cluster.url, "--list"))).splitlines()
    assert len(lines) in (1, 2), "the killed load is whole if it had committed already"
    assert all(line.endswith(": whole") for line in lines)
