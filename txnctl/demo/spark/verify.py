"""The Spark demo's judge, a process of its own: Spark computes the totals of the data file, the topic and the Parquet
files.

Run as `python -m txnctl.demo.spark.verify URL FOLDER FLIGHTS`; prints one JSON object, exits 1 on any difference.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from pyspark_txnstore.jobs.command_line import spark_session
from pyspark_txnstore.jobs.flight_statistics import GROUP, SUMS, flights_of, statistics_of
from txnctl.demo.flights import AIRLINES_FILE, FLIGHTS, FLIGHTS_FILE, PLANES_FILE
from txnctl.demo.spark.places import STATISTICS, Places
from txnctl.demo.spark.totals import (
    FlightTotals,
    Group,
    SparkDemoFindings,
    input_differences,
    sum_differences,
    transaction_differences,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MASTER = "local[2]"


class SparkDemoJudge:
    """`flights`: how many were loaded."""

    def __init__(self, spark: SparkSession, url: str, places: Places, flights: int) -> None:
        self._spark = spark
        self._url = url
        self._places = places
        self._flights = flights

    def findings(self) -> SparkDemoFindings:
        expected = self.expected()
        increments = statistics_of(self._topic(STATISTICS, "value,txn_id")).persist()
        kept = self._spark.read.parquet(str(self._places.parquet)).persist()
        topic_rows, parquet_rows = _rows_per_transaction(increments), _rows_per_transaction(kept)
        found = SparkDemoFindings(
            flights=sum(totals.flights for totals in expected.values()),
            groups=len(expected),
            increments=sum(topic_rows.values()),
            transactions=len(topic_rows),
        )
        if found.flights != self._flights:
            found.differences.append(
                f"the data file has {found.flights:,} flights, {self._flights:,} were to be loaded"
            )
        found.differences += [
            *input_differences(self._flights, *self._loaded()),
            *sum_differences(expected, _summed(increments), "the topic"),
            *sum_differences(expected, _summed(kept), "the Parquet files"),
            *transaction_differences(topic_rows, parquet_rows),
        ]
        return found

    def expected(self) -> Mapping[Group, FlightTotals]:
        """Totals of the data file, by separate SQL: it shares only the names with the job."""
        for name, file in (("flights", FLIGHTS_FILE), ("airlines", AIRLINES_FILE), ("planes", PLANES_FILE)):
            csv = self._spark.read.csv(str(self._places.input / file), header=True, nullValue="NA")
            csv.createOrReplaceTempView(name)
        numbered = self._spark.sql("SELECT *, monotonically_increasing_id() + 1 AS row_id FROM flights")
        numbered.createOrReplaceTempView("numbered")
        return _by_group(
            self._spark.sql(
                """
                SELECT carrier, a.name AS airline, dest AS airport,
                       count(*) AS flights,
                       count(arr_delay) AS arrived,
                       count_if(int(arr_delay) > 0) AS delayed,
                       coalesce(sum(int(arr_delay)), 0) AS delay_minutes,
                       coalesce(sum(int(p.seats)), 0) AS seats,
                       sum(row_id) AS row_ids
                FROM numbered JOIN airlines a USING (carrier) LEFT JOIN planes p USING (tailnum)
                GROUP BY carrier, a.name, dest
                """
            )
        )

    def _loaded(self) -> tuple[int, int]:
        """Number of messages in the topic of flights, and of their rows in the data file."""
        flights = flights_of(self._topic(FLIGHTS, "value"))
        row = flights.selectExpr("count(*)", "count(DISTINCT row_id)").first()
        return (0, 0) if row is None else (row[0], row[1])

    def _topic(self, topic: str, columns: str) -> DataFrame:
        reader = self._spark.read.format("txnstore").option("service.url", self._url)
        return reader.option("topic", topic).option("columns", columns).load()


def _summed(increments: DataFrame) -> Mapping[Group, FlightTotals]:
    return _by_group(increments.groupBy(*GROUP).sum(*SUMS).toDF(*GROUP, *SUMS))


def _by_group(totals: DataFrame) -> Mapping[Group, FlightTotals]:
    return {
        (row["carrier"], row["airline"], row["airport"]): FlightTotals(*(row[name] for name in SUMS))
        for row in totals.select(*GROUP, *SUMS).collect()
    }


def _rows_per_transaction(increments: DataFrame) -> Mapping[str | None, int]:
    return {row["txn_id"]: row["count"] for row in increments.groupBy("txn_id").count().collect()}


def main(url: str, folder: Path, flights: int) -> int:
    with spark_session("judge", MASTER) as spark:
        spark.sparkContext.setLogLevel("ERROR")
        findings = SparkDemoJudge(spark, url, Places(folder), flights).findings()
    sys.stdout.buffer.write(msgspec.json.encode(findings) + b"\n")
    return 1 if findings.differences else 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])))
    except KeyboardInterrupt:
        sys.exit(130)
