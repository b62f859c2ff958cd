"""The arithmetic of the Spark demo's verdict, without Spark: compares totals of the data file with what was found.

    expected    sums per carrier and airport, of the data file
    found       sums of all increments in the topic, and of all in the Parquet files

A flight counted twice, or not at all, changes the sums of its group, which include its number in the data file. A
micro-batch written twice, or in part, changes them, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice

import msgspec

SHOWN = 5

Group = tuple[str, str, str]
"""Carrier, airline, airport."""


class FlightTotals(msgspec.Struct, frozen=True):
    """As in `pyspark_txnstore.jobs.flight_statistics`, summed."""

    flights: int = 0
    arrived: int = 0
    delayed: int = 0
    delay_minutes: int = 0
    seats: int = 0
    row_ids: int = 0


class SparkDemoFindings(msgspec.Struct):
    """`increments`: rows in the topic, from `transactions`, the number of non-empty micro-batches. `differences`: what
    is wrong, in words, a few of each kind; empty is the only good verdict."""

    flights: int = 0
    groups: int = 0
    increments: int = 0
    transactions: int = 0
    differences: list[str] = msgspec.field(default_factory=list)


def input_differences(flights: int, messages: int, distinct: int) -> Iterator[str]:
    """Checks the topic of flights that the demo loaded: `messages` in it, of `distinct` rows of the data file."""
    if distinct != flights:
        yield f"the flights' topic has {distinct:,} of the data file's {flights:,} flights"
    if messages != distinct:
        yield f"the flights' topic has {messages - distinct:,} flights more than once"


def sum_differences(
    expected: Mapping[Group, FlightTotals], found: Mapping[Group, FlightTotals], where: str
) -> Iterator[str]:
    """`where`: the topic, or the Parquet files."""
    wrong = [group for group in sorted(expected.keys() | found.keys()) if expected.get(group) != found.get(group)]
    for group in wrong[:SHOWN]:
        carrier, airline, airport = group
        about = f"{airline} ({carrier}) to {airport}"
        yield f"{where}: {about}: {_difference(expected.get(group, FlightTotals()), found.get(group, FlightTotals()))}"
    if len(wrong) > SHOWN:
        yield f"{where}: … and {len(wrong) - SHOWN} more like that"


def _difference(expected: FlightTotals, found: FlightTotals) -> str:
    surplus = found.flights - expected.flights
    if surplus:
        much = f"{abs(surplus):,} flight{'s' * (abs(surplus) != 1)} {'too many' if surplus > 0 else 'missing'}"
        return f"{much}: {found.flights:,}, the data file has {expected.flights:,}"
    unequal = [name for name in FlightTotals.__struct_fields__ if getattr(expected, name) != getattr(found, name)]
    told = [f"{name} is {getattr(found, name):,}, of the data file {getattr(expected, name):,}" for name in unequal]
    return "as many flights, but " + ", ".join(told)


def transaction_differences(topic: Mapping[str | None, int], parquet: Mapping[str | None, int]) -> Iterator[str]:
    """Increments of each transaction, by its id: the Parquet files must have each one whole and once, or not at all.
    None: messages sent outside of transactions."""
    wrong = [txn for txn in topic.keys() | parquet.keys() if topic.get(txn, 0) != parquet.get(txn, 0)]
    for txn in islice(sorted(wrong, key=lambda txn: txn or ""), SHOWN):
        whose = "outside of any transaction there are" if txn is None else f"the micro-batch of transaction {txn} has"
        yield f"{whose} {topic.get(txn, 0):,} increments in the topic, {parquet.get(txn, 0):,} in the Parquet files"
