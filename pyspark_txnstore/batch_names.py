"""What the transaction of a write is called: the same for every attempt at the same rows, and for nothing else. Pure.

    a micro-batch   <sink>/<query id>/<batch id>
    a batch write   <sink>/<write id>

A query has its id from its checkpoint, so a fresh checkpoint under an old sink name begins other transactions, and a
restart begins those of before. Outcomes of names are kept for 30 days, the newest of each prefix for ever (DESIGN §10):
a query that comes back after a year still finds its last batch committed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from uuid import UUID

from txnwire.errors import InvalidArgument

STREAM_SINK: Final = "spark"
"""The name of a stream's sink that is given none. ▲ Not made of the checkpoint's location (API.md's default): a restart
may spell that otherwise, `ck/x` for `/data/ck/x`, or find it elsewhere, and would write its last batch, committed and
not yet noted by Spark, under another name: twice. The query's id, which stands in the checkpoint, is its alone."""

MAX_SINK_NAME_BYTES: Final = 300
"""Leaves room for ids in the 512 bytes of a transaction's name."""

MAX_WRITE_ID_BYTES: Final = 200

QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"
"""Properties of the task that Spark sets for each micro-batch; the query's id is the one kept in its checkpoint."""


def query_id(text: str) -> str:
    """It, if it is one that Spark gives. Raises `InvalidArgument`."""
    try:
        UUID(text)
    except ValueError:
        raise InvalidArgument(f"the query id {text!r} is not one that Spark gives: expected a UUID") from None
    return text


def micro_batch_name(sink: str, query: str, batch_id: int) -> str:
    """`query`: its id. Raises `InvalidArgument` if it is none."""
    return f"{sink}/{query_id(query)}/{batch_id}"


def micro_batch_of(properties: Mapping[str, str | None], sink: str) -> str:
    """The name of the micro-batch that a task with these properties belongs to. Raises `InvalidArgument`."""
    query, batch_id = properties.get(QUERY_ID), properties.get(BATCH_ID)
    if not query or batch_id is None or not batch_id.isdecimal():
        raise InvalidArgument(
            f"this task has {QUERY_ID}={query!r} and {BATCH_ID}={batch_id!r}, so it is not known which micro-batch "
            "it writes: the sink needs Structured Streaming's micro-batches (no continuous trigger)"
        )
    return micro_batch_name(sink, query, int(batch_id))


def write_name(sink: str, write_id: str) -> str:
    """Raises `InvalidArgument`."""
    length = len(write_id.encode())
    if not 0 < length <= MAX_WRITE_ID_BYTES:
        raise InvalidArgument(f"writeId has {length} bytes: expected 1 to {MAX_WRITE_ID_BYTES}, e.g. day-2026-11-21")
    return f"{sink}/{write_id}"


def sink_name(given: str | None, default: str) -> str:
    """The name of a sink: as given, or the default. Raises `InvalidArgument`."""
    name = default if given is None else given
    length = len(name.encode())
    if not 0 < length <= MAX_SINK_NAME_BYTES:
        raise InvalidArgument(f"sinkName has {length} bytes: expected 1 to {MAX_SINK_NAME_BYTES}, e.g. delays-by-hour")
    return name
