"""A queue's workers and its broker under kill -9, with results and dead letters in transactions: each input has exactly
one outcome."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import txnclient
from tests.processes import kill, process_cluster

EXAMPLE = Path(__file__).resolve().parent.parent.parent / "examples" / "queue_workers.py"
PICTURES = "topic://public/pictures/uploaded"
THUMBNAILS = "topic://public/pictures/thumbnails"
DEAD_LETTERS = f"{PICTURES}-thumbnailers-DLQ"
WAVES = 3
PICTURES_PER_WAVE = 100

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]


@asynccontextmanager
async def crowd(url: str, size: int) -> AsyncIterator[list[asyncio.subprocess.Process]]:
    workers = [await start(url) for _ in range(size)]
    try:
        yield workers
    finally:
        for worker in workers:
            if worker.returncode is None:
                worker.kill()
            await worker.communicate()


async def start(url: str) -> asyncio.subprocess.Process:
    arguments = (str(EXAMPLE), "--url", url, "--worker")
    return await asyncio.create_subprocess_exec(
        sys.executable, *arguments, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL
    )


async def test_each_job_is_done_once_or_a_dead_letter_once_while_broker_and_workers_are_killed(tmp_path: Path) -> None:
    outcomes: Counter[str] = Counter()
    dead: list[str] = []

    async def wait_outcomes(reader: txnclient.Reader[str], count: int) -> None:
        async with asyncio.timeout(60):
            while len(outcomes) < count:
                for message in await reader.receive_many(100, timeout=60):
                    outcomes[message.value.partition(" by ")[0]] += 1
                    if message.topic == DEAD_LETTERS:
                        dead.append(message.value)

    async with process_cluster(tmp_path) as cluster, txnclient.connect(cluster.url, timeout=60) as client:
        for topic in (PICTURES, THUMBNAILS, DEAD_LETTERS):
            await client.create_topic(topic, segments=2)
        async with (
            crowd(cluster.url, 2) as workers,
            client.reader([THUMBNAILS, DEAD_LETTERS], serializer="str") as reader,
            client.producer(PICTURES, serializer="str", batch_bytes=1) as producer,
        ):
            for wave in range(WAVES):
                first = wave * PICTURES_PER_WAVE
                await producer.send_many(
                    [(None, f"{number}.jpg") for number in range(first, first + PICTURES_PER_WAVE)]
                )
                await wait_outcomes(reader, first + 20)  # they are at it
                workers[0].send_signal(signal.SIGKILL)
                if wave < WAVES - 1:
                    await kill(cluster, "broker-1")
                await workers[0].communicate()
                workers[0] = await start(cluster.url)
            await wait_outcomes(reader, WAVES * PICTURES_PER_WAVE)
            assert await reader.receive_many(10, timeout=1) == []
            async with client.consumer(PICTURES, "thumbnailers", type="queue") as consumer:
                assert await consumer.receive_many(1, timeout=0.5) == []
    expected = [f"{number}.jpg" for number in range(WAVES * PICTURES_PER_WAVE)]
    assert sorted(outcomes.elements()) == sorted(expected)
    broken = [picture for picture in expected if picture.endswith("0.jpg")]
    assert dict.fromkeys(broken).keys() <= dict.fromkeys(dead).keys()
