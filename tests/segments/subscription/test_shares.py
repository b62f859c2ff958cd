"""How consumers of one broker share what may wait for them."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from segments.log.settings import BrokerSettings
from segments.log.tail_cache import LogEntry, TailCache
from segments.subscription.shares import LEAST_BYTES, CacheShares, DeliveryShares
from tests.segments.brokering import Cluster
from tests.waiting import until
from txnwire.ids import Position

SETTINGS = BrokerSettings()


def test_few_have_all_that_helps() -> None:
    shares = DeliveryShares(SETTINGS)
    for number in range(64):
        shares.join(number)
    assert shares.pending_bytes == SETTINGS.connection_pending_bytes
    assert (shares.deliver_bytes, shares.read_bytes) == (SETTINGS.deliver_bytes, SETTINGS.read_bytes)


@given(st.integers(1, 8192))
def test_together_they_stay_below_the_bound(count: int) -> None:
    shares = DeliveryShares(SETTINGS)
    shares._consumers = dict.fromkeys(range(count - 1))
    shares.join(count)
    each = shares.pending_bytes + shares.deliver_bytes + shares.read_bytes
    assert count * each <= SETTINGS.broker_deliveries_bytes
    assert each >= LEAST_BYTES * 3 // 4


def test_who_leaves_gives_its_share_back_once() -> None:
    shares = DeliveryShares(SETTINGS)
    for number in range(1000):
        shares.join(number)
        shares.join(number)
    alone, crowded = DeliveryShares(SETTINGS).pending_bytes, shares.pending_bytes
    assert crowded < alone
    for number in range(999):
        shares.leave(number)
        shares.leave(number)
    assert (shares.consumers, shares.pending_bytes) == (1, alone)


def filled(shares: CacheShares, entries: int) -> TailCache:
    cache = TailCache(SETTINGS.tail_cache_bytes)
    shares.join(cache)
    for number in range(entries):
        cache.add(LogEntry(Position(1, number), bytes(10_000), 1, None, 0))
    return cache


def test_caches_of_many_segments_shrink_at_once_also_those_nobody_writes_to() -> None:
    shares = CacheShares(replace(SETTINGS, tail_cache_bytes=1_000_000, broker_cache_bytes=4_000_000))
    caches = [filled(shares, 200) for _ in range(4)]
    assert [cache.bytes for cache in caches] == [1_000_000] * 4
    caches += [filled(shares, 200) for _ in range(16)]
    assert [cache.bytes for cache in caches] == [200_000] * 20
    assert caches[0].get(Position(1, 199)) is not None, "the newest stay"
    for cache in caches[:19]:
        shares.leave(cache)
        shares.leave(cache)
    for number in range(200, 400):
        caches[19].add(LogEntry(Position(1, number), bytes(10_000), 1, None, 0))
    assert caches[19].bytes == 1_000_000


async def test_a_reader_that_is_given_up_gives_its_share_back(memory_cluster: Cluster) -> None:
    """Its connection may go on for long, and open many more."""
    [segment] = await memory_cluster.create_topic()
    node = await memory_cluster.start(settings=replace(memory_cluster.settings, follow_wait_s=0.01))
    client = await memory_cluster.connect(node)
    reader = await client.reader(segment, permits=0)
    shares = node.broker.segments[segment].dispatcher.shares
    assert shares.consumers == 1
    reader.flow(1, min_revision=1_000_000)
    await until(lambda: reader.closed)
    assert shares.consumers == 0
