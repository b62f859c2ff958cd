"""The least size of a micro-batch, `minEntriesPerTrigger`, and how long one waits for it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable

import txnclient.sync
from pyspark_txnstore import DefaultSource
from pyspark_txnstore.shared.options import SourceOptions
from pyspark_txnstore.source.stream import StreamReader
from tests.spark.micro_batches import Start, commit, numbered, send
from tests.spark.service import Service
from tests.waiting import wait_until
from txnwire.errors import InvalidArgument

DELAY_S = 60.0


class Query:
    """One whose clock is the test's: it stands still while nothing rests."""

    def __init__(self, url: str, topic: str, at: Any = None, **options: str) -> None:
        given = {"service.url": url, "topic": topic, "maxTriggerDelayMs": str(round(DELAY_S * 1000)), **options}
        self.now_s = 1_000.0
        self.reader = StreamReader(
            SourceOptions.parse(given, use="stream read"),
            DefaultSource(options={}).schema(),
            now=lambda: self.now_s,
            rest=self.go,
        )
        self.at = json.loads(json.dumps(self.reader.initialOffset())) if at is None else at

    def go(self, for_s: float) -> None:
        self.now_s += for_s

    def goes_on(self, *, everything: bool = False) -> bool:
        """Whether there is a batch now."""
        self.reader.look_again()
        limit = ReadAllAvailable() if everything else self.reader.getDefaultReadLimit()
        end = json.loads(json.dumps(self._end(limit)))
        before, self.at = self.at, end
        return bool(before != end)

    def _end(self, limit: Any) -> Any:
        """▲ At rest the clock goes on, by what the watch would wait."""

        def told(for_s: float) -> bool:
            self.go(for_s)
            return False

        self.reader._idle._is_told = told  # type: ignore[method-assign]
        return self.reader.latestOffset(self.at, limit)


@pytest.fixture
def begun(service: Service, sync_client: txnclient.sync.Client, topic: str) -> Callable[..., Query]:
    """A query that has had its first batch."""

    def started(**options: str) -> Query:
        sync_client.create_topic(topic, segments=2, autoscale="off")
        query = Query(service.url, topic, **options)
        send(sync_client, topic, [b"first"])
        assert query.goes_on(), "the first batch of a driver's life waits for nothing"
        return query

    return started


def test_a_batch_waits_for_so_many_entries(
    begun: Callable[..., Query], sync_client: txnclient.sync.Client, topic: str
) -> None:
    query = begun(minEntriesPerTrigger="5")
    assert not query.goes_on()
    send(sync_client, topic, numbered("a", 4))
    assert not query.goes_on()
    send(sync_client, topic, [b"fifth"])
    assert query.goes_on()
    assert not query.goes_on()


def test_what_is_not_committed_is_not_counted(
    begun: Callable[..., Query], sync_client: txnclient.sync.Client, topic: str
) -> None:
    query = begun(minEntriesPerTrigger="3")
    with sync_client.transaction() as txn:
        send(sync_client, topic, numbered("a", 3), txn)
        assert not query.goes_on()
    assert query.goes_on()


def test_it_waits_so_long_behind_the_batch_before(
    begun: Callable[..., Query], sync_client: txnclient.sync.Client, topic: str
) -> None:
    query = begun(minEntriesPerTrigger="5")
    send(sync_client, topic, [b"one"])
    before_s = query.now_s
    while not query.goes_on():
        assert query.now_s < before_s + DELAY_S + 1
    assert query.now_s >= before_s + DELAY_S - 1
    query.go(DELAY_S)
    assert not query.goes_on(), "nothing has come"
    send(sync_client, topic, [b"two"])
    assert query.goes_on(), "the last batch was long ago"


def test_a_query_that_is_started_again_waits_for_nothing(
    begun: Callable[..., Query], service: Service, sync_client: txnclient.sync.Client, topic: str
) -> None:
    """▲ How long it has waited is not in its checkpoint: else one that is started often would wait for ever."""
    query = begun(minEntriesPerTrigger="5")
    send(sync_client, topic, [b"one"])
    assert not query.goes_on()
    again = Query(service.url, topic, query.at, minEntriesPerTrigger="5")
    assert again.goes_on()
    send(sync_client, topic, [b"two"])
    assert not again.goes_on()


def test_what_is_full_by_another_limit_does_not_wait(
    begun: Callable[..., Query], sync_client: txnclient.sync.Client, topic: str
) -> None:
    query = begun(minEntriesPerTrigger="100", maxRowsPerTrigger="2")
    send(sync_client, topic, numbered("a", 3))
    assert query.goes_on()
    assert not query.goes_on(), "one row is left"


def test_another_layout_does_not_wait(
    begun: Callable[..., Query], sync_client: txnclient.sync.Client, topic: str
) -> None:
    """▲ What was split must be known of before retention takes it, or that would look like a loss."""
    query = begun(minEntriesPerTrigger="5")
    assert not query.goes_on()
    send(sync_client, topic, [b"one"])
    assert not query.goes_on()
    sync_client.split(sync_client.describe_topic(topic).active[0].name)
    assert query.goes_on()
    send(sync_client, topic, [b"two"])
    assert not query.goes_on()


def test_no_delay_is_left_over_from_a_topic_that_is_gone(
    begun: Callable[..., Query], sync_client: txnclient.sync.Client, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """▲ One that has passed would be over at once, again and again, and Spark would not get its answer."""
    query = begun(minEntriesPerTrigger="5", failOnDataLoss="false")
    send(sync_client, topic, [b"one"])
    assert not query.goes_on()
    sync_client.delete_topic(topic, force=True)
    query.go(2 * DELAY_S)
    asked, take = 0, query.reader._cuts.take

    def counted() -> Any:
        nonlocal asked
        asked += 1
        assert asked == 1, "nothing was waited for"
        return take()

    monkeypatch.setattr(query.reader._cuts, "take", counted)
    assert not query.goes_on()


def test_available_now_and_a_trigger_of_everything_do_not_wait(
    begun: Callable[..., Query], sync_client: txnclient.sync.Client, topic: str
) -> None:
    query = begun(minEntriesPerTrigger="5")
    send(sync_client, topic, [b"one"])
    assert not query.goes_on()
    assert query.goes_on(everything=True)
    send(sync_client, topic, [b"two"])
    query.reader.prepareForTriggerAvailableNow()
    assert query.goes_on()


def test_rows_of_batches_that_wait_come_once(start: Start, sync_client: txnclient.sync.Client, topic: str) -> None:
    sync_client.create_topic(topic, segments=2)
    query = start(minEntriesPerTrigger="4")
    sent, shown = [], []
    for number in range(12):
        values = numbered(f"{number}-", number % 3)
        commit(sync_client, [topic], values)
        sent += values
        shown += query.next() or []
    query.restart()
    shown += query.next() or []
    assert sorted(row["value"] for row in shown) == sorted(sent)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"minEntriesPerTrigger": "0"}, "'minEntriesPerTrigger': '0' is not a positive whole number"),
        ({"minEntriesPerTrigger": "many"}, "'many' is not a positive whole number"),
        ({"minEntriesPerTrigger": "1", "maxTriggerDelayMs": "15m"}, "'15m' is not a positive whole number"),
        ({"maxTriggerDelayMs": "1000"}, "goes with 'minEntriesPerTrigger'"),
        ({"minEntriesPerTrigger": "9", "maxEntriesPerTrigger": "8"}, "9 is more than the 8 of 'maxEntriesPerTrigger'"),
        ({"minOffsetsPerTrigger": "1"}, "use 'minEntriesPerTrigger'"),
        ({"maxTriggerDelay": "15m"}, "use 'maxTriggerDelayMs', in milliseconds"),
    ],
)
def test_what_makes_no_sense_is_refused(options: dict[str, str], words: str) -> None:
    given = {"service.url": "txn://127.0.0.1:1", "topic": "topic://public/shop/orders", **options}
    with pytest.raises(InvalidArgument) as refusal:
        SourceOptions.parse(given, use="stream read")
    assert words in str(refusal.value)


def test_least_and_most_may_be_equal() -> None:
    given = {"service.url": "txn://127.0.0.1:1", "topic": "topic://public/shop/orders"}
    given |= {"minEntriesPerTrigger": "8", "maxEntriesPerTrigger": "8"}
    parsed = SourceOptions.parse(given, use="stream read")
    assert (parsed.min_entries, parsed.max_entries, parsed.max_delay_s) == (8, 8, 900.0)


def test_a_real_stream_waits_for_its_least_batch(
    spark: SparkSession, service: Service, sync_client: txnclient.sync.Client, topic: str, tmp_path: Path
) -> None:
    """Behind its first batch, with the delay of a quarter of an hour."""
    sync_client.create_topic(topic)
    send(sync_client, topic, [b"first"])
    reader = spark.readStream.format("txnstore").option("service.url", service.url).option("topic", topic)
    sizes: list[int] = []
    rows = reader.option("minEntriesPerTrigger", "4").load()
    writer = rows.writeStream.foreachBatch(lambda batch, _: sizes.append(batch.count()))
    query = writer.option("checkpointLocation", str(tmp_path)).start()
    try:
        wait_until(lambda: sizes or not query.isActive, "the first batch")
        for value in numbered("a", 8):
            send(sync_client, topic, [value])
        # A batch may begin while they are sent: up to three of them are then less than the next one.
        wait_until(lambda: sum(sizes) >= 6 or not query.isActive, "all but what is less than a batch")
        assert query.exception() is None
        assert min(sizes[1:]) >= 4
    finally:
        query.stop()
