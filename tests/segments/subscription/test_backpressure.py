"""What a broker takes on at most: entries its disk has not stored yet, deliveries its consumers do not read."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from segments.subscription.shares import LEAST_BYTES
from tests.segments.brokering import Client, Cluster, Consumer, Producer
from tests.segments.gates import SlowDisks
from tests.waiting import until
from txnwire.errors import DataCorrupt, Overloaded, SequenceGap, TxnError
from txnwire.ids import Position

VALUE = "x" * 1_000


def refused(sent: list[asyncio.Future[object]]) -> list[TxnError]:
    """Errors of those that have ended with one."""
    found = [one.exception() for one in sent if one.done()]
    return [error for error in found if isinstance(error, TxnError)]


async def slow_and_fast(cluster: Cluster, tmp_path: Path, **settings: int) -> tuple[SlowDisks, Producer, Producer]:
    slow, fast = await cluster.create_topic(segments=2)
    disks = SlowDisks(tmp_path)
    cluster.make_ledgers = lambda _: disks  # type: ignore[assignment, return-value]
    client = await cluster.connect(await cluster.start(settings=replace(cluster.settings, **settings)))
    producers = await client.producer(slow, "slow"), await client.producer(fast, "fast")
    for producer in producers:
        await producer.send("opens the segment")
    disks.stop(slow)
    return disks, *producers


async def test_a_disk_that_stands_still_costs_bounded_memory_and_no_other_segment_anything(
    cluster: Cluster, tmp_path: Path
) -> None:
    disks, slow, fast = await slow_and_fast(cluster, tmp_path, segment_inflight_bytes=10_000)
    sent = [slow.send_nowait(VALUE) for _ in range(100)]
    broker = cluster.nodes[0].broker
    await until(lambda: sum(one.done() for one in sent) > 80)
    assert 5_000 < broker.statistics().inflight_bytes <= 10_000
    errors = refused(sent)  # type: ignore[arg-type]
    assert isinstance(errors[0], Overloaded)
    assert "bound 10000" in str(errors[0])
    assert {type(error) for error in errors} <= {Overloaded, SequenceGap}
    for _ in range(50):
        await fast.send(VALUE)
    disks.go_on()
    stored = [one for one in await asyncio.gather(*sent, return_exceptions=True) if not isinstance(one, BaseException)]
    assert len(stored) == 100 - len(errors)
    assert broker.statistics().inflight_bytes == 0
    slow.last = len(stored)  # of the one that opened the segment and those stored since
    await slow.send(VALUE)


async def test_the_bound_over_all_segments_holds_too_and_is_named(cluster: Cluster, tmp_path: Path) -> None:
    disks, slow, fast = await slow_and_fast(cluster, tmp_path, broker_inflight_bytes=10_000)
    sent = [slow.send_nowait(VALUE) for _ in range(100)]
    await until(lambda: sum(one.done() for one in sent) > 80)
    with pytest.raises(Overloaded, match=r"its broker \d+ \(bound 10000\): send again a little later"):
        await fast.send(VALUE)
    disks.go_on()
    await asyncio.gather(*sent, return_exceptions=True)
    fast.last = 0
    await fast.send(VALUE)
    assert cluster.nodes[0].broker.statistics().inflight_bytes == 0


async def test_sends_held_back_and_then_admitted_weigh_once_on_the_bound_over_all_segments(
    memory_cluster: Cluster,
) -> None:
    """A split that is given up again and again would leave the whole broker overloaded."""
    [path] = await memory_cluster.create_topic()
    node = await memory_cluster.start()
    producer = await (await memory_cluster.connect(node)).producer(path)
    pipeline = (await node.broker.segment(path)).pipeline
    pipeline.hold_back()
    held = [producer.send_nowait(VALUE) for _ in range(3)]
    await until(lambda: pipeline.inflight_bytes > 3 * len(VALUE))
    pipeline.admit_again()
    await asyncio.gather(*held)
    assert node.broker.statistics().inflight_bytes == 0


async def test_a_reader_that_was_given_up_gives_its_share_back(memory_cluster: Cluster) -> None:
    """Of one whose disk fails again and again each try would leave the others less."""
    [segment] = await memory_cluster.create_topic()
    node = await memory_cluster.start(settings=replace(memory_cluster.settings, tail_cache_bytes=0))
    client = await memory_cluster.connect(node)
    await (await client.producer(segment)).send("a")
    served = await node.broker.segment(segment)

    async def corrupt(*_: object, **__: object) -> list[tuple[Position, bytes]]:
        raise DataCorrupt("bytes are not what was written")

    served.ledgers.read = corrupt  # type: ignore[method-assign]
    for _ in range(3):
        reader = await client.reader(segment)
        await until(lambda reader=reader: reader.closed)  # type: ignore[misc]
    assert served.dispatcher.shares.consumers == 0


async def test_of_sends_that_were_held_back_a_refused_one_keeps_none_behind_it(memory_cluster: Cluster) -> None:
    """They would be answered by nobody, and weigh on the broker for ever."""
    [path] = await memory_cluster.create_topic()
    node = await memory_cluster.start()
    client = await memory_cluster.connect(node)
    one, two = [await client.producer(path, name) for name in ("one", "two")]
    pipeline = (await node.broker.segment(path)).pipeline
    pipeline.hold_back()
    held = [one.send_nowait(VALUE, sequence_id=7, previous=6), two.send_nowait(VALUE)]
    await until(lambda: pipeline.inflight_bytes > 2 * len(VALUE))
    pipeline.admit_again()
    async with asyncio.timeout(5.0):
        refused, stored = await asyncio.gather(*held, return_exceptions=True)
    assert isinstance(refused, SequenceGap)
    assert not isinstance(stored, BaseException)
    assert node.broker.statistics().inflight_bytes == 0


async def test_a_queue_consumer_that_does_not_read_holds_a_bounded_share_and_gives_it_back(cluster: Cluster) -> None:
    [segment] = await cluster.create_topic()
    settings = replace(cluster.settings, connection_pending_bytes=10_000, deliver_bytes=2_000, read_bytes=2_000)
    node = await cluster.start(settings=settings)
    stuck, reading = await cluster.connect(node), await cluster.connect(node)
    held = await cluster.queue(stuck, segment, consumer="stuck", permits=100_000)
    got = await cluster.queue(reading, segment, consumer="reading", permits=100_000)
    stuck.connection.pause(True)  # type: ignore[attr-defined]
    producer = await (await cluster.connect(node)).producer(segment)
    sent = [f"{number}-{VALUE}" for number in range(300)]
    for first in range(0, 300, 20):
        await asyncio.gather(*(producer.send_nowait(value) for value in sent[first : first + 20]))
    await until(lambda: len(got.values) > 250)
    assert _pending(stuck) <= 10_000 + 2 * 2_000
    assert held.values == []
    await stuck.close()
    await until(lambda: sorted(got.values) == sorted(sent), what="what it held has come to the one that reads")


async def test_many_consumers_that_do_not_read_share_one_bound(cluster: Cluster) -> None:
    """Dies without the shares: each of 40 would have 100 kB queued, and as much read ahead."""
    [segment] = await cluster.create_topic()
    settings = replace(
        cluster.settings, broker_deliveries_bytes=0, connection_pending_bytes=100_000, lease_ttl_s=60.0
    )  # in one process with 41 readers a lease of two seconds is lost on a busy machine
    node = await cluster.start(settings=settings)
    producer = await (await cluster.connect(node)).producer(segment)
    sent = [f"{number}-{VALUE}" for number in range(400)]
    for first in range(0, 400, 50):
        await asyncio.gather(*(producer.send_nowait(value) for value in sent[first : first + 50]))
    readers = [await cluster.connect(node) for _ in range(40)]
    parked = [await _paused_reader(reader, segment) for reader in readers]
    reading = await (await cluster.connect(node)).reader(segment)
    await reading.wait(*sent)
    most = LEAST_BYTES // 2 + LEAST_BYTES // 4 + 2 * len(VALUE)
    assert max(_pending(reader) for reader in readers) <= most
    for reader in readers:
        reader.connection.pause(False)  # type: ignore[attr-defined]
    for consumer in parked:
        await consumer.wait(*sent)


async def _paused_reader(client: Client, segment: str) -> Consumer:
    """Attached over a connection that is read for just as long as that takes."""
    client.connection.pause(False)  # type: ignore[attr-defined]
    consumer = await client.reader(segment, permits=0)
    client.connection.pause(True)  # type: ignore[attr-defined]
    consumer.flow(1_000_000)
    return consumer


def _pending(client: Client) -> int:
    return int(client.connection._bytes)  # type: ignore[attr-defined]
