"""What the store refuses at once leaves nothing behind in the broker: it can be sent again, and by others."""

from __future__ import annotations

import asyncio

import pytest

from segments.subscription.queueing.queue import QueueStatistics
from tests.segments.brokering import Client, Cluster
from tests.segments.gates import GatedStore, gate_stores, is_ack_op, is_write_op
from tests.waiting import until
from txnstore.access.store_client import StoreClient
from txnstore.memory.memory_etcd import MemoryEtcd
from txnstore.store import MetadataStore
from txnwire.errors import InvalidArgument, NotOwner, SequenceGap, StoreFull, TxnConflict
from txnwire.proto import txn_pb2 as pb


async def sampled(etcd: MemoryEtcd, quota_bytes: int, *stores: MetadataStore, above: bool) -> None:
    """Until all of these have noticed this quota."""
    etcd.quota_bytes = quota_bytes
    for store in stores:
        assert isinstance(store, StoreClient)
        await until(lambda store=store: store.refuses_new is above)  # type: ignore[misc]


async def test_e3_what_is_refused_above_the_soft_limit_can_be_sent_and_acked_again(
    memory_etcd: MemoryEtcd, memory_cluster: Cluster
) -> None:
    cluster = memory_cluster
    [segment] = await cluster.create_topic()
    node = await cluster.start()
    client = await cluster.connect(node)
    producer, consumer = await client.producer(segment), await cluster.subscribe(client, segment)
    txn, other = await cluster.begin(), await cluster.begin()
    await producer.send("a", txn=txn)
    await cluster.commit(txn)
    await consumer.wait("a")
    txn = await cluster.begin()
    plenty = memory_etcd.quota_bytes
    await sampled(memory_etcd, memory_etcd.mvcc.bytes_in_use * 5 // 4, node.store, cluster.store, above=True)
    with pytest.raises(StoreFull):
        await producer.send("b", txn=txn)
    with pytest.raises(StoreFull):
        await consumer.ack(consumer.messages[0], txn=txn)
    await sampled(memory_etcd, plenty, node.store, cluster.store, above=False)
    async with asyncio.timeout(5):
        await producer.send("b", txn=txn, sequence_id=1, previous=0)
    await consumer.ack(consumer.messages[0], txn=other)
    await cluster.commit(txn)
    await cluster.commit(other)
    await cluster.wait_no_ops(txn)
    await consumer.wait("a", "b")
    await (await cluster.subscribe(client, segment, epoch=2)).wait("b")


async def test_an_id_is_free_again_once_the_broker_has_ended_what_was_open_under_it(memory_cluster: Cluster) -> None:
    cluster = memory_cluster
    [segment] = await cluster.create_topic()
    node = await cluster.start()
    client, other = await cluster.connect(node), await cluster.connect(node)
    producer, consumer = await client.producer(segment, "p", 1), await cluster.queue(client, segment)
    opening = pb.OpenProducer(producer_id=producer.id, segment=segment, name="p", incarnation=3)
    attaching = pb.Subscribe(
        consumer_id=consumer.id,
        segment=segment,
        subscription="jobs",
        type=pb.SUBSCRIPTION_TYPE_QUEUE,
        consumer="c1",
        incarnation=7,
    )
    for request in ({"open_producer": opening}, {"subscribe": attaching}):
        with pytest.raises(InvalidArgument, match="open already"):
            await client.call(**request)
    await other.producer(segment, "p", 2)
    for subscription in node.broker.segments[segment].subscriptions:
        subscription.close(NotOwner("attach again"))
    await until(lambda: producer.closed is not None and consumer.closed is not None)
    await client.call(open_producer=opening)
    await client.call(subscribe=attaching)
    consumer.flow(10)
    producer.incarnation = 3
    await producer.send("a")
    await consumer.wait("a")


async def test_l8_behind_a_refused_first_op_a_claim_that_has_failed_meanwhile_holds_up_no_other(
    memory_etcd: MemoryEtcd, memory_cluster: Cluster
) -> None:
    """Three producers write in one transaction: the first one's op carries its index key, the others' ops wait for it.
    The second producer's fails with what it sent before, in another transaction; the third has its answer as well."""
    cluster = memory_cluster
    gate_stores(cluster)
    [segment] = await cluster.create_topic()
    node = await cluster.start()
    client = await cluster.connect(node)
    store: GatedStore = node.store  # type: ignore[assignment]
    pipeline = (await node.broker.segment(segment)).pipeline
    one, two, three = [await client.producer(segment, name) for name in ("one", "two", "three")]
    txn, other = await cluster.begin(), await cluster.begin()
    store.hold(is_write_op)
    sends = [two.send_nowait("m", txn=other)]
    await until(lambda: store.waiting == 1)
    sends += [producer.send_nowait("m", txn=txn) for producer in (one, two, three)]  # in one go
    await until(lambda: store.waiting == 2 and pipeline.inflight == 4)
    await sampled(memory_etcd, memory_etcd.mvcc.bytes_in_use * 5 // 4, store._store, above=True)
    store.open()
    answers = await asyncio.gather(*sends, return_exceptions=True)
    assert [type(answer) for answer in answers] == [StoreFull, StoreFull, SequenceGap, StoreFull]


@pytest.mark.parametrize("ends", ["commit", "abort"])
async def test_v8_a_send_behind_the_end_of_its_transaction_holds_back_nothing_of_it(
    memory_cluster: Cluster, ends: str
) -> None:
    """A queue comes to the transaction's message while the late send is under way, which is refused: no decision comes
    any more that the message could wait for."""
    cluster = memory_cluster
    gate_stores(cluster)
    [segment] = await cluster.create_topic()
    node = await cluster.start()
    client = await cluster.connect(node)
    store: GatedStore = node.store  # type: ignore[assignment]
    producer, consumer = await client.producer(segment), await cluster.queue(client, segment, permits=0)
    txn = await cluster.begin()
    await producer.send("in time", txn=txn)
    await producer.send("plain")
    await (cluster.commit if ends == "commit" else cluster.abort)(txn)
    await cluster.wait_no_ops(txn)
    buffer = (await node.broker.segment(segment)).buffer
    await until(lambda: not buffer.statistics().cleaning)
    store.hold(is_write_op)
    late = producer.send_nowait("late", txn=txn)
    await until(lambda: store.waiting)
    consumer.flow(10)
    await consumer.wait(*(["in time", "plain"] if ends == "commit" else ["plain"]))
    store.open()
    with pytest.raises(TxnConflict):
        await asyncio.wait_for(late, 5)
    await consumer.ack(*consumer.take())
    [statistics] = node.broker.statistics().segments[0].subscriptions
    assert statistics.queue == QueueStatistics()
    assert statistics.backlog == 0


@pytest.mark.parametrize("kind", ["stream", "queue"])
async def test_all_acks_that_wait_for_the_first_of_a_transaction_are_refused_with_it_and_come_again(
    memory_cluster: Cluster, kind: str
) -> None:
    """The first ack's op carries the index key; those behind it are answered although they are never sent."""
    cluster = memory_cluster
    gate_stores(cluster)
    [segment] = await cluster.create_topic()
    node = await cluster.start()
    client = await cluster.connect(node)
    store: GatedStore = node.store  # type: ignore[assignment]
    producer = await client.producer(segment)
    consumer = await (cluster.queue if kind == "queue" else cluster.subscribe)(client, segment, name=kind)
    for value in "abc":
        await producer.send(value)
    await consumer.wait(*"abc")
    subscription = await node.broker.segments[segment].subscriptions.load(kind)
    txn = await cluster.begin()
    store.hold(is_ack_op)
    acking = [asyncio.ensure_future(consumer.ack(message, txn=txn)) for message in consumer.take()]
    await until(lambda: subscription.pending.statistics().positions == len(acking))
    await cluster.abort(txn)
    store.open()
    async with asyncio.timeout(5.0):
        answers = await asyncio.gather(*acking, return_exceptions=True)
    assert [type(answer) for answer in answers] == [TxnConflict] * 3
    await consumer.wait(*"abc")


async def test_an_ack_too_large_for_a_record_is_refused_and_releases_what_it_names(cluster: Cluster) -> None:
    [segment] = await cluster.create_topic()
    client = await cluster.connect(await cluster.start())
    producer, consumer = await client.producer(segment), await cluster.subscribe(client, segment, permits=10_000)
    await producer.send("a")
    await consumer.wait("a")
    txn, other = await cluster.begin(), await cluster.begin()
    with pytest.raises(InvalidArgument):
        await _ack_oversized(client, consumer.id, txn.most_bits, txn.least_bits)
    await consumer.ack(consumer.messages[0], txn=txn)
    with pytest.raises(InvalidArgument):
        await _ack_oversized(client, consumer.id, txn.most_bits, txn.least_bits)
    await cluster.abort(txn)
    await cluster.wait_no_ops(txn)
    await consumer.wait("a")
    await consumer.ack(consumer.messages[0], txn=other)


async def _ack_oversized(client: Client, consumer_id: int, most: int, least: int) -> None:
    """All but one of many messages, of one entry, named over and over."""
    count = 80_000
    indexes = ((1 << count) - 2).to_bytes(count // 8, "little")
    positions = [pb.AckPosition(ledger_id=1, entry_id=0, count=count, indexes=indexes) for _ in range(100)]
    await client.call(
        ack=pb.Ack(consumer_id=consumer_id, positions=positions, txnid_most_bits=most, txnid_least_bits=least)
    )
