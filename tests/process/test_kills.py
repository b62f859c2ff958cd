"""kill -9 of any process at any moment: exactly the acknowledged and committed is there (A1, D4, P5, R1, L7)."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import txnclient
from tests.process.transaction_job import COMMITTED, COMMITTING, STEPS, Job
from tests.processes import kill, process_cluster, read_all
from tests.test_atomicity import nothing_open
from tests.waiting import until_answer
from txnctl.commands.shared.asking import asking
from txnctl.launch.dev import DevCluster
from txnstore.etcd.embedded_etcd import wait_stopped

VICTIMS = (("broker-1",), ("server",), ("etcd",), ("etcd", "server", "broker-1"))
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
        for number, step in enumerate(STEPS):
            beside: list[asyncio.Task[None]] = []

            async def after(done: str, step: str = step, beside: list[asyncio.Task[None]] = beside) -> None:
                if done == step == COMMITTING:
                    beside.append(asyncio.create_task(kill(cluster, *victims)))
                elif done == step:
                    await kill(cluster, *victims)

            job = Job(client, number)
            await job.prepare()
            committed = await job.run(after)
            assert committed or step != COMMITTED, "an answered commit was taken back"
            assert committed or victims != ("broker-1",), f"aborted for a broker that died when {step}"
            await asyncio.gather(*beside)
            await cluster.wait_ready()
            jobs[step] = job, committed
        await asyncio.gather(*(judge(step, *of) for step, of in jobs.items()))


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
