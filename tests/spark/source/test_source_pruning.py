"""What a read leaves unread, with real Spark and a real cluster; and what Spark tells a source in Python of that."""

from __future__ import annotations

import pytest
from pyspark.sql import DataFrame, SparkSession

import txnclient.sync
from tests.spark.service import Service
from txnwire.ids import hash_key

pytestmark = pytest.mark.timeout(300)
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
QUERY_TIMEOUT_S = 200
KEYS = [f"key-{number}" for number in range(8)]


class Reads:
    """`spark.read` of topics, with these options."""

    def __init__(self, spark: SparkSession, service: Service, *topics: str) -> None:
        self._spark = spark
        self._options = {"service.url": service.url, "topics": ",".join(topics)}

    def batch(self, **options: str) -> DataFrame:
        return self._spark.read.format("txnstore").options(**(self._options | options)).load()

    def stream(self, **options: str) -> DataFrame:
        return self._spark.readStream.format("txnstore").options(**(self._options | options)).load()


def rows(frame: DataFrame) -> list[tuple[object, ...]]:
    return sorted(map(tuple, frame.collect()), key=str)


def fill(client: txnclient.sync.Client, topic: str) -> str:
    """Plain messages, a transaction's, an aborted one's, one that is open, and a large value. Its id is returned."""
    client.create_topic(topic, segments=2)
    with client.producer(topic, name="filler") as producer:
        producer.send_many([(key, b"plain") for key in KEYS])
        producer.send_many([b"without a key"] * 3)
        doomed = client.begin()
        producer.send_many([(key, b"doomed") for key in KEYS], txn=doomed)
        doomed.abort()
        held = client.begin(timeout=300)
        producer.send_many([(key, b"held") for key in KEYS], txn=held)
        with client.transaction() as txn:
            producer.send_many([(key, b"counts") for key in KEYS], txn=txn)
            producer.send(bytes(6 << 20), key=KEYS[0], chunk=True, txn=txn)
    return str(txn.id)


def test_what_heads_tell_is_what_the_messages_would(
    spark: SparkSession, service: Service, sync_client: txnclient.sync.Client, topic: str
) -> None:
    txn_id = fill(sync_client, topic)
    reads = Reads(spark, service, topic)
    told = [
        "segment",
        "position",
        "publish_time",
        "txn_id",
        "producer",
        "sequence_id",
        "Ledger_ID",
        "entry_id",
        "index",
    ]
    everything = reads.batch(columns=",".join([*told, "value", "key"]))
    assert everything.count() == 2 * len(KEYS) + 3 + 1
    assert rows(reads.batch(columns=",".join(told))) == rows(everything.select(*told))
    counted = reads.batch(columns="")
    assert (counted.columns, counted.count()) == ([], everything.count())
    assert reads.batch(columns="", isolationLevel="read_uncommitted").count() == 4 * len(KEYS) + 3 + 1
    assert reads.batch(columns="", where=f"txn_id = '{txn_id}'").count() == len(KEYS) + 1


def test_a_condition_leaves_the_rows_that_spark_would_leave(
    spark: SparkSession, service: Service, sync_client: txnclient.sync.Client, topic: str
) -> None:
    txn_id = fill(sync_client, topic)
    reads = Reads(spark, service, topic)
    everything = reads.batch()
    at = everything.where("value = 'plain'").selectExpr("cast(min(publish_time) as string)").first()
    assert at is not None
    segments = [row.segment for row in everything.select("segment").distinct().collect()]
    assert len(segments) == 2
    for condition, parts in (
        (f"key = '{KEYS[0]}'", 1),
        (f"key in ('{KEYS[0]}', 'nobody') and txn_id = '{txn_id}'", None),
        (f"segment = '{segments[0]}'", 1),
        (f"txn_id = '{txn_id}'", 2),
        (f"publish_time > '{at[0]}Z'", 2),
    ):
        found = reads.batch(where=condition)
        assert rows(found) == rows(everything.where(condition)), condition
        assert found.count() > 0
        assert parts in (None, found.rdd.getNumPartitions()), condition
    holding = [one for one in segments if int(one[-11:-7], 16) <= hash_key(KEYS[0].encode()) <= int(one[-6:-2], 16)]
    assert [
        row.segment for row in reads.batch(where=f"key = '{KEYS[0]}'").select("segment").distinct().collect()
    ] == holding


def test_a_stream_has_the_rows_of_its_condition(
    spark: SparkSession, service: Service, sync_client: txnclient.sync.Client, topic: str
) -> None:
    txn_id = fill(sync_client, topic)
    frame = Reads(spark, service, topic).stream(
        columns="Position", where=f"txn_id = '{txn_id}'", maxEntriesPerTrigger="1"
    )
    query = frame.writeStream.format("memory").queryName("pruned").trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(QUERY_TIMEOUT_S)
    finally:
        query.stop()
    assert spark.table("pruned").count() == len(KEYS) + 1


def test_a_load_is_planned_once_and_filters_of_spark_change_nothing_of_that(
    spark: SparkSession, service: Service, sync_client: txnclient.sync.Client, topic: str
) -> None:
    """▲ Spark keeps one plan for each `load()`, whatever queries are made of it. Were its filters pushed into the plan,
    the second one's would be the first one's: rows would be missing without a word."""
    other = f"{topic}-other"
    for one in (topic, other):
        sync_client.create_topic(one)
        with sync_client.producer(one) as producer:
            producer.send_many([b"a", b"b"])
    reads = Reads(spark, service, topic, other)
    before = spark.conf.get(PUSHDOWN)
    try:
        for pushdown in ("false", "true"):
            spark.conf.set(PUSHDOWN, pushdown)
            frame = reads.batch()
            one, rest = frame.where(f"topic = '{topic}'"), frame.where(f"topic = '{other}'")
            assert one.union(rest).count() == 4
            assert (one.count(), frame.count()) == (2, 4)
    finally:
        spark.conf.set(PUSHDOWN, before or "false")
    planned = reads.batch()
    assert planned.count() == 4
    with sync_client.producer(topic) as producer:
        producer.send(b"c")
    assert (planned.count(), reads.batch().count()) == (4, 5)
