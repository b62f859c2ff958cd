"""Producers that are faster than the disk: bounded memory at every step, and nothing is lost, doubled or reordered."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import txnclient
from segments.log.settings import BrokerSettings
from tests.cluster import running_cluster
from tests.segments.gates import SlowDisks
from tests.waiting import until
from txnwire.protocol import MIB

TOPIC = "topic://public/default/full"
PRODUCERS, EACH = 6, 8


def _value(producer: int, number: int) -> bytes:
    return b"%d-%d-" % (producer, number) + bytes(MIB - 64)


async def test_producers_wait_for_a_slow_disk_and_all_they_sent_is_stored_once_in_order(
    etcd: str, tmp_path: Path
) -> None:
    """48 MiB against a segment that takes in 32: what is too much is refused, kept by its producer, and sent again."""
    disks = SlowDisks(tmp_path)
    async with (
        running_cluster(etcd, tmp_path, make_ledgers=lambda _: disks) as cluster,  # type: ignore[arg-type, return-value]
        cluster.connect(timeout=60.0) as client,
    ):
        layout = await client.create_topic(TOPIC, segments=1)
        broker = cluster.servers["broker"].server.broker
        assert broker is not None
        producers = [
            await client.producer(TOPIC, name=f"p{n}", compression=None, buffer_bytes=EACH * MIB)
            for n in range(PRODUCERS)
        ]
        for number, producer in enumerate(producers):
            await producer.send(b"%d--opens" % number)
        disks.stop(layout.active[0].path)
        sent = [
            producer.send_nowait(_value(number, count))
            for count in range(EACH)
            for number, producer in enumerate(producers)
        ]
        with pytest.raises(txnclient.WouldBlock):
            producers[0].send_nowait(_value(0, EACH))
        bound, seen = BrokerSettings().segment_inflight_bytes, [0]

        def refused_again() -> bool:
            seen.append(broker.statistics().inflight_bytes)
            return seen[-1] > bound - 2 * MIB and seen.count(seen[-1]) > 50

        await until(refused_again, within_s=30.0)
        assert max(seen) <= bound
        assert not any(one.done() for one in sent), "nobody has been told anything yet, and nobody has failed"
        disks.go_on()
        await asyncio.gather(*sent)
        async with client.reader(TOPIC, end="latest") as reader:
            got = [message.value.split(b"-", 2)[:2] async for message in reader]
    for number in range(PRODUCERS):
        counts = [int(count) for producer, count in got if producer == b"%d" % number and count]
        assert counts == list(range(EACH))
