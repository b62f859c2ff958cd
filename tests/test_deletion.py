"""Deleting topics and subscriptions, end to end: nothing is left, whoever was using them is told, the rest goes on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

import txnclient
from tests.cluster import InProcessCluster
from tests.waiting import until_answer
from txnctl.checking.invariants import broken_invariants
from txnctl.checking.ledgers import broken_ledgers
from txnctl.checking.picture import take_picture
from txnstore import keys
from txnstore.store import MetadataStore
from txnwire.errors import NotAllowed, SubscriptionNotFound, TopicNotFound

TOPIC = "topic://public/nyc/flights"
OTHER = "topic://public/nyc/delays"


async def keys_naming(store: MetadataStore, text: str) -> list[str]:
    found = await store.range(b"\0", b"\xff", keys_only=True)
    return [key for record in found.records if text in (key := record.key.decode())]


def files_of(data_dir: Path, topic: str) -> Sequence[Path]:
    return sorted((data_dir / "ledgers" / topic.removeprefix("topic://")).rglob("*"))


async def findings(cluster: InProcessCluster) -> list[tuple[str, str]]:
    """What `txnctl check` says."""
    server = cluster.servers["control"]
    picture = await take_picture(server.store)
    found = broken_invariants(picture, now_ms=0)
    async for finding in broken_ledgers(picture, server.ledgers, lambda _: None):
        found.append(finding)
    return found


async def receive_for_ever(consumer: txnclient.Consumer) -> None:
    while True:
        await consumer.receive_many(100, timeout=10.0)


async def test_s8_a_deleted_topic_leaves_no_key_and_no_file(
    cluster: InProcessCluster, client: txnclient.Client
) -> None:
    await client.create_topic(TOPIC, segments=3)
    await client.create_topic(OTHER, segments=1)
    async with client.consumer(TOPIC, "s") as consumer, client.producer(TOPIC) as producer:
        await producer.send_many([(f"key-{n}", b"v") for n in range(30)])
        open_txn = await client.begin()
        async with client.producer(OTHER) as other:
            for n in range(6):
                await producer.send(b"open", key=f"key-{n}", txn=open_txn)
            await other.send(b"elsewhere", txn=open_txn)
        aborted = await client.begin()
        await producer.send(b"aborted", key="k", txn=aborted)
        await aborted.abort()
        message = await consumer.receive(timeout=10.0)
        await consumer.ack(message, txn=open_txn)
    store = cluster.servers["control"].store
    assert await keys_naming(store, "public/nyc/flights")
    assert files_of(cluster.data_dir, TOPIC)
    await client.delete_topic(TOPIC)
    assert await keys_naming(store, "public/nyc/flights") == []
    assert files_of(cluster.data_dir, TOPIC) == []
    await open_txn.commit()
    assert await findings(cluster) == []
    assert await client.list_topics() == [OTHER]
    async with client.reader(OTHER, end="latest") as reader:
        assert [message.value async for message in reader] == [b"elsewhere"]


KINDS_OF_A_TOPIC = (
    keys.TOPIC, keys.SUBSCRIPTION, keys.ASSIGNMENT, keys.DRAINED, keys.CURSOR, keys.OWNER, keys.LEDGER,
    keys.SEGMENT_STATE, keys.TXN_OP, keys.WRITES_BY_SEGMENT, keys.ACKS_BY_SEGMENT_SUBSCRIPTION,
)  # fmt: skip
KINDS_THAT_STAY = (
    keys.TXN, keys.TXN_BY_DEADLINE, keys.TXN_OUTCOME, keys.TXN_SEQ, keys.SEGMENT_IDS, keys.GC_HORIZON, keys.CLOCK,
    keys.COMPACTION, keys.PIN, keys.SENDER,
)  # fmt: skip
"""Of transactions and of the cluster."""


def kinds(found: list[str], of: Sequence[bytes]) -> set[bytes]:
    return {prefix for prefix in of if any(key.startswith(prefix.decode()) for key in found)}


async def test_s8_nothing_is_left_of_a_topic_and_a_subscription_that_had_everything(
    cluster: InProcessCluster, client: txnclient.Client
) -> None:
    """Cursors, drained marks and assignments among it, acks that are pending, a sealed parent; the subscription goes
    first, beside another one, and then the topic."""
    store = cluster.servers["control"].store
    before = await keys_naming(store, "")
    await client.create_topic(TOPIC, segments=2)
    async with (
        client.producer(TOPIC) as producer,
        client.consumer(TOPIC, "gone") as gone,
        client.consumer(TOPIC, "stays") as stays,
    ):
        await producer.send_many([(f"key-{n}", b"v") for n in range(20)])
        for consumer in (gone, stays):
            for _ in range(20):
                await consumer.ack(await consumer.receive(timeout=10.0))
        await client.split((await client.describe_topic(TOPIC)).active[0].name)
        await until_answer(
            lambda: keys_naming(store, keys.DRAINED.decode()),
            lambda found: {key.split("/")[-2] for key in found} == {"gone", "stays"},
            "marks of both subscriptions",
            within_s=20.0,
        )
        open_txn, aborted = await client.begin(), await client.begin()
        await producer.send_many([(f"key-{n}", b"w") for n in range(20)])
        for txn in (open_txn, aborted):
            await producer.send(b"in it", key="key-1", txn=txn)
        for consumer in (gone, stays):
            await consumer.ack(await consumer.receive(timeout=10.0), txn=open_txn)
            await consumer.ack(await consumer.receive(timeout=10.0))
        await aborted.abort()
        await until_answer(
            lambda: keys_naming(store, "nyc/flights"),
            lambda found: kinds(found, KINDS_OF_A_TOPIC) == {*KINDS_OF_A_TOPIC},
            "a key of each kind",
            within_s=20.0,
        )
        of_gone = await keys_naming(store, "/gone")
        assert {keys.CURSOR, keys.ASSIGNMENT, keys.DRAINED, keys.TXN_OP} <= kinds(of_gone, KINDS_OF_A_TOPIC)
        of_stays = await keys_naming(store, "/stays")
        await client.delete_subscription(TOPIC, "gone", force=True)
        assert await keys_naming(store, "/gone") == []
        assert {*of_stays} <= {*await keys_naming(store, "/stays")}  # its cursors go on being written meanwhile
        await client.delete_topic(TOPIC, force=True)
    assert await keys_naming(store, "nyc/flights") == []
    assert files_of(cluster.data_dir, TOPIC) == []
    left = [key for key in await keys_naming(store, "") if key not in before]
    assert [key for key in left if not kinds([key], KINDS_THAT_STAY)] == []
    await open_txn.commit()
    assert await findings(cluster) == []


async def test_a_topic_in_use_is_not_deleted_without_force(cluster: InProcessCluster, client: txnclient.Client) -> None:
    await client.create_topic(TOPIC, segments=2)
    async with client.producer(TOPIC) as producer:
        await producer.send(b"v", key="k")
        with pytest.raises(NotAllowed, match="1 producers and 0 consumers"):
            await client.delete_topic(TOPIC)
        await producer.send(b"w", key="k")
    async with client.consumer(TOPIC, "s") as consumer:
        await consumer.receive(timeout=10.0)  # of one of the segments; it may be on its way to the other one
        with pytest.raises(NotAllowed, match=r"0 producers and [12] consumers"):
            await client.delete_topic(TOPIC)
        with pytest.raises(NotAllowed, match="subscription s"):
            await client.delete_subscription(TOPIC, "s")
    await client.delete_topic(TOPIC)


async def test_force_tells_producers_consumers_and_readers(cluster: InProcessCluster, client: txnclient.Client) -> None:
    await client.create_topic(TOPIC, segments=1)
    async with (
        client.producer(TOPIC) as producer,
        client.consumer(TOPIC, "s") as consumer,
        client.reader(TOPIC) as reader,
    ):
        await producer.send(b"v")
        await consumer.receive(timeout=10.0)
        await reader.receive(timeout=10.0)
        await client.delete_topic(TOPIC, force=True)
        with pytest.raises(TopicNotFound):
            await producer.send(b"w")
        with pytest.raises(TopicNotFound):
            await consumer.receive(timeout=10.0)
        with pytest.raises(TopicNotFound):
            await reader.receive(timeout=10.0)


async def test_a_deleted_topic_is_unknown_and_a_new_one_of_its_name_another(
    cluster: InProcessCluster, client: txnclient.Client
) -> None:
    await client.create_topic(TOPIC, segments=2)
    async with client.producer(TOPIC) as producer:
        old = await producer.send(b"old", key="k")
    await client.delete_topic(TOPIC)
    with pytest.raises(TopicNotFound):
        await client.delete_topic(TOPIC)
    with pytest.raises(TopicNotFound):
        await client.update_topic(TOPIC, retention_ms=1)
    with pytest.raises(TopicNotFound):
        await client.describe_topic(TOPIC)
    layout = await client.create_topic(TOPIC, segments=2)
    assert sorted(layout.segments) == [2, 3], "▲ ids of a deleted topic are never used again"
    async with client.producer(TOPIC) as producer:
        await producer.send(b"new", key="k")
    async with client.reader(TOPIC, end="latest") as reader:
        assert [message.value async for message in reader] == [b"new"]
    with pytest.raises(txnclient.TxnError, match=rf"no such segment|not, or no longer, a segment of {TOPIC}"):
        async with client.consumer(TOPIC, "at-old", start=old) as consumer:
            await consumer.receive(timeout=5.0)


async def test_p9_a_subscription_is_deleted_while_acks_are_pending(
    cluster: InProcessCluster, client: txnclient.Client
) -> None:
    await client.create_topic(TOPIC, segments=2)
    async with client.producer(TOPIC) as producer:
        await producer.send_many([(f"key-{n}", b"%d" % n) for n in range(10)])
    txn = await client.begin()
    async with client.consumer(TOPIC, "gone") as consumer, client.consumer(TOPIC, "stays") as stays:
        for one in (consumer, stays):
            await one.ack(await one.receive(timeout=10.0), txn=txn)
        await client.delete_subscription(TOPIC, "gone", force=True)
        with pytest.raises(SubscriptionNotFound):
            await receive_for_ever(consumer)
    store = cluster.servers["control"].store
    assert [key for key in await keys_naming(store, "/gone") if not key.startswith("/txn/")] == []
    with pytest.raises(SubscriptionNotFound):
        await client.delete_subscription(TOPIC, "gone")
    await txn.commit()
    assert await findings(cluster) == []
    async with client.consumer(TOPIC, "gone") as consumer:  # one of the name begins anew
        seen = 0
        while seen < 10:
            seen += len(await consumer.receive_many(100, timeout=10.0))
    await client.delete_subscription(TOPIC, "stays")
    assert await keys_naming(store, "/stays") == []
    assert (await store.get(keys.subscription("public/nyc/flights", "gone"))) is not None


async def test_p9_a_queue_is_deleted_while_messages_are_out_and_acks_pending(
    cluster: InProcessCluster, client: txnclient.Client
) -> None:
    await client.create_topic(TOPIC, segments=2)
    async with client.producer(TOPIC) as producer:
        await producer.send_many([(f"key-{n}", b"%d" % n) for n in range(20)])
    txn = await client.begin()
    async with client.consumer(TOPIC, "work", type="queue") as consumer:
        await consumer.ack(await consumer.receive(timeout=10.0), txn=txn)
        await consumer.receive(timeout=10.0)
        with pytest.raises(NotAllowed, match="subscription work"):
            await client.delete_subscription(TOPIC, "work")
        await client.delete_subscription(TOPIC, "work", force=True)
        with pytest.raises(SubscriptionNotFound):
            await receive_for_ever(consumer)
    store = cluster.servers["control"].store
    assert await keys_naming(store, "/work") == []
    await txn.commit()
    assert await findings(cluster) == []
