"""Topics in SQL, with real Spark: what Spark hands over is used, and what it keeps is refused in words."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import txnclient.sync
from tests.spark.service import Service


@pytest.fixture
def view(spark: SparkSession, service: Service, sync_client: txnclient.sync.Client, topic: str) -> Iterator[str]:
    """Of the test's topic, with the columns key and value; a row is in it."""
    sync_client.create_topic(topic)
    with sync_client.producer(topic) as producer:
        producer.send(b"v0", key="k0")
    spark.sql(f"CREATE TEMPORARY VIEW visits USING txnstore OPTIONS ({given(service, topic)}, columns 'key,value')")
    yield "visits"
    for name in ("visits", "live"):
        spark.catalog.dropTempView(name)
    for table in spark.catalog.listTables():
        spark.sql(f"DROP TABLE IF EXISTS {table.name}")


def given(service: Service, topic: str) -> str:
    return f"`service.url` '{service.url}', topic '{topic}'"


def values(client: txnclient.sync.Client, topic: str) -> list[tuple[bytes | None, bytes]]:
    with client.reader(topic, end="latest") as reader:
        return [(message.key, message.value) for message in reader]


@pytest.fixture
def rows(spark: SparkSession) -> DataFrame:
    return spark.sql("SELECT cast('k1' AS BINARY) AS key, cast('v1' AS BINARY) AS value")


def test_a_view_is_inserted_into_by_position_and_read(
    spark: SparkSession, sync_client: txnclient.sync.Client, topic: str, view: str, rows: DataFrame
) -> None:
    spark.sql(f"INSERT INTO {view} SELECT cast('k2' AS BINARY) AS value, cast('v2' AS BINARY) AS key")
    spark.sql(f"INSERT INTO {view} (value) VALUES (cast('v3' AS BINARY))")
    rows.write.insertInto(view)
    rows.writeTo(view).append()
    expected = [(b"k0", b"v0"), (b"k2", b"v2"), (None, b"v3"), (b"k1", b"v1"), (b"k1", b"v1")]
    assert values(sync_client, topic) == expected
    found = spark.sql(f"SELECT * FROM {view} WHERE key IS NOT NULL").collect()
    assert sorted((bytes(key), bytes(value)) for key, value in found) == sorted(
        one for one in expected if one[0] is not None
    )


def test_nothing_that_would_replace_rows_or_hide_that_it_appends_writes(
    spark: SparkSession, service: Service, sync_client: txnclient.sync.Client, topic: str, view: str, rows: DataFrame
) -> None:
    def refused(write: Callable[[], object], why: str) -> None:
        with pytest.raises(PySparkException, match=why):
            write()
        assert not spark.catalog.tableExists("other")

    to = rows.write.format("txnstore").options(**{"service.url": service.url, "topic": topic})
    created = rows.writeTo("other").using("txnstore").options(**{"service.url": service.url, "topic": topic})
    options = given(service, topic)
    refused(
        lambda: spark.sql(f"INSERT OVERWRITE {view} SELECT * FROM {view}"), "would replace the messages of the topic"
    )
    refused(lambda: rows.write.insertInto(view, overwrite=True), "would replace the messages of the topic")
    refused(lambda: to.mode("error").saveAsTable("other"), "would append to what the topic has")
    refused(lambda: to.mode("ignore").saveAsTable("other"), "would append to what the topic has")
    refused(lambda: to.mode("overwrite").saveAsTable("other"), "would replace the messages of the topic")
    refused(created.create, "would append to what the topic has")
    refused(created.createOrReplace, "would replace the messages of the topic")
    refused(lambda: spark.sql(f"CREATE TABLE other USING txnstore OPTIONS ({options})"), "CREATE TEMPORARY VIEW")
    select = f"CREATE TABLE other USING txnstore OPTIONS ({options}) AS SELECT X'00' AS value"
    refused(lambda: spark.sql(select), "there are no options")
    refused(to.mode("ignore").save, "UNSUPPORTED_DATA_SOURCE_SAVE_MODE")
    for statement in (f"DELETE FROM {view}", f"UPDATE {view} SET key = NULL", f"TRUNCATE TABLE {view}"):
        refused(lambda statement=statement: spark.sql(statement), "(?i)view|support")
    assert values(sync_client, topic) == [(b"k0", b"v0")]


def test_a_table_has_the_options_that_its_query_brings(
    spark: SparkSession, service: Service, sync_client: txnclient.sync.Client, topic: str, view: str, tmp_path: Path
) -> None:
    spark.sql("CREATE TABLE bare (value BINARY) USING txnstore")
    for statement in ("SELECT * FROM bare", "INSERT INTO bare VALUES (X'00')"):
        with pytest.raises(PySparkException, match="there are no options"):
            spark.sql(statement).collect()
    options = given(service, topic)
    spark.sql(f"INSERT INTO bare WITH ({options}, writeId 'once') VALUES (cast('v4' AS BINARY))")
    spark.sql(f"INSERT INTO bare WITH ({options}, writeId 'once') VALUES (cast('v4' AS BINARY))")
    assert {bytes(row.value) for row in spark.sql(f"SELECT * FROM bare WITH ({options})").collect()} == {b"v0", b"v4"}
    assert values(sync_client, topic) == [(b"k0", b"v0"), (None, b"v4")]
    stream = spark.readStream.options(**{"service.url": service.url, "topic": topic})
    stream.format("txnstore").load().createOrReplaceTempView("live")
    for number, rows in enumerate((stream.table("bare"), spark.sql("SELECT value FROM live"))):
        query = rows.writeStream.format("memory").queryName(f"seen_{number}").trigger(availableNow=True).start()
        assert query.awaitTermination(60)
        assert {bytes(row.value) for row in spark.table(f"seen_{number}").collect()} == {b"v0", b"v4"}
    with pytest.raises(PySparkException, match="not a temp view of streaming"):
        spark.readStream.table(view)
