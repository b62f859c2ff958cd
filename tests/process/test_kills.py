"""kill -9 of any process at any moment: exactly the acknowledged and committed is there (A1, D4, P5, R1, L7)."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest

import txnclient
from tests.process.test_brokers import store_of
from tests.process.transaction_job import ACKED, BEGUN, COMMITTED, COMMITTING, STEPS, WRITTEN, Job
from tests.processes import kill, process_cluster, read_all
from tests.test_atomicity import nothing_open
from tests.waiting import until_answer
from txnctl.commands.shared.asking import asking
from txnctl.launch.dev import DevCluster
from txnstore import keys
from txnstore.etcd.embedded_etcd import wait_stopped
from txnstore.store import StoreWatch

VICTIMS = (("broker-1",), ("server",), ("etcd",), ("etcd", "server", "broker-1"))
COMMITS = 6
GAP_S = 0.0005
"""Between the beginnings of commits."""
ROOT = Path(__file__).resolve().parent.parent.parent

pytestmark = [pytest.mark.process, pytest.mark.timeout(240)]


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[DevCluster]:
    async with process_cluster(tmp_path) as running:
        yield running


@pytest.mark.parametrize("victims", VICTIMS, ids="+".join)
async def test_a1_all_or_nothing_whichever_server_is_killed_after_whichever_step(
    cluster: DevCluster, victims: tuple[str, ...]
) -> None:
    """And the death of a broker aborts nothing: what it had answered is there again."""
    jobs: dict[str, tuple[Job, bool]] = {}
    async with txnclient.connect(cluster.url) as client:
        for number, step in enumerate((BEGUN, WRITTEN, ACKED, COMMITTED)):

            async def after(done: str, step: str = step) -> None:
                if done == step:
                    await kill(cluster, *victims)

            job = Job(client, number)
            await job.prepare()
            committed = await job.run(after)
            assert committed or step != COMMITTED, "an answered commit was taken back"
            assert committed or victims != ("broker-1",), f"aborted for a broker that died when {step}"
            await cluster.wait_ready()
            jobs[step] = job, committed
        within = await KillWithin(cluster, victims).outcomes([Job(client, len(jobs) + more) for more in range(COMMITS)])
        await cluster.wait_ready()
        jobs |= {f"{COMMITTING}, {number}": of for number, of in enumerate(within)}
        await asyncio.gather(*(judge(step, *of) for step, of in jobs.items()))


class KillWithin:
    """Kills as soon as etcd has decided the first of some commits, which are begun one behind another. The first goes
    on; the others, which may have come anywhere, are given up and aborted. The last is begun behind the kill."""

    def __init__(self, cluster: DevCluster, victims: tuple[str, ...]) -> None:
        self._cluster = cluster
        self._victims = victims
        self._all_there = asyncio.Barrier(COMMITS)
        self._killed = asyncio.Event()

    async def outcomes(self, jobs: list[Job]) -> list[tuple[Job, bool]]:
        """Each job, and whether it committed."""
        await asyncio.gather(*(job.prepare() for job in jobs))
        ways = [self._kill_when_decided, *(partial(self._give_up, number) for number in range(1, len(jobs)))]
        async with asyncio.timeout(90):
            committed = await asyncio.gather(*(job.run(nothing, way) for job, way in zip(jobs, ways, strict=True)))
        assert committed[0], "what etcd had decided was taken back"
        assert not committed[-1] or "server" not in self._victims, "committed though all who could were dead"
        return list(zip(jobs, committed, strict=True))

    async def _kill_when_decided(self, txn: txnclient.Transaction) -> None:
        async with store_of(self._cluster) as store:
            header = store.watch(keys.txn(txn.id), keys.prefix_end(keys.txn(txn.id)), from_revision=1)
            await until_version(header, 1)
            await self._all_there.wait()
            committing = asyncio.create_task(txn.commit())
            await until_version(header, 2)
            killing = asyncio.create_task(kill(self._cluster, *self._victims))
            await asyncio.sleep(0)
            self._killed.set()
        await killing
        await committing

    async def _give_up(self, number: int, txn: txnclient.Transaction) -> None:
        await self._all_there.wait()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None if number == COMMITS - 1 else number * GAP_S):
                await self._killed.wait()
        committing = asyncio.create_task(txn.commit())
        await asyncio.sleep(0)
        await self._killed.wait()
        committing.cancel()
        await asyncio.gather(committing, return_exceptions=True)
        raise txnclient.Timeout("given up")


async def until_version(header: StoreWatch, wanted: int) -> None:
    """Until etcd shows that version: the second one decides."""
    async with asyncio.timeout(60):
        async for batch in header:
            if any(event.record.version == wanted for event in batch.events):
                return


async def nothing(_: str) -> None:
    pass


async def judge(step: str, job: Job, committed: bool) -> None:
    assert sorted(await job.found()) == (sorted(job.all_outputs()) if committed else []), step
    assert len(await job.redelivered()) == (0 if committed else len(job.inputs)), step


async def test_a1_all_or_nothing_whenever_its_client_is_killed(cluster: DevCluster) -> None:
    """Before its commit nothing is left, behind its answer all; in between, at any turn of its event loop, either."""
    within = [(COMMITTING, turns) for turns in (1, 2, 4, 8, 16)]
    deaths = [(step, 0) for step in STEPS if step != COMMITTING] + within
    async with txnclient.connect(cluster.url) as client:
        jobs = [Job(client, number) for number in range(len(deaths))]
        await asyncio.gather(*(job.prepare() for job in jobs))
        dead = [await start_job(cluster, number, *death) for number, death in enumerate(deaths)]
        async with asyncio.timeout(90):
            assert {await process.wait() for process in dead} == {-signal.SIGKILL}
        await nothing_open(cluster.url)
        found = [len(await job.found()) for job in jobs]
        assert found[:4] == [0, 0, 0, len(jobs[3].all_outputs())]
        outcomes = zip(deaths, jobs, found, strict=True)
        await asyncio.gather(*(judge(str(death), job, count > 0) for death, job, count in outcomes))


async def start_job(cluster: DevCluster, number: int, step: str, turns: int) -> asyncio.subprocess.Process:
    """A process that does it, and kills itself at a step of it."""
    arguments = ["--url", cluster.url, "--number", str(number), "--die-at", step, "--turns", str(turns)]
    module = ["-P", "-m", "tests.process.transaction_job"]
    return await asyncio.create_subprocess_exec(sys.executable, *module, *arguments, cwd=ROOT)


async def test_r1_committed_stays_and_aborted_stays_away_after_everything_is_killed(cluster: DevCluster) -> None:
    """Behind the collection of their headers; what is open then holds what comes behind its own first entry."""
    topic = "topic://public/default/r1"
    async with txnclient.connect(cluster.url) as client:
        await client.create_topic(topic, segments=2)
        async with await client.producer(topic) as producer:
            for number in range(20):
                txn = await client.begin()
                await producer.send(f"{number}".encode(), key=str(number), txn=txn)
                await (txn.abort() if number % 3 == 0 else txn.commit())
            held = await client.begin(timeout=120)
            await producer.send(b"open", key="0", txn=held)
            await producer.send(b"behind", key="0")
            expected = sorted(f"{number}".encode() for number in range(20) if number % 3)
            await collected(cluster, but=1)
            for _ in range(2):
                await kill(cluster, "etcd", "server", "broker-1")
                await cluster.wait_ready()
                reader = await client.reader(topic)
                assert sorted([(await reader.receive(timeout=60)).value for _ in expected]) == expected
                with pytest.raises(txnclient.Timeout):
                    await reader.receive(timeout=0.5)
            await held.abort()
            assert (await reader.receive(timeout=20)).value == b"behind"
            await reader.close()


async def collected(cluster: DevCluster, *, but: int) -> None:
    """Until so many headers are left (they are kept for 2 s here)."""
    async with asking(cluster.url) as ask:
        await until_answer(
            lambda: ask.ask("store.counts"),
            lambda counts: counts["headers"] <= but,
            "headers to be collected",
            within_s=30,
        )


async def test_etcd_stopped_for_a_while_calls_fail_retriably_and_all_goes_on(cluster: DevCluster) -> None:
    topic = "topic://public/default/pause"
    async with txnclient.connect(cluster.url, timeout=5.0) as client:
        await client.create_topic(topic)
        async with await client.producer(topic) as producer:
            etcd = cluster.children["etcd"]
            etcd.signal(signal.SIGSTOP)
            assert etcd.pid is not None
            await wait_stopped(etcd.pid)
            try:
                with pytest.raises(txnclient.TxnError) as refused:
                    async with asyncio.timeout(15):
                        await client.begin()
                assert refused.value.retriable
                await asyncio.sleep(2)
            finally:
                etcd.signal(signal.SIGCONT)
            async with asyncio.timeout(40):
                while True:
                    try:
                        async with client.transaction() as txn:
                            await producer.send(b"after", txn=txn)
                        break
                    except txnclient.TxnError as error:
                        assert error.retriable or error.requires_abort, error
            assert b"after" in await read_all(client, topic)
