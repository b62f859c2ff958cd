"""Computes how much the flights of a micro-batch add to the statistics of each carrier at each airport.

Each row is an increment. Increments add up in any order, from any number of tasks and micro-batches, to exactly the
totals of all flights if each flight was counted once. So the flights alone reveal a missing or repeated row. Running
totals, of which the newest wins, would hide it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

FLIGHT: Final = "row_id LONG, carrier STRING, tailnum STRING, dest STRING, arr_delay DOUBLE"
"""Fields read from a flight's JSON. `arr_delay`: minutes; null for a flight that never arrived."""

GROUP: Final = ("carrier", "airline", "airport")
"""An increment's key; `airport` is the destination, `airline` the carrier's name."""

SUMS: Final = ("flights", "arrived", "delayed", "delay_minutes", "seats", "row_ids")
"""`delayed`: arrived late, by any time. `delay_minutes`: of arrived flights; an early arrival counts against it.
`seats`: of known aircraft. `row_ids`: sum of the flights' numbers in the data file."""

STATISTIC: Final = ", ".join([*(f"{name} STRING" for name in GROUP), *(f"{name} LONG" for name in SUMS)])


def flights_of(messages: DataFrame) -> DataFrame:
    """Parses flights from the column `value` of their topic. A value that is no flight fails the query; it is not
    skipped."""
    from pyspark.sql import functions as F

    flight = F.from_json(F.col("value").cast("string"), FLIGHT, {"mode": "FAILFAST"})
    return messages.select(flight.alias("flight")).select("flight.*")


def joined(flights: DataFrame, airlines: DataFrame, planes: DataFrame) -> DataFrame:
    """Makes each flight an increment of its own, with its airline's name and its aircraft's seats. Airlines and planes
    are small and not streams; an unlisted one loses no flight."""
    from pyspark.sql import functions as F

    names = airlines.select("carrier", F.col("name").alias("airline")).dropDuplicates(["carrier"])
    seats = planes.select("tailnum", F.col("seats").cast("long").alias("seats")).dropDuplicates(["tailnum"])
    known = flights.join(F.broadcast(names), "carrier", "left").join(F.broadcast(seats), "tailnum", "left")
    late: Column = F.col("arr_delay")
    return known.select(
        "carrier",
        F.coalesce("airline", "carrier").alias("airline"),
        F.col("dest").alias("airport"),
        F.lit(1).cast("long").alias("flights"),
        late.isNotNull().cast("long").alias("arrived"),
        F.coalesce((late > 0).cast("long"), F.lit(0)).alias("delayed"),
        F.coalesce(late.cast("long"), F.lit(0)).alias("delay_minutes"),
        F.coalesce("seats", F.lit(0)).alias("seats"),
        F.col("row_id").alias("row_ids"),
    )


def increments(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Adds up flights or increments: one row for each carrier at each airport. For `DataFrame.mapInArrow`: each task
    adds up its own rows, without a shuffle and without state between micro-batches. Memory holds one row per group, and
    one batch."""
    import pyarrow as pa

    total: pa.Table | None = None
    for batch in batches:
        part = _added_up(pa.Table.from_batches([batch]))
        total = part if total is None else _added_up(pa.concat_tables([total, part]))
    if total is not None:
        yield from total.to_batches()


def _added_up(rows: pa.Table) -> pa.Table:
    sums = rows.group_by(list(GROUP)).aggregate([(name, "sum") for name in SUMS])
    columns = [*GROUP, *(f"{name}_sum" for name in SUMS)]
    return sums.select(columns).rename_columns([*GROUP, *SUMS])


def as_messages(statistics: DataFrame) -> DataFrame:
    """Columns `key` ("UA/ORD") and `value` (JSON), as the sink takes them."""
    from pyspark.sql import functions as F

    return statistics.select(
        F.concat_ws("/", "carrier", "airport").cast("binary").alias("key"),
        F.to_json(F.struct(*GROUP, *SUMS)).cast("binary").alias("value"),
    )


def statistics_of(messages: DataFrame) -> DataFrame:
    """Parses increments from the columns `value` and `txn_id` of their topic."""
    from pyspark.sql import functions as F

    statistic = F.from_json(F.col("value").cast("string"), STATISTIC, {"mode": "FAILFAST"})
    return messages.select(statistic.alias("statistic"), "txn_id").select("statistic.*", "txn_id")
