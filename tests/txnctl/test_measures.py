"""What a broker counts is not lost with the segment it was counted in: a counter that falls is read as a restart."""

from __future__ import annotations

from dataclasses import fields

from segments.housekeeping import KeepingStatistics
from segments.measures import Measures
from tests.cluster import InProcessCluster
from txnctl.metrics.of_segments import BROKER


def test_every_count_of_housekeeping_is_added_up() -> None:
    one = KeepingStatistics(*range(1, len(fields(KeepingStatistics)) + 1))
    measures = Measures()
    for _ in range(3):
        measures.left(one)
    assert measures.snapshot().kept == KeepingStatistics(*(3 * count for count in range(1, len(fields(one)) + 1)))


async def test_a_segment_that_moves_away_leaves_its_counts(cluster: InProcessCluster) -> None:
    """Deleted, given up or handed over: all end by `stop`."""
    broker = cluster.servers["broker"].server.broker
    assert broker is not None
    async with cluster.connect() as client:
        await client.create_topic("topic://public/default/counted")
        async with await client.producer("topic://public/default/counted") as producer:
            await producer.send(b"one")
        (segment,) = broker.segments.values()
        segment._keeping._trimmed_ledgers = 7
        (trimmed,) = (one for one in BROKER if one.name == "txnstore_trimmed_ledgers_total")
        assert trimmed.read(broker.statistics()) == 7
        await client.delete_topic("topic://public/default/counted")
    assert broker.segments == {}
    assert trimmed.read(broker.statistics()) == 7
