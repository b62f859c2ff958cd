"""Owners that slept through their leases (L3)."""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tests.segments.brokering import Cluster
from tests.segments.gates import GatedLedgers, GatedStore, gate_stores, is_write_op
from tests.segments.owner.owner_clients import connected
from tests.waiting import until, until_answer
from txnstore import keys
from txnstore.memory.memory_etcd import MemoryEtcd
from txnstore.memory.memory_store import MemoryStore
from txnstore.store import Commit, Delete, MetadataStore, Put
from txnwire.clock import SystemClock
from txnwire.errors import InvalidArgument, NotOwner, TxnConflict
from txnwire.ids import Position
from txnwire.proto import txn_pb2 as pb


async def test_l3_a_paused_owner_wakes_to_a_refusal_and_its_entry_is_never_read(cluster: Cluster) -> None:
    gate_stores(cluster)
    cluster.make_ledgers = GatedLedgers  # type: ignore[assignment]
    [segment] = await cluster.create_topic()
    old, client = await connected(cluster, "old")
    ledgers: GatedLedgers = old.ledgers  # type: ignore[assignment]
    store: GatedStore = old.store  # type: ignore[assignment]
    producer = await client.producer(segment)
    txn = await cluster.begin()
    await producer.send("acked", txn=txn)
    ledgers.hold()
    paused = producer.send_nowait("between op and append", txn=txn)
    await until(lambda: ledgers.waiting)
    store.hold(is_write_op)
    unsent = producer.send_nowait("before its op", txn=txn)
    await until(lambda: store.waiting)

    # The old owner's lease is lost; a successor takes the segment over while the old one is still paused.
    owner = await cluster.store.get(keys.owner(segment))
    assert owner is not None
    old.broker._main.cancel()  # type: ignore[union-attr] - it does not notice anything
    old.broker._unsubscribe()  # type: ignore[misc]
    await cluster.store.revoke_lease(owner.lease)
    new, successor = await connected(cluster, "new")
    reader = await successor.reader(segment)
    ledgers.open()
    store.open()
    with pytest.raises(NotOwner):
        await paused
    with pytest.raises((NotOwner, TxnConflict)):
        await unsent
    await cluster.commit(txn)
    await reader.wait("acked")
    await (await successor.producer(segment)).send("sentinel", sequence_id=9, previous=0)
    await reader.wait("acked", "sentinel")
    assert new.broker.statistics().segments


async def test_an_owner_that_misses_the_header_of_an_open_transaction_looks_whether_it_is_still_the_owner(
    memory_cluster: Cluster,
) -> None:
    """▲ Whoever came after it may have ended the transaction, and a coordinator collected it."""
    cluster = memory_cluster
    [segment] = await cluster.create_topic()
    node, client = await connected(cluster)
    txn = await cluster.begin()
    await (await client.producer(segment)).send("m", txn=txn)
    served = node.broker.segments[segment]
    await until_answer(
        lambda: cluster.store.get(keys.watermark(segment)), lambda found: found is not None, "the last write"
    )
    node.broker._unsubscribe()  # type: ignore[misc] - it hears of no owners
    await cluster.store.commit(Commit(deletes=(Delete(keys.owner(segment)), Delete(keys.txn(txn)))))
    revision = (await cluster.store.commit(Commit(puts=(Put(b"/elsewhere", b""),)))).revision
    await served.wait_followed(revision, patience_s=0.01)
    await until(lambda: node.broker.segments.get(segment) is not served)
    with pytest.raises(NotOwner):
        served.check()


class SteppingClock(SystemClock):
    """As after a pause of the whole process: time has passed, and no timer has run."""

    def __init__(self) -> None:
        self.paused_s = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.paused_s


@pytest.fixture
def stepping_clock(memory_etcd: MemoryEtcd, memory_cluster: Cluster) -> SteppingClock:
    """The clock of the cluster's brokers."""
    clock = SteppingClock()

    async def make_store() -> MetadataStore:
        return MemoryStore(memory_etcd, clock, random.Random(1))

    memory_cluster.make_store = make_store
    return clock


@pytest.mark.leaves("tasks", "who keeps a lease that is found lost sleeps on for a third of its time, then ends")
async def test_l3_an_owner_that_slept_through_its_lease_answers_nothing_from_before(
    stepping_clock: SteppingClock, memory_cluster: Cluster
) -> None:
    cluster, clock = memory_cluster, stepping_clock
    [segment] = await cluster.create_topic()
    node, client = await connected(cluster)
    await (await client.producer(segment)).send("m")
    reading = pb.SegmentPositions(segment=segment)
    assert (await client.call(segment_positions=reading)).segment_positions_ok.last_confirmed.entry_id == 0
    epoch = node.broker.segments[segment].epoch
    clock.paused_s = 60.0
    with pytest.raises(NotOwner):
        await client.call(segment_positions=reading)
    with pytest.raises(NotOwner):
        await client.reader(segment)
    await until(lambda: segment in node.broker.segments and node.broker.segments[segment].epoch > epoch)
    await (await client.reader(segment)).wait("m")


@pytest.mark.leaves("tasks", "who keeps a lease that is found lost sleeps on for a third of its time, then ends")
@pytest.mark.parametrize("asked", ["heads", "stream", "queue"])
async def test_l3_an_owner_that_slept_through_its_lease_serves_nobody_as_before(
    stepping_clock: SteppingClock, memory_cluster: Cluster, asked: str
) -> None:
    """▲ That nothing follows what it knows is no answer either; nor would anybody close who attaches to it."""
    cluster, clock = memory_cluster, stepping_clock
    [segment] = await cluster.create_topic()
    _, client = await connected(cluster)
    last = await (await client.producer(segment)).send("m")
    await cluster.subscribe(client, segment)
    await cluster.queue(client, segment)  # both are known to it
    behind, end = (pb.Position(ledger_id=last.ledger_id, entry_id=last.entry_id + number) for number in (0, 9))
    requests: dict[str, Callable[[], Coroutine[Any, Any, object]]] = {
        "heads": lambda: client.call(scan_entries=pb.ScanEntries(segment=segment, after=behind, end=end)),
        "stream": lambda: client.subscribe(segment),
        "queue": lambda: client.subscribe(segment, name="jobs", type=pb.SUBSCRIPTION_TYPE_QUEUE),
    }
    await requests[asked]()
    clock.paused_s = 60.0
    with pytest.raises(NotOwner):
        await requests[asked]()


@pytest.mark.leaves("tasks", "who keeps a lease that is found lost sleeps on for a third of its time, then ends")
@pytest.mark.parametrize("acked", [[], [0]], ids=["nothing", "a part of an entry"])
async def test_l3_an_owner_that_slept_through_its_lease_does_not_tell_where_a_subscription_stands(
    stepping_clock: SteppingClock, memory_cluster: Cluster, acked: list[int]
) -> None:
    """▲ The next owner has taken more acks by then: a reader that begins there would read messages twice."""
    cluster, clock = memory_cluster, stepping_clock
    [segment] = await cluster.create_topic()
    node, client = await connected(cluster)
    await (await client.producer(segment)).send("a", "b")
    consumer = await cluster.queue(client, segment)
    await consumer.wait("a", "b")
    for index in acked:
        await consumer.ack(consumer.messages[index], indexes=[index])
    ask = node.service.admin["subscription.position"]
    assert (await ask({"segment": segment, "subscription": "jobs"}))["position"][2] == len(acked)
    clock.paused_s = 60.0
    with pytest.raises(NotOwner):
        await ask({"segment": segment, "subscription": "jobs"})


@pytest.mark.leaves("tasks", "who keeps a lease that is found lost sleeps on for a third of its time, then ends")
@pytest.mark.parametrize(
    "request_of",
    [
        lambda segment: {"segment_positions": pb.SegmentPositions(segment=segment, timestamp_ms=1)},
        lambda segment: {"scan_entries": pb.ScanEntries(segment=segment, end=pb.Position(ledger_id=1, entry_id=9))},
    ],
    ids=["a position by time", "heads"],
)
async def test_l3_an_owner_that_sleeps_through_its_lease_blames_nobody_for_files_that_the_next_one_deletes(
    stepping_clock: SteppingClock,
    memory_cluster: Cluster,
    monkeypatch: pytest.MonkeyPatch,
    request_of: Callable[[str], dict[str, Any]],
) -> None:
    """▲ The client would take its request for wrong, and not ask the next owner."""
    cluster, clock = memory_cluster, stepping_clock
    [segment] = await cluster.create_topic()
    node, client = await connected(cluster)
    await (await client.producer(segment)).send("a")
    await node.broker.segments[segment].roll()
    read = node.ledgers.read

    async def sleep_and_read(*args: Any, **options: Any) -> Any:
        clock.paused_s = 60.0
        await node.ledgers.delete(segment, 1)
        return await read(*args, **options)

    monkeypatch.setattr(node.ledgers, "read", sleep_and_read)
    with pytest.raises(NotOwner):
        await client.call(**request_of(segment))


async def test_an_owner_that_loses_a_segment_amid_a_question_by_time_does_not_blame_the_question(
    memory_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it read may have been deleted by the next owner, who is to be asked."""
    [path] = await memory_cluster.create_topic()
    client = await memory_cluster.connect(node := await memory_cluster.start())
    served = await node.broker.segment(path)

    async def taken_away(*_: object) -> Position:
        served.stop(NotOwner("taken away"))
        raise InvalidArgument("the file is not there")

    monkeypatch.setattr("segments.broker.broker_service.before_timestamp", taken_away)
    with pytest.raises(NotOwner, match="taken away"):
        await client.call(segment_positions=pb.SegmentPositions(segment=path, timestamp_ms=5))
