"""What READ_COMMITTED readers and stream consumers get, and when: SCENARIOS "Visibility"."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from segments.layout.assignment import consumer_id
from segments.ledger.ledger import LedgerStore
from segments.owner.segment import Segment
from segments.subscription.dispatch import PASS_ENTRIES
from tests.segments.brokering import TOPIC, Cluster, Consumer
from tests.segments.gates import HeldReads
from tests.waiting import until
from txnstore.memory.memory_etcd import MemoryEtcd
from txnstore.memory.memory_store import NO_FAULT, Fate, MemoryStore
from txnstore.records import SubscriptionRecord
from txnstore.store import MetadataStore
from txnwire.clock import SystemClock
from txnwire.errors import ConnectionLost, InvalidArgument, NotOwner, SubscriptionNotFound, TopicNotFound
from txnwire.ids import EARLIEST, Position
from txnwire.proto import txn_pb2 as pb
from txnwire.turns import turns_divided_by


async def test_v1_an_open_transaction_holds_back_itself_and_the_plain_entries_behind_it(cluster: Cluster) -> None:
    [segment] = await cluster.create_topic()
    client = await cluster.connect(await cluster.start())
    producer, reader = await client.producer(segment), await client.reader(segment)
    txn = await cluster.begin()

    await producer.send("before")
    await producer.send("inside", txn=txn)
    await producer.send("behind")
    await reader.wait("before")
    await cluster.commit(txn)
    await reader.wait("before", "inside", "behind")


async def test_v2_an_aborted_transaction_is_never_seen_and_the_reader_goes_on(cluster: Cluster) -> None:
    [segment] = await cluster.create_topic()
    client = await cluster.connect(await cluster.start())
    producer, reader = await client.producer(segment), await client.reader(segment)
    aborted, committed = await cluster.begin(), await cluster.begin()

    await producer.send("no", "no", txn=aborted)
    await producer.send("yes", txn=committed)
    await producer.send("neither", txn=aborted)
    await producer.send("sentinel")
    await cluster.commit(committed)
    await cluster.abort(aborted)
    await reader.wait("yes", "sentinel")
    late = await client.reader(segment)
    await late.wait("yes", "sentinel")


async def test_v3_the_earliest_of_several_open_transactions_holds(cluster: Cluster) -> None:
    [segment] = await cluster.create_topic()
    client = await cluster.connect(await cluster.start())
    producer, reader = await client.producer(segment), await client.reader(segment)
    one, two, three = [await cluster.begin() for _ in range(3)]
    for name, txn in [("1", one), ("2", two), ("3", three), ("1b", one)]:
        await producer.send(name, txn=txn)
    await producer.send("plain")

    await cluster.commit(two)
    await cluster.commit(one)
    await reader.wait("1", "2")
    await cluster.abort(three)
    await reader.wait("1", "2", "1b", "plain")


@pytest.mark.parametrize("kind", ["reader", "stream", "queue"])
async def test_v4_a_read_that_is_parked_filters_what_the_abort_lets_through(cluster: Cluster, kind: str) -> None:
    """It is seen to stand before the open transaction; nothing is sent that would wake it but the abort."""
    [segment] = await cluster.create_topic()
    node = await cluster.start()
    client = await cluster.connect(node)
    producer = await client.producer(segment)
    attach: Callable[[], Awaitable[Consumer]] = {
        "reader": lambda: client.reader(segment),
        "stream": lambda: cluster.subscribe(client, segment),
        "queue": lambda: cluster.queue(client, segment),
    }[kind]
    reader, txn = await attach(), await cluster.begin()
    await producer.send("before")
    first = await producer.send("aborted", txn=txn)
    await producer.send("plain")
    await producer.send("aborted too", txn=txn)
    served = node.broker.segments[segment]
    if kind == "queue":
        await reader.wait("before", "plain")
        await until(lambda: set_aside(served) == 2, what="both are set aside")
    else:
        await reader.wait("before")
        [at] = served.dispatcher.consumers
        assert (at.next_read, at.waiting, at.permits > 0) == (first, None, True)
    await cluster.abort(txn)
    await reader.wait("before", "plain")
    await producer.send("sentinel")
    await reader.wait("before", "plain", "sentinel")


def set_aside(served: Segment) -> int:
    [subscription] = served.subscriptions.statistics()
    assert subscription.queue is not None
    return subscription.queue.set_aside


async def test_v4_what_is_read_from_the_disk_while_the_abort_arrives_is_filtered(cluster: Cluster) -> None:
    """The entry is on its way from the disk for whoever reads uncommitted; it is not shown to who does not."""
    disks: list[HeldReads] = []

    def held_reads(data_dir: Path) -> LedgerStore:
        disks.append(HeldReads(data_dir))
        return disks[-1]  # type: ignore[return-value]

    cluster.make_ledgers = held_reads
    [segment] = await cluster.create_topic()
    node = await cluster.start()
    client = await cluster.connect(node)
    producer, txn = await client.producer(segment), await cluster.begin()
    await producer.send("before")
    await producer.send("aborted", txn=txn)
    await producer.send("plain")
    await node.close()
    node = await cluster.start()
    client = await cluster.connect(node)
    await node.broker.segment(segment)
    [disk] = disks[1:]
    disk.hold()
    queue, reader = await cluster.queue(client, segment), await client.reader(segment)
    await until(lambda: disk.waiting == 2, what="both read from the disk")
    revision = await cluster.abort(txn)
    await node.broker.segments[segment].wait_followed(revision)
    disk.open()
    await queue.wait("before", "plain")
    await reader.wait("before", "plain")
    await (await client.producer(segment, "p2")).send("sentinel")
    await queue.wait("before", "plain", "sentinel")
    await reader.wait("before", "plain", "sentinel")


async def test_v5_latest_starts_behind_what_may_be_read_and_what_is_open_now_is_still_to_come(cluster: Cluster) -> None:
    [segment] = await cluster.create_topic()
    client = await cluster.connect(await cluster.start())
    producer = await client.producer(segment)
    txn = await cluster.begin()
    await producer.send("old")
    await producer.send("open", txn=txn)
    latest = await client.reader(segment, start=pb.Start(latest=True))
    await cluster.commit(txn)
    await producer.send("new")
    await latest.wait("open", "new")


async def test_v5_a_bounded_read_crosses_an_aborted_gap_and_ends(cluster: Cluster) -> None:
    [segment] = await cluster.create_topic()
    client = await cluster.connect(await cluster.start())
    producer = await client.producer(segment)
    txn = await cluster.begin()
    await producer.send("seen")
    last = await producer.send("aborted", txn=txn)
    await cluster.abort(txn)
    reader = await client.reader(segment, end=last)
    await until(lambda: reader.ended)
    assert reader.values == ["seen"]
    empty = await client.reader(segment, start=pb.Start(latest=True), end=last)
    await until(lambda: empty.ended)
    assert empty.values == []
    nothing = await client.reader(segment, end=EARLIEST)
    await until(lambda: nothing.ended)


async def test_v5_a_time_stamp_starts_at_the_first_message_not_older(cluster: Cluster) -> None:
    [segment] = await cluster.create_topic()
    client = await cluster.connect(await cluster.start())
    producer = await client.producer(segment)
    for number in range(1, 8):
        await producer.send(str(number), publish_time_ms=number * 100)
    for asked, expected in [(1, "1234567"), (300, "34567"), (301, "4567"), (700, "7"), (701, "")]:
        reader = await client.reader(segment, start=pb.Start(timestamp_ms=asked))
        await producer.client.call(segment_positions=pb.SegmentPositions(segment=segment))
        await reader.wait(*expected)


class SlowWatch:
    """Watches hear of everything late."""

    delay_s = 0.0

    def fate(self, request: str, client: str) -> Fate:
        return NO_FAULT

    def watch_delay_s(self, client: str) -> float:
        return self.delay_s


async def test_v5_latest_lies_behind_what_its_reader_knows_to_be_committed(
    memory_etcd: MemoryEtcd, memory_cluster: Cluster
) -> None:
    """Though its owner has yet to hear of that: who has committed it is not to read it as new."""
    cluster, slow = memory_cluster, SlowWatch()

    async def make_store() -> MetadataStore:
        return MemoryStore(memory_etcd, SystemClock(), random.Random(1), faults=slow)

    cluster.make_store = make_store
    [segment] = await cluster.create_topic()
    client = await cluster.connect(await cluster.start())
    producer = await client.producer(segment)
    txn = await cluster.begin()
    await producer.send("old", txn=txn)
    slow.delay_s = 60.0
    revision = await cluster.commit(txn)
    latest = await client.reader(segment, start=pb.Start(latest=True), min_revision=revision)
    await producer.send("new")
    await latest.wait("new")


async def test_v5_a_reader_whose_start_is_looked_for_as_its_segment_is_lost_is_told(cluster: Cluster) -> None:
    """Nobody would serve it, and it would wait for ever."""
    disks: list[HeldReads] = []

    def held_reads(data_dir: Path) -> LedgerStore:
        disks.append(HeldReads(data_dir))
        return disks[-1]  # type: ignore[return-value]

    cluster.make_ledgers = held_reads
    [segment] = await cluster.create_topic()
    node = await cluster.start()
    client = await cluster.connect(node)
    await (await client.producer(segment)).send("m", publish_time_ms=100)
    await node.crash()
    node = await cluster.start()
    client = await cluster.connect(node)
    served = await node.broker.segment(segment)
    disks[1].hold()
    attaching = asyncio.ensure_future(client.reader(segment, start=pb.Start(timestamp_ms=50)))
    await until(lambda: disks[1].waiting)
    served.lost(NotOwner("taken away"))
    disks[1].open()
    with pytest.raises(NotOwner):
        await attaching


async def test_v6_a_transaction_does_not_read_its_own_uncommitted_writes(cluster: Cluster) -> None:
    [segment] = await cluster.create_topic()
    client = await cluster.connect(await cluster.start())
    producer, consumer = await client.producer(segment), await cluster.subscribe(client, segment)
    txn = await cluster.begin()
    await producer.send("input")
    await consumer.wait("input")
    await producer.send("own", txn=txn)
    await consumer.ack(consumer.messages[0], txn=txn)
    await consumer.wait("input")
    await cluster.commit(txn)
    await consumer.wait("input", "own")


async def test_a_reader_starts_at_a_message_within_an_entry_or_behind_it(cluster: Cluster) -> None:
    [segment] = await cluster.create_topic()
    client = await cluster.connect(await cluster.start())
    producer = await client.producer(segment)
    await producer.send("0")
    position = await producer.send("a", "b", "c")
    await producer.send("z")

    def at(index: int, *, after: bool) -> pb.Start:
        return pb.Start(
            segment=segment, ledger_id=position.ledger_id, entry_id=position.entry_id, index=index, after=after
        )

    for start, expected in [
        (at(0, after=False), "abcz"),
        (at(1, after=False), "bcz"),
        (at(1, after=True), "cz"),
        (at(2, after=True), "z"),
    ]:
        reader = await client.reader(segment, start=start)
        await reader.wait(*expected)
    with pytest.raises(InvalidArgument, match="has no such segment"):
        await client.reader(segment, start=pb.Start(segment="public/nyc/flights/0000-7fff-9", ledger_id=1))


async def test_a_reader_reads_its_own_commit_by_naming_the_revision(cluster: Cluster) -> None:
    [segment] = await cluster.create_topic()
    node = await cluster.start()
    client = await cluster.connect(node)
    producer = await client.producer(segment)
    for number in range(20):
        txn = await cluster.begin()
        await producer.send(str(number), txn=txn)
        revision = await cluster.commit(txn)
        positions = await client.call(segment_positions=pb.SegmentPositions(segment=segment, min_revision=revision))
        assert positions.segment_positions_ok.max_read_position == positions.segment_positions_ok.last_confirmed
    reader = await client.reader(segment, min_revision=revision)
    await reader.wait(*map(str, range(20)))


async def test_permits_bound_what_is_delivered_and_more_permits_continue(cluster: Cluster) -> None:
    [segment] = await cluster.create_topic()
    client = await cluster.connect(await cluster.start())
    producer = await client.producer(segment)
    for number in range(10):
        await producer.send(f"{number}a", f"{number}b")
    reader = await client.reader(segment, permits=3)
    await reader.wait("0a", "0b", "1a", "1b")  # whole entries: the last one may overshoot
    reader.flow(1)
    await client.call(segment_positions=pb.SegmentPositions(segment=segment))
    assert len(reader.values) == 4
    reader.flow(2)
    await reader.wait("0a", "0b", "1a", "1b", "2a", "2b")


async def test_whom_one_pass_does_not_reach_is_served_by_the_next_though_nothing_else_happens(
    memory_cluster: Cluster,
) -> None:
    """A pass ends once it has looked at enough, perhaps between consumers none of whom has anything left to ask for."""
    cluster = memory_cluster
    [segment] = await cluster.create_topic()
    node = await cluster.start()
    client = await cluster.connect(node)
    producer = await client.producer(segment)
    readers = [await client.reader(segment, permits=1) for _ in range(5)]
    for value in "abcd":
        await producer.send(value)
    for reader in readers:
        await reader.wait("a")
    dispatcher = node.broker.segments[segment].dispatcher
    with turns_divided_by(PASS_ENTRIES // 8):  # eight in all, and four of one: three each are less than that
        for consumer in dispatcher.consumers:
            dispatcher.add_permits(consumer, 10)
        await asyncio.sleep(0)
        assert sum(consumer.delivered for consumer in dispatcher.consumers) == len(readers) + 9, "one pass serves three"
        for reader in readers:
            await reader.wait(*"abcd")


async def test_a_consumer_that_does_not_read_holds_back_only_itself(cluster: Cluster) -> None:
    [segment] = await cluster.create_topic()
    node = await cluster.start()
    client, slow = await cluster.connect(node), await cluster.connect(node)
    producer = await client.producer(segment)
    for _ in range(30):
        await producer.send("x" * 500_000)
    reader, parked = await client.reader(segment), None
    parked = await slow.reader(segment, permits=0)
    slow.connection.pause(True)
    parked.flow(1000)
    await until(lambda: len(reader.values) == 30)
    bound = node.broker.settings.connection_pending_bytes + 2 * node.broker.settings.deliver_bytes
    assert 0 < slow.connection._bytes <= bound
    slow.connection.pause(False)
    await until(lambda: len(parked.values) == 30)


async def test_old_entries_are_read_from_the_ledgers_and_the_tail_from_memory(cluster: Cluster) -> None:
    """Also across a roll, with a cache too small for anything."""
    [segment] = await cluster.create_topic()
    settings = replace(cluster.settings, tail_cache_bytes=2_000, ledger_roll_bytes=20_000, read_bytes=3_000)
    client = await cluster.connect(await cluster.start(settings=settings))
    producer = await client.producer(segment)
    parked = await client.reader(segment, permits=3)
    sent = [f"{number}-" + "x" * 200 for number in range(400)]
    await producer.send_nowait(sent[0])
    for first in range(1, 400, 50):
        await asyncio.gather(*(producer.send_nowait(value) for value in sent[first : first + 50]))
    parked.flow(1_000)
    await parked.wait(*sent)
    await (await client.reader(segment)).wait(*sent)
    assert (await cluster.nodes[0].broker.segment(segment)).statistics().ledgers > 3


async def test_a_read_of_what_was_trimmed_meanwhile_finds_nothing_and_costs_nobody_its_consumer(
    memory_cluster: Cluster,
) -> None:
    [segment] = await memory_cluster.create_topic()
    node = await memory_cluster.start()
    await (await (await memory_cluster.connect(node)).producer(segment)).send("a")
    served = node.broker.segments[segment]
    await served.roll()
    await served.ledgers.trim(2)
    assert not await served.dispatcher.read_run(Position(1, 0), Position(1, 0))


async def test_refusals_name_what_is_wrong(cluster: Cluster) -> None:
    [segment] = await cluster.create_topic()
    client = await cluster.connect(await cluster.start())
    with pytest.raises(InvalidArgument, match="type 9 is unknown"):
        await client.call(
            subscribe=pb.Subscribe(consumer_id=50, segment=segment, type=9, subscription="s")  # type: ignore[arg-type]
        )
    with pytest.raises(TopicNotFound):
        await client.reader("public/nyc/nothing/0000-ffff-0")
    with pytest.raises(TopicNotFound, match="no segment"):
        await client.reader("public/nyc/flights/0000-ffff-9")
    with pytest.raises(InvalidArgument, match="0000-zzzz-9"):
        await client.reader("public/nyc/flights/0000-zzzz-9")
    await cluster.assign({"c1@0000000000000007": [segment]}, epoch=1)
    with pytest.raises(SubscriptionNotFound):
        await client.subscribe(segment)
    assert TOPIC.path in segment
    assert Position(1, 0) > EARLIEST


@pytest.mark.parametrize("kind", ["reader", "stream", "queue"])
async def test_what_is_closed_before_it_is_attached_is_not_kept(cluster: Cluster, kind: str) -> None:
    """▲ Its client does not close it again: it would stay for as long as the connection."""
    [segment] = await cluster.create_topic()
    node = await cluster.start()
    client = await cluster.connect(node)
    request = pb.Subscribe(consumer_id=77, segment=segment)
    if kind != "reader":
        await cluster.create_subscription(record=SubscriptionRecord(type=kind, start={"kind": "earliest"}))
        await cluster.assign({consumer_id("c1", 7): [segment]}, epoch=1)
        type = pb.SUBSCRIPTION_TYPE_QUEUE if kind == "queue" else pb.SUBSCRIPTION_TYPE_STREAM
        of = pb.Subscribe(subscription="sub", consumer="c1", incarnation=7, assignment_epoch=1, type=type)
        request.MergeFrom(of)
    answer = client.caller.call_nowait(pb.Command(subscribe=request), timeout_s=10.0)
    client.caller.push(pb.Command(close_consumer=pb.CloseConsumer(consumer_id=77)))
    with pytest.raises(ConnectionLost, match="closed"):
        await answer
    assert node.broker.segments[segment].dispatcher.shares.consumers == 0
    request.consumer_id = 78
    await client.call(subscribe=request)
    assert node.broker.segments[segment].dispatcher.shares.consumers == 1


async def test_of_two_that_open_one_id_at_once_the_second_is_refused(cluster: Cluster) -> None:
    """▲ Both attached, the first would keep what is delivered to it, and nobody could close it."""
    [segment] = await cluster.create_topic()
    node = await cluster.start()
    client = await cluster.connect(node)
    request = pb.Command(subscribe=pb.Subscribe(consumer_id=77, segment=segment))
    first, second = (client.caller.call_nowait(request, timeout_s=10.0) for _ in range(2))
    with pytest.raises(InvalidArgument, match="consumer id 77 is open already"):
        await second
    await first
    shares = node.broker.segments[segment].dispatcher.shares
    assert shares.consumers == 1
    with pytest.raises(InvalidArgument, match="consumer id 77 is open already"):
        await client.call(subscribe=request.subscribe)
    await client.call(close_consumer=pb.CloseConsumer(consumer_id=77))
    assert shares.consumers == 0
    await client.call(subscribe=request.subscribe)
    assert shares.consumers == 1
