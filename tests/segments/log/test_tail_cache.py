"""The newest entries of a segment in memory."""

from __future__ import annotations

import pytest

from segments.log.tail_cache import LogEntry, TailCache
from txnwire.ids import Position


def entry(entry_id: int, size: int = 10) -> LogEntry:
    return LogEntry(Position(1, entry_id), bytes(size), 1, None, 0)


def kept(cache: TailCache, of: int) -> list[int]:
    return [entry_id for entry_id in range(of) if cache.get(Position(1, entry_id)) is not None]


@pytest.fixture
def cache() -> TailCache:
    cache = TailCache(30)
    for entry_id in range(5):
        cache.add(entry(entry_id))
    return cache


def test_the_oldest_go_as_others_come(cache: TailCache) -> None:
    assert kept(cache, 5) == [2, 3, 4]
    assert (len(cache), cache.bytes) == (3, 30)
    cache.add(entry(5, 15))
    assert kept(cache, 6) == [4, 5]
    assert (len(cache), cache.bytes) == (2, 25)
    assert cache.get(Position(1, 5)) == entry(5, 15)


def test_an_entry_larger_than_the_cache_leaves_it_empty(cache: TailCache) -> None:
    cache.add(entry(5, 31))
    assert kept(cache, 6) == []
    assert (len(cache), cache.bytes) == (0, 0)


def test_a_smaller_bound_counts_at_once_and_a_larger_one_from_then_on(cache: TailCache) -> None:
    cache.resize(20)
    assert kept(cache, 5) == [3, 4]
    cache.resize(40)
    for entry_id in (5, 6):
        cache.add(entry(entry_id))
    assert kept(cache, 7) == [3, 4, 5, 6]


def test_what_is_cleared_takes_no_room_of_what_comes(cache: TailCache) -> None:
    cache.clear()
    assert (kept(cache, 5), len(cache), cache.bytes) == ([], 0, 0)
    for entry_id in range(5, 8):
        cache.add(entry(entry_id))
    assert kept(cache, 8) == [5, 6, 7]
