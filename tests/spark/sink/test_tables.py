"""What is refused of tables, without Spark: with the options and properties that it hands over (see test_sql.py)."""

from __future__ import annotations

import pytest

from pyspark_txnstore.sink.tables import check_columns, refuse_new_table, refuse_no_options, refuse_table
from txnwire.errors import InvalidArgument

TOPIC = {"service.url": "txn://127.0.0.1:6650", "topic": "topic://public/shop/orders"}


def test_the_options_of_a_table_that_is_created_are_refused() -> None:
    created = {**TOPIC, "provider": "txnstore", "owner": "ann", **{f"option.{name}": TOPIC[name] for name in TOPIC}}
    with pytest.raises(InvalidArgument, match="CREATE TEMPORARY VIEW"):
        refuse_table(created)
    refuse_table(TOPIC)


@pytest.mark.parametrize("options", [{}, {"checkpointLocation": "/checkpoint"}, {"queryname": "q"}])
def test_a_query_without_any_option_is_told_where_they_belong(options: dict[str, str]) -> None:
    with pytest.raises(InvalidArgument, match="WITH"):
        refuse_no_options(options)
    refuse_no_options(options | TOPIC)


@pytest.mark.parametrize(
    ("properties", "refused"),
    [
        ({}, False),
        ({"spark.sql.execution.id": "7"}, False),
        ({"spark.sql.execution.id": "7", "spark.sql.execution.root.id": "7"}, False),
        ({"spark.sql.execution.id": "8", "spark.sql.execution.root.id": "7"}, True),
        ({"spark.sql.execution.id": "8", "spark.sql.execution.root.id": "7", "sql.streaming.queryId": "q"}, False),
    ],
)
def test_a_write_within_another_statement_is_that_of_a_new_table(properties: dict[str, str], refused: bool) -> None:
    if not refused:
        refuse_new_table(properties.get)
        return
    with pytest.raises(InvalidArgument, match="saveAsTable"):
        refuse_new_table(properties.get)


def test_only_the_columns_that_are_named_are_written() -> None:
    check_columns(["Value", "key"], ("key", "value"))
    check_columns(["Value", "key"], None)
    with pytest.raises(InvalidArgument, match="`topic`"):
        check_columns(["value", "topic"], ("key", "value"))
