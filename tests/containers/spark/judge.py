"""What the flights job has counted, against the data files: computed here in plain Python, without Spark."""

from __future__ import annotations

import csv
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pyarrow.parquet

import txnclient
from txnctl.demo.flights import AIRLINES_FILE, FLIGHTS, PLANES_FILE, Flight
from txnctl.demo.spark.places import STATISTICS
from txnctl.demo.spark.totals import (
    FlightTotals,
    Group,
    input_differences,
    sum_differences,
    transaction_differences,
)


class Increment(msgspec.Struct):
    """One message of the statistics, one row of the Parquet files."""

    carrier: str
    airline: str
    airport: str
    flights: int
    arrived: int
    delayed: int
    delay_minutes: int
    seats: int
    row_ids: int
    txn_id: str | None = None


@dataclass
class Found:
    sums: dict[Group, FlightTotals] = field(default_factory=dict)
    rows: Counter[str | None] = field(default_factory=Counter)
    """By transaction."""

    @property
    def flights(self) -> int:
        return sum(one.flights for one in self.sums.values())

    @staticmethod
    def of(increments: Iterable[Increment]) -> Found:
        sums: dict[Group, list[int]] = defaultdict(lambda: [0] * 6)
        found = Found()
        for one in increments:
            total = sums[one.carrier, one.airline, one.airport]
            for place, name in enumerate(FlightTotals.__struct_fields__):
                total[place] += getattr(one, name)
            found.rows[one.txn_id] += 1
        found.sums = {group: FlightTotals(*total) for group, total in sums.items()}
        return found


def expected(flights: Iterable[Flight], folder: Path) -> Mapping[Group, FlightTotals]:
    """Of the rows of the data file, with the airlines and planes of the folder."""
    airlines = {row["carrier"]: row["name"] for row in _rows(folder / AIRLINES_FILE)}
    seats = {row["tailnum"]: int(row["seats"]) for row in _rows(folder / PLANES_FILE) if row["seats"] != "NA"}
    return Found.of(_counted(one, airlines, seats) for one in flights).sums


def _rows(path: Path) -> Iterator[dict[str, str]]:
    with path.open(newline="") as file:
        yield from csv.DictReader(file)


def _counted(flight: Flight, airlines: Mapping[str, str], seats: Mapping[str, int]) -> Increment:
    late = None if flight.arr_delay is None else int(flight.arr_delay)
    return Increment(
        carrier=flight.carrier,
        airline=airlines[flight.carrier],
        airport=flight.dest,
        flights=1,
        arrived=int(late is not None),
        delayed=int(late is not None and late > 0),
        delay_minutes=late or 0,
        seats=seats.get(flight.tailnum or "", 0),
        row_ids=flight.row_id,
    )


async def of_topic(client: txnclient.Client) -> Found:
    async with await client.reader(STATISTICS, start="earliest", end="latest") as reader:
        read = [(message.value, str(message.txn_id)) async for message in reader]
    decoded = [msgspec.json.decode(value, type=Increment) for value, _ in read]
    for one, (_, txn) in zip(decoded, read, strict=True):
        one.txn_id = txn
    return Found.of(decoded)


def of_parquet(folder: Path) -> Found:
    """Of the files that Spark's own log in the folder names: others are of attempts that were killed."""
    return Found.of(
        msgspec.convert(row, Increment)
        for name in _files(folder / "_spark_metadata")
        for row in pyarrow.parquet.ParquetFile(folder / name).read().to_pylist()
    )


def _files(log: Path) -> Iterator[str]:
    """Each batch has a file; every tenth holds all before it too, and is named so."""
    if not log.is_dir():
        return
    numbers = {int(one.name.partition(".")[0]): one for one in log.iterdir() if not one.name.startswith(".")}
    compact = max((number for number, one in numbers.items() if one.suffix == ".compact"), default=0)
    for number in sorted(numbers):
        if number >= compact:
            for line in numbers[number].read_text().splitlines()[1:]:
                yield Path(json.loads(line)["path"]).name


async def loaded(client: txnclient.Client) -> tuple[int, int]:
    """Messages in the topic of flights, and of how many rows of the data file they are."""
    async with await client.reader(FLIGHTS, start="earliest", end="latest") as reader:
        rows = [msgspec.json.decode(message.value, type=Flight).row_id async for message in reader]
    return len(rows), len(dict.fromkeys(rows))


async def differences(client: txnclient.Client, flights: list[Flight], folder: Path, parquet: Path) -> list[str]:
    """What is wrong, in words; none where each flight is counted once, and each micro-batch is whole."""
    wanted, topic, kept = expected(flights, folder), await of_topic(client), of_parquet(parquet)
    return [
        *input_differences(len(flights), *await loaded(client)),
        *sum_differences(wanted, topic.sums, "the topic"),
        *sum_differences(wanted, kept.sums, "the Parquet files"),
        *transaction_differences(topic.rows, kept.rows),
    ]
