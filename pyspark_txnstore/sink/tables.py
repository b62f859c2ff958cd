"""Refuses, with clear errors, the tables of Spark's catalog, which a source in Python cannot support. Pure.

Spark keeps a table's options to itself and passes only those of a query. It writes the rows of a new table like any
others: a topic with rows would get them appended, in whatever mode.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from pyspark_txnstore.sink.batch_names import QUERY_ID
from txnwire.errors import InvalidArgument

EXECUTION_ID: Final = "spark.sql.execution.id"
ROOT_ID: Final = "spark.sql.execution.root.id"
"""Spark's local properties for the statement of a job, and for the one around it."""

_OF_A_TABLE: Final = "provider"
"""Spark adds it to the options only while it creates a table."""

_OF_SPARK: Final = frozenset({"checkpointlocation", "queryname"})


def refuse_table(options: Mapping[str, str]) -> None:
    """Raises `InvalidArgument` for the options of a table that is being created."""
    if _OF_A_TABLE in {name.lower() for name in options}:
        raise InvalidArgument(
            "txnstore has no tables: Spark would keep these options, and hand them to no query. Say CREATE TEMPORARY "
            "VIEW name USING txnstore OPTIONS (…), which is read and inserted into like a table"
        )


def refuse_no_options(options: Iterable[str]) -> None:
    """Raises `InvalidArgument` if a query has no options at all, as a table's query."""
    if {name.lower() for name in options} <= _OF_SPARK:
        raise InvalidArgument(
            "there are no options: Spark hands over those of the query, none of a table. Say SELECT … FROM name WITH "
            "(`service.url` '…', topic '…'), INSERT INTO name WITH (…), or use a temporary view in place of the table"
        )


def refuse_new_table(property_of: Callable[[str], str | None]) -> None:
    """Raises `InvalidArgument` in a task that writes rows of a new table; `property_of`: Spark's local properties.

    ▲ `saveAsTable` in the modes `error` and `ignore`, and `create()`, would append to the topic: Spark asks only its
    catalog whether the table exists, and does not tell the source.

    But the writing statement runs within the one that creates the table. A write in a `foreachBatch` likewise runs
    within its batch."""
    execution, root = property_of(EXECUTION_ID), property_of(ROOT_ID)
    if execution is None or root is None or execution == root or property_of(QUERY_ID) is not None:
        return
    raise InvalidArgument(
        "saveAsTable(), writeTo().create() and CREATE TABLE … AS SELECT would append to what the topic has already, in "
        "any mode, and leave a table that has no options: use write.mode('append').save(), or INSERT INTO a temporary "
        "view of the topic"
    )


def check_columns(given: Iterable[str], named: tuple[str, ...] | None) -> None:
    """Checks that rows of the columns `given` may be written with the option `columns`; None: it is not set."""
    if named is None:
        return
    names = {name.lower() for name in named}
    for name in given:
        if name.lower() not in names:
            raise InvalidArgument(f"column `{name}` is not one of the option 'columns', {', '.join(named)}")
