"""What Spark's catalog asks of a source in Python, and what it keeps from it: here it is refused in words. Pure.

Spark keeps the options of a table, and hands over those of a query alone. It writes the rows of a new table like any
others: a topic that has rows already would get them behind its own, in whatever mode.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from pyspark_txnstore.sink.batch_names import QUERY_ID
from txnwire.errors import InvalidArgument

EXECUTION_ID: Final = "spark.sql.execution.id"
ROOT_ID: Final = "spark.sql.execution.root.id"
"""Of the statement that a job belongs to, and of the one around it: Spark's local properties."""

_OF_A_TABLE: Final = "provider"
"""Spark adds it to the options where a table is being created, and nowhere else."""

_OF_SPARK: Final = frozenset({"checkpointlocation", "queryname"})


def refuse_table(options: Mapping[str, str]) -> None:
    """Raises `InvalidArgument` for the options of a table that is being created."""
    if _OF_A_TABLE in {name.lower() for name in options}:
        raise InvalidArgument(
            "txnstore has no tables: Spark would keep these options, and hand them to no query. Say CREATE TEMPORARY "
            "VIEW name USING txnstore OPTIONS (…), which is read and inserted into like a table"
        )


def refuse_no_options(options: Iterable[str]) -> None:
    """Raises `InvalidArgument` where a query has none at all, as that of a table has."""
    if {name.lower() for name in options} <= _OF_SPARK:
        raise InvalidArgument(
            "there are no options: Spark hands over those of the query, none of a table. Say SELECT … FROM name WITH "
            "(`service.url` '…', topic '…'), INSERT INTO name WITH (…), or use a temporary view in place of the table"
        )


def refuse_new_table(property_of: Callable[[str], str | None]) -> None:
    """Raises `InvalidArgument` in a task whose rows are to be those of a new table; `property_of`: Spark's local ones.

    ▲ `saveAsTable` in the modes `error` and `ignore`, and `create()`, would append to what the topic has: Spark asks
    its catalog whether the table exists, and never the source. It tells the source nothing of this, but the statement
    that writes runs within the one that creates the table. So does a write in a `foreachBatch`, within its batch."""
    execution, root = property_of(EXECUTION_ID), property_of(ROOT_ID)
    if execution is None or root is None or execution == root or property_of(QUERY_ID) is not None:
        return
    raise InvalidArgument(
        "saveAsTable(), writeTo().create() and CREATE TABLE … AS SELECT would append to what the topic has already, in "
        "any mode, and leave a table that has no options: use write.mode('append').save(), or INSERT INTO a temporary "
        "view of the topic"
    )


def check_columns(given: Iterable[str], named: tuple[str, ...] | None) -> None:
    """Whether rows of the columns `given` may be written where the option `columns` names some; None: it does not."""
    if named is None:
        return
    names = {name.lower() for name in named}
    for name in given:
        if name.lower() not in names:
            raise InvalidArgument(f"column `{name}` is not one of the option 'columns', {', '.join(named)}")
