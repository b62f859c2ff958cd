"""Named transactions end to end: real client, servers, etcd, ledgers and gRPC (DESIGN §10, SCENARIOS A5)."""

from __future__ import annotations

import asyncio

import pytest

import txnclient
from tests.cluster import InProcessCluster
from tests.processes import read_all
from txnclient import Transaction, TransactionState

TOPIC = "topic://public/default/parts"
NAME = "sink/query-7/42"


async def send(client: txnclient.Client, txn: Transaction, *values: bytes, topic: str = TOPIC) -> None:
    async with await client.producer(topic) as producer:
        for value in values:
            await producer.send(value, key=value.decode(), txn=txn)


async def test_two_clients_join_one_transaction_and_the_list_decides(cluster: InProcessCluster) -> None:
    async with cluster.connect() as one, cluster.connect() as two:
        await one.create_topic(TOPIC, segments=3)
        first, second, third = await one.begin(name=NAME), await two.begin(name=NAME), await two.begin(name=NAME)
        assert first.id == second.id == third.id
        assert [txn.joined for txn in (first, second, third)] == [False, True, True]
        assert len({first.writer_id, second.writer_id, third.writer_id}) == 3
        await send(one, first, b"a1", b"a2")
        await send(two, second, b"b1", b"b2")
        await send(two, third, b"c1", b"c2")
        assert await read_all(one, TOPIC) == []
        result = await first.commit(writers=[first.writer_id, third.writer_id])
        assert result.writers == tuple(sorted([first.writer_id, third.writer_id]))
        assert sorted(await read_all(one, TOPIC)) == [b"a1", b"a2", b"c1", b"c2"]
        with pytest.raises(txnclient.TxnConflict, match="COMMITTED"):
            await send(two, second, b"late")
        joined = await two.begin(name=NAME)
        assert (joined.state, joined.id, joined.writers) == (TransactionState.COMMITTED, first.id, result.writers)
        assert await joined.commit(writers=result.writers) == result
        with pytest.raises(txnclient.InvalidTxnState, match="COMMITTED"):
            await send(two, joined, b"later")
        assert sorted(await read_all(two, TOPIC)) == [b"a1", b"a2", b"c1", b"c2"]
