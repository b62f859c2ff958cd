"""E2 at the broker: any of its writes may be lost, answered by silence, or land late; and brokers die in between."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from msgspec import structs

from segments.log.settings import BrokerSettings
from tests.segments.brokering import TOPIC, Client, Cluster, Node, Producer
from tests.waiting import until
from txnstore import keys, records
from txnstore.memory.memory_etcd import Arrival, MemoryEtcd
from txnstore.memory.memory_store import NO_FAULT, Fate, MemoryStore
from txnstore.records import SubscriptionRecord
from txnstore.store import Commit, Delete, MetadataStore, Put
from txnwire.clock import SystemClock
from txnwire.errors import TxnConflict, TxnError
from txnwire.ids import TxnId

LOST = Fate(arrive_s=None, fail_s=0.01)
SILENT = Fate(arrive_s=0.0, fail_s=0.01)
LATE = Fate(arrive_s=0.03, fail_s=0.01)
NOT_INJECTED = "nothing was injected"


class Faults:
    """`script`: what the broker's next commits meet. `share`: how many of all others meet something, by chance."""

    def __init__(self, seed: int = 0) -> None:
        self.script: list[Fate] = []
        self.share = 0.0
        self.met = 0
        """How many have met something by chance."""
        self._random = random.Random(seed)

    def fate(self, request: str, client: str) -> Fate:
        if request != "commit":
            return NO_FAULT
        if self.script:
            return self.script.pop(0)
        if self._random.random() >= self.share:
            return NO_FAULT
        self.met += 1
        return self._random.choice([LOST, SILENT, LATE])

    def watch_delay_s(self, client: str) -> float:
        return self._random.random() * 0.005


def faulty_cluster(etcd: MemoryEtcd, store: MemoryStore, data_dir: Path, faults: Faults) -> Cluster:
    async def make_store() -> MetadataStore:
        return MemoryStore(etcd, SystemClock(), random.Random(1), name="broker", faults=faults)

    return Cluster(make_store, store, data_dir, BrokerSettings(lease_ttl_s=60.0, claim_retry_s=0.02))


@pytest.mark.parametrize("fate", [LOST, SILENT, LATE], ids=["lost", "landed silently", "landed late"])
async def test_e2_an_op_whose_answer_is_lost_is_neither_lost_nor_doubled(
    memory_etcd: MemoryEtcd, memory_store: MemoryStore, tmp_path: Path, fate: Fate
) -> None:
    faults = Faults()
    cluster = faulty_cluster(memory_etcd, memory_store, tmp_path, faults)
    [segment] = await cluster.create_topic()
    client = await cluster.connect(await cluster.start())
    producer, consumer = await client.producer(segment), await cluster.subscribe(client, segment)
    await asyncio.sleep(0.05)  # nothing else of the broker is on its way
    writing, acking, late = [await cluster.begin() for _ in range(3)]
    faults.script = [fate]
    await producer.send("m", txn=writing)
    assert faults.script == [], NOT_INJECTED
    assert len(await cluster.ops(writing)) == 1
    await cluster.commit(writing)
    await consumer.wait("m")
    await cluster.wait_no_ops(writing)
    faults.script = [fate]
    await consumer.ack(consumer.messages[0], txn=acking)
    assert faults.script == [], NOT_INJECTED
    assert len(await cluster.ops(acking)) == 1
    await cluster.abort(acking)
    await until(lambda: consumer.rewinds == 1)
    await consumer.wait("m")
    await cluster.abort(late)
    faults.script = [fate]
    with pytest.raises(TxnConflict):
        await producer.send("late", txn=late)
    assert faults.script == [], NOT_INJECTED
    await cluster.wait_no_ops(acking)
    assert await cluster.ops(late) == []
    await cluster.close()


async def mark_deleting(etcd: MemoryEtcd, store: MemoryStore) -> bytes:
    """As the controller does; the key of the subscription."""
    key = keys.subscription(TOPIC.path, "sub")
    found = etcd.mvcc.get(key)
    assert found is not None
    marked = structs.replace(records.decode(SubscriptionRecord, found.value, key=key), deleting_ms=1)
    await store.commit(Commit(puts=(Put(key, records.encode(marked)),)))
    return key


LONG_AFTER = Fate(arrive_s=2.0, fail_s=0.01)
"""Taken up by etcd when what it wrote is long gone, and a second sending answered."""


def landed_late(etcd: MemoryEtcd) -> asyncio.Event:
    """Set when a commit arrives that its client has given up."""
    landed = asyncio.Event()

    def note(arrival: Arrival) -> None:
        if arrival.request == "commit" and arrival.late:
            landed.set()

    etcd.on_arrival = note
    return landed


@pytest.mark.parametrize("in_transaction", [False, True], ids=["cursor", "ack op"])
async def test_p9_nothing_of_a_deleted_subscription_rises_from_the_dead(
    memory_etcd: MemoryEtcd, memory_store: MemoryStore, tmp_path: Path, in_transaction: bool
) -> None:
    """A late first sending, under an ownership that goes on: one of the same name would lose what that one acked."""
    faults = Faults()
    cluster = faulty_cluster(memory_etcd, memory_store, tmp_path, faults)
    [segment] = await cluster.create_topic()
    node = await cluster.start()
    client = await cluster.connect(node)
    producer, consumer = await client.producer(segment), await cluster.subscribe(client, segment)
    await producer.send("m")
    await consumer.wait("m")
    await asyncio.sleep(0.05)  # nothing else of the broker is on its way
    landed = landed_late(memory_etcd)
    faults.script = [LONG_AFTER]
    txn = await cluster.begin() if in_transaction else None
    await consumer.ack(consumer.messages[0], txn=txn)
    await until(lambda: not faults.script, within_s=5)
    table = node.broker.segments[segment].subscriptions
    if txn is None:
        cursor = next(iter(table)).cursor
        await until(lambda: not cursor.dirty, within_s=5)
    key = await mark_deleting(memory_etcd, memory_store)
    await table.drop("sub")
    await memory_store.commit(Commit(deletes=(Delete(key),)))
    assert not landed.is_set(), "the first sending is still on its way"
    async with asyncio.timeout(20):
        await landed.wait()
    for prefix in (keys.CURSOR, keys.TXN_OP, keys.ACKS_BY_SEGMENT_SUBSCRIPTION):
        assert memory_etcd.mvcc.range(prefix, keys.prefix_end(prefix))[0] == []
    await cluster.close()


async def test_p9_dropping_goes_on_without_who_asked_for_it(
    memory_etcd: MemoryEtcd, memory_store: MemoryStore, tmp_path: Path
) -> None:
    """The controller that asked dies while a cursor is on its way; the next one is told only when that has landed."""
    faults = Faults()
    cluster = faulty_cluster(memory_etcd, memory_store, tmp_path, faults)
    [segment] = await cluster.create_topic()
    node = await cluster.start()
    client = await cluster.connect(node)
    producer, consumer = await client.producer(segment), await cluster.subscribe(client, segment)
    await producer.send("m")
    await consumer.wait("m")
    await asyncio.sleep(0.05)  # nothing else of the broker is on its way
    landed: list[Arrival] = []
    memory_etcd.on_arrival = lambda met: landed.append(met) if puts_cursor(met) else None
    faults.script = [Fate(arrive_s=0.4)]
    await consumer.ack(consumer.messages[0])
    await until(lambda: not faults.script, within_s=5)
    await mark_deleting(memory_etcd, memory_store)
    table = node.broker.segments[segment].subscriptions
    asked = asyncio.create_task(table.drop("sub"))
    await asyncio.sleep(0.1)
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)
    await table.drop("sub")
    assert landed, "it is told before the cursor has landed"
    assert memory_etcd.mvcc.range(keys.CURSOR, keys.prefix_end(keys.CURSOR))[0] == []
    await cluster.close()


def puts_cursor(met: Arrival) -> bool:
    return any(put.key.startswith(keys.CURSOR) for commit in met.commits for put in commit.puts)


class Writer:
    """Sends transactions of two messages through brokers that come and go; knows what must be read."""

    def __init__(self, cluster: Cluster, segment: str, name: str, connect: Callable[[], Awaitable[Client]]) -> None:
        self.cluster = cluster
        self.segment = segment
        self.name = name
        self.connect = connect
        self.must: list[str] = []
        self.must_not: list[str] = []
        self.incarnation = 0
        self.running = True

    async def run(self) -> None:
        number = 0
        while self.running:
            try:
                self.incarnation += 1
                client = await self.connect()
                producer = await client.producer(self.segment, self.name, self.incarnation)
                while self.running:
                    number += 1
                    await self.one(producer, number)
            except TxnError:
                await asyncio.sleep(0.01)

    async def one(self, producer: Producer, number: int) -> None:
        txn = await self.cluster.begin()
        values = [f"{self.name}-{number}-{part}" for part in (1, 2)]
        try:
            await asyncio.gather(*[producer.send_nowait(value, txn=txn) for value in values])
        except TxnError:
            self.must_not += values
            await self.cluster.abort(txn)
            raise
        if number % 3:
            await self.cluster.commit(txn)
            self.must += values
        else:
            await self.cluster.abort(txn)
            self.must_not += values


@pytest.mark.parametrize("seed", range(3))
async def test_e2_under_faults_and_crashes_exactly_the_committed_is_read_and_nothing_is_left(
    memory_etcd: MemoryEtcd, memory_store: MemoryStore, tmp_path: Path, seed: int
) -> None:
    faults = Faults(seed)
    faults.share = 0.15
    cluster = faulty_cluster(memory_etcd, memory_store, tmp_path, faults)
    [segment] = await cluster.create_topic()
    nodes: list[Node] = [await cluster.start()]

    async def connect() -> Client:
        return await cluster.connect(nodes[-1])

    writers = [Writer(cluster, segment, f"w{index}", connect) for index in range(3)]
    tasks = [asyncio.create_task(writer.run()) for writer in writers]
    dice = random.Random(seed)
    for _ in range(4):
        done = sum(len(writer.must) for writer in writers)
        await until(lambda done=done: sum(len(writer.must) for writer in writers) >= done + 40, within_s=30)
        await (nodes[-1].crash() if dice.random() < 0.7 else nodes[-1].close())
        nodes.append(await cluster.start())
    for writer in writers:
        writer.running = False
    await asyncio.gather(*tasks)
    assert faults.met, NOT_INJECTED
    faults.share = 0.0

    reader = await (await connect()).reader(segment)
    expected = [value for writer in writers for value in writer.must]
    await until(lambda: len(reader.values) >= len(expected), within_s=20)
    assert sorted(reader.values) == sorted(expected)
    for writer in writers:
        assert [value for value in reader.values if value.startswith(writer.name + "-")] == writer.must
    for number in range(1, next(cluster._counters)):
        await cluster.wait_no_ops(TxnId(1, number))
    await cluster.close()
