"""The Spark demo's verdict: what it must find, whichever row is missing or there twice."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txnctl.demo.flights import FLIGHTS_FILE, Flight, copy_data_files, read_flights
from txnctl.demo.spark.driver import batch_under_way
from txnctl.demo.spark.totals import (
    SHOWN,
    FlightTotals,
    Group,
    input_differences,
    sum_differences,
    transaction_differences,
)

ROWS = list(read_flights(400))


def totals(flights: list[Flight]) -> Mapping[Group, FlightTotals]:
    found: dict[Group, FlightTotals] = {}
    for one in flights:
        group, late = (one.carrier, "an airline", one.dest), one.arr_delay
        before = found.get(group, FlightTotals())
        found[group] = FlightTotals(
            flights=before.flights + 1,
            arrived=before.arrived + (late is not None),
            delayed=before.delayed + (late is not None and late > 0),
            delay_minutes=before.delay_minutes + int(late or 0),
            row_ids=before.row_ids + one.row_id,
        )
    return found


def test_what_is_right_is_no_difference() -> None:
    assert list(sum_differences(totals(ROWS), totals(ROWS[::-1]), "the topic")) == []


@given(st.integers(0, len(ROWS) - 1), st.integers(0, len(ROWS) - 1))
def test_one_flight_too_many_or_too_few_or_in_place_of_another_is_found(lost: int, doubled: int) -> None:
    without = [*ROWS[:lost], *ROWS[lost + 1 :]]
    (missing,) = sum_differences(totals(ROWS), totals(without), "the topic")
    assert "1 flight missing" in missing
    assert f"({ROWS[lost].carrier}) to {ROWS[lost].dest}" in missing
    (twice,) = sum_differences(totals(ROWS), totals([*ROWS, ROWS[doubled]]), "the topic")
    assert "1 flight too many" in twice
    replaced = list(sum_differences(totals(ROWS), totals([*without, ROWS[doubled]]), "the topic"))
    assert bool(replaced) == (lost != doubled)


def test_as_many_flights_that_are_others_are_told_by_what_differs() -> None:
    expected, found = (
        {("UA", "United", "ORD"): FlightTotals(2, row_ids=7)},
        {("UA", "United", "ORD"): FlightTotals(2, row_ids=8)},
    )
    (difference,) = sum_differences(expected, found, "the Parquet files")
    assert difference == (
        "the Parquet files: United (UA) to ORD: as many flights, but row_ids is 8, of the data file 7"
    )


def test_of_many_differences_a_few_are_told_and_how_many_more_there_are() -> None:
    many = {("UA", "United", f"A{number}"): FlightTotals(1) for number in range(SHOWN + 3)}
    told = list(sum_differences(many, {}, "the topic"))
    assert (len(told), told[-1]) == (SHOWN + 1, "the topic: … and 3 more like that")


@pytest.mark.parametrize(
    ("parquet", "said"),
    [
        ({"t1": 3, "t2": 4}, []),
        ({"t1": 3}, ["t2 has 4 increments in the topic, 0 in"]),
        ({"t1": 3, "t2": 8}, ["t2 has 4 increments in the topic, 8 in"]),
        ({"t1": 3, "t2": 4, "t3": 1}, ["t3 has 0 increments in the topic, 1 in"]),
        ({"t1": 3, "t2": 4, None: 1}, ["outside of any transaction there are 0 increments in the topic, 1 in"]),
        ({"t1": 4, "t2": 4, None: 1}, ["outside of any", "t1 has 3 increments in the topic, 4 in"]),
    ],
)
def test_a_micro_batch_that_is_not_whole_and_once_in_the_parquet_files_is_found(
    parquet: dict[str | None, int], said: list[str]
) -> None:
    told = list(transaction_differences({"t1": 3, "t2": 4}, parquet))
    assert [text in one for text, one in zip(said, told, strict=True)] == [True] * len(said)


def test_flights_that_were_loaded_twice_or_not_at_all_are_found_before_spark_is_blamed() -> None:
    assert list(input_differences(10, 10, 10)) == []
    assert list(input_differences(10, 9, 9)) == ["the flights' topic has 9 of the data file's 10 flights"]
    assert list(input_differences(10, 12, 10)) == ["the flights' topic has 2 flights more than once"]


def test_a_micro_batch_is_under_way_from_its_offsets_to_its_commit(tmp_path: Path) -> None:
    assert batch_under_way(tmp_path) is None
    for written, under_way in (("offsets/9", 9), ("offsets/.10.crc", 9), ("commits/9", None), ("offsets/10", 10)):
        (tmp_path / written).parent.mkdir(exist_ok=True)
        (tmp_path / written).touch()
        assert batch_under_way(tmp_path) == under_way


def test_the_copied_data_files_have_the_rows_that_are_loaded(tmp_path: Path) -> None:
    copy_data_files(tmp_path, 50)
    with gzip.open(tmp_path / FLIGHTS_FILE, "rt") as file:
        rows = list(csv.DictReader(file))
    assert [(row["carrier"], row["dest"]) for row in rows] == [(one.carrier, one.dest) for one in ROWS[:50]]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["airlines.csv", "flights.csv.gz", "planes.csv"]
