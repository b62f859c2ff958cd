"""Retention end to end: policies changed by a client, ledgers trimmed by the brokers, and nothing broken by it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import txnclient
from tests.cluster import InProcessCluster, running_cluster
from tests.test_deletion import findings
from tests.waiting import until
from txnwire.errors import InvalidArgument

TOPIC = "topic://public/nyc/flights"


@pytest.fixture
async def small_ledgers(etcd: str, tmp_path: Path) -> AsyncIterator[InProcessCluster]:
    async with running_cluster(etcd, tmp_path, ledger_roll_bytes=1_048_576) as running:
        yield running


async def test_r3_s8_a_topic_keeps_what_its_policy_says_and_aborted_stays_aborted(
    small_ledgers: InProcessCluster,
) -> None:
    cluster = small_ledgers
    folder = cluster.data_dir / "ledgers" / "public/nyc/flights"
    async with cluster.connect() as client:
        await client.create_topic(TOPIC, segments=1, retention_bytes=1_000_000_000)
        sent: list[bytes] = []
        async with client.producer(TOPIC, compression=None) as producer:
            for number in range(40):
                txn = await client.begin()
                value = b"%05d" % number * 30_000
                await producer.send(value, txn=txn)
                if number % 3:
                    await txn.commit()
                    sent.append(value)
                else:
                    await txn.abort()
        # What is closed and decided has its aborted records beside it.
        await until(lambda: list(folder.glob("*/*.sidecar")))
        assert await read_all(client) == sent
        await cluster.restart_server("broker")
        assert await read_all(client) == sent
        await client.update_topic(TOPIC, retention_bytes=1_500_000)
        await until(lambda: len(list(folder.glob("*/*.ledger"))) <= 4)
        kept = await read_all(client)
        assert 0 < len(kept) < len(sent)
        assert kept == sent[-len(kept) :]
        assert await findings(cluster) == []
        with pytest.raises(InvalidArgument, match="retention_bytes: expected a positive integer"):
            await client.update_topic(TOPIC, retention_bytes=-1)
        with pytest.raises(InvalidArgument, match="no policy to change"):
            await client.update_topic(TOPIC)
        await client.update_topic(TOPIC, retention_bytes=None)
        await client.delete_topic(TOPIC)
        assert not folder.exists()
        assert await findings(cluster) == []


async def read_all(client: txnclient.Client) -> list[bytes]:
    async with client.reader(TOPIC, end="latest") as reader:
        return [message.value async for message in reader]
