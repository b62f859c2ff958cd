"""Names that look like parts of keys, through a whole cluster: real client, servers, etcd, ledgers (SCENARIOS C10)."""

from __future__ import annotations

from pathlib import Path

import pytest

import txnclient
from tests.cluster import InProcessCluster
from tests.processes import read_all
from tests.txnctl.command_line import txnctl
from txnclient import TransactionState

LONGEST = "x" * 128
NAMES = [
    ("aborted/aborted/aborted", "aborted", "sink/aborted/7"),
    ("watermark/w/watermark", "w", "%2F/../watermark"),
    ("0000-ffff-0/a/0000-ffff-0", "a", "ü/\U0001f600\0/txn-op"),
    (f"{LONGEST}/{LONGEST}/{LONGEST}", LONGEST, "\U0001f600" * 128),
    ("a.b_c-d/1./mark", "mark", " "),
]


@pytest.mark.parametrize(("path", "name", "free_text"), NAMES)
async def test_c10_what_is_written_aborted_acked_and_taken_over_under_such_names_is_all_there(
    cluster: InProcessCluster, tmp_path: Path, path: str, name: str, free_text: str
) -> None:
    topic = f"topic://{path}"
    async with cluster.connect(transaction_key=free_text) as client:
        await client.create_topic(topic, segments=2)
        producer = await client.producer(topic, name=name)
        await producer.send_many([(f"k{n}", b"plain %d" % n) for n in range(10)])
        async with client.transaction() as kept:
            await producer.send_many([(f"k{n}", b"kept %d" % n) for n in range(10)], txn=kept)
        dropped = await client.begin()
        await producer.send_many([(f"k{n}", b"dropped %d" % n) for n in range(10)], txn=dropped)
        await dropped.abort()
    async with cluster.connect() as client:
        stream = await client.consumer(topic, name, name=name)
        queue = await client.consumer(topic, f"{name[:-1]}q", type="queue")
        named = await client.begin(name=free_text)
        for consumer in (stream, queue):
            received: list[txnclient.Message] = []
            while len(received) < 20:
                received += await consumer.receive_many(20 - len(received), timeout=10.0)
            await consumer.ack(received, txn=named)
        await named.commit()
        open_still = await client.begin()
        await (await client.producer(topic)).send(b"never committed", txn=open_still)
    await cluster.restart_server("broker")  # its successor reads every record of the segments
    async with cluster.connect() as client:
        values = sorted(await read_all(client, topic))
        assert values == sorted([b"plain %d" % n for n in range(10)] + [b"kept %d" % n for n in range(10)])
        assert (await client.begin(name=free_text)).state is TransactionState.COMMITTED
        await (await client.producer(topic, name=name)).send(b"last")
        again = await client.consumer(topic, name, name=name)
        assert [one.value for one in await again.receive_many(100, timeout=10.0)] == [b"last"]
        where = ("--etcd", cluster.etcd, "--etcd-prefix", cluster.prefix, "--data-dir", str(tmp_path))
        checked = await txnctl("check", *where)
        assert checked.code == 0, checked.out
        await client.delete_topic(topic, force=True)
