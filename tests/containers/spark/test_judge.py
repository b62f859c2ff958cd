"""The judge of the flights finds what is wrong: without that its silence would mean nothing."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pyarrow
import pyarrow.parquet

from tests.containers.spark.judge import Found, Increment, expected, of_parquet
from txnctl.demo.flights import AIRLINES_FILE, PLANES_FILE, Flight
from txnctl.demo.spark.totals import FlightTotals, sum_differences, transaction_differences

FLIGHTS = [
    Flight(1, "UA", 7, "N1", "JFK", "ORD", "2013-01-01", 0.0, 11.0),
    Flight(2, "UA", 8, None, "JFK", "ORD", "2013-01-01", 0.0, -3.0),
    Flight(3, "B6", 9, "N9", "JFK", "BOS", "2013-01-01", None, None),
]
GROUP = ("UA", "United", "ORD")


def increment(row_ids: int, txn_id: str, *, flights: int = 1) -> Increment:
    return Increment("UA", "United", "ORD", flights, flights, 0, 0, 0, row_ids, txn_id)


def rows(folder: Path, name: str, *found: Increment) -> str:
    """A file of Parquet; returns the line with which Spark's log names it."""
    table = pyarrow.Table.from_pylist([msgspec.to_builtins(one) for one in found])
    pyarrow.parquet.write_table(table, folder / name)
    return json.dumps({"path": f"file:///shared/statistics.parquet/{name}", "action": "add"})


def test_what_is_expected_comes_of_the_rows_alone(tmp_path: Path) -> None:
    (tmp_path / AIRLINES_FILE).write_text("carrier,name\nUA,United\nB6,JetBlue\n")
    (tmp_path / PLANES_FILE).write_text("tailnum,seats\nN1,150\nN9,NA\n")
    assert expected(FLIGHTS, tmp_path) == {
        GROUP: FlightTotals(2, 2, 1, 8, 150, 3),
        ("B6", "JetBlue", "BOS"): FlightTotals(1, 0, 0, 0, 0, 3),
    }


def test_a_flight_too_many_or_missing_and_a_torn_batch_are_found() -> None:
    whole = Found.of([increment(1, "a"), increment(2, "b")])
    for other in ([increment(1, "a")], [increment(1, "a"), increment(2, "b"), increment(2, "c")]):
        assert list(sum_differences(whole.sums, Found.of(other).sums, "the topic")) != []
    torn = Found.of([increment(3, "a", flights=2)])
    assert list(sum_differences(whole.sums, torn.sums, "the topic")) == []
    assert list(transaction_differences(whole.rows, torn.rows)) != []


def test_files_that_sparks_log_does_not_name_do_not_count(tmp_path: Path) -> None:
    log = tmp_path / "_spark_metadata"
    assert of_parquet(tmp_path).flights == 0
    log.mkdir()
    first = rows(tmp_path, "part-1.parquet", increment(1, "a"))
    second = rows(tmp_path, "part-2.parquet", increment(2, "b"), increment(3, "b"))
    rows(tmp_path, "part-of-a-killed-attempt.parquet", increment(2, "b"))
    (log / "8").write_text(f"v1\n{first}\n")
    (log / "9.compact").write_text(f"v1\n{first}\n{second}\n")
    (log / ".10.tmp").write_text("v1\n")
    (log / "10").write_text(f"v1\n{rows(tmp_path, 'part-3.parquet', increment(4, 'c'))}\n")
    found = of_parquet(tmp_path)
    assert (found.flights, found.rows) == (4, {"a": 1, "b": 2, "c": 1})
    assert found.sums[GROUP].row_ids == 10
