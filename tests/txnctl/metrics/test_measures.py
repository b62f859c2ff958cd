"""What a broker counts is not lost with the segment it was counted in: a counter that falls is read as a restart."""

from __future__ import annotations

import asyncio
from dataclasses import fields, replace

import pytest

from segments.log.housekeeping import KeepingStatistics
from segments.log.measures import Measures
from segments.subscription.lag import LagAge
from tests.cluster import InProcessCluster
from tests.waiting import until
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


async def test_of_many_segments_some_at_a_time_are_told_and_none_that_has_left_meanwhile(
    cluster: InProcessCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("segments.broker.broker.GATHERED_AT_ONCE", 2)
    broker = cluster.servers["broker"].server.broker
    assert broker is not None
    async with cluster.connect() as client:
        await client.create_topic("topic://public/default/many", segments=5)
        async with await client.producer("topic://public/default/many") as producer:
            await producer.send_many([(f"k{n}", b"v") for n in range(100)])
    assert len(broker.segments) == 5
    gathering = asyncio.create_task(broker.gather_statistics())
    await asyncio.sleep(0)
    assert not gathering.done()
    gone = min(broker.segments)
    segment = broker._owned.serving.pop(gone)
    try:
        assert [one.path for one in (await gathering).segments] == sorted(broker.segments)
    finally:
        broker._owned.serving[gone] = segment
    assert (await broker.gather_statistics()).segments == broker.statistics().segments


async def test_a_subscription_is_behind_by_the_sum_of_its_segments_and_unknown_where_one_is(
    cluster: InProcessCluster,
) -> None:
    """▲ A part of its messages told as all of them would keep an alert silent."""
    broker = cluster.servers["broker"].server.broker
    assert broker is not None
    async with cluster.connect() as client:
        await client.create_topic("topic://public/default/read", segments=2)
        await until(lambda: len(broker.segments) == 2)
    lags = [
        {"known": LagAge(3, 1.5), "unknown": LagAge(7, 9.0), "of no age": LagAge(1, None), "done": LagAge(0, 0.0)},
        {"known": LagAge(4, 0.5), "unknown": LagAge(None, None), "of no age": LagAge(2, 3.0), "done": LagAge(0, 0.0)},
    ]
    of = broker.statistics()
    of = replace(of, segments=tuple(replace(one, lags=lag) for one, lag in zip(of.segments, lags, strict=True)))
    told = {
        metric.name.removeprefix("txnstore_subscription_"): metric.read(of)
        for metric in BROKER
        if "_lag" in metric.name
    }
    topic = "public/default/read"
    assert told["lag_messages"] == [((topic, "known"), 7), ((topic, "of no age"), 3)]
    assert told["lag_seconds"] == [((topic, "known"), 1.5)]
    assert told["lags_unknown"] == 2
