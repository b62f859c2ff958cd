"""SCENARIOS "Atomicity", end to end: real client, servers, etcd, ledgers and gRPC."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

import txnclient
from tests.cluster import InProcessCluster, running_cluster
from tests.lagging import HeldDecisions, create_over_both, reads_beside
from tests.processes import read_all
from tests.waiting import until_answer
from txnctl.commands.shared.asking import asking
from txnstore.etcd.embedded_etcd import EmbeddedEtcd

TOPICS = ("topic://acme/orders/placed", "topic://globex/billing/invoices")
KEYS = [f"key-{number}" for number in range(6)]


async def create_topics(client: txnclient.Client) -> None:
    for topic in TOPICS:
        await create_over_both(client, topic, segments=4)


async def write_everywhere(client: txnclient.Client, txn: txnclient.Transaction, value: bytes) -> None:
    """A message of each key in either topic, spread over the segments of both brokers."""
    for topic in TOPICS:
        async with await client.producer(topic) as producer:
            await producer.send_many([(key, value) for key in KEYS], txn=txn)


async def read_everything(client: txnclient.Client) -> Counter[bytes]:
    return Counter([value for topic in TOPICS for value in await read_all(client, topic)])


async def test_a6_one_transaction_over_two_namespaces_of_two_tenants(
    lagging: tuple[InProcessCluster, HeldDecisions],
) -> None:
    """While it is open, as it ends, and behind it: no read has it but whole, however late an owner hears of its end."""
    cluster, second = lagging
    async with cluster.connect() as client, cluster.connect() as reading:
        await create_topics(client)
        async with reads_beside(reading, *TOPICS) as reads:
            for number in range(6):
                txn = await client.begin()
                await write_everywhere(client, txn, b"%d" % number)
                await reads.another()
                assert txn.id not in reads.found[-1]
                if number % 2:
                    second.open.clear()
                await (txn.abort() if number % 3 == 0 else txn.commit())
                await reads.another()
                assert (txn.id in reads.found[-1]) == (number % 3 != 0)
                second.open.set()
        assert await read_everything(reading) == {b"%d" % number: 12 for number in range(6) if number % 3}


async def test_a2_of_a_transaction_of_unknown_outcome_all_or_nothing_is_seen(
    lagging: tuple[InProcessCluster, HeldDecisions],
) -> None:
    """Clients that go away in the middle of their commit: whichever way each ended, it ended whole, and nobody sees a
    part of it meanwhile."""
    cluster, second = lagging
    async with cluster.connect() as observer:
        await create_topics(observer)
        async with reads_beside(observer, *TOPICS) as reads:
            for number in range(24):
                client = await cluster.connect()
                txn = await client.begin()
                await write_everywhere(client, txn, b"%d" % number)
                (second.open.clear if number % 2 else second.open.set)()
                committing = asyncio.ensure_future(txn.commit())
                for _ in range(number):  # from "not yet sent" to "answered"
                    await asyncio.sleep(0)
                committing.cancel()
                await client.close()
                await asyncio.gather(committing, return_exceptions=True)
                if number % 8 == 7:
                    await reads.another()
            second.open.set()
            await nothing_open(cluster.url)
        seen = await read_everything(observer)
    assert set(seen.values()) == {12}, "a transaction is torn, or none has committed"
    assert len(seen) < 24, "none was aborted"


async def nothing_open(url: str) -> None:
    """Vanished clients' transactions have been aborted (after the grace)."""
    async with asking(url) as ask:
        await until_answer(
            lambda: ask.ask("transactions.list", state="OPEN"),
            lambda answer: not answer["transactions"],
            "nothing open",
            within_s=30,
        )


@pytest.fixture
async def cluster_at_128(etcd_process: EmbeddedEtcd, tmp_path: Path) -> AsyncIterator[InProcessCluster]:
    """Over an etcd that is as particular as by default; one that we start ourselves takes 10 000 operations."""
    await etcd_process.stop()
    etcd_process.command = msgspec.structs.replace(etcd_process.command, max_txn_ops=128)
    await etcd_process.start()
    async with running_cluster(etcd_process.url, tmp_path) as running:
        yield running


async def test_a3_ten_thousand_operations_commit_with_one_decision(cluster_at_128: InProcessCluster) -> None:
    """Each message an entry and an op record of its own: etcd's limits of 128 operations and 1.5 MiB never show."""
    cluster = cluster_at_128
    topic, producers, waves = "topic://public/default/many", 500, 20
    operations = producers * waves
    async with cluster.connect(timeout=60.0) as client, contextlib.AsyncExitStack() as stack:
        await client.create_topic(topic, segments=3)
        # What one producer sends in one go shares an op record, so each sends one message at a time; together they send
        # more than fits into one request.
        many = [await stack.enter_async_context(client.producer(topic)) for _ in range(producers)]
        txn = await client.begin(timeout=100)
        for wave in range(waves):
            numbers = range(wave * producers, (wave + 1) * producers)
            sends = [one.send(b"%d" % number, txn=txn) for one, number in zip(many, numbers, strict=True)]
            await asyncio.gather(*sends)
        async with asking(cluster.url) as ask:
            ops = (await ask.ask("store.counts"))["ops"]
        result = await txn.commit()
        assert ops > operations / 2, "the operations were folded into few records: this test proves nothing then"
        assert sorted(await read_all(client, topic), key=int) == [b"%d" % number for number in range(operations)]
        info = await client.transaction_info(txn.id)
        assert info["revision"] == result.revision
        async with asking(cluster.url) as ask:
            await until_answer(lambda: ask.ask("store.counts"), lambda counts: not counts["ops"], "no op records")
    refused = {name: one.store.statistics().splits for name, one in cluster.servers.items()}
    assert refused == {"control": 0, "broker": 0}, "etcd refused requests for their size"
