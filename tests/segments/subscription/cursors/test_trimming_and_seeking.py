"""A seek back beside a trim: what is answered first stands."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from segments.ledger.file_ledger import FileLedgerStore
from segments.log.ledgers.retention import Retention
from tests.segments.brokering import CALL_S, Client, Cluster, Node
from tests.segments.changing import controlling
from tests.segments.gates import GatedStore
from tests.segments.log.test_housekeeping import QUIET
from tests.waiting import until
from txnstore import keys
from txnstore.store import Commit, MetadataStore
from txnwire.ids import Position
from txnwire.proto import txn_pb2 as pb

VALUES = ["a", "b", "c", "d"]


class SlowFooters(FileLedgerStore):
    """Whose footers wait for `go_on` once they are `slow`."""

    slow = False

    def __init__(self, data_dir: Path) -> None:
        super().__init__(data_dir)
        self.waiting = 0
        self.go_on = asyncio.Event()

    async def write_footer(self, segment: str, ledger_id: int, footer: bytes) -> None:
        if self.slow:
            self.waiting += 1
            await self.go_on.wait()
        await super().write_footer(segment, ledger_id, footer)


async def drained(cluster: Cluster) -> tuple[str, Node, Client]:
    """A segment of four ledgers that its subscription has consumed."""
    [segment] = await cluster.create_topic()
    node = await cluster.start(settings=QUIET)
    client = await cluster.connect(node)
    consumer = await cluster.subscribe(client, segment)
    producer = await client.producer(segment)
    served = node.broker.segments[segment]
    for value in VALUES:
        await producer.send(value)
        await served.roll()
    await consumer.wait(*VALUES)
    await consumer.ack(*consumer.messages)
    await until(lambda: served.buffer.watermark == served.last_confirmed)
    return segment, node, client


async def test_a_seek_back_while_a_footer_is_written_is_not_trimmed(memory_cluster: Cluster) -> None:
    """▲ What it went back for would be gone behind its answer."""
    cluster = memory_cluster
    made: list[SlowFooters] = []

    def make(data_dir: Path) -> SlowFooters:
        made.append(SlowFooters(data_dir))
        return made[-1]

    cluster.make_ledgers = make
    segment, node, client = await drained(cluster)
    [ledgers] = made
    ledgers.slow = True
    keeping = asyncio.ensure_future(node.broker.segments[segment].keep(Retention(ms=-1)))
    await until(lambda: ledgers.waiting)
    async with asyncio.timeout(CALL_S):
        await client.call(seek=pb.Seek(segment=segment, subscription="sub"))
    ledgers.go_on.set()
    await keeping
    consumer = await cluster.subscribe(client, segment, epoch=2)
    await consumer.wait(*VALUES)


async def test_a_seek_back_by_part_while_a_footer_is_written_keeps_that_part(memory_cluster: Cluster) -> None:
    """▲ What stands before it may go all the same, and no more than that."""
    cluster = memory_cluster
    made: list[SlowFooters] = []

    def make(data_dir: Path) -> SlowFooters:
        made.append(SlowFooters(data_dir))
        return made[-1]

    cluster.make_ledgers = make
    segment, node, client = await drained(cluster)
    [ledgers] = made
    ledgers.slow = True
    served = node.broker.segments[segment]
    third = next(info.ledger_id for info in served.ledgers.record.ledgers[2:])
    keeping = asyncio.ensure_future(served.keep(Retention(ms=-1)))
    await until(lambda: ledgers.waiting)
    start = pb.Start(segment=segment, ledger_id=third, entry_id=0, index=0)
    async with asyncio.timeout(CALL_S):
        await client.call(seek=pb.Seek(segment=segment, subscription="sub", start=start))
    ledgers.go_on.set()
    await keeping
    assert served.ledgers.trimmed_below == Position(third, 0)
    consumer = await cluster.subscribe(client, segment, epoch=2)
    await consumer.wait(*VALUES[2:])


async def test_what_is_trimmed_counts_as_consumed_by_each_subscription(memory_cluster: Cluster) -> None:
    """Or one of them would never be done with the segment once that is sealed, and never be given what came of it."""
    cluster = memory_cluster
    [segment] = await cluster.create_topic()
    node = await cluster.start(settings=QUIET)
    client = await cluster.connect(node)
    producer, served = await client.producer(segment), node.broker.segments[segment]
    for name in ("one", "two", "three"):
        await cluster.subscribe(client, segment, name=name, permits=0)
    for value in VALUES:
        await producer.send(value)
        await served.roll()
    await until(lambda: served.buffer.watermark == served.last_confirmed)
    await served.keep(Retention(ms=-1, undrained=True))
    assert served.ledgers.trimmed_through == served.last_confirmed
    assert [one.consumed >= served.last_confirmed for one in served.subscriptions] == [True] * 3


async def test_a_seek_back_waits_for_a_trim_that_is_being_written(memory_cluster: Cluster) -> None:
    """▲ It would be answered, and what it went back for trimmed: so it finds what is left."""
    cluster = memory_cluster
    stores: list[GatedStore] = []
    make_store = cluster.make_store

    async def make() -> MetadataStore:
        stores.append(GatedStore(await make_store()))
        return stores[-1]  # type: ignore[return-value]

    cluster.make_store = make
    segment, node, client = await drained(cluster)

    def trims(commit: Commit) -> bool:
        return any(put.key == keys.ledger(segment) for put in commit.puts)

    [store] = stores
    store.hold(trims)
    keeping = asyncio.ensure_future(node.broker.segments[segment].keep(Retention(ms=-1)))
    await until(lambda: store.waiting)
    seeking = asyncio.ensure_future(client.call(seek=pb.Seek(segment=segment, subscription="sub")))
    seen: list[None] = []
    await until(lambda: seen.append(None) or len(seen) > 30)
    assert not seeking.done()
    store.open()
    async with asyncio.timeout(CALL_S):
        await keeping
        await seeking
    producer = await client.producer(segment, "later")
    await producer.send("later")
    consumer = await cluster.subscribe(client, segment, epoch=2)
    await consumer.wait("later")


async def test_a_seek_to_a_trimmed_message_leaves_out_nothing_of_what_is_kept(memory_cluster: Cluster) -> None:
    """▲ The first messages of the next entry would be taken for those before it in its own, and never delivered."""
    cluster = memory_cluster
    [segment] = await cluster.create_topic()
    node = await cluster.start(settings=QUIET)
    client = await cluster.connect(node)
    producer = await client.producer(segment)
    served = node.broker.segments[segment]
    consumer = await cluster.subscribe(client, segment)
    await producer.send("a", "b", "c")
    await consumer.wait(*"abc")
    await consumer.ack(*consumer.messages)
    await served.roll()
    await producer.send("d", "e", "f")
    await consumer.wait(*"abcdef")
    await served.keep(Retention(ms=-1))
    assert not served.ledgers.contains(Position(1, 0))
    start = pb.Start(segment=segment, ledger_id=1, entry_id=0, index=2)
    await client.call(seek=pb.Seek(segment=segment, subscription="sub", start=start))
    again = await cluster.subscribe(client, segment, epoch=2)
    await again.wait(*"def")


@pytest.mark.parametrize("committed", [True, False])
async def test_what_is_trimmed_while_its_ack_is_pending_is_drained_with_the_decision(
    memory_cluster: Cluster, committed: bool
) -> None:
    """▲ `drained` promises that no ack is pending: what an abort gives back is looked at before the children are."""
    cluster = memory_cluster
    [segment] = await cluster.create_topic()
    node = await cluster.start(settings=QUIET)
    client = await cluster.connect(node)
    _, consumer = await cluster.holding_abc(client, segment)
    served = node.broker.segments[segment]
    txn = await cluster.begin()
    await consumer.ack(consumer.messages[0], txn=txn)
    async with controlling(cluster) as controller:
        await controller.split(segment)
    await until(lambda: served.ledgers.ended)
    await served.keep(Retention(ms=-1, undrained=True))
    subscription = await served.subscriptions.load("sub")
    assert subscription.consumed >= served.last_confirmed
    assert not subscription.drained
    await cluster.end(txn, "COMMITTED" if committed else "ABORTED")
    await cluster.wait_no_ops(txn)
    await until(lambda: subscription.drained)
