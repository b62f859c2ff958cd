"""The end of a micro-batch, of heads that a service tells in several answers."""

from __future__ import annotations

from pyspark_txnstore.shared.options import SourceOptions
from pyspark_txnstore.source.columns import SCHEMA
from pyspark_txnstore.source.stream import StreamReader
from tests.spark.log_world import World, WorldCuts

OPTIONS = {"service.url": "txn://h:1", "topicsPattern": ".*", "maxEntriesPerTrigger": "7"}


def test_a_limit_counts_what_all_answers_tell() -> None:
    """▲ An end that is found by some of them alone may lie anywhere, and part a transaction."""
    world = World(lambda _: 0)
    start = world.cut(world.topics)
    for _ in range(10):
        world.append_plain()
    (segment,) = world.segments()
    reader = StreamReader(SourceOptions.parse(OPTIONS, use="stream read"), SCHEMA)
    reader._cuts = WorldCuts(world)
    end = reader._within_limits(start, world.cut(world.topics))
    assert end.segments[segment.name.path].end == segment.entries[6].position
