"""The end of a micro-batch, of heads that a service tells in several answers."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows

from pyspark_txnstore.shared.offsets import decode_offset
from pyspark_txnstore.shared.options import SourceOptions
from pyspark_txnstore.source.columns import SCHEMA
from pyspark_txnstore.source.stream import StreamReader
from tests.spark.log_world import World, WorldCuts
from txnclient import Snapshot
from txnwire.errors import DataTrimmed, InvalidArgument, TxnError
from txnwire.ids import EARLIEST, Position

OPTIONS = {"service.url": "txn://h:1", "topicsPattern": ".*", "maxEntriesPerTrigger": "7"}


def stream_of(world: World, **options: str) -> StreamReader:
    reader = StreamReader(SourceOptions.parse(OPTIONS | options, use="stream read"), SCHEMA)
    reader._cuts = WorldCuts(world)
    return reader


def test_a_limit_counts_what_all_answers_tell() -> None:
    """▲ An end that is found by some of them alone may lie anywhere, and part a transaction."""
    world = World(lambda _: 0)
    start = world.cut(world.topics)
    for _ in range(10):
        world.append_plain()
    (segment,) = world.segments()
    reader = stream_of(world)
    end = reader._within_limits(start, world.cut(world.topics))
    assert end.segments[segment.name.path].end == segment.entries[6].position


def test_no_more_answers_are_asked_for_than_a_limit_needs() -> None:
    """Each has three heads. One more is needed than the limit allows."""
    world = World(lambda _: 0)
    start = world.cut(world.topics)
    for _ in range(100):
        world.append_plain()
    reader = stream_of(world)
    reader._within_limits(start, world.cut(world.topics))
    assert len(reader._backlog) == 9


def test_what_an_aborted_transaction_held_back_is_no_loss_of_a_limited_stream() -> None:
    """▲ Retention has taken its entries, which stand before the start's end: only that they were scanned for is new."""
    world = World(lambda _: 0)
    world.begin()
    (aborted,) = world.txns.values()
    world.append_in_transaction()
    world.append_plain()

    def unresolved() -> Snapshot:
        found = world.cut(world.topics)
        topics = {
            name: one._replace(segments={path: at._replace(resolved=EARLIEST) for path, at in one.segments.items()})
            for name, one in found.topics.items()
        }
        return replace(found, topics=topics)

    start = unresolved()
    assert start.pending == (aborted.txn_id,)
    world.revision += 1
    aborted.revision = world.revision
    world.append_plain()
    target = unresolved()
    world.draw = lambda choices: choices - 1
    world.trim(lambda _: Position(1, 0), lambda _: False)
    assert [entry.position for entry in world.kept()] == [Position(1, 1), Position(1, 2)]
    end = stream_of(world)._end(start, target, limited=True)
    assert end is not None
    assert [one.end for one in end.segments.values()] == [Position(1, 2)]
    assert end.aborted == (aborted.txn_id,)
    aborted.committed = True
    with pytest.raises(DataTrimmed):
        stream_of(world)._end(start, target, limited=True)


class Unknown(WorldCuts):
    """Where the query begins cannot be told."""

    error: TxnError | None = None

    def first(self, target: Snapshot | None) -> Snapshot | None:
        if self.error is not None:
            raise self.error
        return self.world.cut(self.world.topics)


@pytest.mark.parametrize("error", [DataTrimmed("0000-ffff-0 was trimmed"), InvalidArgument("there is no 0000-ffff-0")])
def test_a_beginning_that_is_not_known_any_more_is_an_error_only_where_it_is_needed(error: TxnError) -> None:
    """▲ Spark asks for it before it repeats the first batch, too, which tells by itself where it begins."""
    world = World(lambda _: 0)
    world.append_plain()
    reader = stream_of(world, startingOffsets="latest")
    reader._cuts = cuts = Unknown(world)
    cuts.error = error
    untold = json.loads(json.dumps(reader.initialOffset()))
    with pytest.raises(type(error), match=str(error)):
        reader.latestOffset(untold, reader.getDefaultReadLimit())
    cuts.error = None
    assert decode_offset(reader.initialOffset()) is not None
    assert reader.initialOffset() == reader.initialOffset()


def waiting(world: World, **options: str) -> StreamReader:
    """For three entries, an hour at most behind the batch that it has just planned."""
    reader = stream_of(world, minEntriesPerTrigger="3", maxTriggerDelayMs="3600000", **options)
    reader._now = lambda: 0.0
    reader._ended_s = 0.0
    return reader


@pytest.mark.parametrize("entries", [2, 3])
def test_a_batch_waits_for_enough_entries_and_no_longer_than_it_may(entries: int) -> None:
    world = World(lambda _: 0)
    start = world.cut(world.topics)
    for _ in range(entries):
        world.append_plain()
    target = world.cut(world.topics)
    reader = waiting(world)
    assert reader._limited(start, target) == (None if entries == 2 else target)
    assert reader._is_short == (entries == 2)
    for name, value in (("_ends", True), ("_ended_s", -3600.0), ("_ended_s", -math.inf)):
        reader = waiting(world)
        setattr(reader, name, value)
        assert reader._limited(start, target) == target
    assert stream_of(world)._limited(start, target) == target, "which is not asked to wait"


def test_a_batch_with_another_layout_waits_for_nothing() -> None:
    """▲ What was sealed must be known before retention takes it."""
    world = World(lambda _: 0)
    start = world.cut(world.topics)
    world.split()
    target = world.cut(world.topics)
    assert waiting(world)._limited(start, target) == target


def test_without_limits_no_heads_are_asked_for() -> None:
    world = World(lambda _: 0)
    start = world.cut(world.topics)
    world.append_plain()
    given = {"service.url": "txn://h:1", "topic": "topic://t/n/a"}
    reader = StreamReader(SourceOptions.parse(given, use="stream read"), SCHEMA)
    reader._cuts = WorldCuts(world)
    target = world.cut(world.topics)
    assert reader._within_limits(start, target) == target
    assert len(reader._backlog) == 0


@pytest.mark.parametrize(
    ("options", "limit"),
    [
        ({"maxBytesPerTrigger": "5k", "maxEntriesPerTrigger": "7"}, ReadMaxBytes(5120)),
        ({"maxEntriesPerTrigger": "7", "maxRowsPerTrigger": "9"}, ReadMaxRows(7)),
        ({"maxRowsPerTrigger": "9"}, ReadMaxRows(9)),
        ({"minEntriesPerTrigger": "3"}, ReadMaxRows(3)),
        ({}, ReadAllAvailable()),
    ],
)
def test_spark_is_told_of_a_limit_where_there_is_any(options: dict[str, str], limit: ReadLimit) -> None:
    """▲ Else it asks for everything, and limits do not hold."""
    given = {"service.url": "txn://h:1", "topic": "topic://t/n/a", **options}
    reader = StreamReader(SourceOptions.parse(given, use="stream read"), SCHEMA)
    assert reader.getDefaultReadLimit() == limit
