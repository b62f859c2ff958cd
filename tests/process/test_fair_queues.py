"""Workers of a queue as processes of their own, with default settings: each gets its share of what one call has sent,
and one that hangs keeps what it works on, no more."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

import txnclient
from tests.process.queue_worker import JOBS
from tests.processes import process_cluster
from tests.waiting import until

WORKER = Path(__file__).with_name("queue_worker.py")
NUMBER = 400
LEAST, MOST = 80, 120
AHEAD = 8
"""The most that a worker of long jobs has ahead, also where the machine is slow."""

pytestmark = [pytest.mark.process, pytest.mark.timeout(180)]


class Worker:
    """One worker process. `done`: the jobs that it has acked, or handled in a transaction."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.ready = asyncio.Event()
        self.hangs = asyncio.Event()
        self.done: list[str] = []
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            said = line.decode().strip()
            if said in ("ready", "hangs"):
                getattr(self, said).set()
            else:
                self.done.append(said)

    async def close(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()
        await self._reading


@asynccontextmanager
async def workers(url: str, arguments: Sequence[Sequence[str]]) -> AsyncIterator[list[Worker]]:
    async with AsyncExitStack() as stack:
        crowd = []
        for given in arguments:
            process = await asyncio.create_subprocess_exec(
                sys.executable, str(WORKER), "--url", url, *given, stdout=asyncio.subprocess.PIPE
            )
            crowd.append(Worker(process))
            stack.push_async_callback(crowd[-1].close)
        async with asyncio.timeout(60):
            for worker in crowd:
                await worker.ready.wait()
        yield crowd


async def _send(client: txnclient.Client, number: int) -> None:
    async with client.producer(JOBS, serializer="str") as producer:
        await producer.send_many([(None, str(job)) for job in range(number)])


async def _all_done(crowd: Sequence[Worker], number: int) -> None:
    await until(lambda: sum(len(worker.done) for worker in crowd) >= number, f"{number} jobs done", within_s=120)


@pytest.mark.parametrize("segments", [1, 4])
@pytest.mark.parametrize("how", [[], ["--process"]], ids=["loop", "process"])
async def test_each_worker_gets_its_share_of_what_one_call_has_sent(
    tmp_path: Path, segments: int, how: list[str]
) -> None:
    async with process_cluster(tmp_path) as cluster, txnclient.connect(cluster.url, timeout=60) as client:
        await client.create_topic(JOBS, segments=segments)
        async with workers(cluster.url, [how] * 4) as crowd:
            await _send(client, NUMBER)
            await _all_done(crowd, NUMBER)
            shares = [len(worker.done) for worker in crowd]
    assert sum(shares) == NUMBER
    assert all(LEAST <= share <= MOST for share in shares), shares


@pytest.mark.parametrize("blocks", [[], ["--blocks"]], ids=["handler", "event loop"])
async def test_a_worker_that_hangs_keeps_what_it_works_on(tmp_path: Path, blocks: list[str]) -> None:
    """▲ If its event loop hangs too, it cannot give back the few messages that it has ahead."""
    number, before = 60, 3
    async with process_cluster(tmp_path) as cluster, txnclient.connect(cluster.url, timeout=60) as client:
        await client.create_topic(JOBS, segments=1)
        async with workers(cluster.url, [["--hang-after", str(before), *blocks], [], []]) as crowd:
            await _send(client, number)
            kept = AHEAD + 1 if blocks else 1
            await _all_done(crowd, number - kept)
            await asyncio.wait_for(crowd[0].hangs.wait(), 60)  # what it says is heard apart from what the others say
            assert len(crowd[0].done) == before


async def test_what_a_worker_has_that_dies_goes_to_the_others(tmp_path: Path) -> None:
    number = 60
    async with process_cluster(tmp_path) as cluster, txnclient.connect(cluster.url, timeout=60) as client:
        await client.create_topic(JOBS, segments=1)
        async with workers(cluster.url, [["--hang-after", "3"], [], []]) as crowd:
            await _send(client, number)
            await asyncio.wait_for(crowd[0].hangs.wait(), 60)
            await crowd[0].close()
            await _all_done(crowd, number)
    assert sorted(map(int, (job for worker in crowd for job in worker.done))) == list(range(number))
