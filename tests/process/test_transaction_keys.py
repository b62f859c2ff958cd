"""Transaction keys over real processes: holders that are stopped in the midst of a transaction and wake as zombies, and
coordinators that come, are killed and come back meanwhile (K1, K6, D4)."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import txnclient
from tests.process.keyed_worker import INPUT, OUTPUT
from tests.processes import FLAGS, kill, process_cluster, read_all
from tests.waiting import until, until_answer
from txnctl.launch.dev import DevCluster
from txnctl.launch.supervisor import Child, ChildSpec, Supervisor

KEY = "nightly job"
MESSAGES = 400
"""So many that no worker has passed on the last of them before it is stopped."""
ROOT = Path(__file__).resolve().parent.parent.parent

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]


class Worker:
    """A process, and what it has said."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.epoch = -1
        self.committed = 0
        self.expired = ""
        self.open = asyncio.Event()
        """In the midst of a transaction, as last heard of."""

    @staticmethod
    async def start(url: str) -> Worker:
        arguments = ["-m", "tests.process.keyed_worker", "--url", url, "--key", KEY]
        return Worker(
            await asyncio.create_subprocess_exec(sys.executable, *arguments, stdout=asyncio.subprocess.PIPE, cwd=ROOT)
        )

    async def follow(self) -> None:
        """Until it ends."""
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            said = json.loads(line)
            self.epoch = said.get("epoch", self.epoch)
            self.committed += said.get("committed", 0)
            self.expired = said.get("expired", self.expired)
            if "open" in said:
                self.open.set()
            elif "committed" in said:
                self.open.clear()
        await self.process.wait()

    async def committed_some(self, count: int) -> None:
        await until(lambda: self.committed >= count or self.process.returncode is not None, within_s=240.0)


@asynccontextmanager
async def more_coordinators(cluster: DevCluster, folder: Path) -> AsyncIterator[dict[str, Child]]:
    """Two processes with no other role, beside the cluster's own coordinator."""
    specs = []
    for name in ("coordinator-2", "coordinator-3"):
        command = [sys.executable, "-m", "txnctl", "serve", "--roles", "coordinator", "--id", name]
        command += ["--listen", "127.0.0.1:0", "--admin-listen", "off", "--etcd", cluster.etcd_url]
        command += ["--data-dir", str(folder / "data"), "--allow-development-etcd", *FLAGS]
        specs.append(ChildSpec(name=name, command=command, log_path=folder / f"{name}.log"))
    async with Supervisor(specs) as supervisor:
        yield supervisor.children


async def held_evenly(client: txnclient.Client) -> dict[str, int]:
    """How many coordinator ids each of three processes holds, once each has its share."""

    async def held() -> dict[str, int]:
        rows = (await client.admin("transactions.stats"))["coordinators"]
        return {row["coordinator"]: row["tcids"] for row in rows if "error" not in row}

    return await until_answer(
        held, lambda found: sorted(found.values()) == [5, 5, 6], "ids held evenly", longest_poll_s=0.1
    )


async def test_k1_zombies_that_wake_are_fenced_and_every_input_is_passed_on_once(tmp_path: Path) -> None:
    async with (
        process_cluster(tmp_path) as cluster,
        more_coordinators(cluster, tmp_path) as coordinators,
        txnclient.connect(cluster.url, timeout=60.0) as client,
        asyncio.timeout(220),
    ):
        for topic in (INPUT, OUTPUT):
            await client.create_topic(topic)
        values = [b"%d" % number for number in range(MESSAGES)]
        async with await client.producer(INPUT) as producer:
            await producer.send_many([("one", value) for value in values])
        assert len(await held_evenly(client)) == 3
        workers: list[Worker] = []
        async with asyncio.TaskGroup() as group:
            for turn in range(4):
                worker = await Worker.start(cluster.url)
                workers.append(worker)
                group.create_task(worker.follow())
                await worker.committed_some(10)
                if turn == 3:
                    break
                await worker.open.wait()
                worker.process.send_signal(signal.SIGSTOP)
                if turn == 1:
                    for child in coordinators.values():
                        child.signal(signal.SIGKILL)
                elif turn == 2:
                    await kill(cluster, "server")
            # While the last one is at work, all of its predecessors wake up.
            for zombie in workers[:-1]:
                zombie.process.send_signal(signal.SIGCONT)
            # ▲ What one of them has committed as it was stopped it may never hear of.
            await until_answer(
                lambda: read_all(client, OUTPUT),
                lambda found: len(found) >= MESSAGES,
                "all to be passed on",
                within_s=240.0,
                longest_poll_s=0.1,
            )
            for zombie in workers[:-1]:
                await asyncio.wait_for(zombie.process.wait(), 60)
            workers[-1].process.terminate()
        assert [worker.epoch for worker in workers] == [0, 1, 2, 3]
        assert all("fenced" in zombie.expired for zombie in workers[:-1])
        assert not workers[-1].expired
        assert await read_all(client, OUTPUT) == values
        (key,) = (await client.admin("keys.list"))["keys"]
        assert (key["key"], key["epoch"]) == (KEY, 3)
        await held_evenly(client)
