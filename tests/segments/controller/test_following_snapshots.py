"""Readers that follow from a snapshot on, without an end, while retention trims: nothing is left out silently."""

from __future__ import annotations

import pytest

from tests.segments.brokering import Cluster
from tests.segments.log.small_logs import ONE_ENTRY_EACH, set_policies
from tests.waiting import until
from txnclient.reading.reader import behind
from txnwire.errors import InvalidArgument
from txnwire.ids import EARLIEST


async def test_x2_who_follows_from_a_snapshot_on_is_told_what_retention_has_taken_before_it(
    memory_cluster: Cluster,
) -> None:
    """▲ Behind the gap stands the rest of transactions whose beginning is gone. Any other reader goes on there."""
    cluster = memory_cluster
    [segment] = await cluster.create_topic()
    client = await cluster.connect(node := await cluster.start(settings=ONE_ENTRY_EACH))
    store = await cluster.store.incarnation()
    producer = await client.producer(segment)
    places = [await producer.send(f"{number}") for number in range(6)]
    slow = await client.reader(segment, start=behind(segment, places[0]), permits=1, store=store)
    other = await client.reader(segment, start=behind(segment, places[0]), permits=1)
    for reader in (slow, other):
        await reader.wait("1")
    await set_policies(cluster, retention_ms=1)
    served = node.broker.segments[segment]
    await until(lambda: served.ledgers.trimmed_through == places[5], what="all is trimmed")
    await set_policies(cluster)
    await producer.send("6")
    for reader in (slow, other):
        reader.flow(100)
    await other.wait("1", "6")
    await until(lambda: slow.closed is not None)
    assert "trimmed" in str(slow.closed)
    assert slow.values == ["1"]
    for gone in (EARLIEST, places[3]):
        with pytest.raises(InvalidArgument, match="trimmed"):
            await client.reader(segment, start=behind(segment, gone), store=store)
    whole = await client.reader(segment, start=behind(segment, places[5]), store=store)
    await whole.wait("6")
