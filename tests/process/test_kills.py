"""kill -9 of any process at any moment: exactly the acknowledged and committed is there (A1, D4, P5, R1, L7)."""

from __future__ import annotations

import asyncio
import itertools
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import txnclient
from tests.processes import kill, process_cluster, read_all
from txnctl.dev import DevCluster
from txnstore.embedded_etcd import wait_stopped

STEPS = ("begun", "written", "acked", "committed")
VICTIMS = (("broker-1",), ("server",), ("etcd",), ("etcd", "server", "broker-1"))
_names = itertools.count(1)

pytestmark = [pytest.mark.process, pytest.mark.timeout(240)]


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[DevCluster]:
    async with process_cluster(tmp_path) as running:
        yield running


class Job:
    """One transaction over two output topics of three segments each and acks on two subscriptions."""

    def __init__(self, client: txnclient.Client) -> None:
        number = next(_names)
        self.client = client
        self.inputs = [f"topic://public/in{number}/a", f"topic://public/in{number}/b"]
        self.outputs = [f"topic://public/out{number}/a", f"topic://other/out{number}/b"]
        self.written: list[bytes] = []

    async def prepare(self) -> None:
        for topic in (*self.inputs, *self.outputs):
            await self.client.create_topic(topic, segments=3)
        for topic in self.inputs:
            async with await self.client.producer(topic) as producer:
                await producer.send(b"input of " + topic.encode(), key="k")

    async def run(self, cluster: DevCluster, victims: tuple[str, ...], at: str) -> bool:
        """Whether it committed. Kills `victims` right after step `at`."""

        async def after(step: str) -> None:
            if step == at:
                await kill(cluster, *victims)

        consumers = [await self.client.consumer(topic, "job") for topic in self.inputs]
        received = [await consumer.receive(timeout=20) for consumer in consumers]
        txn = await self.client.begin(timeout=60)
        await after("begun")
        try:
            await self._write(txn)
            await after("written")
            for consumer, message in zip(consumers, received, strict=True):
                await consumer.ack(message, txn=txn)
            await after("acked")
            await txn.commit()
            await after("committed")
            return True
        except txnclient.TxnError as error:
            assert error.retriable or error.requires_abort or isinstance(error, txnclient.InvalidTxnState), error
            return await self._end(txn)
        finally:
            for consumer in consumers:
                await consumer.close()

    async def _write(self, txn: txnclient.Transaction) -> None:
        for topic in self.outputs:
            async with await self.client.producer(topic) as producer:
                values = [f"{topic} {number}".encode() for number in range(12)]
                await producer.send_many([(f"key-{number}", value) for number, value in enumerate(values)], txn=txn)
                await producer.flush()
                self.written += values

    async def _end(self, txn: txnclient.Transaction) -> bool:
        async with asyncio.timeout(40):
            while txn.state not in ("COMMITTED", "ABORTED"):
                try:
                    await txn.abort()
                except txnclient.InvalidTxnState:
                    break
                except txnclient.TxnError as error:
                    assert error.retriable, error
        return txn.state == "COMMITTED"

    async def found(self) -> list[bytes]:
        return [value for topic in self.outputs for value in await read_all(self.client, topic)]

    async def redelivered(self) -> list[bytes]:
        """What a consumer that comes later still gets of the inputs: all that is before a sentinel of the same key."""
        values = []
        for topic in self.inputs:
            async with await self.client.producer(topic) as producer:
                await producer.send(b"sentinel", key="k")
            async with await self.client.consumer(topic, "job") as consumer:
                while (message := await consumer.receive(timeout=60)).value != b"sentinel":
                    values.append(message.value)
        return values


@pytest.mark.parametrize("victims", VICTIMS, ids="+".join)
async def test_a1_all_or_nothing_whoever_is_killed_after_whichever_step(
    cluster: DevCluster, victims: tuple[str, ...]
) -> None:
    async with txnclient.connect(cluster.url) as client:
        for step in STEPS:
            job = Job(client)
            await job.prepare()
            committed = await job.run(cluster, victims, step)
            assert committed or step != "committed", "an answered commit was taken back"
            await cluster.wait_ready()
            expected = sorted(job.written) if committed else []
            assert sorted(await job.found()) == expected, f"after a kill of {victims} when {step}"
            assert len(await job.redelivered()) == (0 if committed else 2), f"after a kill of {victims} when {step}"


async def test_r1_committed_stays_and_aborted_stays_away_after_everything_is_killed(cluster: DevCluster) -> None:
    """Also after the headers have been collected (they are kept for 2 s here)."""
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
            for _ in range(2):
                await kill(cluster, "etcd", "server", "broker-1")
                await cluster.wait_ready()
                expected = sorted(f"{number}".encode() for number in range(20) if number % 3)
                assert sorted(await read_all(client, topic)) == expected
            await producer.send(b"sentinel", key="0")
            await held.abort()
            async with asyncio.timeout(20):
                while b"sentinel" not in (values := await read_all(client, topic)):
                    await asyncio.sleep(0.05)
            assert b"open" not in values


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
