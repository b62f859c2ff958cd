"""C12 over real processes, on a disk that is really full: told, nothing acked that is not kept, everything readable
stays readable, and all of it ends by itself once there is room."""

from __future__ import annotations

import asyncio
import random
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import txnclient
from tests.processes import kill, process_cluster, read_all
from tests.waiting import until, until_accepted
from txnctl.launch.dev import DevCluster

pytestmark = [pytest.mark.process, pytest.mark.timeout(240)]

MIB = 1024 * 1024
DISK_BYTES = 48 * MIB
KEPT, GOING = "topic://public/default/kept", "topic://public/default/going"
VALUE_BYTES = 100_000


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """What servers keep their ledgers on: a file system of its own, of `DISK_BYTES`."""
    at = tmp_path / "data"
    at.mkdir()
    mount = shutil.which("mount")
    command = [mount or "mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(at)]
    if mount is None or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting a file system is not permitted here")
    try:
        yield at
    finally:
        subprocess.run(["umount", "-l", str(at)], check=False)


@asynccontextmanager
async def client_of(cluster: DevCluster) -> AsyncIterator[txnclient.Client]:
    async with txnclient.connect(cluster.url, timeout=30.0) as client:
        yield client


def value_of(number: int) -> bytes:
    """Which no compression makes smaller."""
    return b"%08d" % number + random.Random(number).randbytes(VALUE_BYTES)


async def fill(producer: txnclient.Producer[bytes], *, first: int = 0) -> list[bytes]:
    """Send until it is told that there is no room; what was acked."""
    acked = []
    for number in range(first, first + 2 * DISK_BYTES // VALUE_BYTES):
        try:
            await producer.send(value_of(number))
        except txnclient.StoreFull as error:
            assert "min_free_bytes" in str(error)
            return acked
        acked.append(value_of(number))
    raise AssertionError("the disk takes everything")


async def until_taken(producer: txnclient.Producer[bytes], value: bytes) -> None:
    """Nobody does anything but send again."""
    await until_accepted(lambda: producer.send(value), txnclient.StoreFull, "room on the disk", longest_poll_s=0.1)


def fill_by_others(disk: Path) -> None:
    """To the last byte, as any other program may."""
    with (disk / "ballast").open("wb", buffering=0) as ballast:
        try:
            while True:
                ballast.write(bytes(64 * 1024))
        except OSError:
            assert shutil.disk_usage(disk).free == 0


async def readiness(cluster: DevCluster, folder: Path) -> str:
    for line in reversed((folder / "logs" / "broker-1.log").read_text().splitlines()):
        if '"http"' in line or "event=http" in line or " http " in line:
            address = line.rpartition("address")[2].strip("=\": },'").split()[0].strip("\"'},")
            reader, writer = await asyncio.open_connection(*address.split(":"))
            writer.write(b"GET /readyz HTTP/1.0\r\n\r\n")
            answer = (await reader.read()).decode()
            writer.close()
            return answer
    raise AssertionError("the broker's log does not tell where it serves HTTP")


async def test_c12_a_full_disk_is_told_read_and_emptied_and_then_goes_on(tmp_path: Path, disk: Path) -> None:
    async with (
        process_cluster(tmp_path, flags=("--ledger-roll-bytes", str(MIB))) as cluster,
        client_of(cluster) as client,
    ):
        for topic in (KEPT, GOING):
            await client.create_topic(topic)
        async with await client.producer(GOING) as other:
            for number in range(100):
                await other.send(value_of(number))
        producer = await client.producer(KEPT)
        kept = await fill(producer)
        assert await read_all(client, KEPT) == kept
        assert "ready, but sends get StoreFull" in await readiness(cluster, tmp_path)

        assert (disk / "reserve").stat().st_size > 0
        fill_by_others(disk)
        await kill(cluster, "broker-1")
        assert await read_all(client, KEPT) == kept, "a new owner fences, closes and opens ledgers on a full disk"
        assert not (disk / "reserve").exists(), "given up for that"
        with pytest.raises(txnclient.StoreFull):
            await producer.send(b"refused")

        await client.delete_topic(GOING)
        await until_taken(producer, b"after the deletion")
        kept.append(b"after the deletion")
        assert await read_all(client, KEPT) == kept

        kept += await fill(producer, first=10_000)
        assert await read_all(client, KEPT) == kept
        await client.update_topic(KEPT, retention_bytes=8 * MIB)
        await until_taken(producer, b"after the trimming")
        left = await read_all(client, KEPT)
        assert left == [*kept, b"after the trimming"][-len(left) :]
        await until((disk / "reserve").exists, "what is set aside anew, now that there is room", within_s=20)
