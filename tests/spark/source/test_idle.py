"""A streaming query at rest: it is told what comes and asks nobody, and nothing is missed where it is not told.

Where a wait for the next cut in any case is set to an hour, what is found was told.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.streaming.query import StreamingQuery

import txnclient.sync
from pyspark_txnstore import DefaultSource
from pyspark_txnstore.shared.options import SourceOptions
from pyspark_txnstore.source.idle import BLOCK_S, FALLBACK_S
from pyspark_txnstore.source.stream import StreamReader
from tests.spark.micro_batches import commit, send
from tests.spark.service import Service
from tests.waiting import wait_until
from txnclient.connection.links import Link
from txnwire.errors import InvalidArgument, TopicNotFound

HOUR_S = 3600.0
Offset = dict[str, Any]


class Query:
    """One at rest: asked for its end, as Spark asks."""

    def __init__(self, url: str, **options: str) -> None:
        parsed = SourceOptions.parse({"service.url": url, **options}, use="stream read")
        self.reader = StreamReader(parsed, DefaultSource(options={}).schema(), fallback_s=HOUR_S)
        self.at = json.loads(json.dumps(self.reader.initialOffset()))
        self.rest()

    def end(self) -> Offset:
        limit = self.reader.getDefaultReadLimit()
        return dict(json.loads(json.dumps(self.reader.latestOffset(self.at, limit))))

    def goes_on(self) -> bool:
        """Whether there is a batch now."""
        before, self.at = self.at, self.end()
        return bool(before != self.at)

    def rest(self) -> None:
        """Take all there is, until no cut is taken any more."""
        while self.goes_on():
            pass

    def wait(self, what: str) -> None:
        wait_until(self.goes_on, what)


@pytest.fixture
def query(service: Service, sync_client: txnclient.sync.Client, topic: str) -> Iterator[Query]:
    """Of a topic of two segments with something in it."""
    sync_client.create_topic(topic, segments=2, autoscale="off")
    send(sync_client, topic, [b"old"])
    query = Query(service.url, topic=topic)
    yield query
    query.reader.stop()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kinds of all that this process asks of servers and tells them, but for what keeps connections."""
    asked: list[str] = []

    def listening(name: str) -> None:
        inner = getattr(Link, name)

        def told(self: Link, command: Any, *args: Any, **options: Any) -> Any:
            asked.append(str(command.WhichOneof("body")))
            return inner(self, command, *args, **options)

        monkeypatch.setattr(Link, name, told)

    listening("call")
    listening("push_if_open")
    return asked


def test_a_query_at_rest_asks_nothing(query: Query, asked: list[str]) -> None:
    for _ in range(10):
        assert not query.goes_on()
    assert asked == []


def test_a_message_is_told(query: Query, sync_client: txnclient.sync.Client, topic: str) -> None:
    for value in (b"one", b"two"):
        send(sync_client, topic, [value])
        query.wait("a message")
        query.rest()


def test_a_transaction_is_told_when_it_commits(
    query: Query, sync_client: txnclient.sync.Client, topic: str, asked: list[str]
) -> None:
    with sync_client.transaction() as txn:
        send(sync_client, topic, [b"a", b"b"], txn)
        query.wait("the transaction's entries")
        query.rest()
        asked.clear()
        assert not query.goes_on()
        assert asked == []
    query.wait("the commit")


def test_of_several_transactions_the_ends_are_looked_for(
    query: Query, sync_client: txnclient.sync.Client, topic: str
) -> None:
    """▲ The one that commits stands behind one that stays open, so no broker tells of it."""
    with sync_client.transaction() as first:
        send(sync_client, topic, [b"k"], first)
        with sync_client.transaction() as second:
            send(sync_client, topic, [b"k"], second)
            query.wait("the transactions' entries")
            query.rest()
        query.wait("the commit of the second")


def test_uncommitted_entries_are_told(service: Service, sync_client: txnclient.sync.Client, topic: str) -> None:
    sync_client.create_topic(topic)
    query = Query(service.url, topic=topic, isolationLevel="read_uncommitted")
    with sync_client.transaction() as txn:
        send(sync_client, topic, [b"a"], txn)
        query.wait("an open transaction's entry")
    query.reader.stop()


def test_another_layout_is_told(query: Query, sync_client: txnclient.sync.Client, topic: str) -> None:
    """Its own batch, without rows: what was split must be known of before retention takes it."""
    for segment in sync_client.describe_topic(topic).active:
        sync_client.split(segment.name)
        query.wait("a split")
        query.rest()
    first, second, *_ = sync_client.describe_topic(topic).active
    sync_client.merge(first.name, second.name)
    query.wait("a merge")
    query.rest()
    send(sync_client, topic, [b"%d" % number for number in range(8)])
    query.wait("what came behind it")


def test_a_topic_that_is_deleted_ends_the_query(query: Query, sync_client: txnclient.sync.Client, topic: str) -> None:
    sync_client.delete_topic(topic, force=True)
    with pytest.raises(TopicNotFound):
        query.wait("the end")


def test_a_topic_that_is_made_again_is_told(service: Service, sync_client: txnclient.sync.Client, topic: str) -> None:
    sync_client.create_topic(topic)
    query = Query(service.url, topic=topic, failOnDataLoss="false")
    sync_client.delete_topic(topic, force=True)
    sync_client.create_topic(topic)
    send(sync_client, topic, [b"again"])
    query.wait("the new topic")
    query.reader.stop()


def test_a_new_topic_of_a_pattern_is_found(service: Service, sync_client: txnclient.sync.Client, topic: str) -> None:
    """Also where it is the first."""
    query = Query(service.url, topicsPattern=f"{topic}-[ab]")
    for letter in "ab":
        sync_client.create_topic(f"{topic}-{letter}")
        send(sync_client, f"{topic}-{letter}", [b"new"])
        query.wait("a new topic")
        query.rest()
    query.reader.stop()


def test_a_query_goes_on_being_told_over_killed_brokers(
    query: Query, service: Service, sync_client: txnclient.sync.Client, topic: str
) -> None:
    service.kill("broker-1", "broker-2")
    send(sync_client, topic, [b"behind it"])
    query.wait("a message")


def test_a_stopped_query_leaves_nothing(query: Query, asked: list[str]) -> None:
    query.reader.stop()
    assert asked.count("close_consumer") == 2
    asked.clear()
    query.reader.stop()
    assert asked == []


def test_available_now_waits_for_nothing(query: Query, sync_client: txnclient.sync.Client, topic: str) -> None:
    """Of a source that has been at rest, too."""
    send(sync_client, topic, [b"new"])
    query.reader.prepareForTriggerAvailableNow()
    assert query.goes_on()
    assert not query.goes_on()


def test_a_backlog_under_a_limit_waits_for_nothing(
    service: Service, sync_client: txnclient.sync.Client, topic: str, asked: list[str]
) -> None:
    sync_client.create_topic(topic)
    send(sync_client, topic, [b"%d" % number for number in range(5)])
    query = Query.__new__(Query)
    options = {"service.url": service.url, "topic": topic, "maxEntriesPerTrigger": "1"}
    query.reader = StreamReader(
        SourceOptions.parse(options, use="stream read"), DefaultSource(options={}).schema(), fallback_s=HOUR_S
    )
    query.at = json.loads(json.dumps(query.reader.initialOffset()))
    for _ in range(5):
        assert query.goes_on()
    assert "subscribe" not in asked
    query.reader.stop()


# Where a watch does not help


class Clock:
    """Moves with the rests alone."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.rests: list[float] = []

    def rest(self, for_s: float) -> None:
        self.rests.append(round(for_s, 3))
        self.now_s += for_s

    def now(self) -> float:
        return self.now_s


def reader_at(clock: Clock, service: Service, topic: str) -> StreamReader:
    options = SourceOptions.parse({"service.url": service.url, "topic": topic}, use="stream read")
    return StreamReader(options, DefaultSource(options={}).schema(), rest=clock.rest, now=clock.now)


def cut_times(reader: StreamReader, clock: Clock, until_s: float, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """When cuts are taken, of a reader with nothing to read."""
    taken: list[float] = []
    take = reader._cuts.take

    def told() -> Any:
        taken.append(round(clock.now_s, 3))
        return take()

    monkeypatch.setattr(reader._cuts, "take", told)
    start = reader.initialOffset()
    taken.clear()
    while clock.now_s < until_s:
        assert reader.latestOffset(start, ReadAllAvailable()) == start
    return taken


def test_without_a_watch_cuts_are_taken_each_second(
    service: Service, sync_client: txnclient.sync.Client, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync_client.create_topic(topic)
    clock = Clock()
    reader = reader_at(clock, service, topic)

    def refused(*args: Any, **options: Any) -> Any:
        raise TopicNotFound("no watch today")

    monkeypatch.setattr(txnclient.sync.Client, "watch", refused)
    assert cut_times(reader, clock, 3.7, monkeypatch) == [0.0, 1.0, 2.0, 3.0]
    assert max(clock.rests) <= BLOCK_S, "Spark can stop the query meanwhile"


class Woken:
    """A watch that wakes always, or never, at a time of the test."""

    sees_all = True

    def __init__(self, clock: Clock, *, wakes: bool) -> None:
        self._clock = clock
        self._wakes = wakes

    def move(self, cut: object, *, timeout: float) -> None:
        assert timeout <= BLOCK_S, "Spark can stop the query meanwhile"

    def wait(self, for_s: float) -> bool:
        if not self._wakes:
            self._clock.rest(for_s)
        return self._wakes

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("wakes", "cuts"),
    [
        (True, [0.0, 0.0, 0.05, 0.15, 0.35, 0.75, 1.55, 2.55, 3.55]),
        (False, [0.0]),
    ],
)
def test_a_watch_that_wakes_for_nothing_is_asked_less_and_less(
    service: Service,
    sync_client: txnclient.sync.Client,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
    wakes: bool,
    cuts: list[float],
) -> None:
    """As one whose readers are refused for ever."""
    sync_client.create_topic(topic)
    clock = Clock()
    reader = reader_at(clock, service, topic)
    monkeypatch.setattr(txnclient.sync.Client, "watch", lambda *_, **__: Woken(clock, wakes=wakes))
    assert cut_times(reader, clock, 3.7, monkeypatch) == cuts


def test_a_cut_is_taken_now_and_then_whatever_a_watch_says(
    service: Service, sync_client: txnclient.sync.Client, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync_client.create_topic(topic)
    clock = Clock()
    reader = reader_at(clock, service, topic)
    monkeypatch.setattr(txnclient.sync.Client, "watch", lambda *_, **__: Woken(clock, wakes=False))
    assert cut_times(reader, clock, 2.5 * FALLBACK_S, monkeypatch) == [0.0, FALLBACK_S, 2 * FALLBACK_S]


class Lost(Woken):
    """A watch of a client that was closed behind its back."""

    @property
    def sees_all(self) -> bool:  # type: ignore[override]
        raise InvalidArgument("this client is closed")


def test_a_watch_that_is_lost_at_once_is_as_none(
    service: Service, sync_client: txnclient.sync.Client, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync_client.create_topic(topic)
    clock = Clock()
    reader = reader_at(clock, service, topic)
    monkeypatch.setattr(txnclient.sync.Client, "watch", lambda *_, **__: Lost(clock, wakes=False))
    assert cut_times(reader, clock, 2.5, monkeypatch) == [0.0, 1.0, 2.0]


# With Spark


def told_and_stopped(spark: SparkSession, query: StreamingQuery, client: txnclient.sync.Client, topic: str) -> None:
    """Two messages, each of which comes while it is at rest."""

    def rows(number: int) -> bool:
        return not query.isActive or spark.table(str(query.name)).count() == number

    try:
        for number in range(2):
            wait_until(lambda: not query.isActive or query.status["message"].startswith("Waiting"), "rest")
            commit(client, [topic], [b"%d" % number])
            wait_until(lambda number=number: rows(number + 1), "rows")  # type: ignore[misc]
        assert query.exception() is None
    finally:
        query.stop()


def test_a_real_query_at_rest_is_told_and_stops_at_once(
    spark: SparkSession, service: Service, sync_client: txnclient.sync.Client, topic: str, tmp_path: Path
) -> None:
    sync_client.create_topic(topic, segments=2)
    rows = spark.readStream.format("txnstore").options(**{"service.url": service.url, "topic": topic}).load()
    writer = rows.writeStream.format("memory").queryName("at_rest")
    told_and_stopped(spark, writer.option("checkpointLocation", str(tmp_path)).start(), sync_client, topic)
