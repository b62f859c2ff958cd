"""Acks that are refused: what they held is free again, and what they had done before is kept."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from segments.subscription.cursors.cursor import MARK
from tests.segments.brokering import Cluster
from tests.segments.gates import is_ack_op
from tests.waiting import until
from txnstore import keys
from txnstore.store import Commit, CommitVerdict
from txnwire.errors import Overloaded, StoreUnavailable, TxnConflict


@pytest.mark.parametrize("type", ["stream", "queue"])
async def test_p3_a_message_whose_ack_the_store_does_not_take_may_be_acked_in_another_transaction(
    memory_cluster: Cluster, monkeypatch: pytest.MonkeyPatch, type: str
) -> None:
    """▲ Held for an op that was never sent, it would be held as long as the segment has this owner."""
    cluster = memory_cluster
    [segment] = await cluster.create_topic()
    node = await cluster.start()
    client = await cluster.connect(node)
    consumer = await (cluster.queue if type == "queue" else cluster.subscribe)(client, segment)
    await (await client.producer(segment)).send("a")
    await consumer.wait("a")
    commit_really = node.store.commit_nowait

    def away(commit: Commit) -> asyncio.Future[CommitVerdict]:
        if is_ack_op(commit):
            raise StoreUnavailable("it accepts nothing now")
        return commit_really(commit)

    with monkeypatch.context() as patched:
        patched.setattr(node.store, "commit_nowait", away)
        with pytest.raises(StoreUnavailable):
            await consumer.ack(consumer.messages[0], txn=await cluster.begin())
    txn = await cluster.begin()
    await consumer.ack(consumer.messages[0], txn=txn)
    await cluster.commit(txn)
    await cluster.wait_no_ops(txn)


async def test_p3_what_a_queue_s_consumer_acks_beside_a_message_of_another_transaction_comes_again(
    memory_cluster: Cluster,
) -> None:
    """▲ The transaction cannot commit with it: its consumer has done with it, and gives it back no more."""
    cluster = memory_cluster
    [segment] = await cluster.create_topic()
    client = await cluster.connect(await cluster.start())
    consumer, producer = await cluster.queue(client, segment), await client.producer(segment)
    for value in "ab":
        await producer.send(value)
    await consumer.wait("a", "b")
    first, second = consumer.take()
    await consumer.ack(first, txn=await cluster.begin())
    with pytest.raises(TxnConflict):
        await consumer.ack(first, second, txn=await cluster.begin())
    await until(lambda: consumer.values == ["b"], within_s=10)


async def test_p8_acks_before_one_that_finds_no_room_are_stored(memory_cluster: Cluster) -> None:
    """Nothing else need be acked: a crash would bring them back."""
    cluster = memory_cluster
    cluster.settings = replace(cluster.settings, partial_acks_bytes=1, cursor_flush_s=0.01)
    [segment] = await cluster.create_topic()
    client = await cluster.connect(await cluster.start())
    consumer, producer = await cluster.subscribe(client, segment), await client.producer(segment)
    for values in ("a", "bc", "de", "f"):
        await producer.send(*values)
    await consumer.wait(*"abcdef")
    a, _, c, _, e, f = consumer.messages

    async def stored(block: str) -> bool:
        return await cluster.store.get(keys.cursor_block(segment, "sub", block)) is not None

    await consumer.ack(a)
    await until(lambda: stored(MARK), within_s=10)
    with pytest.raises(Overloaded, match="acked in part"):
        await consumer.ack(f, c, e)
    await until(lambda: stored("1-0"), within_s=10)
