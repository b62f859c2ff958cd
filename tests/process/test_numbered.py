"""A numbered producer over real processes: the program, the brokers and the controller are killed while segments are
split and merged; every item of its source is stored once, in order per key."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections import Counter
from pathlib import Path

import pytest

import txnclient
from tests.process.numbered_worker import TOPIC, sequence_id
from tests.processes import kill, process_cluster
from tests.waiting import until
from txnclient.connection.topic_layout import ACTIVE

ITEMS = 4000
ROOT = Path(__file__).resolve().parent.parent.parent

pytestmark = [pytest.mark.process, pytest.mark.timeout(240)]


class Worker:
    """A process; `told`: the last item that it has said to be stored."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.told = -1
        self._following = asyncio.ensure_future(self._follow())

    @staticmethod
    async def start(url: str) -> Worker:
        arguments = ["-m", "tests.process.numbered_worker", "--url", url, "--items", str(ITEMS)]
        return Worker(
            await asyncio.create_subprocess_exec(sys.executable, *arguments, stdout=asyncio.subprocess.PIPE, cwd=ROOT)
        )

    async def _follow(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            self.told = int(line)
        await self.process.wait()

    async def reached(self, item: int) -> None:
        await until(lambda: self.told >= item or self._following.done(), within_s=120.0)

    async def kill(self) -> None:
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGKILL)
        await self._following

    async def ended(self) -> int | None:
        await asyncio.wait_for(self._following, 120.0)
        return self.process.returncode


async def change(client: txnclient.Client, *, merge: bool) -> None:
    layout = await client.describe_topic(TOPIC)
    active = sorted((one for one in layout.segments.values() if one.state == ACTIVE), key=lambda one: one.range)
    if merge and len(active) > 1:
        await client.merge(active[0].name, active[1].name)
    else:
        await client.split(active[0].name)


async def test_every_item_is_stored_once_over_kills_of_everything_and_changes_of_the_layout(tmp_path: Path) -> None:
    async with process_cluster(tmp_path) as cluster, txnclient.connect(cluster.url, timeout=60.0) as client:
        await client.create_topic(TOPIC, segments=2)
        for round_ in range(4):
            worker = await Worker.start(cluster.url)
            await worker.reached(200 + 800 * round_)
            changing = asyncio.ensure_future(change(client, merge=round_ % 2 == 1))
            if round_ % 2 == 0:
                await kill(cluster, "broker-1")
            await worker.kill()
            if round_ == 3:
                await kill(cluster, "server")
            await asyncio.wait([changing])
        former = await client.producer(TOPIC, name="importer", sequence_id=-1)
        worker = await Worker.start(cluster.url)
        assert await worker.ended() == 0
        with pytest.raises(txnclient.ProducerFenced):
            await former.send(b"late", sequence_id=10**9)
        async with client.reader(TOPIC, end="latest") as reader:
            messages = [message async for message in reader]
        assert Counter(message.sequence_id for message in messages) == Counter(map(sequence_id, range(ITEMS)))
        last: dict[bytes | None, int] = {}
        for message in messages:
            assert last.get(message.key, -1) < message.sequence_id
            last[message.key] = message.sequence_id
