"""Orders joined with their payments in Spark, summed over windows of ten minutes, exactly once; the same as a batch.

    pip install 'txnstore-client[spark]'                        # and a Java 17 or newer
    txnctl dev &                                                # a cluster on this machine
    python examples/spark_windows.py --send 400                 # orders and payments of a day
    python examples/spark_windows.py --stream --checkpoint dir  # the query; kill it, start it again
    python examples/spark_windows.py --batch                    # a batch computes the same and compares

One source reads both topics: so a micro-batch holds each transaction whole, order and payment. What it writes is one
transaction: a driver that is killed in a micro-batch leaves nothing, and the repeated micro-batch is the same one.
"""

from __future__ import annotations

import argparse
import json
import os
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import txnclient
import txnclient.sync

ORDERS, PAYMENTS = "topic://public/windows/orders", "topic://public/windows/payments"
PAID = "topic://public/windows/paid"
ITEMS = ("tea", "coffee", "honey")
MORNING_MS = 1_795_000_200_000
MINUTE_MS = 60_000


def send(url: str, count: int) -> None:
    """Order and payment in one transaction. Every seventh order is never paid. The last pair is of the next day: it
    closes all windows before it, for a window is told once nothing more can come."""
    with txnclient.sync.connect(url) as client:
        for topic in (ORDERS, PAYMENTS, PAID):
            client.create_topic(topic, segments=2)
        with client.producer(ORDERS) as orders, client.producer(PAYMENTS) as payments:
            for first in range(0, count + 1, 100):
                numbers = range(first, min(first + 100, count + 1))
                with client.transaction() as txn:
                    orders.send_many([_order(n, n == count) for n in numbers], txn=txn)
                    payments.send_many([_payment(n, n == count) for n in numbers if n % 7 or n == count], txn=txn)
    print(f"{count} orders sent")


def _order(number: int, closing: bool) -> txnclient.OutgoingMessage:
    content = {"id": number, "item": ITEMS[number % 3], "amount": number % 9 + 1}
    return _message(number, content, MORNING_MS + (1440 if closing else number % 60) * MINUTE_MS)


def _payment(number: int, closing: bool) -> txnclient.OutgoingMessage:
    return _message(number, {"paid": number}, MORNING_MS + (1441 if closing else number % 60 + 1) * MINUTE_MS)


def _message(number: int, content: dict[str, Any], time_ms: int) -> txnclient.OutgoingMessage:
    return txnclient.OutgoingMessage(json.dumps(content).encode(), key=str(number).encode(), event_time_ms=time_ms)


def parsed(rows: DataFrame, fields: str, time: str) -> DataFrame:
    content = F.from_json(F.col("value").cast("string"), fields).alias("content")
    return rows.select(F.col("event_time").alias(time), content).select(time, "content.*")


def paid_windows(rows: DataFrame) -> DataFrame:
    """Of a stream and of a table alike: `start`, `item`, `amount` of what was paid within five minutes."""
    orders, payments = (rows.where(F.col("topic") == topic) for topic in (ORDERS, PAYMENTS))
    placed = parsed(orders, "id long, item string, amount long", "placed").withWatermark("placed", "1 minute")
    paid = parsed(payments, "paid long", "paid_at").withWatermark("paid_at", "1 minute")
    in_time = F.expr("id = paid AND paid_at BETWEEN placed AND placed + INTERVAL 5 MINUTES")
    windows = placed.join(paid, in_time).groupBy(F.window("placed", "10 minutes"), "item")
    return windows.agg(F.sum("amount").alias("amount")).select(F.col("window.start").alias("start"), "item", "amount")


def run_stream(spark: SparkSession, url: str, checkpoint: str) -> None:
    """Everything that there is now; again, with the same checkpoint, it goes on."""
    source = spark.readStream.format("txnstore").option("service.url", url)
    windows = paid_windows(source.option("topics", f"{ORDERS},{PAYMENTS}").load())
    sink = windows.selectExpr("item AS key", "to_json(struct(start, item, amount)) AS value").writeStream
    sink = sink.format("txnstore").option("service.url", url).option("topic", PAID).option("sinkName", "paid-windows")
    sink.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()


def run_batch(spark: SparkSession, url: str) -> int:
    """The number of windows in the topic, each of which a batch over the two topics has, too, and no other one."""
    source = spark.read.format("txnstore").option("service.url", url)
    rows = source.option("topics", f"{ORDERS},{PAYMENTS}").load()
    day = F.timestamp_millis(F.lit(MORNING_MS + 1000 * MINUTE_MS))
    expected = paid_windows(rows).where(F.col("start") < day)
    values = F.from_json(F.col("value").cast("string"), "start timestamp, item string, amount long").alias("content")
    sums = spark.read.format("txnstore").option("service.url", url).option("topic", PAID).load()
    told = sums.select(values).select("content.*")
    if expected.exceptAll(told).count() or told.exceptAll(expected).count():
        raise SystemExit("the stream has told other windows than there are")
    return told.count()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--url", default=os.environ.get("TXN_URL", "txn://127.0.0.1:6650"))
    parser.add_argument("--send", type=int, metavar="N", help="send N orders and their payments")
    parser.add_argument("--stream", action="store_true", help="run the query over all there is")
    parser.add_argument("--checkpoint", default="checkpoints/paid-windows")
    parser.add_argument("--batch", action="store_true", help="compute the same as a batch, and compare")
    given = parser.parse_args()
    if given.send:
        send(given.url, given.send)
    if not given.stream and not given.batch:
        return
    spark = SparkSession.builder.appName("paid windows").config("spark.sql.shuffle.partitions", 2).getOrCreate()
    if given.stream:
        run_stream(spark, given.url, given.checkpoint)
    if given.batch:
        print(run_batch(spark, given.url), "windows, each as a batch computes it")


if __name__ == "__main__":
    main()
