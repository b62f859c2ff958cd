"""Keeps the newest message of every key of a DataFrame with the source's columns: the merge rule of compaction.

    newest_per_key(spark.read.format("txnstore").option("compacted", "true")….load())      the state of a keyed topic

Why (segment id, position, sequence id) is the order of a key's messages: see `pyspark_txnstore.source.compacted`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

NEEDED: Final = ("topic", "key", "value", "segment", "position", "sequence_id")


def newest_per_key(rows: DataFrame, *, with_deletions: bool = False) -> DataFrame:
    """Returns the newest row of each key in each topic, unchanged; rows without a key all stay.

    A row with an empty value deletes its key: the key's older rows go, and the row itself unless `with_deletions`.
    Raises `InvalidArgument` if columns in `NEEDED` are missing."""
    from pyspark.sql import functions as F

    from txnwire.errors import InvalidArgument

    if missing := [name for name in NEEDED if name not in rows.columns]:
        raise InvalidArgument(f"the newest row of a key takes the columns {', '.join(missing)}, too")
    # One pass, also for rows without a key: each of them is a group of its own.
    alone = F.when(F.col("key").isNull(), _place())
    newest = (
        rows.groupBy("topic", "key", alone.alias("alone"))
        .agg(F.max_by(F.struct(*rows.columns), _place()).alias("newest"))
        .select("newest.*")
    )
    return newest if with_deletions else newest.where(F.col("key").isNull() | (F.length("value") > 0))


def _place() -> Column:
    """The row's place among the rows of its topic and key; no two rows of a topic share one."""
    from pyspark.sql import functions as F

    position = F.split("position", ":")
    return F.struct(
        F.substring_index("segment", "-", -1).cast("long").alias("segment_id"),
        position[0].cast("long").alias("ledger_id"),
        position[1].cast("long").alias("entry_id"),
        F.col("sequence_id").cast("long").alias("sequence_id"),
    )
