"""What each isolation level is shown (V5, V7, DESIGN §7 "Dispatch")."""

from __future__ import annotations

import pytest

from tests.segments.brokering import Cluster
from tests.waiting import until
from txnwire.errors import InvalidArgument
from txnwire.proto import txn_pb2 as pb

UNCOMMITTED = pb.ISOLATION_READ_UNCOMMITTED


async def test_v7_read_uncommitted_sees_everything(memory_cluster: Cluster) -> None:
    """Open, aborted and plain entries at once; nothing is shown twice when the open ones commit."""
    cluster = memory_cluster
    [segment] = await cluster.create_topic()
    client = await cluster.connect(await cluster.start())
    producer = await client.producer(segment)
    aborted, still_open = await cluster.begin(), await cluster.begin()
    await producer.send("aborted", txn=aborted)
    await cluster.abort(aborted)
    await producer.send("open", txn=still_open)
    await producer.send("plain")
    reader = await client.reader(segment, isolation=UNCOMMITTED)
    await reader.wait("aborted", "open", "plain")
    committed = await client.reader(segment)
    await producer.send("more", txn=still_open)
    await reader.wait("aborted", "open", "plain", "more")
    assert committed.values == []
    await cluster.commit(still_open)
    await committed.wait("open", "plain", "more")
    assert reader.values == ["aborted", "open", "plain", "more"]


@pytest.mark.parametrize("type", ["reader", "stream", "queue"])
@pytest.mark.parametrize("restart", [False, True], ids=["", "restarted"])
async def test_v7_who_comes_behind_the_end_of_a_transaction_reads_it_uncommitted_all_the_same(
    memory_cluster: Cluster, type: str, restart: bool
) -> None:
    cluster = memory_cluster
    [segment] = await cluster.create_topic()
    node = await cluster.start()
    client = await cluster.connect(node)
    producer = await client.producer(segment)
    aborted, committed = await cluster.begin(), await cluster.begin()
    await producer.send("aborted", txn=aborted)
    await producer.send("plain")
    await producer.send("committed", txn=committed)
    await cluster.abort(aborted)
    await cluster.commit(committed)
    await (await client.reader(segment)).wait("plain", "committed")
    for txn in (aborted, committed):
        await cluster.collect(txn)
    if restart:
        await node.close()
        client = await cluster.connect(await cluster.start())
    if type == "reader":
        found = await client.reader(segment, isolation=UNCOMMITTED)
    elif type == "queue":
        found = await cluster.queue(client, segment, isolation=UNCOMMITTED)
    else:
        await cluster.subscribe(client, segment, permits=0)
        found = await client.subscribe(segment, isolation=UNCOMMITTED)
    await found.wait("aborted", "plain", "committed")


async def test_v7_a_stream_consumer_that_reads_uncommitted_may_ack_what_it_was_shown(memory_cluster: Cluster) -> None:
    cluster = memory_cluster
    [segment] = await cluster.create_topic()
    node = await cluster.start()
    client = await cluster.connect(node)
    producer = await client.producer(segment)
    open_txn = await cluster.begin()
    await producer.send("open", txn=open_txn)
    await producer.send("plain")
    await cluster.subscribe(client, segment, epoch=1, permits=0)
    consumer = await client.subscribe(segment, epoch=1, isolation=UNCOMMITTED)
    await consumer.wait("open", "plain")
    await consumer.ack(consumer.messages[0])
    await node.close()
    # ▲ Recovered with a cursor that stands beyond the read position: nothing comes twice, the rest comes in order.
    client = await cluster.connect(await cluster.start())
    again = await client.subscribe(segment, epoch=1, isolation=UNCOMMITTED)
    await again.wait("plain")
    committed = await client.subscribe(segment, epoch=1)
    await cluster.commit(open_txn)
    await committed.wait("plain")


async def test_v5_latest_and_bounded_reads_respect_the_read_position_and_pass_over_aborted_gaps(
    memory_cluster: Cluster,
) -> None:
    cluster = memory_cluster
    [segment] = await cluster.create_topic()
    client = await cluster.connect(await cluster.start())
    producer = await client.producer(segment)
    await producer.send("before", publish_time_ms=10)
    open_txn, aborted = await cluster.begin(), await cluster.begin()
    await producer.send("open", txn=open_txn, publish_time_ms=20)
    await producer.send("gone", txn=aborted, publish_time_ms=30)
    end = await producer.send("gone too", txn=aborted, publish_time_ms=40)
    latest = await client.reader(segment, start=pb.Start(latest=True))
    bounded = await client.reader(segment, end=end)
    timed = await client.reader(segment, start=pb.Start(timestamp_ms=15))
    in_the_gap = await client.reader(segment, start=pb.Start(timestamp_ms=35))
    await bounded.wait("before")
    assert bounded.ended is None
    await cluster.abort(aborted)
    await producer.send("after", publish_time_ms=50)
    assert (latest.values, timed.values, in_the_gap.values) == ([], [], [])
    await cluster.commit(open_txn)
    await latest.wait("open", "after")
    await timed.wait("open", "after")
    await in_the_gap.wait("after")
    await until(lambda: bounded.ended == "end")
    assert bounded.values == ["before", "open"]
    whole_gap = await client.reader(segment, start=pb.Start(timestamp_ms=35), end=end)
    await until(lambda: whole_gap.ended == "end")
    assert whole_gap.values == []


async def test_v5_latest_for_who_reads_uncommitted_is_behind_what_is_open(memory_cluster: Cluster) -> None:
    cluster = memory_cluster
    [segment] = await cluster.create_topic()
    client = await cluster.connect(await cluster.start())
    producer = await client.producer(segment)
    open_txn = await cluster.begin()
    await producer.send("open", txn=open_txn)
    reader = await client.reader(segment, start=pb.Start(latest=True), isolation=UNCOMMITTED)
    await producer.send("next")
    await reader.wait("next")


async def test_snapshot_isolation_reads_to_its_end_past_open_transactions_without_aborted_ones(
    memory_cluster: Cluster,
) -> None:
    cluster = memory_cluster
    [segment] = await cluster.create_topic()
    client = await cluster.connect(await cluster.start())
    producer = await client.producer(segment)
    aborted, still_open = await cluster.begin(), await cluster.begin()
    await producer.send("aborted", txn=aborted)
    revision = await cluster.abort(aborted)
    end = await producer.send("open", txn=still_open)
    await producer.send("behind")
    # E's reader leaves the pending out itself: this one is told by the snapshot which they are.
    request = {"isolation": pb.ISOLATION_SNAPSHOT, "end": end, "min_revision": revision}
    reader = await client.reader(segment, **request)  # type: ignore[arg-type]
    await until(lambda: reader.ended == "end")
    assert reader.values == ["open"]
    with pytest.raises(InvalidArgument, match="end"):
        await client.reader(segment, isolation=pb.ISOLATION_SNAPSHOT)
    with pytest.raises(InvalidArgument, match="unknown"):
        await client.reader(segment, isolation=7)  # type: ignore[arg-type]


@pytest.mark.parametrize("type", [pb.SUBSCRIPTION_TYPE_STREAM, pb.SUBSCRIPTION_TYPE_QUEUE])
async def test_no_subscription_reads_with_snapshot_isolation(memory_cluster: Cluster, type: int) -> None:
    """▲ Its consumers would be shown what is open: no snapshot tells them what to leave out."""
    [segment] = await memory_cluster.create_topic()
    client = await memory_cluster.connect(await memory_cluster.start())
    await (await client.producer(segment)).send("a")
    await memory_cluster.subscribe(client, segment, name=str(pb.SUBSCRIPTION_TYPE_STREAM))
    await memory_cluster.queue(client, segment, name=str(pb.SUBSCRIPTION_TYPE_QUEUE))
    request = pb.Subscribe(
        consumer_id=99,
        segment=segment,
        subscription=str(type),
        consumer="c1",
        incarnation=7,
        assignment_epoch=1,
        type=type,  # type: ignore[arg-type]
        isolation=pb.ISOLATION_SNAPSHOT,
        end=pb.Position(ledger_id=1, entry_id=0),
    )
    with pytest.raises(InvalidArgument, match="for readers"):
        await client.call(subscribe=request)


async def test_a_delivery_tells_a_revision_by_which_what_it_shows_was_decided(memory_cluster: Cluster) -> None:
    """▲ Also where the decision was made while nobody owned the segment, and is read from the store by the next owner:
    who goes on to another broker is not to find it as it stood before."""
    cluster = memory_cluster
    [segment] = await cluster.create_topic()
    node = await cluster.start()
    client = await cluster.connect(node)
    producer, reader = await client.producer(segment), await client.reader(segment)
    first, second = await cluster.begin(), await cluster.begin()
    await producer.send("first", txn=first)
    await producer.send("second", txn=second)
    revision = await cluster.commit(first)
    await reader.wait("first")
    assert reader.revision == revision
    await node.crash()
    revision = await cluster.commit(second)
    client = await cluster.connect(await cluster.start())
    reader = await client.reader(segment)
    await reader.wait("first", "second")
    assert reader.revision >= revision
