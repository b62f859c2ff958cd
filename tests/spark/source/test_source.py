"""The source with real Spark and a real cluster: batch reads, their columns and options, and streams (SCENARIOS X2)."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession

import txnclient.sync
from pyspark_txnstore.source.columns import SCHEMA
from tests.spark.service import Service
from txnclient import OutgoingMessage

QUERY_TIMEOUT_S = 200
pytestmark = pytest.mark.timeout(300)
EVENT_TIME_MS = 1_700_000_000_123


class Reads:
    """`spark.read` and `spark.readStream` of one topic, with these options."""

    def __init__(self, spark: SparkSession, service: Service, topic: str) -> None:
        self._spark = spark
        self._options = {"service.url": service.url, "topic": topic}

    def batch(self, schema: str | None = None, **options: str) -> DataFrame:
        reader = self._spark.read.format("txnstore").options(**(self._options | options))
        return (reader if schema is None else reader.schema(schema)).load()

    def stream(self, **options: str) -> DataFrame:
        return self._spark.readStream.format("txnstore").options(**(self._options | options)).load()


@pytest.fixture
def reads(spark: SparkSession, service: Service, topic: str) -> Reads:
    return Reads(spark, service, topic)


def values(frame: DataFrame) -> list[bytes]:
    return sorted(bytes(row.value) for row in frame.select("value").collect())


# Batch reads


def test_a_batch_read_shows_what_is_committed_with_all_its_columns(
    reads: Reads, sync_client: txnclient.sync.Client, topic: str
) -> None:
    """A plain message beside one of a transaction that has every field."""
    sync_client.create_topic(topic, segments=2)
    before = datetime.now(UTC)
    doomed, held = sync_client.begin(), sync_client.begin()
    with sync_client.producer(topic, name="one") as producer:
        first = producer.send(b"plain", key=b"k")
        producer.send(b"doomed", key=b"k", txn=doomed)
        doomed.abort()
        producer.send(b"held", key=b"k", txn=held)
        with sync_client.transaction() as txn:
            messages = [
                OutgoingMessage(b"full", b"k", {"a": "ä", "b": ""}, EVENT_TIME_MS),
                OutgoingMessage(b"", b"k"),
            ]
            producer.send_many(messages, txn=txn)
        rows = {bytes(row.value): row for row in reads.batch().collect()}
    assert set(rows) == {b"plain", b"full", b""}
    plain, full, empty = rows[b"plain"], rows[b"full"], rows[b""]
    assert plain.asDict() | {"publish_time": None} == {
        "key": bytearray(b"k"),
        "value": bytearray(b"plain"),
        "topic": topic,
        "segment": f"segment://{first.segment}",
        "position": str(first.position),
        "publish_time": None,
        "event_time": None,
        "properties": {},
        "txn_id": None,
        "producer": "one",
        "sequence_id": 0,
    }
    assert (full.txn_id, full.properties) == (str(txn.id), {"a": "ä", "b": ""})
    assert full.event_time.timestamp() == EVENT_TIME_MS / 1000
    assert (empty.event_time, empty.properties, empty.position) == (None, {}, full.position)
    assert empty.sequence_id == full.sequence_id + 1
    assert before.timestamp() - 60 < plain.publish_time.timestamp() < before.timestamp() + 600
    held.abort()


def test_only_the_columns_that_are_asked_for_are_read(
    reads: Reads, sync_client: txnclient.sync.Client, topic: str
) -> None:
    sync_client.create_topic(topic)
    with sync_client.producer(topic) as producer:
        producer.send_many([b"a", b"b"])
    assert reads.batch(columns="sequence_id, value").columns == ["sequence_id", "value"]
    assert values(reads.batch("value binary, topic string")) == [b"a", b"b"]
    with pytest.raises(PySparkException, match="'columns': there is no 'values'"):
        reads.batch(columns="values")
    with pytest.raises(PySparkException, match="column 'value' is binary, not string"):
        reads.batch("value string").collect()


def test_a_schema_with_not_null_is_refused_wherever_spark_asks(
    reads: Reads, sync_client: txnclient.sync.Client, topic: str
) -> None:
    """Where it asks for nulls of such a column alone it asks nobody, so the documentation says it."""
    sync_client.create_topic(topic)
    with sync_client.producer(topic) as producer:
        producer.send(b"without a key")
    frame = reads.batch("key binary not null, value binary")
    for asked in (frame, frame.where("key is not null"), frame.groupBy("key").count()):
        with pytest.raises(PySparkException, match="column 'key' is NOT NULL there"):
            asked.collect()
    assert frame.where("key is null").count() == 0, "if this fails, Spark asks, and the documentation can be mended"
    assert reads.batch("key binary, value binary").where("key is null").count() == 1


def test_an_empty_topic_has_no_rows(reads: Reads, sync_client: txnclient.sync.Client, topic: str) -> None:
    sync_client.create_topic(topic)
    frame = reads.batch()
    assert frame.schema == SCHEMA
    assert frame.count() == 0


def test_a_batch_read_lies_between_two_cuts(reads: Reads, sync_client: txnclient.sync.Client, topic: str) -> None:
    sync_client.create_topic(topic, segments=2)
    cuts = []
    with sync_client.producer(topic) as producer:
        for part in (b"a", b"b", b"c"):
            cuts.append(sync_client.snapshot(topic).to_json())
            producer.send_many([(part + b"%d" % number, part + b"%d" % number) for number in range(5)])
    parts = {part: [part + b"%d" % number for number in range(5)] for part in (b"a", b"b", b"c")}
    assert values(reads.batch(snapshot=cuts[1])) == parts[b"a"]
    assert values(reads.batch(startingOffsets=cuts[1], endingOffsets=cuts[2])) == parts[b"b"]
    assert values(reads.batch(startingOffsets=cuts[2], minPartitions="4")) == parts[b"c"]
    assert values(reads.batch(startingOffsets=cuts[2], endingOffsets=cuts[2])) == []
    with pytest.raises(PySparkException, match="newer than the end"):
        reads.batch(startingOffsets=cuts[2], endingOffsets=cuts[1]).collect()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"service.url": "http://here"}, "option 'service.url'"),
        ({"startingOfsets": "latest"}, "option 'startingofsets' is not known"),
        ({"topic": "topic://public/spark/missing"}, "topic://public/spark/missing"),
    ],
)
def test_a_wrong_option_is_named(
    reads: Reads, sync_client: txnclient.sync.Client, topic: str, options: dict[str, str], message: str
) -> None:
    sync_client.create_topic(topic)
    with pytest.raises((PySparkException, AnalysisException), match=message):
        reads.batch(**options).collect()


# Streams


class Sink:
    """What a query was given, by number of batch; a batch that runs again is another item."""

    def __init__(self, folder: Path) -> None:
        self.checkpoint = folder / "checkpoint"
        self.batches: list[tuple[int, list[bytes]]] = []

    def run(self, frame: DataFrame) -> list[tuple[int, list[bytes]]]:
        """Until all that there is has been read; the batches of this run."""
        before = len(self.batches)

        def keep(batch: DataFrame, number: int) -> None:
            self.batches.append((number, values(batch)))

        writer = frame.writeStream.foreachBatch(keep).option("checkpointLocation", str(self.checkpoint))
        query = writer.trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(QUERY_TIMEOUT_S), "the query has not ended"
        finally:
            query.stop()
        return self.batches[before:]

    def forget_last_commit(self) -> None:
        """As if the driver had died before it had noted that the batch is done."""
        commits = self.checkpoint / "commits"
        last = max(int(path.name) for path in commits.iterdir() if path.name.isdecimal())
        (commits / str(last)).unlink()
        (commits / f".{last}.crc").unlink()


@pytest.fixture
def sink(tmp_path: Path) -> Sink:
    return Sink(tmp_path)


def test_x2_a_query_goes_on_from_its_checkpoint_and_replays_its_last_batch(
    reads: Reads, sink: Sink, sync_client: txnclient.sync.Client, topic: str
) -> None:
    """With a split, an aborted gap and a tail held back in what it replays, all of which have changed by then."""
    sync_client.create_topic(topic)
    held = sync_client.begin(timeout=300)
    with sync_client.producer(topic) as producer:
        with sync_client.transaction() as txn:
            producer.send_many([(b"%d" % n, b"first%d" % n) for n in range(10)], txn=txn)
        doomed = sync_client.begin()
        producer.send(b"doomed", key=b"k", txn=doomed)
        doomed.abort()
        producer.send(b"held", key=b"k", txn=held)
        sync_client.split(sync_client.describe_topic(topic).active[0].name)
        with sync_client.transaction() as txn:
            producer.send_many([(b"%d" % n, b"second%d" % n) for n in range(10)], txn=txn)
        shown = sorted(b"%b%d" % (word, n) for word in (b"first", b"second") for n in range(10))
        assert sink.run(reads.stream()) == [(0, shown)]
        held.commit()
        producer.send(b"third", key=b"k")
        sink.forget_last_commit()
        assert sink.run(reads.stream()) == [(0, shown), (1, [b"held", b"third"])]
        assert sink.run(reads.stream()) == []


def test_x2_a_query_from_the_latest_on_shows_what_comes_while_it_is_down(
    reads: Reads, sink: Sink, sync_client: txnclient.sync.Client, topic: str
) -> None:
    """Where it began is in its checkpoint, though it had nothing to show then."""
    sync_client.create_topic(topic)
    with sync_client.producer(topic) as producer:
        producer.send(b"before")
        assert [batch for _, batch in sink.run(reads.stream(startingOffsets="latest")) if batch] == []
        producer.send(b"after")
        assert [batch for _, batch in sink.run(reads.stream(startingOffsets="latest"))] == [[b"after"]]
        sink.forget_last_commit()
        producer.send(b"later")
        assert [batch for _, batch in sink.run(reads.stream(startingOffsets="latest"))] == [[b"after"], [b"later"]]


def test_x2_a_query_with_limits_reads_the_backlog_in_several_batches(
    reads: Reads, sink: Sink, sync_client: txnclient.sync.Client, topic: str
) -> None:
    sync_client.create_topic(topic, segments=2)
    parts = [sorted(b"%d-%d" % (part, n) for n in range(4)) for part in range(3)]
    with sync_client.producer(topic) as producer:
        for part in parts:
            with sync_client.transaction() as txn:
                for value in part:
                    producer.send(value, key=value, txn=txn)
    assert sink.run(reads.stream(maxEntriesPerTrigger="4")) == list(enumerate(parts))


def test_a_query_fails_with_the_reason(
    reads: Reads, sink: Sink, sync_client: txnclient.sync.Client, topic: str
) -> None:
    sync_client.create_topic(topic)
    with pytest.raises(PySparkException, match="option 'endingOffsets' is not for this"):
        sink.run(reads.stream(endingOffsets="latest"))
