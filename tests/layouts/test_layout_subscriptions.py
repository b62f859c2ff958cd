"""Subscriptions over splits and merges, end to end: order per key, acks on what is sealed, seeks, queues."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable

import msgspec
import pytest

import txnclient
from segments.layout.layout_transitions import read_topology
from tests.cluster import InProcessCluster
from tests.waiting import until, until_answer
from txnclient.consuming.received.message import Message
from txnstore import keys
from txnstore.records import TopicRecord, decode, encode
from txnstore.store import Commit, KeyValue, Put

TOPIC = "topic://public/nyc/flights"
KEYS = [f"key-{number}" for number in range(8)]


async def segments(client: txnclient.Client) -> list[str]:
    """Names of the active ones, in hash order."""
    return [segment.name for segment in (await client.describe_topic(TOPIC)).active]


async def split(client: txnclient.Client, index: int = 0) -> None:
    await client.split((await segments(client))[index])


async def send(producer: txnclient.Producer[bytes], numbers: Iterable[int], **options: object) -> None:
    for number in numbers:
        await producer.send(b"%d" % number, key=KEYS[number % len(KEYS)], **options)  # type: ignore[arg-type]


async def receive(consumer: txnclient.Consumer[bytes], count: int, *, timeout: float = 10.0) -> list[Message[bytes]]:
    found: list[Message[bytes]] = []
    while len(found) < count:
        batch = await consumer.receive_many(count - len(found), timeout)
        if not batch:
            break
        found += batch
    return found


def numbers(messages: Iterable[Message[bytes]]) -> list[int]:
    return [int(message.value) for message in messages]


def check_order(messages: Iterable[Message[bytes]]) -> None:
    """Per key as they were sent."""
    by_key: dict[str, list[int]] = defaultdict(list)
    for message in messages:
        by_key[str(message.key)].append(int(message.value))
    for found in by_key.values():
        assert found == sorted(found)


async def drained(cluster: InProcessCluster, subscription: str = "s") -> list[int]:
    store = cluster.servers["control"].store
    prefix = keys.drained_by_subscription("public/nyc/flights", subscription)
    found = await store.range(prefix, keys.prefix_end(prefix))
    return sorted(int(record.key[len(prefix) :]) for record in found.records)


async def wait_drained(cluster: InProcessCluster, expected: list[int]) -> None:
    await until_answer(
        lambda: drained(cluster), lambda found: found == expected, f"segments {expected} to be drained", within_s=10
    )


async def test_s7_a_child_is_read_once_its_parents_are_drained_in_order_per_key(
    cluster: InProcessCluster, client: txnclient.Client
) -> None:
    """Also while an open transaction holds the parent, and over a merge."""
    await client.create_topic(TOPIC, segments=1)
    async with client.producer(TOPIC) as producer, client.consumer(TOPIC, "s", start="earliest") as consumer:
        held = await client.begin()
        await send(producer, range(8))
        await send(producer, range(8, 16), txn=held)
        await split(client)
        await send(producer, range(16, 32))
        got = await receive(consumer, 8)
        assert numbers(got) == list(range(8))
        await consumer.ack(got)
        assert await consumer.receive_many(10, 0.3) == []  # the transaction holds the parent, and it the children
        assert await drained(cluster) == []
        await held.commit()
        behind = await receive(consumer, 8)
        assert numbers(behind) == list(range(8, 16))
        assert await consumer.receive_many(10, 0.2) == []
        await consumer.ack(behind)
        rest = await receive(consumer, 16)
        check_order([*got, *behind, *rest])
        assert sorted(numbers(rest)) == list(range(16, 32))
        await client.merge(*(await segments(client)))
        await send(producer, range(32, 48))
        assert await consumer.receive_many(10, 0.2) == []
        await consumer.ack(rest)
        last = await receive(consumer, 16)
        assert numbers(last) == list(range(32, 48))
        await consumer.ack(last)
        await wait_drained(cluster, [0, 1, 2])


@pytest.mark.parametrize("committed", [True, False], ids=["commit", "abort"])
async def test_s1_s2_p10_acks_on_a_parent_before_and_after_the_split_stand_or_fall_with_their_transaction(
    cluster: InProcessCluster, client: txnclient.Client, committed: bool
) -> None:
    """Individual and cumulative, over the parent's change of owner."""
    await client.create_topic(TOPIC, segments=1)
    async with client.producer(TOPIC) as producer:
        await send(producer, range(24))
    async with client.consumer(TOPIC, "s", start="earliest", name="c") as consumer:
        got = await receive(consumer, 24)
        txn = await client.begin()
        await consumer.ack(got[3], txn=txn)
        await split(client)
        await consumer.ack(got[1:3], txn=txn)
        await consumer.ack_cumulative(got[19], txn=txn)
        await consumer.ack(got[20:])  # outside
        await cluster.restart_server("broker")
        async with client.producer(TOPIC) as producer:
            await send(producer, range(24, 32))
        assert await drained(cluster) == []
        await (txn.commit() if committed else txn.abort())
        if not committed:
            again = await receive(consumer, 20)
            assert numbers(again) == list(range(20))
            await consumer.ack(again)
        rest = await receive(consumer, 8)
        assert sorted(numbers(rest)) == list(range(24, 32))
        await consumer.ack(rest)
        assert await consumer.receive_many(1, 0.2) == []


@pytest.mark.parametrize("committed", [True, False], ids=["commit", "abort"])
async def test_p2_s7_a_cumulative_ack_over_a_pending_one_drains_a_parent_once_that_is_decided(
    cluster: InProcessCluster, client: txnclient.Client, committed: bool
) -> None:
    """An abort brings back what the transaction held, and nothing else."""
    await client.create_topic(TOPIC, segments=1)
    async with client.producer(TOPIC) as producer, client.consumer(TOPIC, "s", start="earliest") as consumer:
        await send(producer, range(8))
        got = await receive(consumer, 8)
        txn = await client.begin()
        await consumer.ack(got[2:4], txn=txn)
        await split(client)
        await consumer.ack_cumulative(got[-1])
        await send(producer, range(8, 16))
        assert await drained(cluster) == []
        await (txn.commit() if committed else txn.abort())
        if not committed:
            again = await receive(consumer, 2)
            assert numbers(again) == [2, 3]
            assert await consumer.receive_many(1, 0.2) == []
            await consumer.ack(again)
        assert sorted(numbers(await receive(consumer, 8))) == list(range(8, 16))
        await wait_drained(cluster, [0])


async def test_p12_s7_a_transaction_of_a_consumer_that_left_holds_the_parent_and_its_children(
    cluster: InProcessCluster, client: txnclient.Client
) -> None:
    await client.create_topic(TOPIC, segments=1)
    async with client.producer(TOPIC) as producer:
        await send(producer, range(16))
        await split(client)
        await send(producer, range(16, 32))
    txn = await client.begin()
    async with client.consumer(TOPIC, "s", start="earliest", name="a") as leaving:
        got = await receive(leaving, 16)
        await leaving.ack(got[8:], txn=txn)
        await leaving.ack(got[:4])
    async with client.consumer(TOPIC, "s", name="b") as staying, client.consumer(TOPIC, "s", name="c") as other:
        assert await staying.receive_many(1, 0.2) == []
        assert await other.receive_many(1, 0.2) == []
        await txn.abort()
        heir = staying if staying.segments else other
        again = await receive(heir, 12)
        assert numbers(again) == list(range(4, 16))
        await heir.ack(again)
        await until(lambda: len(staying.segments) == len(other.segments) == 1)
        found: list[Message[bytes]] = []
        async with asyncio.timeout(10):
            while len(found) < 16:
                found += [*await staying.receive_many(16, 0.1), *await other.receive_many(16, 0.1)]
        assert sorted(numbers(found)) == list(range(16, 32))


async def test_a_consumer_that_dies_while_it_drains_a_parent_leaves_it_to_another(
    cluster: InProcessCluster, client: txnclient.Client
) -> None:
    await client.create_topic(TOPIC, segments=2)
    async with client.producer(TOPIC) as producer:
        await send(producer, range(64))
        await split(client, 0)
        await send(producer, range(64, 128))
    async with client.consumer(TOPIC, "s", name="stays") as staying:
        got: list[Message[bytes]] = []
        async with cluster.connect() as dying:
            consumer = await dying.consumer(TOPIC, "s", name="dies", start="earliest")
            await until(lambda: len(staying.segments) == len(consumer.segments) == 1)
            first = await consumer.receive()
            await consumer.ack(first)
            got.append(first)
        async with asyncio.timeout(20):
            while len({int(one.value) for one in got}) < 128:
                batch = await staying.receive_many(50, 5.0)
                got += batch
                await staying.ack(batch)
        check_order(got)


async def test_a_queue_reads_parents_and_children_at_once_and_leaves_what_is_drained(
    cluster: InProcessCluster, client: txnclient.Client
) -> None:
    await client.create_topic(TOPIC, segments=1)
    async with client.producer(TOPIC) as producer, client.consumer(TOPIC, "s", type="queue", start="earliest") as queue:
        held = await client.begin()
        await send(producer, range(4))
        await send(producer, range(4, 8), txn=held)
        await split(client)
        await send(producer, range(8, 16))
        got = await receive(queue, 12)
        assert sorted(numbers(got)) == [*range(4), *range(8, 16)]
        assert len(queue.segments) == 3
        await queue.nack([one for one in got if int(one.value) < 2])
        again = await receive(queue, 2)
        assert [(int(one.value), one.redelivery_count) for one in again] == [(0, 1), (1, 1)]
        await queue.ack([one for one in got if int(one.value) >= 2])
        acking = await client.begin()
        await queue.ack(again, txn=acking)
        await held.commit()
        late = await receive(queue, 4)
        assert sorted(numbers(late)) == list(range(4, 8))
        await queue.ack(late)
        assert await drained(cluster) == []
        await acking.abort()
        again = await receive(queue, 2)
        assert sorted(numbers(again)) == [0, 1]
        await queue.ack(again)
        await until(lambda: len(queue.segments) == 2)
        await wait_drained(cluster, [0])
        async with client.consumer(TOPIC, "s", type="queue") as second:
            assert len(second.segments) == 2
            await send(producer, range(16, 24))
            both: list[Message[bytes]] = []
            async with asyncio.timeout(10):
                while len(both) < 8:
                    both += [*await queue.receive_many(24, 0.1), *await second.receive_many(24, 0.1)]
            assert sorted(numbers(both)) == list(range(16, 24))


@pytest.mark.parametrize("type", ["stream", "queue"])
async def test_a_seek_over_a_layout_reads_drained_parents_again_and_their_children_behind_them(
    cluster: InProcessCluster, client: txnclient.Client, type: str
) -> None:
    await client.create_topic(TOPIC, segments=1)
    async with client.producer(TOPIC) as producer, client.consumer(TOPIC, "s", type=type, start="earliest") as consumer:
        await send(producer, range(16))
        await split(client)
        await send(producer, range(16, 32))
        first = await receive(consumer, 16)
        await consumer.ack(first)
        second = await receive(consumer, 16)
        await consumer.ack(second)
        await wait_drained(cluster, [0])
        await consumer.seek("earliest")
        again = await receive(consumer, 32 if type == "queue" else 16)
        if type == "stream":
            assert numbers(again) == list(range(16))
            assert await consumer.receive_many(1, 0.2) == []
            assert await drained(cluster) == []
            await consumer.ack(again)
            again += await receive(consumer, 16)
            check_order(again)
        assert sorted(numbers(again)) == list(range(32))
        await consumer.seek("latest")
        await send(producer, range(32, 40))
        assert sorted(numbers(await receive(consumer, 8))) == list(range(32, 40))
        await wait_drained(cluster, [0])
        by_number = {int(one.value): one for one in (*first, *second)}
        in_parent, in_child = by_number[10], by_number[16]
        await consumer.seek(in_child.id)
        assert sorted(numbers(await receive(consumer, 24))) == list(range(16, 40))  # the parent lies before it
        assert await consumer.receive_many(1, 0.2) == []
        await consumer.seek(in_parent.id)
        behind = await receive(consumer, 6)
        if type == "stream":
            assert numbers(behind) == list(range(10, 16))
            await consumer.ack(behind)
        behind += await receive(consumer, 24)
        assert sorted(numbers(behind)) == list(range(10, 40))


async def test_v5_new_subscriptions_start_over_a_layout_where_they_say(
    cluster: InProcessCluster, client: txnclient.Client
) -> None:
    await client.create_topic(TOPIC, segments=1)
    async with client.producer(TOPIC) as producer:
        await send(producer, range(8))
        await split(client)
        await send(producer, range(8, 16))
        await client.merge(*(await segments(client)))
        await send(producer, range(16, 24))
        async with client.reader(TOPIC, start="earliest", end="latest") as reader:
            everything = [message async for message in reader]
        by_number = {int(message.value): message for message in everything}
        async with client.consumer(TOPIC, "earliest", start="earliest") as consumer:
            found: list[Message[bytes]] = []
            while len(found) < 24:
                batch = await consumer.receive_many(24, 5.0)
                assert batch
                found += batch
                await consumer.ack(batch)
            check_order(found)
        async with client.consumer(TOPIC, "latest", start="latest") as consumer:
            await send(producer, range(24, 32))
            assert numbers(await receive(consumer, 8)) == list(range(24, 32))
        # Of the message's segment, its descendants from the earliest, of its ancestors nothing.
        async with client.consumer(TOPIC, "merged", start=by_number[20].id) as consumer:
            assert numbers(await receive(consumer, 12)) == list(range(20, 32))
        start = by_number[12]
        async with client.consumer(TOPIC, "child", start=start.id) as consumer:
            found = []
            while not found or int(found[-1].value) != 31:
                batch = await consumer.receive_many(24, 5.0)
                assert batch
                found += batch
                await consumer.ack(batch)
            assert min(numbers(found)) >= 8
            assert [n for n in numbers(found) if KEYS[n % 8].encode() == start.key] == [12, 20, 28]


@pytest.mark.parametrize("type", ["stream", "queue"])
async def test_a7_s1_a_value_in_pieces_over_a_split_comes_once_and_what_is_left_of_it_in_the_parent_holds_nothing_up(
    cluster: InProcessCluster, client: txnclient.Client, type: str
) -> None:
    await client.create_topic(TOPIC, segments=1)
    broker = cluster.servers["broker"].server.broker
    assert broker is not None
    [parent] = [segment.path for segment in (await client.describe_topic(TOPIC)).active]
    value = bytes(range(256)) * 4096 * 32
    async with (
        client.producer(TOPIC, compression=None) as producer,
        client.consumer(TOPIC, "s", type=type, start="earliest") as consumer,
    ):
        await producer.send(b"before", key="k")
        txn = await client.begin()
        sending = asyncio.ensure_future(producer.send(value, key="k", chunk=True, txn=txn))
        await until(lambda: broker.segments[parent].ledgers.entries >= 3)
        await split(client)
        assert (await sending).segment != parent
        await producer.send(b"behind", key="k")
        await txn.commit()
        got: list[Message[bytes]] = []
        async with asyncio.timeout(20):
            while len(got) < 3:
                got += (batch := await consumer.receive_many(3, 5.0))
                await consumer.ack(batch)
        assert sorted(message.value for message in got) == sorted([b"before", value, b"behind"])
        if type == "stream":
            assert [len(message.value) for message in got] == [6, len(value), 6]
        await wait_drained(cluster, [0])
        assert await consumer.receive_many(1, 0.2) == []


async def test_p9_a_subscription_made_anew_reads_what_the_one_before_it_had_drained(
    cluster: InProcessCluster, client: txnclient.Client
) -> None:
    await client.create_topic(TOPIC, segments=1)
    async with client.producer(TOPIC) as producer:
        await send(producer, range(16))
        await split(client)
        await send(producer, range(16, 32))
    for _ in range(2):
        async with client.consumer(TOPIC, "s", start="earliest") as consumer:
            first = await receive(consumer, 16)
            assert numbers(first) == list(range(16))
            await consumer.ack(first)
            await receive(consumer, 16)
        await wait_drained(cluster, [0])
        await client.delete_subscription(TOPIC, "s")
        assert await drained(cluster) == []


async def test_a_seek_passes_segments_that_leave_the_topic_meanwhile(
    cluster: InProcessCluster, client: txnclient.Client
) -> None:
    """The client has looked at the layout before, and the owner knows better."""
    await client.create_topic(TOPIC, segments=1)
    async with client.producer(TOPIC) as producer, client.consumer(TOPIC, "s", start="earliest") as consumer:
        await split(client)
        await send(producer, range(16))
        await consumer.ack(await receive(consumer, 16))
        store, key = cluster.servers["control"].store, keys.topic("public/nyc/flights")
        record = await store.get(key)
        assert record is not None
        topic = decode(TopicRecord, record.value, key=key)
        going = msgspec.structs.replace(topic, pruning=[0])
        await store.commit(Commit(puts=(Put(key, encode(going)),)))
        broker = cluster.servers["broker"].server.broker
        assert broker is not None
        await until(lambda: len(broker.segments) == 2)
        seeking = asyncio.ensure_future(consumer.seek("earliest"))
        await asyncio.sleep(0.1)
        pruned = read_topology(KeyValue(key, encode(going), 1, 1, 1)).prune(0)
        await store.commit(Commit(puts=(Put(key, encode(pruned.record)),)))
        await seeking
        assert sorted(numbers(await receive(consumer, 16))) == list(range(16))


async def test_c8_a_consumer_hears_of_layouts_when_its_predecessor_of_the_name_closes(
    cluster: InProcessCluster, client: txnclient.Client
) -> None:
    """Both are of one client, over one connection."""
    await client.create_topic(TOPIC, segments=1)
    former = await client.consumer(TOPIC, "s", name="worker")
    async with client.consumer(TOPIC, "s", name="worker") as consumer, client.producer(TOPIC) as producer:
        await former.close()
        await split(client)
        await send(producer, range(16))
        assert sorted(numbers(await receive(consumer, 16))) == list(range(16))
