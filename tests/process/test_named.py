"""A5 over real processes: 300 writers, six processes, one of them killed, as are the servers; 200 writers count."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections import Counter
from pathlib import Path

import pytest

import txnclient
from tests.process.named_worker import SEGMENTS, TOPICS, values
from tests.processes import kill, process_cluster, read_all
from tests.waiting import until
from txnctl.launch.dev import DevCluster

NAME = "sink/query-7/42"
PROCESSES, WRITERS, COUNTED = 6, 50, 200
ENDLESS = 100_000
ROOT = Path(__file__).resolve().parent.parent.parent

pytestmark = [pytest.mark.process, pytest.mark.timeout(240)]


class Worker:
    """A process; `wrote` are its writers that have said so."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.wrote: list[int] = []
        self.txns: dict[str, None] = {}

    @staticmethod
    async def start(url: str, *, writers: int = WRITERS) -> Worker:
        arguments = ["-m", "tests.process.named_worker", "--url", url, "--name", NAME, "--writers", str(writers)]
        return Worker(
            await asyncio.create_subprocess_exec(sys.executable, *arguments, stdout=asyncio.subprocess.PIPE, cwd=ROOT)
        )

    async def follow(self) -> None:
        """Until it ends."""
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            said = json.loads(line)
            self.wrote.append(said["writer"])
            self.txns[said["txn"]] = None
        await self.process.wait()

    async def wrote_some(self, count: int) -> None:
        await until(lambda: len(self.wrote) >= count, within_s=240.0)


async def write_everything(cluster: DevCluster) -> list[Worker]:
    """All writers of all processes, with a worker, the broker and the coordinator killed at one moment each."""
    workers = [await Worker.start(cluster.url) for _ in range(PROCESSES - 1)]
    workers.append(await Worker.start(cluster.url, writers=ENDLESS))  # else it might be through before it is killed
    async with asyncio.timeout(120), asyncio.TaskGroup() as group:
        for worker in workers:
            group.create_task(worker.follow())
        victim = workers[-1]
        await victim.wrote_some(10)
        victim.process.send_signal(signal.SIGKILL)
        await workers[0].wrote_some(20)
        await kill(cluster, "broker-1")
        await workers[1].wrote_some(30)
        await kill(cluster, "server")
    return workers


async def test_a5_of_300_writers_in_several_processes_exactly_200_are_visible_by_one_decision(tmp_path: Path) -> None:
    async with process_cluster(tmp_path) as cluster, txnclient.connect(cluster.url, timeout=60.0) as driver:
        for topic in TOPICS:
            await driver.create_topic(topic, segments=SEGMENTS)
        shared = await driver.begin(name=NAME, timeout=300)
        workers = await write_everything(cluster)
        assert [worker.process.returncode for worker in workers] == [0] * (PROCESSES - 1) + [-signal.SIGKILL]
        assert {txn for worker in workers for txn in worker.txns} == {str(shared.id)}
        assert [await read_all(driver, topic) for topic in TOPICS] == [[], []]

        counted = [writer for worker in workers[:-1] for writer in worker.wrote[: COUNTED // (PROCESSES - 1)]]
        assert len(counted) == COUNTED
        result = await shared.commit(writers=counted)
        info = await driver.transaction_info(shared.id)
        assert (info["revision"], info["header"]["name"]) == (result.revision, NAME)
        expected = Counter(value for writer in counted for value in values(writer))
        assert [Counter(await read_all(driver, topic)) for topic in TOPICS] == [expected, expected]

        async with txnclient.connect(cluster.url) as late:
            joined = await late.begin(name=NAME)
            assert (joined.state, joined.id, joined.writers) == ("COMMITTED", shared.id, result.writers)
            with pytest.raises(txnclient.InvalidTxnState, match="another list"):
                await (await late.attach(shared.id, name=NAME)).commit(writers=counted[1:])
        await kill(cluster, "broker-1", "server")
        assert [Counter(await read_all(driver, topic)) for topic in TOPICS] == [expected, expected]
        joined = await driver.begin(name=NAME)
        assert (joined.state, joined.writers) == ("COMMITTED", result.writers)
