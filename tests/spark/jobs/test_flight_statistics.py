"""What the flights job computes, on batches and DataFrames that are no streams."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from pyspark_txnstore.jobs.flight_statistics import (
    GROUP,
    STATISTIC,
    SUMS,
    as_messages,
    flights_of,
    increments,
    joined,
    statistics_of,
)

ROWS = st.lists(
    st.fixed_dictionaries(
        {name: st.sampled_from(["A", "B"]) for name in GROUP} | {name: st.integers(-(2**40), 2**40) for name in SUMS}
    )
)
SCHEMA = pa.schema([*((name, pa.string()) for name in GROUP), *((name, pa.int64()) for name in SUMS)])


def added_up(rows: list[dict[str, Any]]) -> dict[tuple[str, ...], tuple[int, ...]]:
    totals: dict[tuple[str, ...], tuple[int, ...]] = {}
    for row in rows:
        group = tuple(row[name] for name in GROUP)
        before = totals.get(group, (0,) * len(SUMS))
        totals[group] = tuple(sum(pair) for pair in zip(before, (row[name] for name in SUMS), strict=True))
    return totals


def rows_of(batches: Iterator[pa.RecordBatch]) -> list[dict[str, Any]]:
    return [row for batch in batches for row in batch.to_pylist()]


@given(st.lists(ROWS, max_size=4))
@settings(max_examples=60)
def test_increments_of_any_batches_add_up_to_the_sums_of_their_rows_one_row_a_group(
    parts: list[list[dict[str, Any]]],
) -> None:
    found = rows_of(increments(pa.RecordBatch.from_pylist(part, SCHEMA) for part in parts))
    everything = [row for part in parts for row in part]
    assert added_up(found) == added_up(everything)
    assert len(found) == len(added_up(everything))


FLIGHTS = [
    {"row_id": 1, "carrier": "UA", "tailnum": "N1", "dest": "ORD", "arr_delay": 11.0},
    {"row_id": 2, "carrier": "UA", "tailnum": "N1", "dest": "ORD", "arr_delay": -4.0},
    {"row_id": 3, "carrier": "UA", "tailnum": None, "dest": "ORD", "arr_delay": None},
    {"row_id": 4, "carrier": "ZZ", "tailnum": "N9", "dest": "ORD", "arr_delay": 0.0},
    {"row_id": 5, "carrier": "UA", "tailnum": "N1", "dest": "BOS", "arr_delay": 7.0},
]


def messages(spark: SparkSession, values: list[bytes]) -> DataFrame:
    rows = [(bytearray(value), "txn-1") for value in values]
    return spark.createDataFrame(rows, "value BINARY, txn_id STRING").coalesce(1)


def test_flights_become_increments_with_airline_and_seats_and_come_back_from_their_topic(spark: SparkSession) -> None:
    airlines = spark.createDataFrame([("UA", "United"), ("UA", "listed twice")], "carrier STRING, name STRING")
    planes = spark.createDataFrame([("N1", "150"), ("N2", None)], "tailnum STRING, seats STRING")
    values = [json.dumps(flight | {"origin": "EWR"}).encode() for flight in FLIGHTS]
    found = joined(flights_of(messages(spark, values)), airlines.limit(1), planes)
    statistics = found.mapInArrow(increments, STATISTIC)
    written = as_messages(statistics).collect()
    assert sorted(bytes(row.key) for row in written) == [b"UA/BOS", b"UA/ORD", b"ZZ/ORD"]
    back = statistics_of(messages(spark, [bytes(row.value) for row in written])).collect()
    assert {row.txn_id for row in back} == {"txn-1"}
    assert added_up([row.asDict() for row in back]) == {
        ("UA", "United", "ORD"): (3, 2, 1, 7, 300, 6),
        ("ZZ", "ZZ", "ORD"): (1, 1, 0, 0, 0, 4),
        ("UA", "United", "BOS"): (1, 1, 1, 7, 150, 5),
    }


def test_an_airline_that_is_listed_twice_doubles_no_flight(spark: SparkSession) -> None:
    airlines = spark.createDataFrame([("UA", "United"), ("UA", "United")], "carrier STRING, name STRING")
    planes = spark.createDataFrame([("N1", "150"), ("N1", "150")], "tailnum STRING, seats STRING")
    flights = flights_of(messages(spark, [json.dumps(FLIGHTS[0]).encode()]))
    assert joined(flights, airlines, planes).count() == 1


def test_a_message_that_is_no_flight_fails_and_is_not_passed_over(spark: SparkSession) -> None:
    with pytest.raises((PySparkException, Py4JJavaError), match="MALFORMED_RECORD"):
        flights_of(messages(spark, [b"no flight"])).collect()
